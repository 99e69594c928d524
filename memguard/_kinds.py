"""What torch's objects are, asked without importing torch: where it is absent, nothing is one.

Chains to plain Python objects are told without torch. What is loaded already is asked through
`_torch`, the only door to it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_door: Any = None


def torch_door() -> Any:
    """The module `memguard._torch` when torch is loaded; None when it is not, or not yet whole."""
    global _door
    if _door is None and _is_loaded():
        try:
            from memguard import _torch

            _door = _torch
        except (ImportError, AttributeError):  # something else that is called torch
            return None
    return _door


def _is_loaded() -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return not getattr(getattr(torch, "__spec__", None), "_initializing", False)


def is_tensor_type(cls: type) -> bool:
    """Whether instances of `cls` are tensors; runs no code of the class."""
    door = torch_door()
    return door is not None and door.is_tensor_type(cls)


def is_module(value: object) -> bool:
    """Whether `value` is an nn.Module, judged by its real type."""
    door = torch_door()
    return door is not None and door.is_module(value)


def is_optimizer(value: object) -> bool:
    """Whether `value` is a torch.optim.Optimizer, judged by its real type."""
    door = torch_door()
    return door is not None and door.is_optimizer(value)


def caches_casts() -> bool:
    """Whether autocast is on in this thread, with its cache of parameters cast."""
    door = torch_door()
    return door is not None and door.caches_casts()


def is_parameter(value: object) -> bool:
    """Whether `value` is an nn.Parameter, judged by its real type."""
    door = torch_door()
    return door is not None and door.is_parameter(value)


def is_context(value: object) -> bool:
    """Whether `value` is the ctx of a custom autograd Function."""
    door = torch_door()
    return door is not None and door.is_context(value)


def is_node(value: object) -> bool:
    """Whether `value` is an autograd node, judged by its real type."""
    door = torch_door()
    return door is not None and door.is_node(value)


def is_attached(tensor: Any) -> bool:
    """Whether a tensor hangs on an autograd graph; makes no wrapper for its node."""
    door = torch_door()
    return door is not None and door.is_attached(tensor)


def gradient_of(tensor: Any) -> Any:
    """A leaf's gradient; None for other tensors."""
    door = torch_door()
    return None if door is None else door.gradient_of(tensor)


def storage_of(tensor: Any) -> tuple[int, int]:
    """(key, bytes) of a tensor's storage; equal keys are one storage, and (0, 0) is none."""
    if torch_door() is None:
        return 0, 0
    from memguard import _storage

    return _storage.storage_of(tensor)


def without_overrides() -> AbstractContextManager[Any]:
    """Inside, reading a tensor's attributes runs no subclass's and no mode's code."""
    door = torch_door()
    return nullcontext() if door is None else door.without_overrides()


# What the allocator of the host says; it has no class of error of its own.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "Cannot allocate memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception, or one that it was raised from, says that memory has ended."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or _is_torchs(error):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _is_torchs(error: BaseException) -> bool:
    kinds = type(error).__mro__
    if any(cls.__name__ == "OutOfMemoryError" for cls in kinds):  # torch's, from 2.0 on
        return True
    return RuntimeError in kinds and any(words in str(error) for words in _NO_MEMORY)


def torch_folder() -> str | None:
    """Where torch is installed; None where it is not."""
    torch = sys.modules.get("torch")
    file = getattr(torch, "__file__", None)
    if file is None:
        try:
            spec = importlib.util.find_spec("torch")
        except (ImportError, ValueError):
            return None
        file = spec.origin if spec is not None else None
    return os.path.dirname(os.path.abspath(file)) if isinstance(file, str) else None
