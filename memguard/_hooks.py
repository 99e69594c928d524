"""Forward hooks in other people's modules: no trace in copies, pickles or compiled code."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

from memguard import _events, _modules
from memguard._torch import Undo, is_traced

_Hooks = dict[int, Any]  # what torch keeps in `module._forward_hooks`

# Stands for this process: a forked child has another. Unlike `os.getpid` it costs no system call.
here = object()


def _forked() -> None:
    global here
    here = object()
    # Another thread of the parent may have held it, and is not there to let it go.
    _placed.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class ModuleHook:
    """A forward hook that calls `seen(module, output)` in this process and nowhere else.

    It is not in a copied model once the copy is made. A pickled model gets a standard-library
    callable that ignores its arguments in its place, so it loads where memguard is missing. While
    torch.compile traces, the hook is an empty function: no graph break, nothing recorded. Around
    compiled code it runs as it always does.
    """

    __slots__ = ("__weakref__", "_here", "_hooks", "_seen")

    def __init__(self, module: Any, seen: Callable[[Any, Any], None]) -> None:
        self._seen = seen
        self._hooks: weakref.ref[Any] = weakref.ref(module._forward_hooks)
        self._here = here

    def __call__(self, module: Any, arguments: Any, output: Any) -> None:
        try:
            # First of all, and constant to dynamo: what follows is never traced.
            if is_traced():
                return
            if self._here is here:
                self._seen(module, output)
        except RecursionError:
            # The user's own calls have left no room for ours: one event is not heard of.
            return

    def table(self) -> _Hooks | None:
        """The hooks of the module it is in; None when the module is gone."""
        return cast("_Hooks | None", self._hooks())

    def __reduce__(self) -> tuple[Any, ...]:
        return _null_hook()

    def __deepcopy__(self, memo: dict[int, Any]) -> _StandIn:
        stand_in = _StandIn()
        copied = memo.get(id(self._hooks()))
        if copied is not None:
            # Whoever copies lets go of `memo` when all is copied; then the entry goes.
            memo[id(stand_in)] = _Leaving(stand_in, copied)
        return stand_in


class _StandIn:
    """What a copied model has in place of our hook until the copy is complete.

    Whoever keeps the memo of a copy finds it there still: then it goes at its first call.
    """

    __slots__ = ()

    def __call__(self, module: Any, arguments: Any, output: Any) -> None:
        if not is_traced():
            self.leave(module._forward_hooks)

    def __reduce__(self) -> tuple[Any, ...]:
        return _null_hook()

    def __deepcopy__(self, memo: dict[int, Any]) -> _StandIn:
        return _StandIn()

    def leave(self, hooks: _Hooks) -> None:
        for key in [key for key, hook in hooks.items() if hook is self]:
            hooks.pop(key, None)


class _Leaving:
    """Takes a stand-in out of a copied model's hooks when it dies itself."""

    __slots__ = ("_hooks", "_stand_in")

    def __init__(self, stand_in: _StandIn, hooks: _Hooks) -> None:
        self._stand_in = stand_in
        self._hooks = hooks

    def __del__(self) -> None:
        self._stand_in.leave(self._hooks)


# The hook of a compiled module runs in a frame of its own, between compiled ones. Left to dynamo it
# would be compiled as what it is while tracing: an empty function.
_modules.keep_from_dynamo(ModuleHook.__call__.__code__)
_modules.keep_from_dynamo(_StandIn.__call__.__code__)


def _null_hook() -> tuple[Any, ...]:
    # A bound method of a null context accepts anything and returns None.
    return getattr, (contextlib.nullcontext(), "__exit__")


def on_module_call(module: Any, seen: Callable[[Any, Any], None]) -> Undo:
    """Call `seen(module, output)` after each eager call of `module`; returns the undo.

    Raises:
        TypeError: the module cannot carry hooks (TorchScript compiles them).
    """
    if _modules.is_scripted(module):
        raise TypeError(f"{type(module).__name__} is TorchScript, whose hooks are compiled")
    return put_in(module, ModuleHook(module, seen))


def put_in(module: Any, hook: ModuleHook) -> Undo:
    """Put a hook into the module it was made for, which can carry it; returns the undo."""
    handle = module.register_forward_hook(hook)
    _placed.add(hook)

    def undo() -> None:
        handle.remove()
        _placed.discard(hook)

    return undo


# --- torch.jit.script and torch.save ---


class _Placed:
    """The hooks in place, hidden from whoever would stumble over them while there is one.

    `torch.jit.script` compiles the hooks it finds in a module, and refuses those it cannot compile.
    `torch.load` with `weights_only` refuses what stands for a hook in a pickle, so that
    `torch.save` must not find one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler within may close a guard
        self._hooks: set[ModuleHook] = set()
        self._undo: list[Undo] = []

    def unlock(self) -> None:
        """Begin with a lock of its own, in a forked child."""
        self._lock = threading.RLock()

    def add(self, hook: ModuleHook) -> None:
        with self._lock:
            self._hooks.add(hook)
            if not self._undo:
                compilers, savers = _modules.script_compilers(), _modules.savers()
                self._undo += [_within(one, self._hidden_below) for one in compilers]
                self._undo += [_within(one, self._all_hidden) for one in savers]

    def discard(self, hook: ModuleHook) -> None:
        with self._lock:
            self._hooks.discard(hook)
            if not self._hooks:
                # A handler that begins to watch meanwhile puts in new ones, below none of these.
                undos, self._undo = self._undo, []
                _events.undo_all(reversed(undos))

    def _hidden_below(self, module: Any) -> AbstractContextManager[None]:
        """Inside, `module` and what is below it have only the hooks they have unwatched."""
        return self._hidden([getattr(one, "_forward_hooks", {}) for one in module.modules()])

    def _all_hidden(self, _: Any) -> AbstractContextManager[None]:
        """Inside, no module has a hook of ours; what others call meanwhile is not heard of."""
        tables = [hook.table() for hook in list(self._hooks)]
        return self._hidden(list({id(one): one for one in tables if one is not None}.values()))

    @contextlib.contextmanager
    def _hidden(self, tables: list[_Hooks]) -> Iterator[None]:
        before = [(table, dict(table)) for table in tables if any(map(_is_ours, table.values()))]
        for table, hooks in before:
            _replace(table, {k: hook for k, hook in hooks.items() if not _is_ours(hook)})
        try:
            yield
        finally:
            for table, hooks in before:
                # A hook whose time ended meanwhile does not come back.
                still = {k: h for k, h in hooks.items() if not _is_ours(h) or h in self._hooks}
                _replace(table, {**still, **table})


def _within(place: tuple[Any, str], inside: Callable[[Any], AbstractContextManager[None]]) -> Undo:
    """Have a function of torch's do its work inside `inside(argument)`; returns the undo."""
    original = getattr(*place)

    @functools.wraps(original)
    def wrapper(subject: Any, *args: Any, **kwargs: Any) -> Any:
        with inside(subject):
            return original(subject, *args, **kwargs)

    return _events.replace(*place, wrapper)


def _is_ours(hook: object) -> bool:
    return isinstance(hook, (ModuleHook, _StandIn))


def _replace(table: _Hooks, hooks: _Hooks) -> None:
    table.clear()
    table.update(hooks)


_placed = _Placed()
