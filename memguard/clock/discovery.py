"""Finding root modules and optimizers of a program that never mentions memguard."""

from __future__ import annotations

from typing import Any

from memguard import _torch
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
        if _torch.is_unused_container(module):
            pending.extend(_children(module))
        else:
            found.append(module)
    # Modules with parameters give the beat, so they come first; the order is otherwise kept.
    found.sort(key=lambda module: not has_parameters(module))
    return found


def has_parameters(module: Any) -> bool:
    """Whether the module or one below it has a parameter."""
    return next(iter(module.parameters()), None) is not None


def _children(module: Any) -> list[Any]:
    # A module half way through its __init__ has no `_modules` yet.
    children = module.__dict__.get("_modules") or {}
    return [child for child in children.values() if child is not None]


def parameter_ids(optimizer: Any) -> set[int]:
    """Identities of the parameters an optimizer steps; empty when it does not say."""
    try:
        groups = optimizer.param_groups
        return {id(parameter) for group in groups for parameter in group["params"]}
    except (AttributeError, KeyError, TypeError):
        return set()
