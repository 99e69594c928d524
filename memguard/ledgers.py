"""The words of a ledger as frozen records: where memory is, what it could be, and what would help.

Like the records of a report they hold text and numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from memguard.plain import to_plain

RowName = Literal[
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "retained",
    "buffers",
    "other",
    "pinned",
    "shared",
    "nodes",
    "unexplained",
    "cache",
    "children",
]

# In the order in which they are told.
ROW_NAMES: tuple[RowName, ...] = get_args(RowName)

HOST = "cpu"

LeverName = Literal[
    "fix the leak",
    "smaller batch",
    "checkpointing",
    "attention",
    "bf16",
    "sharding",
    "offload",
    "expandable segments",
    "workers",
    "pinned memory",
]


@dataclass(frozen=True, slots=True)
class Holding:
    """What sensing found of one kind on one device; the judge adds these up to rows.

    Attributes:
        row: the row it belongs to.
        part: what within the row: a state's kind, a module, a type of tensor; may be empty.
        device: `cpu`, `cuda:0`, ...
        dtype: as torch writes it, without `torch.`.
        bytes: bytes of storage, each storage counted once.
        count: storages.
        pinned: bytes of it in page-locked memory of the host.
        shared: bytes of it in shared memory or mapped from a file.
    """

    row: RowName
    part: str
    device: str
    dtype: str
    bytes: int
    count: int = 1
    pinned: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Stray:
    """States that an optimizer keeps for parameters that are not trained here.

    Attributes:
        optimizer: its class.
        why: `gone` when its groups do not have them any more, `another's` when no module has.
        parameters: how many.
        bytes: what their states take.
        whole: what all of its states take.
    """

    optimizer: str
    why: Literal["gone", "another's"]
    parameters: int
    bytes: int
    whole: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a row: first moments, one module's activations, one holder, one child process.

    Attributes:
        holder: for the largest of the other tensors, the variable that holds one of them.
    """

    name: str
    bytes: int
    count: int = 0
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of memory on one device.

    Attributes:
        name: `parameters`, `gradients`, `optimizer`, `activations` (saved by the current graph),
            `retained` (saved by graphs of past steps), `buffers`, `other` (tensors), `pinned` and
            `shared` (other tensors in page-locked, shared or mapped memory), `nodes` (autograd
            nodes, estimated), `unexplained` (what no row above explains; below 0 where more was
            counted than the allocator or the process has), `cache` (reserved by the allocator, not
            allocated), `children` (processes).
        bytes: bytes of storage, each counted once.
        count: storages, nodes or processes.
        dtypes: bytes by data type.
        pinned: bytes of it in page-locked memory of the host.
        parts: the largest parts, largest first; they need not add up to the row.
    """

    name: RowName
    bytes: int
    count: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    pinned: int = 0
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """One device's rows, or the host's; the rows add up to `total`.

    Attributes:
        device: `cpu` for the host, `cuda:0`, ...
        rows: in the order of `ROW_NAMES`; only what is there.
        total: bytes reserved by the device's allocator; for the host, private memory of the
            process with pinned and shared memory and its children's; without either, what was
            counted.
        allocated: bytes that the device's allocator has given out; None for the host.
        peak: most bytes it ever gave out, since somebody reset it; None where it is not told.
        private: the process's private memory, for the host; None for devices, or not known.
        limit: bytes there are in all; None when not known.
        retries: times the allocator had to free its cache and try again.
        inactive: bytes of the cache in free parts of blocks that are in use, which it cannot give
            back (inactive splits); 0 where it is not told.
    """

    device: str
    rows: tuple[Row, ...] = ()
    total: int = 0
    allocated: int | None = None
    peak: int | None = None
    private: int | None = None
    limit: int | None = None
    retries: int = 0
    inactive: int = 0

    def row(self, name: RowName) -> Row:
        """The row of this name; one of no bytes where there is none."""
        return next((row for row in self.rows if row.name == name), Row(name, 0))

    def bytes_of(self, *names: RowName) -> int:
        """Bytes of these rows together."""
        return sum(self.row(name).bytes for name in names)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where memory is at one moment, device by device; prints as a table.

    Attributes:
        accounts: devices first, the one with most memory before the others; the host last.
        complete: False when a budget ended the count before everything was met.
        notes: what could not be counted, and why, as sentences.
        step: steps that had ended when it was taken; 0 without a guard.
    """

    accounts: tuple[Account, ...] = ()
    complete: bool = True
    notes: tuple[str, ...] = ()
    step: int = 0

    def account(self, device: str = "") -> Account:
        """The account of a device; of the one with most memory when none is named.

        Args:
            device: `cpu` for the host, `cuda:0`, ...
        """
        wanted = (one for one in self.accounts if device in ("", one.device))
        return next(wanted, Account(device or HOST))

    def to_dict(self) -> dict[str, Any]:
        """The ledger as plain dicts, lists, text and numbers, ready for `json.dumps`."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def __str__(self) -> str:
        from memguard.report.ledger import render

        return render(self)


@dataclass(frozen=True, slots=True)
class Lever:
    """One way to need less memory, and the numbers that speak for it.

    Attributes:
        name: which way.
        device: where it helps.
        advice: what to do, as a sentence.
        reason: the shares that led to it, as a sentence.
        saves: bytes it would save, estimated; None when nobody can tell.
        numbers: the figures behind `reason`: bytes, counts and shares by name.
    """

    name: LeverName
    device: str
    advice: str
    reason: str
    saves: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """What one rank holds when a ZeRO stage shards the states.

    Attributes:
        stage: 0 (nothing is sharded) to 3 (all is).
        total: bytes of one rank, activations and buffers included.
        saves: bytes that one rank saves over stage 0.
    """

    stage: int
    parameters: int
    gradients: int
    optimizer: int
    total: int
    saves: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What training will need, by arithmetic; prints as a table.

    Attributes:
        parameters: how many parameters, as counted.
        ranks: ranks that share the states in `stages`.
        rows: bytes by kind on one rank that shards nothing.
        total: their sum.
        stages: one record for each stage that was asked for.
        notes: what the arithmetic leaves out, as sentences.
    """

    parameters: int
    ranks: int
    rows: tuple[Row, ...]
    total: int
    stages: tuple[Stage, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The estimate as plain dicts, lists, text and numbers, ready for `json.dumps`."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def __str__(self) -> str:
        from memguard.report.estimate import render

        return render(self)
