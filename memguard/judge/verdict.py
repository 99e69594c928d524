"""From what was counted, weighed and explained to a ruling with a reason; pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# A statement in the same loop empties the holder, but the source does not say when: survivors of
# this many steps are believed to be released before they are believed to leak.
UNKNOWN_BOUND = 64

# The loop will still go backward through what it holds (rollouts, long windows).
PENDING_BOUND = 5000

# More survivors needed when those counted were found to hang on something that has ended growing.
STALLED = 3

# With this many survivors they are spoken of even when nothing was seen to add to them.
SURE = 14

# A container's own limit is exact but for the steps at its edges. A bound read from the source is
# not: it may be counted in other units, and what was made of the last lot (its mean, its
# concatenation) may keep that lot until the next one is done.
LIMIT_SLACK = 1.25
BOUND_SLACK = 2.25

# Growth that ends the job within this many steps is a leak whatever its size.
NEAR = 20

# Nobody knows how long an epoch is, at whose end a holder is emptied. What it has gathered is
# believed to go as long as it takes less than this share of what there is.
MOST_OF_ROOM = 0.5

# Share of what there is from which the end of memory is near.
NEAR_THE_END = 0.95


# What grows, by kind, where it is not tensors.
_GROWING = {"host": "the process", "worker": "child processes"}


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known when a ruling is due.

    Attributes:
        kind: `graph`, `tensor`, `cycle`, `host` or `worker`.
        survivors: steps that have survivors.
        window: steps a graph may outlive its own.
        limit: entries the holder's container can have at most.
        bound: entries or steps after which the source empties it.
        releases: whether a statement in the loop empties it at all.
        pending: whether the loop will still go backward through it.
        retained: bytes kept so far.
        per_survivor: bytes each step's survivors keep.
        max_growth: retained bytes that make a warning a leak.
        room: bytes there are for what is retained in all.
        steps_left: forecast; None when there is none.
        growing: whether something still adds to them.
        collector_idle: automatic collection is off and nothing else collects.
        named: whether anybody is known to keep what the process gained.
        outer: whether a statement in a loop around it empties the holder, as each epoch's does.
        finite: whether the holder stops growing by itself, nobody here knows when, as a cache does
            that has an entry for each sample.
    """

    kind: str
    survivors: int
    window: int = 2
    limit: int | None = None
    bound: int | None = None
    releases: bool = False
    pending: bool = False
    retained: int = 0
    per_survivor: int = 0
    max_growth: int = 1 << 62
    room: int = 1 << 62
    steps_left: int | None = None
    growing: bool = True
    collector_idle: bool = False
    named: bool = True
    outer: bool = False
    finite: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """What follows from the evidence.

    Attributes:
        action: `leak` and `warning` are reported; `hold` waits for more survivors.
        reason: why, in words.
        until: survivors at which a held or bounded case is looked at again.
        bound: the bound that was believed.
    """

    action: Literal["leak", "warning", "hold"]
    reason: str
    until: int | None = None
    bound: int | None = None


def rule(evidence: Evidence) -> Ruling:
    """Whether confirmed growth is a leak, a warning, or not to be spoken of yet."""
    if evidence.kind == "cycle":
        return _rule_cycle(evidence)
    if not evidence.growing and evidence.survivors < SURE:
        reason = "the survivors hang on an object of the past that nothing adds to"
        return Ruling("hold", reason, evidence.survivors + STALLED)
    bounded = _rule_bounded(evidence)
    if bounded is not None:
        return bounded
    if evidence.kind == "graph":
        return Ruling(
            "leak", f"graphs of {evidence.survivors} steps survive and nothing bounds them"
        )
    return _rule_by_size(evidence, _GROWING.get(evidence.kind, "tensors"))


