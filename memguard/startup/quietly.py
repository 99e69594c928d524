"""The guard of a process that did not ask for one itself: silent while nothing is to be said."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from memguard._process import is_child
from memguard.errors import LeakError, LeakWarning, leak_behind
from memguard.startup import say

if TYPE_CHECKING:
    from memguard.guard import Guard
    from memguard.settings import Settings

# After whatever the program itself has multiprocessing do at a child's end.
_LAST = -1000


class QuietGuard:
    """Guards this process from now on; torch must be there.

    Args:
        settings: the settings in force.
    """

    def __init__(self, settings: Settings) -> None:
        self._process = os.getpid()
        self._is_over = False
        self._guard: Guard | None = None
        # Registered before the guard's own: the last word comes after its end.
        atexit.register(self._last_word)
        from memguard.watching import guard_process

        self._guard = guard_process(settings, quiet=True)
        if is_child():
            self._await_the_childs_end()

    def end(self) -> None:
        """Guard no more, and write nothing; harmless when done twice."""
        self._is_over = True
        if self._guard is not None:
            self._guard.finish(write=False)

    def _await_the_childs_end(self) -> None:
        """Have multiprocessing end the guard: Python's exit handlers do not run in forked ones.

        Nor does Python itself show what a child fails with.
        """
        from multiprocessing import util

        # A spawned child forgets what was registered while it imported its parent's program.
        util.register_after_fork(self, QuietGuard._register_end)
        self._register_end()

    def _register_end(self) -> None:
        from multiprocessing import util

        if os.getpid() == self._process:
            util.Finalize(None, self._childs_end, exitpriority=_LAST)

    def _childs_end(self) -> None:
        # What the child fails with is on its way, and is shown afterwards.
        error = sys.exc_info()[1]
        if self._guard is not None:
            self._guard.look_into(error)
            with suppress(LeakError, LeakWarning):
                self._guard.finish(ask=error is None)
        is_shown = not isinstance(error, SystemExit) and _has_leak(error)
        if not is_shown:
            self._last_word()
        self._is_over = True

    def _last_word(self) -> None:
        """Tell of a leak whose exception nobody has shown: the program kept it to itself."""
        guard = self._guard
        if guard is None or self._is_over or os.getpid() != self._process:
            return
        try:
            if guard.has_raised and not _has_leak(getattr(sys, "last_value", None)):
                from memguard.report.text import one_line

                line = one_line(guard.report())
                say(line.partition(": ")[2] + " (the program went on)")
        except Exception as error:
            say(f"could not finish its report: {type(error).__name__}: {error}")


def _has_leak(error: BaseException | None) -> bool:
    return error is not None and leak_behind(error) is not None
