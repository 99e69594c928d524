"""When a habit is worth a word: numbers in, an opinion out."""

from __future__ import annotations

# Steps in a row into which gradients were carried before they count as never cleared.
CARRIED = 3

# Graphs of evaluation forwards that died unused before all of them are taken to.
UNUSED = 4

# Bytes an unused graph has saved from which it is worth a word.
WORTH_A_WARNING = 64 << 10

# Looks at which a graph was still there after the loop's only backward.
RETAINED = 3

# Steps with automatic collection off and none made. Trainers that collect by themselves do so every
# hundred steps or some hundreds.
UNCOLLECTED = 1000


def never_cleared(carried: int) -> bool:
    """Whether gradients carried into so many steps, and never seen cleared, are a bug."""
    return carried >= CARRIED


def is_unused(wasted: int) -> bool:
    """Whether so many evaluation graphs that died unused speak for all."""
    return wasted >= UNUSED


def is_worth_a_warning(saved: int) -> bool:
    """Whether so many bytes in each unused graph are worth speaking of."""
    return saved >= WORTH_A_WARNING


def collects_nothing(steps: int) -> bool:
    """Whether a collector that was off for so many steps, with no collection made, is missed."""
    return steps >= UNCOLLECTED
