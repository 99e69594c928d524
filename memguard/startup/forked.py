"""Guarding the processes that a guarded one forks, once they run a loop of their own.

In a forked child the guard of its parent is silent. Within the fork hooks are put in, by plain
Python and with locks that are the child's own; its own guard begins where it first steps an
optimizer or calls a module. A DataLoader's worker calls modules, too: with its first call the hooks
are gone for good.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memguard.startup import say

if TYPE_CHECKING:
    from memguard.settings import Settings

_settings: Settings | None = None
_waiting: _Waiting | None = None
_is_registered = False


def guard_children(settings: Settings) -> Callable[[], None]:
    """Guard what this process forks from now on, and what that forks; torch must be there.

    Args:
        settings: the settings of their guards.

    Returns:
        A function that leaves later children alone again; calling it twice is harmless.

    Costs three hooks a fork; nothing is loaded before the child calls a module or steps.
    """
    global _settings, _is_registered
    _settings = settings
    if hasattr(os, "register_at_fork") and not _is_registered:
        _is_registered = True  # Python has no way to take it out again
        # After the guards of the parent, whose modules are there, have fallen silent.
        os.register_at_fork(after_in_child=_forked)
    return _leave_children_alone


def _leave_children_alone() -> None:
    global _settings
    _settings = None


def _forked() -> None:
    global _waiting
    # Nothing is loaded within a fork: where a guard has begun, its modules are there.
    if _settings is None or "memguard._events" not in sys.modules:
        return
    if _waiting is not None and _waiting.is_on:
        return  # a child that has met no loop itself hands its wait on
    try:
        _waiting = _Waiting(_settings)
    except Exception as error:
        _give_up(error)


class _Waiting:
    """The wait of a forked child for a loop.

    Attributes:
        is_on: whether it goes on.
    """

    def __init__(self, settings: Settings) -> None:
        from memguard import _events, _modules
        from memguard.clock.tape import Tape

        self._settings = settings
        # Whoever takes it out begins: a server's first requests may come in several threads.
        self._turn: list[None] = [None]
        steps = _events.StepListener(Tape(most=0), self._begin)
        self._undos = [_events.on_every_optimizer_step(steps)]
        self._undo_call = _events.nothing
        # Compiled modules warn of a hook that hears of every module.
        if not _events.has_compiled() and not _modules.compiled_frames():
            self._undos.append(_events.on_every_compile(self._compiled))
            self._undo_call = _events.on_first_module_call(self._begin)

    @property
    def is_on(self) -> bool:
        return bool(self._turn)

    def _compiled(self, result: Any) -> None:
        self._undo_call()

    def _begin(self, met: Any) -> None:
        """The process has a loop, or is a loader's worker: either way the wait is over."""
        try:
            self._turn.pop()
        except IndexError:
            return
        try:
            self._end()
            if not _is_loaders_worker() and not _is_guarded():
                from memguard.startup.quietly import QuietGuard

                QuietGuard(self._settings)
        except Exception as error:
            _give_up(error)

    def _end(self) -> None:
        from memguard import _events

        _events.undo_all([*self._undos, self._undo_call])


def _is_loaders_worker() -> bool:
    from torch.utils.data import get_worker_info

    return get_worker_info() is not None


def _is_guarded() -> bool:
    """Whether the child's own code watches its loop."""
    from memguard import watching

    return bool(watching.open_guards())


def _give_up(error: Exception) -> None:
    say(f"could not start in a forked process, going on without: {type(error).__name__}: {error}")
