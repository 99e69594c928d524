"""What an object of the user's consists of: the tensors that are its own, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memguard import _kinds


def tensors_of(item: Any) -> Iterator[Any]:
    """The tensor itself; a module's parameters, buffers and gradients; an optimizer's states.

    Read past what the classes define, so that nothing foreign is run.
    """
    door = _kinds.torch_door()
    if door is None:
        return
    if _kinds.is_tensor_type(type(item)):
        yield item
    elif _kinds.is_module(item):
        for tensor in (t for part in modules_of(item) for t in _own_tensors(part)):
            gradient = door.gradient_of(tensor)
            yield from (one for one in (tensor, gradient) if one is not None)
    elif _kinds.is_optimizer(item):
        yield from states_of(item)


def states_of(optimizer: Any) -> list[Any]:
    """The tensors that an optimizer keeps for its parameters, as far as it has the usual form."""
    state = _attribute(optimizer, "state")
    tables = list(state.values()) if isinstance(state, dict) else []
    values = [v for table in tables if isinstance(table, dict) for v in table.values()]
    return [one for one in values if _kinds.is_tensor_type(type(one))]


def stepped_by(optimizer: Any) -> Iterator[Any]:
    """The parameters that an optimizer steps, and their gradients."""
    door = _kinds.torch_door()
    for parameter in _parameters_of(optimizer):
        gradient = door.gradient_of(parameter)
        yield from (one for one in (parameter, gradient) if one is not None)


def _parameters_of(optimizer: Any) -> list[Any]:
    """As far as its groups have the usual form."""
    groups = _attribute(optimizer, "param_groups")
    usual = [one for one in groups if isinstance(one, dict)] if isinstance(groups, list) else []
    held = [group.get("params") for group in usual]
    values = [one for params in held if isinstance(params, list) for one in params]
    return [one for one in values if _kinds.is_tensor_type(type(one))]


def _attribute(optimizer: Any, name: str) -> Any:
    """An attribute, which wrappers of optimizers have as a property; None where it fails."""
    own = getattr(optimizer, "__dict__", {})
    if name in own:
        return own[name]
    try:
        return getattr(optimizer, name, None)
    except Exception:  # a property of the user's
        return None


def modules_of(module: Any) -> Iterator[Any]:
    """The module and all below it."""
    pending, seen = [module], {id(module)}
    while pending:
        part = pending.pop()
        yield part
        for child in _values(part, "_modules"):
            if id(child) not in seen:
                seen.add(id(child))
                pending.append(child)


def bytes_of(item: Any) -> int:
    """Bytes of the object's own tensors, each storage once; 0 for what has none."""
    with _kinds.without_overrides():
        return sum(dict(_kinds.storage_of(tensor) for tensor in tensors_of(item)).values())


def _own_tensors(module: Any) -> Iterator[Any]:
    yield from _values(module, "_parameters")
    yield from _values(module, "_buffers")


def _values(module: Any, name: str) -> list[Any]:
    table = module.__dict__.get(name)  # a module half way through its __init__ has none
    values = table.values() if isinstance(table, dict) else ()
    return [value for value in values if value is not None]
