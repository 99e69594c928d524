"""How often the heap may be searched for what is not known yet: as often as watching can afford."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

# Searches that are always made: what a program has in its first seconds is found at once.
FREE_SEARCHES = 8


class Budget(Protocol):
    """What the overhead governor says of costs, in seconds."""

    def allows(self, cost: float) -> bool:
        """Whether so much more stays within the share of all the time so far."""

    def earns(self, cost: float, seconds: float) -> bool:
        """Whether the share of so many seconds pays for it."""

    def charge(self, seconds: float) -> None:
        """Take note of what was spent."""


class Searches:
    """Measures what a search costs, charges it, and says whether another is affordable.

    A sweep makes models and optimizers without end, and a search for each would cost more than all
    that they do. So a search waits until the time since the last one has paid for it, too: hours
    without one are no reason for hundreds in a row.

    Args:
        budget: what has to pay.
        clock: source of seconds; tests pass their own.
    """

    __slots__ = ("_budget", "_clock", "_cost", "_ended", "_made")

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.perf_counter) -> None:
        self._budget = budget
        self._clock = clock
        self._made = 0
        self._cost = 0.0
        self._ended = clock()

    def are_affordable(self) -> bool:
        """Whether one more search may be made now."""
        if self._made < FREE_SEARCHES:
            return True
        is_earned = self._budget.earns(self._cost, self._clock() - self._ended)
        return is_earned and self._budget.allows(self._cost)

    def make(self, search: Callable[[], None]) -> None:
        """Search, and charge what it took, also when it fails."""
        self._made += 1
        begun = self._clock()
        try:
            search()
        finally:
            self._ended = self._clock()
            self._cost = self._ended - begun
            self._budget.charge(self._cost)
