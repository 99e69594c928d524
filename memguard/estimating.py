"""`estimate`: what training a model will need, read off the model or a number of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memguard import _kinds
from memguard.errors import UsageError
from memguard.judge.estimates import (
    BYTES,
    EIGHT_BIT_TYPE,
    FIRST,
    MOMENTUM,
    dtype_name,
    estimate_of,
    is_eight_bit,
    states_of,
    summed_up,
)
from memguard.ledgers import Estimate, Part, Row, RowName
from memguard.units import parse_size


def estimate(
    model: Any,
    optimizer: Any = "adamw",
    *,
    dtype: object = None,
    masters: object = None,
    states: object = None,
    ranks: int = 1,
    stages: Sequence[int] = (),
    activations: int | str = 0,
) -> Estimate:
    """Say what training will need before it runs: bytes by kind, and on each rank when sharded.

        >>> print(memguard.estimate(model, "adamw", ranks=8))
        >>> print(memguard.estimate(7e9, "adamw", dtype="bf16", masters="fp32"))

    Args:
        model: a module (on the meta device will do), or a number of parameters.
        optimizer: an optimizer, its class, or its name: `adamw`, `sgd`, `sgd-momentum`,
            `adam8bit`, ...
        dtype: data type of parameters and gradients (`bf16`, `torch.float32`); the model's own,
            or float32 for a number, when left out.
        masters: data type of a second copy of the parameters that the optimizer steps; none when
            left out.
        states: data type of the optimizer's states; that of what it steps when left out.
        ranks: ranks that share the states.
        stages: ZeRO stages to tell, 0 to 3; all of them when there are several ranks.
        activations: bytes that one step keeps for its backward (`2GiB`), as a ledger has measured.

    Returns:
        Rows that add up, and one record a stage; prints as a table.

    Raises:
        UsageError: an argument is not accepted.

    Costs no memory and runs nothing. Sources of the arithmetic: the states of torch.optim 2.13;
    Rajbhandari et al., "ZeRO", 2020, for the stages.
    """
    kept = _bytes(activations)
    if not _kinds.is_module(model):
        if not isinstance(model, (int, float)):
            raise UsageError(
                f"estimate: model is of type {type(model).__name__}; accepted: a torch.nn.Module "
                "or a number of parameters"
            )
        named = optimizer if isinstance(optimizer, str) else _names_of(_accepted(optimizer))[0]
        return estimate_of(
            model,
            named,
            dtype or "float32",
            masters=masters,
            states=states,
            ranks=ranks,
            stages=stages,
            activations=kept,
        )
    rows = _Model(model, optimizer, dtype, masters, states).rows()
    rows.append(Row("activations", kept))
    return summed_up(rows[0].count, rows, ranks, stages)


def _bytes(size: int | str) -> int:
    try:
        found = parse_size(size) if isinstance(size, str) else int(size)
    except (TypeError, ValueError) as error:
        raise UsageError(f"estimate: activations: {error}") from None
    if found < 0:
        raise UsageError(f"estimate: activations are {size!r}; accepted: 0 bytes or more")
    return found


class _Model:
    """The arithmetic of one module and its optimizer, each parameter by its own data type."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        dtype: object,
        masters: object,
        states: object,
    ) -> None:
        self._dtype = dtype_name(dtype) if dtype else None
        self._masters = dtype_name(masters) if masters else None
        self._states = dtype_name(states) if states else None
        self._parameters = _each_once(model.parameters())
        self._buffers = _each_once(model.buffers())
        self._groups = _groups(optimizer, [p for p in self._parameters if p.requires_grad])

    def rows(self) -> list[Row]:
        """Parameters, gradients, optimizer state and buffers."""
        trained = [p for p in self._parameters if p.requires_grad]
        own = {id(p) for p in self._parameters}
        apart = [p for _, group in self._groups for p in group if id(p) not in own]
        rows = [
            self._row("parameters", self._parameters),
            # What only the optimizer has are masters, into which gradients are copied.
            self._row("gradients", [*trained, *apart]),
            self._optimizer(apart),
            _of_dtypes(
                "buffers", [(_dtype(b), b.numel() * b.element_size()) for b in self._buffers]
            ),
        ]
        return rows

    def _row(self, name: RowName, tensors: Sequence[Any]) -> Row:
        sizes = [(self._dtype_of(p), self._size(p, self._dtype_of(p))) for p in tensors]
        row = _of_dtypes(name, sizes)
        return Row(name, row.bytes, sum(p.numel() for p in tensors), row.dtypes)

    def _dtype_of(self, tensor: Any) -> str:
        floating = tensor.dtype.is_floating_point
        return self._dtype if self._dtype and floating else _dtype(tensor)

    def _size(self, tensor: Any, dtype: str) -> int:
        each: int = BYTES.get(dtype, tensor.element_size())
        return each * int(tensor.numel())

    def _optimizer(self, apart: Sequence[Any]) -> Row:
        parts: dict[str, int] = {}
        sizes: list[tuple[str, int]] = []

        def keep(kind: str, dtype: str, size: int) -> None:
            parts[kind] = parts.get(kind, 0) + size
            sizes.append((dtype, size))

        for tensor in apart:
            keep("master weights", _dtype(tensor), tensor.numel() * tensor.element_size())
        for name, group in self._groups:
            for tensor in group:
                if self._masters:
                    keep("master weights", self._masters, self._size(tensor, self._masters))
                dtype = self._states or self._masters or self._dtype_of(tensor)
                dtype = EIGHT_BIT_TYPE if is_eight_bit(name[0]) else dtype
                for kind in name[1]:
                    keep(kind, dtype, self._size(tensor, dtype))
        row = _of_dtypes("optimizer", sizes)
        told = tuple(Part(kind, size) for kind, size in parts.items())
        return Row("optimizer", row.bytes, 0, row.dtypes, parts=told)


