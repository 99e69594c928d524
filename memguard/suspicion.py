"""What is under suspicion, by kind: the judge's memory between steps."""

from __future__ import annotations

from collections import deque
from typing import Literal

from memguard.judge.chains import LOOKS, Look, keeps_reaching
from memguard.judge.survivors import Opinion, Survey, Track, advance

Watched = Literal["graph", "tensor"]

# Steps of which it is remembered whether their births could be seen.
OBSERVED = 128

# Survivors beyond which their number is no measure of growth any more; see sensors.marks.MAX_STEPS.
MANY = 250

# A case is looked at again for its size at most each time that the steps have grown by this share.
AT_MOST_EACH = 64

# Survivors by which a told case must have grown before it is looked at again.
CHECK_AGAIN = 10


class Suspicion:
    """Surveys of one kind of survivor, from the first doubt to a confirmed case.

    Args:
        window: steps a survivor may outlive its own.
        patience: growing steps before there is a case.
        is_grouped: whether those of several steps are met together, as if born in one: then their
            number says little, and what is held is looked at again when a quarter more steps
            have ended, too.

    Attributes:
        opinion: the judge's last word.
        settled: whether what survives was told, as long as it does.
        stirs: whether a survivor was new of late: too little for a doubt, but worth a closer watch
            until the next ones would be old enough to count.
        certain_at: step at which more is to be said of a case, as far as anybody knows.
        told: survivors when a finding about the case was last made; 0 for a case of which none was.
    """

    __slots__ = (
        "_hold_step",
        "_hold_until",
        "_looks",
        "_many",
        "_newest",
        "_now",
        "_observed",
        "_patience",
        "_stirred",
        "_told_until",
        "_track",
        "certain_at",
        "opinion",
        "settled",
        "stirs",
        "told",
    )

    def __init__(self, window: int, patience: int, *, is_grouped: bool = False) -> None:
        self.opinion = Opinion("clean", "nothing seen yet")
        self._patience = patience
        self._many = 0 if is_grouped else MANY
        self._track = Track(window)
        self._observed: dict[int, None] = {}
        self._looks: deque[Look] = deque(maxlen=LOOKS)
        self._hold_until = 0
        self._hold_step = 0
        self.certain_at: int | None = None
        self.told = 0
        self._told_until = 0
        self._now = 0
        self._newest = -1
        self.settled = False
        self._stirred: int | None = None
        self.stirs = False

    def observe(self, step: int) -> None:
        """The sensors could see what was born in `step`."""
        self._observed[step] = None
        if len(self._observed) > OBSERVED:
            del self._observed[next(iter(self._observed))]

    def survey(self, now: int, births: list[int], deaths: list[int]) -> Opinion | None:
        """Take a step's counts into account; the opinion when there is a case to investigate."""
        self._now = now
        newest = max((born for born in births if now - born > self._track.normal_age), default=-1)
        if newest > self._newest:
            self._stirred = now
        self._newest = newest
        recently = self._stirred is not None and now - self._stirred <= self._track.window + 2
        self.stirs = recently and not self.settled
        if len(births) < self._patience and not deaths:
            # Nearly every step of a healthy loop ends here.
            if self.opinion.state != "clean" or self.settled:
                self.opinion = Opinion("clean", f"{len(births)} survivors")
                self._track, self._hold_until = self._track.relieved(), 0
                self._forget()
            return None
        if self.told and (not births or births[0] > self._told_until):
            # All that was told of is gone; what has come since is another case.
            self._track, self._hold_until = self._track.relieved(), 0
            self._forget()
        survey = Survey(now, births, deaths, sorted(self._observed))
        self._track, self.opinion = advance(self._track, survey, self._patience)
        if self.opinion.state == "clean":
            self._hold_until = 0
            self._forget()
        due = self._due(self.opinion)
        if self.settled and due is None:
            self.opinion = Opinion("clean", "told")
        return due

    @property
    def is_believed(self) -> bool:
        """Whether there is a case that the judge is sure of, told or not."""
        return self.settled or self.opinion.state == "confirmed"

    def is_certain(self, now: int) -> bool:
        """Whether more is to be said of the case by now."""
        return self.certain_at is not None and now >= self.certain_at

    def _forget(self) -> None:
        """There is no case any more; the next one is another."""
        self.certain_at = None
        self.settled = False
        self.told = 0

    def reach(self, look: Look) -> Opinion | None:
        """Take a dated look into account; the opinion when a chain is a case to investigate."""
        self._looks.append(look)
        window = self._track.window
        if not keeps_reaching([*self._looks], window, self._patience):
            return None
        births = tuple(step for step in look.reached if step < look.step - window)
        before = len(self._looks[0].reached)
        reason = f"live tensors reach {len(look.reached)} steps, {before} some looks ago"
        return self._due(Opinion("confirmed", reason, births))

    def _due(self, opinion: Opinion) -> Opinion | None:
        # Where their number is no measure, time decides; so it does for what was told and goes on,
        # as rare looks meet few of its survivors.
        goes_on = self.settled and opinion.births and opinion.births[-1] >= self._told_until
        countless = len(opinion.births) >= self._many or goes_on
        many = countless and self._now >= self._hold_step
        held = len(opinion.births) < self._hold_until
        enough = not held or many or self.is_certain(self._now)
        return opinion if opinion.state == "confirmed" and enough else None

    def note_told(self, survivors: int) -> None:
        """A finding about the case has been made, of so many survivors."""
        self.told = survivors
        self._told_until = self._now

    def settle(self, survivors: int) -> None:
        """The case is told, or not to be told: no doubt is left until there are twice as many."""
        self.opinion = Opinion("clean", "told")
        self.settled = True
        self.note_told(survivors)
        self.hold(survivors, 2 * survivors)
        self._hold_step = 2 * self._now

    def hold(self, survivors: int, until: int | None, steps: int | None = None) -> None:
        """Leave the case alone until there are `until` survivors, or clearly more than now.

        But no longer than for `steps`, where what is to be said of it is certain by then.
        """
        # Growth that slows down comes nearer and nearer to a level: not each such look is taken.
        least = max(1, self._now // AT_MOST_EACH)
        self.certain_at = None if steps is None else self._now + max(least, steps)
        self._hold_until = until or survivors + max(CHECK_AGAIN, survivors // 4)
        self._hold_step = self._now + max(CHECK_AGAIN, self._now // 4)