def _rule_bounded(evidence: Evidence) -> Ruling | None:
    """The ruling for a holder that something bounds; None when nothing does, or it did not hold."""
    bound = evidence.limit if evidence.limit is not None else evidence.bound
    if bound is not None:
        slack = LIMIT_SLACK if evidence.limit is not None else BOUND_SLACK
        ceiling = int(bound * slack) + evidence.window + 2
        if evidence.survivors > ceiling:
            return None
        # Entries weigh at most what a step's survivors do; tensors up to their bound are healthy as
        # long as there is room for them.
        most = bound * evidence.per_survivor
        fits = most < (evidence.max_growth if evidence.kind == "graph" else evidence.room)
        if not fits:
            return None
        reason = f"the holder keeps at most {bound}"
        # Replay buffers and memory banks are healthy up to their bound; graphs in one rarely are.
        action: Literal["warning", "hold"] = "warning" if evidence.kind == "graph" else "hold"
        if evidence.pending:
            action = "hold"
        return Ruling(action, reason, ceiling + 1, bound)
    if evidence.pending and evidence.survivors < PENDING_BOUND:
        return Ruling("hold", "the loop still goes backward through them", PENDING_BOUND)
    if evidence.releases and evidence.survivors < UNKNOWN_BOUND:
        return Ruling("hold", "a statement of the loop empties the holder", UNKNOWN_BOUND)
    if evidence.outer and evidence.kind != "graph" and not _is_near(evidence):
        reason = "a loop around this one empties the holder"
        return Ruling("hold", reason, evidence.survivors + evidence.survivors // 4 + 2)
    return None


def _is_near(evidence: Evidence) -> bool:
    """Whether what gathers until an outer loop comes round may not fit."""
    is_late = evidence.steps_left is not None and evidence.steps_left <= NEAR
    return is_late or evidence.retained >= MOST_OF_ROOM * evidence.room


def _rule_cycle(evidence: Evidence) -> Ruling:
    if evidence.collector_idle:
        return Ruling("leak", "automatic collection is off and nothing collects these cycles")
    return _rule_by_size(evidence, "reference cycles")


def _rule_by_size(evidence: Evidence, what: str) -> Ruling:
    later = evidence.survivors + evidence.survivors // 4 + 2
    if evidence.finite:
        if not _is_near(evidence):
            return Ruling("hold", "it holds an entry for each of a limited number of things", later)
        return Ruling("warning", f"{what} may not fit until all has come once", later)
    # What nobody is seen to keep may as well be a buffer that fills.
    if evidence.named and evidence.retained >= evidence.max_growth:
        return Ruling("leak", f"{what} retained more than max_growth")
    if evidence.steps_left is not None and evidence.steps_left <= NEAR:
        return Ruling("leak", f"{what} fill the memory within {evidence.steps_left} steps")
    # Looked at again when a quarter more has gathered: an explanation costs passes over the heap.
    return Ruling("warning", f"{what} keep growing", later)


def steps_until_more(
    retained: int, per_step: float, levels: Sequence[float], steps_left: int | None = None
) -> int | None:
    """Steps after which growth has reached the next level, or fills the memory soon.

    Another ruling is due then, however long ago the last one was.

    Args:
        retained: bytes kept so far.
        per_step: bytes each step adds.
        levels: bytes at which the ruling may change.
        steps_left: forecast; None when there is none.
    """
    if per_step <= 0:
        return None
    ahead = [math.ceil((level - retained) / per_step) for level in levels if level > retained]
    if steps_left is not None and steps_left > NEAR:
        ahead.append(steps_left - NEAR)
    return min(ahead, default=None)


def is_near_the_end(used: int, limit: int) -> bool:
    """Whether so little is left that the next allocation may be the last."""
    return 0 < NEAR_THE_END * limit <= used


def worth_a_warning(retained: int, max_growth: int, limit: int) -> bool:
    """Whether growing tensors are worth speaking of before they are a leak.

    Fifty scalars kept for a plot are not.
    """
    return retained >= least_worth(max_growth, limit)


def least_worth(max_growth: int, limit: int) -> int:
    """Bytes from which growth is worth a word.

    A quarter of `max_growth`, or one percent of the limit where that is less.
    """
    return min(max_growth // 4, max(limit // 100, 16 << 20))
