"""Forward hooks in other people's modules: no trace in copies, pickles or compiled code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from memguard import _torch
from memguard._torch import Undo


class ModuleHook:
    """A forward hook that calls `seen(module, output)` in this process and nowhere else.

    A copied model gets a hook that removes itself at its first call. A pickled one gets a
    standard-library callable that ignores its arguments, so it loads where memguard is missing.
    While torch.compile traces, the hook is an empty function: no graph break, nothing recorded.
    """

    __slots__ = ("__weakref__", "_process", "_seen")

    def __init__(self, seen: Callable[[Any, Any], None]) -> None:
        self._seen = seen
        self._process = os.getpid()

    def __call__(self, module: Any, arguments: Any, output: Any) -> None:
        # First of all, and constant to dynamo: what follows is never traced.
        if _torch.is_compiling():
            return
        if self._process == os.getpid():
            self._seen(module, output)

    def __reduce__(self) -> tuple[Any, ...]:
        # A bound method of a null context accepts anything and returns None.
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __deepcopy__(self, memo: dict[int, Any]) -> _Leaving:
        return _Leaving()

    def __copy__(self) -> _Leaving:
        return _Leaving()


class _Leaving:
    """What a copied model has in place of our hook: it takes itself out."""

    __slots__ = ()

    def __call__(self, module: Any, arguments: Any, output: Any) -> None:
        if _torch.is_compiling():
            return
        hooks = module._forward_hooks
        for key in [key for key, hook in hooks.items() if hook is self]:
            hooks.pop(key, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def on_module_call(module: Any, seen: Callable[[Any, Any], None]) -> Undo:
    """Call `seen(module, output)` after each eager call of `module`; returns the undo.

    Raises:
        TypeError: the module cannot carry hooks (TorchScript compiles them).
    """
    if _torch.is_scripted(module):
        raise TypeError(f"{type(module).__name__} is TorchScript, whose hooks are compiled")
    handle = module.register_forward_hook(ModuleHook(seen))
    undo: Undo = handle.remove
    return undo
