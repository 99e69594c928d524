"""What a user hands over to be watched or counted: modules and optimizers, in any order."""

from __future__ import annotations

from typing import Any

from memguard import _torch
from memguard.errors import UsageError


def sorted_out(objects: tuple[Any, ...], caller: str) -> tuple[list[Any], list[Any]]:
    """(modules, optimizers) among the objects, and in lists of them.

    Args:
        objects: as the user gave them.
        caller: the function they were given to, for the message.

    Raises:
        UsageError: an object is neither module nor optimizer.
    """
    modules: list[Any] = []
    optimizers: list[Any] = []
    for position, item in enumerate(objects, start=1):
        parts = list(item) if type(item) in (list, tuple, set, frozenset) else [item]
        for part in parts:
            if part is None:
                continue
            if _torch.is_module(part):
                modules.append(part)
            elif _torch.is_optimizer(part) or _steps(part):
                optimizers.append(part)
            else:
                raise UsageError(
                    f"{caller}: argument {position} is {_shown(part)}; accepted are "
                    "torch.nn.Module, torch.optim.Optimizer, and lists of them"
                )
    return modules, optimizers


def _steps(value: Any) -> bool:
    """Whether a foreign object behaves like an optimizer (DeepSpeed's and 8-bit ones do)."""
    if isinstance(value, type):
        return False
    return callable(getattr(value, "step", None)) and hasattr(value, "param_groups")


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} (an instance is wanted)"
    kind = type(value).__name__
    if isinstance(value, str):
        return f"a str ({value[:40]!r})"
    return f"of type {kind}"
