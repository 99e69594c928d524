"""Parameters, gradients, buffers and optimizer states, each state by its kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from memguard import _storage, _torch
from memguard.ledgers import Stray
from memguard.sensors.holdings import Holdings

# How optimizers call their states: torch.optim 2.13, bitsandbytes, apex, DeepSpeed, transformers.
_KINDS = {
    "first moments": ("exp_avg", "grad_avg", "state1", "m", "mu"),
    "second moments": (
        *("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta"),
        *("row_var", "col_var", "variance", "exp_avg_sq_row", "exp_avg_sq_col", "state2", "v"),
    ),
    "momentum": ("momentum_buffer", "momentum", "velocity"),
    "master weights": (
        "master_param",
        "master_params",
        "master_weight",
        "fp32_param",
        "main_param",
    ),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
MASTERS, OTHER = "master weights", "other"

# Containers within a state are looked through this deep (the histories of LBFGS are lists).
_MAX_DEPTH = 3
# Wrappers around an optimizer: accelerate's, DeepSpeed's, schedulers of gradient scaling.
_INNER = ("optimizer", "base_optimizer", "init_optimizer")


def kind_of_state(name: object) -> str:
    """The kind of an optimizer's state by its name: `exp_avg` is first moments."""
    return _KIND_OF.get(name, OTHER) if isinstance(name, str) else OTHER


def unwrapped(optimizers: Iterable[Any]) -> list[Any]:
    """The optimizers with those that they wrap, each once."""
    found: dict[int, Any] = {}
    pending = list(optimizers)
    while pending:
        optimizer = pending.pop(0)
        if id(optimizer) in found:
            continue
        found[id(optimizer)] = optimizer
        attributes = getattr(optimizer, "__dict__", {})
        inner = (attributes.get(name) for name in _INNER)
        pending += [one for one in inner if one is not None and hasattr(one, "param_groups")]
    return list(found.values())


def claim_states(holdings: Holdings, modules: Iterable[Any], optimizers: Iterable[Any]) -> None:
    """Count what a loop is expected to keep: weights, their gradients, states and buffers.

    Of parameters that only an optimizer has, those wider than the modules' 16-bit ones are masters.
    """
    modules, optimizers = list(modules), unwrapped(optimizers)
    parameters = [p for module in modules for p in module.parameters()]
    for parameter in parameters:
        holdings.claim("parameters", "", parameter)
    half = any(_torch.is_half(parameter) for parameter in parameters)
    known = {id(parameter) for parameter in parameters}
    for parameter in _stepped(optimizers):
        if id(parameter) in known:
            continue
        known.add(id(parameter))
        parameters.append(parameter)
        is_master = half and not _torch.is_half(parameter)
        row, part = ("optimizer", MASTERS) if is_master else ("parameters", "")
        holdings.claim(row, part, parameter)  # type: ignore[arg-type]
    for parameter in parameters:
        gradient = _torch.gradient_of(parameter)
        if gradient is not None:
            holdings.claim("gradients", "", gradient)
    for kind, tensor in _states(optimizers):
        holdings.claim("optimizer", kind, tensor)
    for module in modules:
        for buffer in module.buffers():
            holdings.claim("buffers", "", buffer)


def stray_states(modules: Iterable[Any], optimizers: Iterable[Any]) -> list[Stray]:
    """What optimizers keep for nothing, as far as the modules say; without modules, their groups.

    Masters of 16-bit parameters are no module's either, and are as they should be. So are an
    optimizer's that are all of its own: it flattens or shards what it steps (ZeRO, Apex).

    Returns:
        One record for each optimizer and reason; those of no parameter left out.
    """
    modules = list(modules)
    trained = {id(p) for module in modules for p in module.parameters()}
    half = any(_torch.is_half(p) for module in modules for p in module.parameters())
    found: list[Stray] = []
    for optimizer in unwrapped(optimizers):
        own = {id(parameter) for parameter in _stepped([optimizer])}
        shared = own & trained
        gone, others, whole = [0, 0], [0, 0], 0
        for parameter, size in _sizes(optimizer):
            whole += size
            is_tensor = _torch.is_tensor_type(type(parameter))
            if id(parameter) not in own:
                kept = gone
            elif shared and id(parameter) not in trained and not (half and _is_wide(parameter)):
                kept = others
            else:
                continue
            if is_tensor:  # other keys are an optimizer's own business
                kept[0] += 1
                kept[1] += size
        name = type(optimizer).__name__
        whys: tuple[Literal["gone", "another's"], ...] = ("gone", "another's")
        for why, (count, size) in zip(whys, (gone, others), strict=True):
            found += [Stray(name, why, count, size, whole)] if count else []
    return found


def _is_wide(parameter: Any) -> bool:
    return not _torch.is_half(parameter)


def _sizes(optimizer: Any) -> Iterator[tuple[Any, int]]:
    """Each key of an optimizer's states with the bytes of its tensors."""
    states = getattr(optimizer, "state", None)
    for parameter, state in list(states.items()) if isinstance(states, dict) else ():
        tensors = _tensors(state)
        sizes = {one.key: one.bytes for t in tensors for one in _storage.storages_of(t)}
        yield parameter, sum(sizes.values())


def _stepped(optimizers: Iterable[Any]) -> Iterator[Any]:
    for optimizer in optimizers:
        for group in list(getattr(optimizer, "param_groups", ())):
            found = group.get("params", ()) if isinstance(group, dict) else ()
            yield from (p for p in list(found) if _torch.is_tensor_type(type(p)))


def _states(optimizers: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for optimizer in optimizers:
        states = getattr(optimizer, "state", None)
        if not isinstance(states, dict):
            continue
        for parameter, state in list(states.items()):
            if isinstance(state, dict):
                for name, value in list(state.items()):
                    for one in _tensors(value):
                        yield OTHER if _is_count(one, parameter) else kind_of_state(name), one
            else:
                yield from ((OTHER, one) for one in _tensors(state))


def _is_count(state: Any, parameter: Any) -> bool:
    """Whether a state is one number for all of a parameter: a step count, the `mu` of ASGD."""
    whole = _torch.is_tensor_type(type(parameter)) and parameter.dim() == 0
    return not whole and bool(state.dim() == 0)


def _tensors(value: Any, depth: int = 0) -> Iterator[Any]:
    if _torch.is_tensor_type(type(value)):
        yield value
    elif depth < _MAX_DEPTH and isinstance(value, (list, tuple, dict)):
        for item in list(value.values() if isinstance(value, dict) else value):
            yield from _tensors(item, depth + 1)
