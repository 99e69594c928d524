"""Pace: which steps are watched closely, and which are only counted."""

from __future__ import annotations

import itertools
from collections import deque

from memguard.clock.tape import SECONDS_PER_EVENT, Tape
from memguard.sensors.governor import FREE_STEPS, Governor

# Steps from look to look once watching is no longer free. What was born since the last look and is
# still alive is met all the same. They are uneven, and their sums are prime, so that what happens
# at every so manieth step is soon met by a look.
GAPS = (3, 4, 6)

# The same in the long run, when nothing is in doubt: the first of these rhythms whose looks take no
# more than that part of the budget, or else the last. Where a step takes a tenth of a second, a
# look at every fourth is not to be measured; where milliseconds, one at every fortieth is not.
MIDDLE_GAPS = (17, 19, 23)
RHYTHMS = ((GAPS, 0.1), ((7, 9, 13), 0.1), (MIDDLE_GAPS, 0.25))
WIDE_GAPS = (41, 43, 53)

# From look to look, what watching cost in between; the mean of so many counts for that, as a dear
# look now and then is part of it.
COSTS = 4

# Up to this step looks stay near whatever the budget, some 50 microseconds a step: rare births must
# be seen several times before fast steps have earned that.
CLOSE_STEPS = 128

# Seconds from which a look is too dear to be near whatever the budget: with automatic collection
# off it goes through all that was made since.
DEAR = 1e-3

# A look that is due is always taken. What the budget does not pay for makes the next ones later,
# twice as late each time, up to so many times.
MAX_STRETCH = 4

# Steps between dated looks while watching is free, and afterwards.
DATED_EVERY = 4
DATED_SELDOM = 32

# Share of the budget for dated looks: a large graph takes a millisecond to look into.
DATED_PART = 0.05


class Pace:
    """Says when a look is due, and lets the tape take the events of the steps before it."""

    __slots__ = (
        "_charged",
        "_costs",
        "_dated_at",
        "_events",
        "_gaps",
        "_governor",
        "_is_settled",
        "_look_at",
        "_looked_at",
        "_per_step",
        "_stretch",
        "_tape",
    )

    def __init__(self, governor: Governor, tape: Tape) -> None:
        self._governor = governor
        self._tape = tape
        self._gaps = itertools.cycle(range(len(GAPS)))
        self._look_at = 0
        self._dated_at = 0
        # How many events a step has, counted from look to look; the least of the last two, since
        # an evaluation now and then must not make a tape of hundreds of steps.
        self._looked_at = 0
        self._events = 0
        self._stretch = 1
        self._is_settled = False
        # What watching cost from look to look, in seconds, and what had been charged at the last.
        self._costs: deque[float] = deque(maxlen=COSTS)
        self._charged = 0.0
        self._per_step = deque((0.0,), maxlen=2)

    def heard(self, events: int = 1) -> None:
        """Count events of the step that is under way."""
        self._events += events

    def woken(self, events: int, step: int, within: bool) -> None:
        """The tape was heard: so many events up to `step`, the last of them `within` a step or not.

        A step of which a part was on the tape is not looked at, since it has no canary.
        """
        self._events += events
        self._governor.counting += events * SECONDS_PER_EVENT
        if within:
            self._look_at = max(self._look_at, step + 2)

    def is_free(self, step: int) -> bool:
        """Whether watching is free: the first steps of a job warm up."""
        return step <= FREE_STEPS

    def look_is_due(self, step: int) -> bool:
        """Whether to look at what was born up to the end of `step`."""
        return self.is_free(step) or step >= self._look_at

    def dated_look_is_due(self, step: int, cost: float) -> bool:
        """Whether a look at the end of `step` is to ask how far back live tensors reach."""
        if step < FREE_STEPS:
            return step % DATED_EVERY == 0
        return step >= self._dated_at and self._governor.allows(cost)

    def dated(self, step: int, cost: float) -> None:
        """A dated look was taken, for so many seconds."""
        self._dated_at = step + max(DATED_SELDOM, self._governor.steps_to_earn(DATED_PART, cost))

    def looked(
        self,
        step: int,
        watchful: bool,
        climbs: bool = False,
        by: int | None = None,
        cost: float = 0.0,
    ) -> int:
        """A look was due at the end of `step`; when the next one is to come.

        Args:
            step: steps ended.
            watchful: something is in doubt, so the next look is near.
            climbs: memory rises fast, so it is not far.
            by: step at which something is to be said, so it is no later.
            cost: seconds that it is expected to take.

        Returns:
            The step at whose end it is due.
        """
        charged = self._governor.sensing
        self._costs.append(charged - self._charged)
        self._charged = charged
        if step > CLOSE_STEPS and not self._is_settled:
            # Looking closely at first is meant; nothing is owed for it.
            self._is_settled, self._stretch = True, 1
            self._governor.begin_anew()
        allowed = self._governor.allows()
        self._stretch = (
            max(1, self._stretch // 2) if allowed else min(MAX_STRETCH, 2 * self._stretch)
        )
        gaps = GAPS if watchful or step <= CLOSE_STEPS else self._rhythm()
        if climbs:
            gaps = min(gaps, MIDDLE_GAPS, key=sum)
        gap = gaps[next(self._gaps)]
        if self.is_free(step) or (watchful and allowed):
            gap = 1
        elif step > CLOSE_STEPS or cost > DEAR:
            gap *= self._stretch
        self._look_at = step + gap if by is None else min(step + gap, max(step + 1, by))
        self._per_step.append(self._events / max(1, step - self._looked_at))
        self._looked_at, self._events = step, 0
        self.rest(step)
        return self._look_at

    def _rhythm(self) -> tuple[int, ...]:
        """The steps from look to look that what a look costs here allows for."""
        cost = sum(self._costs) / len(self._costs)
        for gaps, part in RHYTHMS:
            if cost * len(gaps) <= self._governor.earned(part, sum(gaps)):
                return gaps
        return WIDE_GAPS

    def rest(self, step: int) -> None:
        """Let the tape take the steps after `step` up to the one that is looked at.

        All but the last event of those: it is heard, so that the step that is looked at begins at a
        number of autograd nodes that is known.
        """
        self._tape.open(int((self._look_at - step - 1) * min(self._per_step)) - 1)
