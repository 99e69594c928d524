"""Curves of memory written by hand: megabytes by step, growing and healthy ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

from memguard.judge.levels import Level, Reading, Rise, goes_on, rise

MIB = 1 << 20
STEPS = 2000
SECONDS_PER_STEP = 0.05

Curve = Callable[[int], float]


def noise(size: float, seed: int = 1) -> Curve:
    """Normal noise, the same at each call with the same step."""
    return lambda step: random.Random(seed * 1_000_003 + step).gauss(0, size)


_noise, _more = noise(8), noise(15, seed=2)

GROWING: dict[str, Curve] = {
    "a straight line": lambda i: 500 + 0.5 * i,
    "a noisy line": lambda i: 500 + 0.5 * i + _noise(i),
    "a warm-up, then a line": lambda i: 500 + 300 * (1 - math.exp(-i / 60)) + 0.5 * i,
    "a line with teeth": lambda i: 500 + 0.5 * i + 2 * (i % 50),
    "a line with long teeth": lambda i: 500 + 0.4 * i + 0.8 * (i % 137),
    "stairs": lambda i: 500 + 32 * (i // 60),
    "large blocks": lambda i: 500 + 48 * (i // 90),
    "large blocks beside teeth": lambda i: 500 + 32 * (i // 60) + 3 * (i % 30),
    "slower from a third on": lambda i: 500 + 0.8 * min(i, 300) + 0.4 * max(0, i - 300),
    "faster from a third on": lambda i: 500 + 0.3 * min(i, 700) + 0.6 * max(0, i - 700),
    "more each epoch": lambda i: 500 + 60 * (i // 100) + i % 100,
    "a line that begins late": lambda i: 500 + max(0, i - 600) * 0.7,
    "a line with one jump": lambda i: 500 + 0.5 * i + 400 * (i > 150),
    "peaks now and then": lambda i: 500 + 0.5 * i + 300 * (i % 47 == 0),
    "slow growth in noise": lambda i: 500 + 0.3 * i + abs(_more(i)),
}

# None of these rises for so long that it could not be anything else.
HEALTHY: dict[str, Curve] = {
    "flat": lambda i: 500,
    "noise": lambda i: 500 + 3 * _noise(i),
    "teeth": lambda i: 500 + 3 * (i % 20),
    "an epoch's buffers": lambda i: 500 + 0.2 * (i % 150),
    "libraries loaded late": lambda i: 500 + 200 * (i > 300) + 150 * (i > 900) + 300 * (i > 1400),
    "a warm-up": lambda i: 500 + 400 * (1 - math.exp(-i / 4)),
    "a ring that fills": lambda i: 500 + 30 * min(i, 10),
    "evaluations": lambda i: 500 + 400 * (i % 200 > 180),
    "a checkpoint now and then": lambda i: 500 + 800 * (i % 250 == 0),
    "arenas": lambda i: 500 + 64 * min(4, i // 300),
    "a compilation": lambda i: 500 + 900 * (i > 3) + 200 * (i > 700),
    "memory given back": lambda i: 1500 - 0.4 * min(i, 1000),
}


def looks(steps: int = STEPS) -> Iterable[int]:
    """Steps that are looked at: the first ones, then some."""
    return (step for step in range(steps) if step <= 16 or step % 6 == 0)


def rises(curve: Curve, least: int = 32 * MIB, steps: int = STEPS) -> dict[int, Rise]:
    """By step, the rises that are seen in a curve."""
    level, found = Level(), {}
    for step in looks(steps):
        level.add(Reading(step, step * SECONDS_PER_STEP, int(curve(step) * MIB)))
        seen = rise(level.readings, least)
        if seen is not None:
            found[step] = seen
    return found


def believed(curve: Curve, least: int = 32 * MIB, steps: int = STEPS) -> list[int]:
    """Steps at which a rise is believed: it was seen, and has gone on since."""
    since: Reading | None = None
    told = []
    for step, seen in rises(curve, least, steps).items():
        since = since or seen.last
        if goes_on(since, seen, least):
            told.append(step)
            since = None
    return told
