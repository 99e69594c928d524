"""Guarding a process that never mentions memguard, because a variable says so.

Called by the line that is installed beside the package (`memguard_startup.pth`), and by the
`sitecustomize` that `memguard run` hands to child processes. Every Python process that inherits
the variable comes by here: tools, loaders, tokenizers. So nothing but the wait for torch begins,
and nothing is said or written by a process that never ends a step.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from memguard._process import is_child
from memguard.startup import say
from memguard.startup.torch_import import when_torch_is_imported

if TYPE_CHECKING:
    from memguard.guard import Guard
    from memguard.settings import Settings

_VARIABLE = "MEMGUARD"
# The words that the start-up line knows, too; what else means off shows once torch is there.
_OFF = ("", "0", "off", "false", "no")


def begin() -> None:
    """Guard this process from the moment it has imported torch, if the variable asks for it.

    Once, however often it is called; a failure is one line on standard error.
    """
    global _boot
    asked = os.environ.get(_VARIABLE, "").strip().lower() not in _OFF
    try:
        if asked and _boot is None:
            _boot = _Boot()
    except Exception as error:
        say(f"could not start, going on without: {type(error).__name__}: {error}")


def give_way() -> None:
    """`memguard run` guards this process itself: neither wait for torch nor guard beside it."""
    if _boot is not None:
        _boot.end()


class _Boot:
    """The wait for torch, and the guard that came of it."""

    def __init__(self) -> None:
        self._guard: Guard | None = None
        self._process = os.getpid()
        try:
            # A script that changes folder must not move its report.
            self._folder = os.getcwd()
        except OSError:  # deleted under us
            self._folder = os.curdir
        self._stop: Callable[[], None] = when_torch_is_imported(self._start)

    def end(self) -> None:
        """Neither wait nor guard any more; harmless when done twice."""
        self._stop()
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.finish(write=False)

    def _start(self) -> None:
        settings = self._settings()
        if settings is None or settings.off:
            return
        # Registered before the guard's own: the last word comes after its end.
        atexit.register(self._last_word)
        from memguard.watching import guard_process

        self._process = os.getpid()
        self._guard = guard_process(settings, quiet=True)

    def _settings(self) -> Settings | None:
        """The settings; None when the switch has no value that is accepted, as if it were unset."""
        from memguard.settings import Settings

        settings, origins = Settings.read_with_origins({}, folder=self._folder)
        if origins.get("action") == _VARIABLE:
            return settings
        # Of a child, its parent says what there is to say.
        if os.environ.get(_VARIABLE, "").strip() and not is_child():
            wrong = [line for line in settings.problems if line.startswith(f"{_VARIABLE} ")]
            for line in wrong:
                say(line)
        return None

    def _last_word(self) -> None:
        """Tell of a leak whose exception nobody has shown: the program kept it to itself."""
        guard = self._guard
        if guard is None or os.getpid() != self._process:
            return
        try:
            if guard.has_raised and not _is_shown():
                from memguard.report.text import one_line

                say(one_line(guard.report()).partition(": ")[2] + " (the program went on)")
        except Exception as error:
            say(f"could not finish its report: {type(error).__name__}: {error}")


_boot: _Boot | None = None


def _is_shown() -> bool:
    """Whether a traceback with the leak has been printed."""
    from memguard.errors import leak_behind

    last = getattr(sys, "last_value", None)
    return last is not None and leak_behind(last) is not None
