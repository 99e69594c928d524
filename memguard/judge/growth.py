"""Growth a step and the forecast that follows from it; pure functions."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

from memguard.judge.levels import Rise
from memguard.records import Amount, Forecast, Growth

# Host memory of one autograd node: a running sum keeps 8 nodes and about 5 kB a step (torch 2.13).
NODE_BYTES = 640

# A forecast's range is never narrower than this share, however regular the growth was.
LEAST_SPREAD = 0.04

# Steps whose time is told; a number without end would be too large for one.
MOST_TIMED = 10**12

# A gap so many times the usual one ends what was before growth.
ONSET = 8


def rate(births: Sequence[int], count: int, now: int) -> float:
    """Share of the steps that left a survivor since growth became steady: 1.0 is each step.

    Args:
        births: steps with survivors, oldest first.
        count: how many steps these stand for.
        now: steps ended.
    """
    steady = since_it_grows(births)
    if len(steady) < 2:
        return 1.0 / max(1, now - steady[0]) if steady else 0.0
    stand_for = count - (len(births) - len(steady))
    return min(1.0, (stand_for - 1) / max(steady[-1] - steady[0], 1))


def spread(births: Sequence[int]) -> float:
    """How irregular the births are: the standard error of their mean distance, as a share of it."""
    gaps = [b - a for a, b in itertools.pairwise(since_it_grows(births))]
    if len(gaps) < 2:
        return 0.5
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1)
    return max(LEAST_SPREAD, float((variance / len(gaps)) ** 0.5 / mean))


def since_it_grows(births: Sequence[int]) -> Sequence[int]:
    """The births since growth became steady: a few survivors of long before it are not part of it.

    Steady is what follows the last gap of more than `ONSET` times the usual one.
    """
    gaps = [b - a for a, b in itertools.pairwise(births)]
    if len(gaps) < 4:
        return births
    usual = statistics.median_low(gaps)
    onset = max((at + 1 for at, gap in enumerate(gaps) if gap > ONSET * usual), default=0)
    # In the older half only: what keeps pausing is growth by fits and starts.
    return births[onset:] if onset <= len(births) // 2 else births


def growth(
    births: Sequence[int], count: int, now: int, nodes: int, size: int, survivors: float = 1.0
) -> Growth:
    """Growth when each of `count` births left so many survivors, of `nodes` nodes and `size` bytes.

    Args:
        births, count, now: as `rate` wants them.
        nodes: autograd nodes of one birth.
        size: bytes of one birth.
        survivors: graphs or tensors of one birth.
    """
    each = rate(births, count, now)
    return Growth(
        Amount(round(each * survivors, 4), round(each * nodes), round(each * size)),
        Amount(float(round(count * survivors)), count * nodes, count * size),
    )


def so_far(growth: Growth, since: int) -> Amount:
    """What growth has come to, so many steps after it was told.

    Args:
        growth: as it was told.
        since: steps that have ended since then.
    """
    each, total = growth.per_step, growth.total
    return Amount(
        total.graphs + each.graphs * since,
        total.nodes + each.nodes * since,
        total.bytes + each.bytes * since,
    )


def forecast(
    limit: int, used: int, per_step: float, uncertainty: float, device: str = ""
) -> Forecast | None:
    """Steps until `used` bytes reach `limit` at `per_step` bytes a step; None without growth.

    Args:
        limit, used: bytes.
        per_step: bytes added each step.
        uncertainty: half of the range, as a share of the steps.
        device: whose memory it is; empty for the host's.
    """
    if per_step <= 0 or limit <= 0:
        return None
    left = max(0.0, limit - used) / per_step
    share = min(0.9, uncertainty)
    return Forecast(int(left), int(left / (1 + share)), int(left / (1 - share)), limit, device)


def timed(told: Forecast | None, seconds_per_step: float) -> Forecast | None:
    """A forecast with the time that its steps will take, where it has none yet.

    Args:
        told: the forecast.
        seconds_per_step: the loop's pace; 0 where it is not known.
    """
    if told is None or told.seconds is not None or seconds_per_step <= 0:
        return told
    return replace(told, seconds=min(told.steps, MOST_TIMED) * seconds_per_step)


def outlook(rise: Rise, limit: int, used: int, device: str = "") -> Forecast | None:
    """Steps and seconds until memory that rises steadily reaches `limit`; None without growth.

    The range is that of the slope, and never narrower than `LEAST_SPREAD`.

    Args:
        rise: the growth.
        limit, used: bytes; what stands above the floor (teeth) is added to what is used.
        device: whose memory it is; empty for the host's.
    """
    if rise.per_step <= 0 or limit <= 0:
        return None
    left = max(0.0, limit - used - rise.above)
    steps = left / rise.per_step
    fastest = max(rise.fastest, rise.per_step * (1 + LEAST_SPREAD))
    slowest = min(rise.slowest, rise.per_step * (1 - LEAST_SPREAD))
    high = min(left / slowest, 100 * steps + 1) if slowest > 0 else 100 * steps + 1
    seconds = steps * rise.seconds_per_step
    return Forecast(int(steps), int(left / fastest), int(high), limit, device, seconds)


def rate_in_words(births: Sequence[int], count: int, now: int, survivors: float = 1.0) -> str:
    """`one more each step`, `one more every 4 steps`, `3 more each step`.

    Args:
        births, count, now: as `rate` wants them.
        survivors: how many each of the births left.
    """
    each = survivors * rate(births, count, now)
    if each >= 1.5:
        return f"{round(each):,} more each step"
    every = round(1 / max(each, 1e-9))
    return "one more each step" if every <= 1 else f"one more every {every:,} steps"
