"""The words of a report as frozen records; plain data in, plain data out, no torch.

Everything between sensing and telling passes through these records. They hold text and
numbers only, never an object of the user's program, so keeping a report keeps nothing alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from memguard.errors import ReportError
from memguard.failures import Failure
from memguard.ledgers import Ledger
from memguard.plain import from_plain, to_plain

SCHEMA = "memguard.report/1"

Verdict = Literal["leak", "suspect", "clean"]
Severity = Literal["leak", "warning", "info"]
Kind = Literal["graph", "tensor", "cycle", "host", "worker", "reserved", "stale", "grad"]


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is retained, or retained a step.

    Attributes:
        graphs: past steps' graphs (for `tensor` and `cycle`: tensors).
        nodes: autograd nodes.
        bytes: bytes of tensor storage, each storage counted once.
    """

    graphs: float = 0.0
    nodes: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Growth:
    """What a finding adds each step, and what has gathered so far."""

    per_step: Amount = Amount()
    total: Amount = Amount()


@dataclass(frozen=True, slots=True)
class Forecast:
    """Steps until `limit` bytes at the present growth, with a range.

    Attributes:
        steps, low, high: steps left, and the fewest and most there may be.
        limit: bytes that are run into.
        device: whose memory that is; empty for the host's.
        seconds: time left at the pace of late; None when it was not measured.
    """

    steps: int
    low: int
    high: int
    limit: int
    device: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One line of the user's source."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Holder:
    """The object a user can name that keeps survivors, and the statement that makes it grow.

    Attributes:
        name: what the user typed: `total_loss`, `self.history`, `cache`.
        where: in words: `local of train_epoch`, `global of train`, `attribute of Trainer`.
        file: file of the statement, as Python knows it; None when there is no source.
        line: first line of the statement; None when it was not found.
        code: the statement as written, without indentation.
        type: type of the holder: `list`, `Tensor`, `deque`.
        survivors: graphs or tensors it keeps.
        bytes: bytes those keep.
        chain: references from a root to the survivors, one a line, root first.
        created: user's stack frames in which the survivor was made, innermost first.
        function: function the statement stands in; None at module level.
        context: source lines around the statement, the statement's own among them.
        why: one sentence: why this keeps memory.
        fix: the user's own line, rewritten; None when no line can be given.
        alternative: a second way, in words; None when there is none.
        bound: most entries this holder ever keeps; None when nothing bounds it.
        modules: Python modules of the classes and functions on the chain, root first.
    """

    name: str
    where: str
    file: str | None = None
    line: int | None = None
    code: str | None = None
    type: str = ""
    survivors: int = 0
    bytes: int = 0
    chain: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    function: str | None = None
    context: tuple[CodeLine, ...] = ()
    why: str = ""
    fix: str | None = None
    alternative: str | None = None
    bound: int | None = None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retention:
    """A library's retention that is known, from memguard's catalogue.

    Attributes:
        library: the distribution as pip names it.
        version: the version that is installed.
        why: what the library keeps, and until when.
        remedy: what a user can do.
        link: the public issue about it.
    """

    library: str
    version: str
    why: str
    remedy: str
    link: str


@dataclass(frozen=True, slots=True)
class Kept:
    """One object and who keeps it alive, as `memguard.why_alive` found it.

    Attributes:
        type: the object as a chain shows it: `Tensor float32 [16, 96]`, `Trainer`.
        holders: references that keep it, each with its chain; the user's own variables first.
        also: further references, a line each.
        others: references that are in neither.
        cycles: chains by which it refers back to itself; only a collection undoes those.
        complete: False when the search's budget ended before every chain had its root.
        hidden: whether C++ may hold it as well, where nobody can look (tensors, autograd nodes).
        frozen: objects that `gc.freeze()` has taken out of every search.
    """

    type: str
    holders: tuple[Holder, ...] = ()
    also: tuple[str, ...] = ()
    others: int = 0
    cycles: tuple[tuple[str, ...], ...] = ()
    complete: bool = True
    hidden: bool = False
    frozen: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The record as plain dicts, lists, text and numbers, ready for `json.dumps`."""
        plain: dict[str, Any] = to_plain(self)
        return plain


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of growth, with who holds it, what it costs and what to do.

    Attributes:
        reason: the judge's words: which counts led to this.
        saved_bytes: share of `growth.total.bytes` that is saved activations.
        steps: first and last step whose graphs or tensors survive.
        unnamed: why no holder is named although something in Python may hold them, as a sentence;
            empty when holders are named, and when only C++ holds them.
        known: the library's retention that this is; None where it is the user's own.
    """

    kind: Kind
    severity: Severity
    summary: str
    fingerprint: str
    first_step: int
    step: int
    growth: Growth = Growth()
    forecast: Forecast | None = None
    modules: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    advice: str = ""
    reason: str = ""
    saved_bytes: int = 0
    steps: tuple[int, int] | None = None
    unnamed: str = ""
    known: Retention | None = None


@dataclass(frozen=True, slots=True)
class Ignored:
    """A finding that the user has asked not to be told of.

    Attributes:
        finding: what was found.
        pattern: the pattern that matched it first.
        reason: the user's reason for the pattern; may be empty.
        where: file and line of the pattern; empty where it was given itself.
    """

    finding: Finding
    pattern: str
    reason: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Suppression:
    """A pattern of findings to leave out, and what came of it.

    Attributes:
        pattern: as written.
        used: findings it matched.
        reason: why, in the user's words; may be empty.
        where: file and line; empty where it was given itself.
    """

    pattern: str
    used: int
    reason: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a guard knows at one step; saves to JSON and loads back.

    Attributes:
        verdict: `leak`, `suspect` (growth seen, not confirmed) or `clean`.
        step: steps ended so far.
        findings: the user's own, most severe first.
        ledger: where memory is; without accounts where nothing was found and no file is written.
        clock: `beat` (`optimizer`, `forward`, `backward`, `manual` or `none`), `seconds_per_step`,
            and counts of the events seen.
        overhead: `share` of step time memguard itself took, `seconds` in all, `audits`.
        environment: versions, platform, process id and rank.
        memory: `host_bytes`, and one record for each device in use.
        failures: parts of memguard that were switched off, and why.
        libraries: what is known to be retained by a library, apart from the user's findings.
        ignored: findings that a suppression has left out.
        suppressions: each one in force, and how many findings it matched.
    """

    verdict: Verdict
    step: int
    findings: tuple[Finding, ...] = ()
    ledger: Ledger = Ledger()
    clock: Mapping[str, Any] = field(default_factory=dict)
    overhead: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    libraries: tuple[Finding, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    suppressions: tuple[Suppression, ...] = ()
    schema: str = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dicts, lists, text and numbers, ready for `json.dumps`."""
        plain: dict[str, Any] = {"schema": self.schema}
        plain.update(to_plain(self))
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that `to_dict` made; unknown fields of newer versions are passed over.

        Raises:
            ReportError: `data` is no memguard report, or a field has the wrong type.
        """
        if not isinstance(data, Mapping):
            raise ReportError(f"reading a report: found {type(data).__name__}, wanted an object")
        schema = data.get("schema")
        if schema != SCHEMA:
            raise ReportError(f"reading a report: schema is {schema!r}, wanted {SCHEMA!r}")
        return from_plain(cls, data, "report")
