"""Growth a step and the forecast that follows from it; pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from memguard.records import Amount, Forecast, Growth

# Host memory of one autograd node: a running sum keeps 8 nodes and about 5 kB a step (torch 2.13).
NODE_BYTES = 640

# A forecast's range is never narrower than this share, however regular the growth was.
LEAST_SPREAD = 0.04


def rate(births: Sequence[int], count: int, now: int) -> float:
    """Share of the steps since the first survivor that left one: 1.0 is each step.

    Args:
        births: steps with survivors, oldest first.
        count: how many steps these stand for.
        now: steps ended.
    """
    if len(births) < 2:
        return 1.0 / max(1, now - births[0]) if births else 0.0
    return min(1.0, (count - 1) / max(births[-1] - births[0], 1))


def spread(births: Sequence[int]) -> float:
    """How irregular the births are: the standard error of their mean distance, as a share of it."""
    gaps = [b - a for a, b in itertools.pairwise(births)]
    if len(gaps) < 2:
        return 0.5
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1)
    return max(LEAST_SPREAD, float((variance / len(gaps)) ** 0.5 / mean))


def growth(births: Sequence[int], count: int, now: int, nodes: int, size: int) -> Growth:
    """Growth when each of `count` steps' survivors weighs `nodes` nodes and `size` bytes."""
    each = rate(births, count, now)
    return Growth(
        Amount(round(each, 4), round(each * nodes), round(each * size)),
        Amount(float(count), count * nodes, count * size),
    )


def forecast(limit: int, used: int, per_step: float, uncertainty: float) -> Forecast | None:
    """Steps until `used` bytes reach `limit` at `per_step` bytes a step; None without growth."""
    if per_step <= 0 or limit <= 0:
        return None
    left = max(0.0, limit - used) / per_step
    share = min(0.9, uncertainty)
    return Forecast(int(left), int(left / (1 + share)), int(left / (1 - share)), limit)


def rate_in_words(births: Sequence[int], count: int, now: int) -> str:
    """`one more each step`, `one more every 4 steps`."""
    every = round(1 / max(rate(births, count, now), 1e-9))
    return "one more each step" if every <= 1 else f"one more every {every:,} steps"