_Named = tuple[str, tuple[str, ...]]


def _groups(optimizer: Any, trained: list[Any]) -> list[tuple[_Named, list[Any]]]:
    """The parameters an optimizer steps, by its name and the states it keeps for each."""
    if isinstance(optimizer, str):
        return [((optimizer, states_of(optimizer)), trained)]
    if isinstance(_accepted(optimizer), type):
        return [(_names_of(optimizer), trained)]
    return [
        (_names_of(optimizer, group), _each_once(group["params"]))
        for group in optimizer.param_groups
    ]


def _accepted(optimizer: Any) -> Any:
    """An optimizer or the class of one.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(optimizer, type) or hasattr(optimizer, "param_groups"):
        return optimizer
    raise UsageError(
        f"estimate: optimizer is of type {type(optimizer).__name__}; accepted: an optimizer, its "
        "class, or the name of one"
    )


def _names_of(optimizer: Any, group: dict[str, Any] | None = None) -> _Named:
    """The optimizer's name, and the states its options make it keep."""
    options = group if group is not None else getattr(optimizer, "defaults", {})
    cls = optimizer if isinstance(optimizer, type) else type(optimizer)
    name = cls.__name__
    momentum = bool(options.get("momentum"))
    if name == "SGD":
        name = "sgd-momentum" if momentum else "sgd"
    elif options.get("amsgrad"):
        name = "amsgrad"
    states = states_of(name)
    if name == "RMSprop":
        states += ((MOMENTUM,) if momentum else ()) + ((FIRST,) if options.get("centered") else ())
    return name, states


def _each_once(tensors: Iterable[Any]) -> list[Any]:
    found = list({id(tensor): tensor for tensor in tensors}.values())
    for tensor in found:
        if "Uninitialized" in type(tensor).__name__:
            raise UsageError(
                "estimate: the model has lazy parameters, whose sizes are not known before the "
                "first batch; run one through it first"
            )
    return found


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _of_dtypes(name: RowName, sizes: Sequence[tuple[str, int]]) -> Row:
    dtypes: dict[str, int] = {}
    for dtype, size in sizes:
        dtypes[dtype] = dtypes.get(dtype, 0) + size
    return Row(name, sum(dtypes.values()), len(sizes), dtypes)
