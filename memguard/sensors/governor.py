"""The overhead governor: what watching costs, measured, and how much more it may cost."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

# Jobs warm up in their first steps and bugs show at once, so these may be watched closely.
FREE_STEPS = 16

# Steps that nothing has to wait for longer, however dear it is.
MAX_WAIT = 512

# Times between heard steps that tell how long one usually takes.
HEARD = 9

# A time so many times as long as usual is idleness (a prompt, an empty queue), which earns nothing.
IDLE = 20


class Governor:
    """Measures the guard's own time and keeps it within a share of the loop's.

    Args:
        share: most of the step time that watching may take, as a fraction of 1.
        clock: source of seconds; tests pass their own.

    Attributes:
        sensing: seconds spent on looks, which the share is for.
        counting: seconds spent on being told of steps, which looking less would not save.
        explaining: seconds spent on explanations: once a finding, so no reason to watch less.
    """

    __slots__ = (
        "_begun",
        "_clock",
        "_first_end",
        "_free_sensing",
        "_governed_from",
        "_last_end",
        "_lately",
        "_share",
        "_steps",
        "counting",
        "explaining",
        "sensing",
    )

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.sensing = 0.0
        self.counting = 0.0
        self.explaining = 0.0
        self._share = share
        self._clock = clock
        self._begun = clock()
        self._steps = 0
        self._first_end = self._last_end = self._begun
        self._governed_from: float | None = None
        self._free_sensing = 0.0
        self._lately: deque[float] = deque(maxlen=HEARD)

    def charge(self, seconds: float, explaining: float = 0.0) -> None:
        """Add `seconds` of watching, and `explaining` seconds that went into explanations."""
        self.sensing += seconds
        self.explaining += explaining

    def count(self, steps: int) -> None:
        """Count steps that ended in passing, the last of them just now."""
        if steps:
            self._end(steps)

    def end_step(self) -> None:
        """Count a step; the budget begins with the first step after the free ones."""
        self._end(1)
        if self._steps == 1:
            self._first_end = self._last_end
        if self._steps > FREE_STEPS and self._governed_from is None:
            self.begin_anew()

    def _end(self, steps: int) -> None:
        now = self._clock()
        seconds = now - self._last_end
        if self._steps:
            if self._governed_from is not None and self._lately:
                idle = seconds - IDLE * steps * self.usual_seconds_per_step
                self._governed_from += max(0.0, idle)
            self._lately.append(seconds / steps)
        self._steps += steps
        self._last_end = now

    def begin_anew(self) -> None:
        """From now on the share must pay for looks; for none of those before."""
        self._governed_from = self._clock()
        self._free_sensing = self.sensing

    def earns(self, cost: float, seconds: float) -> bool:
        """Whether the share of so many seconds pays for `cost` seconds."""
        return cost <= self._share * seconds

    def allows(self, cost: float = 0.0) -> bool:
        """Whether `cost` seconds more stay within the share of the time since the free steps."""
        if self._governed_from is None:
            return True
        elapsed = self._clock() - self._governed_from
        return self.sensing - self._free_sensing + cost <= self._share * elapsed

    def steps_to_earn(self, part: float, cost: float) -> int:
        """Steps until that part of the budget has paid for `cost` seconds; at most `MAX_WAIT`."""
        each = self.earned(part, 1)
        return int(min(MAX_WAIT, cost / each)) if each > 0 else 0

    def earned(self, part: float, steps: int) -> float:
        """Seconds that so many steps add to that part of the budget."""
        return part * self._share * steps * self.usual_seconds_per_step

    @property
    def spent(self) -> float:
        """Seconds of the guard's own work in all."""
        return self.sensing + self.counting + self.explaining

    @property
    def seconds_per_step(self) -> float:
        """Mean time from one step's end to the next; 0 before two steps have ended.

        Without explanations, which take many times what a small step does and come once.
        """
        seconds = self._last_end - self._first_end - self.explaining
        return max(0.0, seconds) / max(1, self._steps - 1)

    @property
    def usual_seconds_per_step(self) -> float:
        """What a step takes lately, by the median, so that no pause counts; 0 before two steps."""
        return statistics.median(self._lately) if self._lately else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since watching began."""
        return self._clock() - self._begun

    @property
    def taken(self) -> float:
        """Share of the time since watching began that watching took."""
        elapsed = self.elapsed
        return self.spent / elapsed if elapsed > 0 else 0.0
