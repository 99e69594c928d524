"""What training will need, from a number of parameters, a data type and an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memguard.errors import UsageError
from memguard.judge.sharding import shard
from memguard.ledgers import Estimate, Part, Row, RowName

# Bytes of one number. Eight-bit optimizers keep a byte for each, and little beside.
BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
_SHORT = {
    "fp64": "float64",
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8": "float8_e4m3fn",
}

FIRST, SECOND, MOMENTUM = "first moments", "second moments", "momentum"

# States that each optimizer keeps for each parameter, each as large as the parameter, read off
# torch.optim 2.13 with the options it has by default. The names are torch's, in small letters.
STATES: Mapping[str, tuple[str, ...]] = {
    "adam": (FIRST, SECOND),
    "adamw": (FIRST, SECOND),
    "nadam": (FIRST, SECOND),
    "radam": (FIRST, SECOND),
    "adamax": (FIRST, SECOND),
    "amsgrad": (FIRST, SECOND, SECOND),
    "sparseadam": (FIRST, SECOND),
    "adam8bit": (FIRST, SECOND),
    "adamw8bit": (FIRST, SECOND),
    "lion8bit": (FIRST,),
    "adagrad": (SECOND,),
    "adadelta": (SECOND, SECOND),
    "rmsprop": (SECOND,),
    "rprop": ("other", "other"),
    "asgd": ("other",),
    "lion": (FIRST,),
    "muon": (MOMENTUM,),
    "sgd": (),
    "sgd-momentum": (MOMENTUM,),
}
# Eight-bit states lie in this type, as their owners keep them; and names of those that are moved to
# the host when a device is full begin with this.
_EIGHT_BIT, EIGHT_BIT_TYPE, _PAGED = "8bit", "uint8", "paged"


def dtype_name(name: object) -> str:
    """A data type as torch writes it: `bf16` is `bfloat16`, and so is `torch.bfloat16`.

    Raises:
        UsageError: there is no such type of numbers that models are trained in.
    """
    wanted = str(name).lower().removeprefix("torch.")
    wanted = _SHORT.get(wanted, wanted)
    if wanted not in BYTES:
        accepted = ", ".join([*BYTES, *_SHORT])
        raise UsageError(f"estimate: data type is {name!r}; accepted: {accepted}")
    return wanted


def states_of(optimizer: str) -> tuple[str, ...]:
    """The states an optimizer keeps for each parameter, each as large as the parameter.

    Raises:
        UsageError: nothing is known of such an optimizer.
    """
    states = STATES.get(optimizer.lower().replace("_", "").removeprefix(_PAGED))
    if states is None:
        more = f"and `{_PAGED}` before any of these"
        raise UsageError(
            f"estimate: optimizer is {optimizer!r}; accepted: {', '.join(STATES)}, {more}"
        )
    return states


def is_eight_bit(optimizer: str) -> bool:
    """Whether an optimizer of that name keeps its states in a byte a number."""
    return optimizer.lower().endswith(_EIGHT_BIT)


def estimate_of(
    parameters: int | float,
    optimizer: str = "adamw",
    dtype: object = "float32",
    *,
    masters: object = None,
    states: object = None,
    ranks: int = 1,
    stages: Sequence[int] = (),
    activations: int = 0,
) -> Estimate:
    """The bytes of training a model of so many parameters, by arithmetic alone.

    Adam in float32 takes 16 bytes a parameter: 4 each for parameter, gradient and two moments.

    Args:
        parameters: how many; all of them trained.
        optimizer: a name of `STATES`.
        dtype: data type of parameters and gradients.
        masters: data type of a second copy of the parameters that the optimizer steps; none
            when left out.
        states: data type of the optimizer's states; the masters' or the parameters' by default.
        ranks: ranks that share the states.
        stages: ZeRO stages to tell; 0 to 3 when there are several ranks and none is named.
        activations: bytes that one step keeps for its backward, as a ledger measured them.

    Raises:
        UsageError: a number or a name is not accepted.
    """
    count = _whole("parameters", parameters)
    width = dtype_name(dtype)
    master = dtype_name(masters) if masters else None
    kept = EIGHT_BIT_TYPE if is_eight_bit(optimizer) else dtype_name(states or master or width)
    sizes: dict[str, int] = {}
    for kind in states_of(optimizer):
        sizes[kind] = sizes.get(kind, 0) + count * BYTES[kept]
    by_dtype = {kept: sum(sizes.values())}
    if master is not None:
        sizes["master weights"] = count * BYTES[master]
        by_dtype[master] = by_dtype.get(master, 0) + count * BYTES[master]
    weights = Row("parameters", count * BYTES[width], count, {width: count * BYTES[width]})
    gradients = Row("gradients", count * BYTES[width], count, {width: count * BYTES[width]})
    parts = tuple(Part(kind, size) for kind, size in sizes.items())
    held = Row("optimizer", sum(sizes.values()), 0, by_dtype, parts=parts)
    notes = []
    if BYTES[width] == 2 and master is None:
        more = "the optimizer steps the 16-bit parameters themselves; float32 masters are apart"
        notes.append(f"{more}: `masters='float32'`, `--masters fp32`")
    rows = [weights, gradients, held, Row("activations", activations)]
    return summed_up(count, rows, ranks, stages, notes)


def summed_up(
    count: int, rows: Sequence[Row], ranks: int, stages: Sequence[int], notes: Sequence[str] = ()
) -> Estimate:
    """The estimate that these rows make, with its stages.

    Raises:
        UsageError: `ranks` or a stage is not accepted.
    """
    ranks = _whole("ranks", ranks)
    if not set(stages) <= {0, 1, 2, 3}:
        raise UsageError(f"estimate: ZeRO stages are {tuple(stages)}; accepted: 0, 1, 2, 3")
    by_name: dict[RowName, int] = {row.name: row.bytes for row in rows}
    total = sum(by_name.values())
    kinds = [by_name.get(name, 0) for name in ("parameters", "gradients", "optimizer")]
    wanted = stages or ((0, 1, 2, 3) if ranks > 1 else ())
    told = tuple(
        shard(*kinds, ranks=ranks, stage=stage, rest=total - sum(kinds))
        for stage in sorted(set(wanted))
    )
    said = list(notes)
    if not by_name.get("activations"):
        said.append(
            "activations come on top, in proportion to the batch: measure them with "
            "memguard.ledger(model) between a forward and its backward"
        )
    if 3 in wanted:
        said.append("a rank gathers one block's parameters at a time at stage 3, on top of this")
    return Estimate(count, ranks, tuple(row for row in rows if row.bytes), total, told, tuple(said))


def _whole(what: str, number: int | float) -> int:
    accepted = "accepted: a whole number, 1 or more"
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 1 <= number < 1e18:
        raise UsageError(f"estimate: {what} is {number!r}; {accepted}")
    if number != int(number):
        raise UsageError(f"estimate: {what} is {number!r}; {accepted}")
    return int(number)
