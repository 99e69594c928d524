"""From births and deaths of graphs or tensors to clean, suspect or confirmed; pure functions.

A leak is survivors that keep coming and never die. Everything healthy fails one of the two: a
sawtooth (accumulation, rollouts, metrics of an epoch) and a ring (replay, deque) see their old
ones die; a plateau (warm-up, caches) stops coming.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

# More survivors needed after a suspicion before it is believed.
CONFIRM = 2

# How much longer than anything that was ever released a survivor must live to count again.
RELEASE_FACTOR = 1.5

# Steps after which a graph counts as kept for long, where no more than so many have come.
PINNED_STEPS = 256
PINNED_MOST = 4


@dataclass(frozen=True, slots=True)
class Survey:
    """What the sensors counted when a step ended.

    Attributes:
        step: steps ended so far.
        births: steps whose graphs (or tensors) are still alive, oldest first.
        deaths: ages at death, in steps, of those that died since the last survey.
        observed: recent steps whose births could be seen at all, oldest first; all when empty
            (the overhead budget may have left some out).
    """

    step: int
    births: Sequence[int]
    deaths: Sequence[int] = ()
    observed: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Track:
    """What the judge remembers of one kind between surveys.

    Attributes:
        window: age up to which a survivor is normal.
        released: longest age at which survivors were seen to die.
        suspected: survivors counted when suspicion began; None without suspicion.
        since: step at which suspicion began.
    """

    window: int
    released: int = 0
    suspected: int | None = None
    since: int | None = None

    @property
    def normal_age(self) -> int:
        """Age in steps beyond which a survivor counts against the loop."""
        if self.released <= self.window:
            return self.window
        return max(self.window, int(RELEASE_FACTOR * self.released) + 1)

    def relieved(self) -> Track:
        """The same memory without suspicion."""
        return replace(self, suspected=None, since=None)


@dataclass(frozen=True, slots=True)
class Opinion:
    """The judge's view with its reason in words."""

    state: Literal["clean", "suspect", "confirmed"]
    reason: str
    births: tuple[int, ...] = ()


def advance(track: Track, survey: Survey, patience: int) -> tuple[Track, Opinion]:
    """Take one survey into account.

    Args:
        track: memory of the surveys before.
        survey: the counts of the step that ended.
        patience: survivors of different steps needed for a suspicion.
    """
    # A death at a usual age says nothing new; one of those under suspicion clears them.
    died = [age for age in survey.deaths if age > track.normal_age]
    if died:
        track = replace(track.relieved(), released=max(track.released, *died))
    age = track.normal_age
    old = tuple(birth for birth in survey.births if survey.step - birth > age)
    if len(old) < patience:
        track = track.relieved()
        return track, Opinion("clean", f"{len(old)} survivors older than {age} steps", old)
    quiet = quiet_steps(old, survey, age)
    if quiet > longest_pause(old, survey):
        track = track.relieved()
        return track, Opinion("clean", f"{len(old)} survivors, none for {quiet} steps", old)
    if track.suspected is None:
        track = replace(track, suspected=len(old), since=survey.step)
    assert track.suspected is not None
    grown = len(old) - track.suspected
    reason = (
        f"survivors of {len(old)} steps are older than {age} steps; "
        f"{grown} more since step {track.since}, and none died"
    )
    state: Literal["suspect", "confirmed"] = "confirmed" if grown >= CONFIRM else "suspect"
    return track, Opinion(state, reason, old)


def completed(births: Sequence[int], reached: Sequence[int]) -> tuple[int, ...]:
    """The births with the steps that a walk found which nobody had looked at when they ended.

    A node of such a step may be dated one step too early or too late, so that those beside a birth
    say something only where others between it and the next are reached as well: then it is a chain.

    Args:
        births: steps seen to have survivors, oldest first.
        reached: steps of the nodes that live tensors reach.
    """
    found = {*births, *(step for step in reached if step < births[0] - 1)}
    for before, after in itertools.pairwise(births):
        between = [step for step in reached if before < step < after]
        if any(before + 1 < step < after - 1 for step in between) or after - before <= 3:
            found.update(between)
    return tuple(sorted(found))


def is_pinned(now: int, births: Sequence[int], window: int) -> bool:
    """Whether what survives is old and few: one graph, or some, that something keeps for long."""
    if not births or now - births[0] < PINNED_STEPS:
        return False
    old = [birth for birth in births if now - birth > window]
    return 0 < len(old) <= PINNED_MOST and now - old[-1] >= PINNED_STEPS


def quiet_steps(births: Sequence[int], survey: Survey, age: int) -> int:
    """Observed steps old enough to have left a survivor since the newest one."""
    last, newest = births[-1], survey.step - age - 1
    if not survey.observed:
        return newest - last
    return sum(1 for step in survey.observed if last < step <= newest)


def longest_pause(births: Sequence[int], survey: Survey) -> int:
    """Observed steps without survivor that end no growth yet: twice the longest gap."""
    recent = births[-8:]
    observed = survey.observed
    if not observed:
        return 2 * max((b - a for a, b in itertools.pairwise(recent)), default=1)
    gaps = (sum(1 for s in observed if a < s <= b) for a, b in itertools.pairwise(recent))
    return 2 * max(gaps, default=1) or 2
