"""The watchdog: says that no step has ended for long, and where the main thread is meanwhile.

It is a thread that sleeps on a condition, one a guard, there only where it was asked for. It reads
one number of the loop's and nothing else of the user's, so it holds up nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from memguard.report.clean import clean
from memguard.units import format_duration

# Looks in the time after which it speaks.
_LOOKS = 4
# Frames of these packages stand between the user's line and what the thread waits in.
_NOT_THE_USER = ("memguard", "torch", "threading", "selectors", "multiprocessing", "queue")


class Watchdog:
    """Watches a count that rises with every event of a loop.

    Args:
        seconds: time without a change after which it speaks, once, and again when things go on.
        count: events so far; 0 before the first, until which nothing is amiss.
        step: steps ended so far.
        say: told each line.
        is_paused: whether the loop is not watched just now; that time does not count.
    """

    def __init__(
        self,
        seconds: float,
        count: Callable[[], int],
        step: Callable[[], int],
        say: Callable[[str], None] | None = None,
        is_paused: Callable[[], bool] = bool,
    ) -> None:
        self._seconds = seconds
        self._count = count
        self._step = step
        self._say = say if say is not None else _on_stderr
        self._is_paused = is_paused
        self._last = 0
        self._since = self._looked = 0.0
        self._has_spoken = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memguard watchdog", daemon=True)

    def begin(self) -> Callable[[], None]:
        """Start watching; returns the function that ends it."""
        self._thread.start()
        return self.end

    def end(self) -> None:
        """Stop watching; the thread is gone afterwards. Harmless when done twice."""
        self._ended.set()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds / _LOOKS):
            with suppress(Exception):  # a thread that fails prints its traceback
                self.look(time.monotonic())

    def look(self, now: float) -> None:
        """See whether the count has changed, and speak when it should have."""
        count = self._count()
        if self._is_paused():
            self._since += now - self._looked
        self._looked = now
        if count != self._last or not count:
            if self._has_spoken:
                waited = format_duration(now - self._since)
                self._say(f"steps go on after {waited} (step {self._step():,})")
            self._last, self._since, self._has_spoken = count, now, False
        elif not self._has_spoken and now - self._since >= self._seconds:
            self._has_spoken = True
            waited = format_duration(now - self._since)
            self._say(
                f"no step has ended for {waited}, {self._step():,} so far; "
                f"the main thread is {_whereabouts()}"
            )


def _whereabouts() -> str:
    """The line of the user's that the main thread runs."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    innermost = frame
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_THE_USER:
            break
        frame = frame.f_back
    shown = frame or innermost
    if shown is None:
        return "gone"
    code = shown.f_code
    file = clean(code.co_filename, 100, keep_end=True)
    return f"at {file}:{shown.f_lineno} in {clean(code.co_name, 60)}"


def _on_stderr(line: str) -> None:
    if sys.stderr is not None:
        print(f"memguard: {line}", file=sys.stderr, flush=True)
