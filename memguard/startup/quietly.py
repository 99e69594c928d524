"""The guard of a process that did not ask for one itself: silent while nothing is to be said."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from memguard._process import is_child
from memguard.errors import LeakError, LeakWarning, leak_behind
from memguard.startup import say

if TYPE_CHECKING:
    from memguard.guard import Guard
    from memguard.records import Report
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
        self._is_told = False
        self._guard: Guard | None = None
        # Registered before the guard's own: the last word comes after its end.
        atexit.register(self._last_word)
        from memguard.watching import guard_process

        self._guard = guard_process(settings, quiet=True)
        self._guard.before_raising = self._say_if_kept
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

    def _say_if_kept(self, report: Report) -> None:
        """Tell of a leak at once where a task or a thread may keep its exception for ever.

        Whoever waits for such a task waits on, and the process never comes to its end.
        """
        if threading.current_thread() is threading.main_thread() and not _runs_tasks():
            return
        from memguard.report.text import one_line

        self._is_told = True
        say(one_line(report).partition(": ")[2])

    def _last_word(self) -> None:
        """Tell of a leak whose exception nobody has shown: the program kept it to itself."""
        guard = self._guard
        if guard is None or self._is_over or os.getpid() != self._process:
            return
        try:
            is_shown = self._is_told or _has_leak(getattr(sys, "last_value", None))
            if guard.has_raised and not is_shown:
                from memguard.report.text import one_line

                line = one_line(guard.report())
                say(line.partition(": ")[2] + " (the program went on)")
        except Exception as error:
            say(f"could not finish its report: {type(error).__name__}: {error}")


def _runs_tasks() -> bool:
    """Whether an event loop of asyncio runs in this thread."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def _has_leak(error: BaseException | None) -> bool:
    return error is not None and leak_behind(error) is not None
