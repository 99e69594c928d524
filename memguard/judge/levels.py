"""From readings of memory to steady growth or none; pure functions.

Memory of a process or a device is no count of survivors: it has noise, teeth and plateaus. What
counts is the floor, which later readings never fall below. Teeth (epochs, evaluations, collections)
have a floor that stays; a warm-up, a library that is loaded late or a cache that fills has one that
stops rising or rises in a few jumps. Only a floor that rises all along, evenly and to the end, is
growth.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

# Readings kept; when there are more, every other one goes, so that they always span the whole run.
MOST_READINGS = 256

# Readings and steps below which nothing is said.
FEWEST = 12

# Windows that a span is cut into. The least reading of each stands for it.
WINDOWS = 12

# Growth must be so many times what the level has fallen by meanwhile: else it may be a tooth on a
# jump.
OUTGROWS = 2

# With falls below this share of the growth all readings tell the slope, else only the floor does.
SMOOTH = 0.1

# A floor that has fallen by this share of what was gained is a tooth, not a rise.
FALL = 0.25

# An increment of less than this share of the mean one is a pause.
PAUSE = 0.15

# No single window may have more than this share of the whole growth: that would be a jump.
JUMP = 0.45

# The last third must still rise at this share of the whole's pace: else it is levelling off.
LEVELLING = 0.65

# How much longer than any rise that was taken back one must last to count.
RELEASE_FACTOR = 1.5

# Where the spans that are judged begin, as shares of all that was read: a warm-up is passed over by
# the first span in which growth is even.
BEGINNINGS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75)

# Growth that was this much slower at first began later: the span is cut shorter if that will do.
LATE = 0.75

# An epoch that has let go of more than this share of what it gathered gathers for itself; what
# comes at less than this share of another's pace is something else.
LET_GO, AS_FAST = 0.5, 0.5

# What gathers for its epoch is let go at its end, which may never come: beyond this many times what
# an epoch before had gathered it counts. An epoch may well be twice as long as the one before.
MOST_AS_BEFORE = 3

# The low end of the slope's range must be at least this share of it: else it is chance.
SURE = 0.4

# The part of the span whose teeth are measured: over more of it an error of the slope looks like
# teeth.
ABOVE = 3

# To be believed a rise that was seen must go on for this many steps, and by this share of what made
# it worth a look.
GOES_ON_FOR, GOES_ON_BY = 12, 0.5

# Readings of which all pairs are compared for a slope.
MOST_PAIRED = 48


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory at the end of a step.

    Attributes:
        step: steps ended.
        seconds: when, on any clock.
        bytes: what was read.
        phase: what the loop was doing (`training`, `evaluation`); only like readings are compared.
        epoch: times that training has begun again after an evaluation.
    """

    step: int
    seconds: float
    bytes: int
    phase: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Rise:
    """Steady growth.

    Attributes:
        first: the reading it began with, as far as anybody looked.
        last: the newest reading.
        gained: bytes by which the floor has risen since.
        per_step, slowest, fastest: bytes a step, and the range the slope lies in.
        seconds_per_step: mean time of a step meanwhile.
        above: bytes by which readings stand above the floor's line (all but the highest 5 %): teeth
            reach the limit before the floor does.
        late: whether growth was much slower at first.
    """

    first: Reading
    last: Reading
    gained: int
    per_step: float
    slowest: float
    fastest: float
    seconds_per_step: float
    above: int
    late: bool = False

    @property
    def retained(self) -> int:
        """Bytes that growth at this pace has added meanwhile: a jump at its beginning is none."""
        return int(min(self.gained, self.per_step * self.steps))

    @property
    def steps(self) -> int:
        """Steps it has lasted."""
        return self.last.step - self.first.step

    @property
    def reason(self) -> str:
        """The evidence in words."""
        return (
            f"the least memory between steps {self.first.step:,} and {self.last.step:,} rose all "
            f"along, by {self.gained / 2**20:,.1f} MiB"
        )


