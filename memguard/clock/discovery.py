"""Finding root modules and optimizers of a program that never mentions memguard."""

from __future__ import annotations

from typing import Any

from memguard import _modules, _torch
from memguard._heap import family, objects_of

# A program with more top-level modules than this (a service with many models) has those with the
# most children watched.
MAX_ROOTS = 64


def find() -> tuple[list[Any], list[Any]]:
    """(root modules, optimizers) that are alive (two passes, 60 ms each for a million objects).

    A root is a module that no other module contains. A container without forward (ModuleDict) is
    never called itself, so its children stand for it.
    """
    modules = objects_of(family(_torch.Module))
    optimizers = objects_of(family(_torch.Optimizer))
    contained = {id(child) for module in modules for child in _children(module)}
    roots = [module for module in modules if id(module) not in contained]
    return callable_roots(roots)[:MAX_ROOTS], optimizers


def callable_roots(roots: list[Any]) -> list[Any]:
    """The roots, with containers that have no forward replaced by what they contain."""
    found: list[Any] = []
    pending, seen = list(roots), set()
    while pending:
        module = pending.pop(0)
        if id(module) in seen:
            continue
        seen.add(id(module))
        if _modules.is_unused_container(module):
            pending.extend(_children(module))
        else:
            found.append(module)
    # Modules with parameters give the beat, so they come first; the order is otherwise kept.
    found.sort(key=lambda module: not has_parameters(module))
    return found


def has_parameters(module: Any) -> bool:
    """Whether the module or one below it has a parameter."""
    return bool(parameter_ids_of(module))


def is_training(module: Any) -> bool:
    """Whether the module is in training mode; read past properties its class may have."""
    return bool(module.__dict__.get("training", True))


def parameter_ids_of(module: Any) -> set[int]:
    """Identities of the parameters of the module and all below it.

    Read past its methods, which a user's class may have replaced.
    """
    found: set[int] = set()
    pending, seen = [module], set()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        parameters = _own(part, "_parameters")
        found |= {id(parameter) for parameter in parameters if parameter is not None}
        pending.extend(_children(part))
    return found


def identities_below(modules: list[Any]) -> set[int]:
    """Identities of the modules and of all below them."""
    found: set[int] = set()
    pending = list(modules)
    while pending:
        module = pending.pop()
        if id(module) not in found:
            found.add(id(module))
            pending.extend(_children(module))
    return found


def _children(module: Any) -> list[Any]:
    return [child for child in _own(module, "_modules") if child is not None]


def _own(module: Any, name: str) -> list[Any]:
    # A module half way through its __init__ has no such dict yet.
    values = module.__dict__.get(name)
    return list(values.values()) if isinstance(values, dict) else []


def parameter_ids(optimizer: Any) -> set[int]:
    """Identities of the parameters an optimizer steps; empty when it does not say."""
    try:
        groups = optimizer.param_groups
        return {id(parameter) for group in groups for parameter in group["params"]}
    except Exception:  # a foreign optimizer may do anything
        return set()