class Level:
    """Readings of one thing's memory, thinned so that they span the whole run."""

    __slots__ = ("readings",)

    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def add(self, reading: Reading) -> None:
        """Remember a reading."""
        self.readings.append(reading)
        if len(self.readings) > MOST_READINGS:
            # Of each pair the lower one: the floor is what counts. The newest always stays.
            newest = self.readings[-1]
            pairs = itertools.zip_longest(self.readings[0:-1:2], self.readings[1:-1:2])
            kept = [a if b is None or a.bytes <= b.bytes else b for a, b in pairs]
            self.readings = [*kept, newest]

    def shift(self, difference: int) -> None:
        """Take what was read so far as if it had been so many bytes more (or less) all along."""
        if difference:
            shifted = (replace(r, bytes=r.bytes + difference) for r in self.readings)
            self.readings = list(shifted)


def rise(readings: Sequence[Reading], least: int) -> Rise | None:
    """The steady growth that lasts until now; None when there is none of `least` bytes.

    Args:
        readings: oldest first.
        least: bytes below which growth is not worth a look.
    """
    if len(readings) < FEWEST:
        return None
    now = readings[-1]
    if now.bytes - min(reading.bytes for reading in readings) < least:
        return None  # nearly every healthy look ends here
    alike = [reading for reading in readings if reading.phase == now.phase]
    if len(alike) < FEWEST:
        return None
    outlived = RELEASE_FACTOR * longest_taken_back(alike, least)
    begin, steps = alike[0].step, now.step - alike[0].step
    found: Rise | None = None
    for share in BEGINNINGS:
        span = [reading for reading in alike if reading.step >= begin + share * steps]
        if len(span) < FEWEST or now.step - span[0].step < max(FEWEST, outlived):
            break
        found = _steady(span, least) or found
        if found is not None and not found.late:
            break
    return None if found is not None and _is_as_before(found, alike, least) else found


def goes_on(since: Reading, rise: Rise, least: int) -> bool:
    """Whether a rise has gone on since it was seen: a tooth or a cache may have looked like one.

    Args:
        since: the reading at which it was seen.
        rise: what is seen now.
        least: bytes below which growth is not worth a look.
    """
    lasted = rise.last.step - since.step
    return lasted >= GOES_ON_FOR and rise.last.bytes - since.bytes >= GOES_ON_BY * least


def longest_taken_back(readings: Sequence[Reading], least: int) -> int:
    """Steps of the longest rise (of at least half of `least` bytes) most of which was let go."""
    longest = 0
    trough = peak = readings[0]
    for reading in readings:
        if reading.bytes > peak.bytes:
            peak = reading
        risen = peak.bytes - trough.bytes
        if 2 * risen >= least and peak.bytes - reading.bytes > 0.5 * risen:
            longest = max(longest, peak.step - trough.step)
            trough = peak = reading
        elif reading.bytes < trough.bytes:
            trough = peak = reading
    return longest


def _is_as_before(rise: Rise, alike: Sequence[Reading], least: int) -> bool:
    """Whether a rise within one epoch is what an epoch before has gathered, too, and let go.

    This epoch may be longer, but not for ever: it counts from `MOST_AS_BEFORE` times as much on.

    Args:
        rise: what was found.
        alike: readings of its phase.
        least: bytes below which growth is not worth a look.
    """
    if rise.first.epoch < rise.last.epoch or not rise.last.epoch:
        return False
    by_epoch = [list(found) for _, found in itertools.groupby(alike, lambda one: one.epoch)]
    risen = rise.last.bytes - by_epoch[-1][0].bytes
    for before, after in itertools.pairwise(by_epoch):
        first, last = before[0], before[-1]
        climbed, lasted = last.bytes - first.bytes, max(1, last.step - first.step)
        is_let_go = last.bytes - after[0].bytes > LET_GO * climbed
        is_alike = climbed >= AS_FAST * rise.per_step * lasted and risen <= MOST_AS_BEFORE * climbed
        if 2 * climbed >= least and is_let_go and is_alike:
            return True
    return False


def _steady(span: Sequence[Reading], least: int) -> Rise | None:
    lows = _lows(span)
    floor = _floor(lows)
    gained = floor[-1] - floor[0]
    if len(lows) < WINDOWS - 2 or gained < least:
        return None
    deepest = _deepest_fall(span)
    if gained < OUTGROWS * deepest:
        return None
    if any(low.bytes - level > FALL * gained for low, level in zip(lows, floor, strict=True)):
        return None
    added = [b - a for a, b in itertools.pairwise(floor)]
    mean = gained / len(added)
    pauses = sum(each <= PAUSE * mean for each in added)
    if pauses > 1 or max(added) > JUMP * gained:
        return None
    late = _slope(lows[-len(lows) // 2 :])[0]
    slope, low, high = _slope(span if deepest <= SMOOTH * gained else lows)
    if slope <= 0 or late < LEVELLING * slope or low < SURE * slope:
        return None
    if not low <= late <= high:
        slope = late  # it has changed, beyond what chance allows: what comes is like the latest
    halves = _slope(span[: len(span) // 2])[0], _slope(span[len(span) // 2 :])[0]
    first, last = span[0], span[-1]
    passed = max(1, last.step - first.step)
    latest = span[-max(FEWEST, len(span) // ABOVE) :]
    line = sorted(r.bytes - (last.bytes - slope * (last.step - r.step)) for r in latest)
    above = line[int(0.95 * (len(line) - 1))]
    return Rise(
        first,
        last,
        gained,
        slope,
        max(0.0, min(low, slope, halves[1])),
        max(high, slope, halves[1]),
        (last.seconds - first.seconds) / passed,
        max(0, int(above)),
        halves[0] < LATE * slope,
    )


def _lows(span: Sequence[Reading]) -> list[Reading]:
    """The least reading of each window; windows without readings are left out."""
    begin, width = span[0].step, (span[-1].step - span[0].step) / WINDOWS
    lows: dict[int, Reading] = {}
    for reading in span:
        window = min(WINDOWS - 1, int((reading.step - begin) / width))
        known = lows.get(window)
        if known is None or reading.bytes < known.bytes:
            lows[window] = reading
    return [lows[window] for window in sorted(lows)]


def _floor(lows: Sequence[Reading]) -> list[int]:
    """What no later window's least falls below."""
    falling = itertools.accumulate((low.bytes for low in reversed(lows)), min)
    return list(falling)[::-1]


def _deepest_fall(span: Sequence[Reading]) -> int:
    """By how much the readings have fallen at the most; a peak of a single reading is none."""
    peak = deepest = 0
    for three in zip(span, span[1:], span[2:], strict=False):
        middle = sorted(reading.bytes for reading in three)[1]
        peak = max(peak, middle)
        deepest = max(deepest, peak - middle)
    return deepest


def _slope(readings: Sequence[Reading]) -> tuple[float, float, float]:
    """(slope, low, high) in bytes a step: the median of all pairs' slopes (Theil and Sen).

    The range is Sen's: the pairs' slopes around the median that Kendall's statistic allows at 95 %.
    """
    every = max(1, len(readings) // MOST_PAIRED)
    some = readings[::-1][::every][::-1]
    pairs = itertools.combinations(some, 2)
    slopes = sorted((b.bytes - a.bytes) / (b.step - a.step) for a, b in pairs if b.step > a.step)
    if not slopes:
        return 0.0, 0.0, 0.0
    count = len(some)
    reach = 1.96 * (count * (count - 1) * (2 * count + 5) / 18) ** 0.5
    middle = len(slopes) / 2
    low = slopes[max(0, int(middle - reach / 2))]
    high = slopes[min(len(slopes) - 1, int(middle + reach / 2))]
    return statistics.median(slopes), low, high
