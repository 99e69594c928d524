"""Rulings on confirmed growth, tried below, at and above each bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memguard.judge.verdict import (
    NEAR,
    PENDING_BOUND,
    SURE,
    UNKNOWN_BOUND,
    Evidence,
    rule,
    steps_until_more,
    worth_a_warning,
)

GRAPH = Evidence("graph", survivors=7)
TENSOR = Evidence("tensor", survivors=7, per_survivor=1000, retained=7000, max_growth=10_000)
CYCLE = Evidence("cycle", survivors=7, per_survivor=1000, retained=7000, max_growth=10_000)


def test_graphs_that_nothing_bounds_leak() -> None:
    """Graphs are a leak whatever they weigh."""
    assert rule(GRAPH).action == "leak"


@pytest.mark.parametrize("kind", ["limit", "bound"])
def test_a_bounded_holder_of_graphs_is_a_warning_with_its_bound(kind: str) -> None:
    """`deque(maxlen)` or a bound in the source: a warning that says how many at most."""
    ruling = rule(replace(GRAPH, **{kind: 16}))
    assert (ruling.action, ruling.bound) == ("warning", 16)


def test_a_bound_that_does_not_hold_is_a_leak() -> None:
    """More survivors than the bound allows: something else keeps them."""
    ceiling = rule(replace(GRAPH, bound=16)).until
    assert ceiling is not None
    assert rule(replace(GRAPH, bound=16, survivors=ceiling - 1)).action == "warning"
    assert rule(replace(GRAPH, bound=16, survivors=ceiling)).action == "leak"


def test_a_bound_too_large_for_the_memory_is_a_leak() -> None:
    """Bounded is not healthy when the bound itself is past max_growth."""
    fits = replace(GRAPH, bound=100, per_survivor=99, max_growth=10_000)
    assert rule(fits).action == "warning"
    assert rule(replace(fits, per_survivor=100)).action == "leak"


def test_bounded_tensors_are_not_spoken_of() -> None:
    """A replay buffer below its bound is healthy."""
    assert rule(replace(TENSOR, bound=9)).action == "hold"


@pytest.mark.parametrize(
    ("field", "bound"), [("pending", PENDING_BOUND), ("releases", UNKNOWN_BOUND)]
)
def test_what_the_loop_will_release_is_waited_for(field: str, bound: int) -> None:
    """A backward still to come, or a clearing at an unknown time, is given its time."""
    waiting = replace(GRAPH, **{field: True})
    assert rule(replace(waiting, survivors=bound - 1)).action == "hold"
    assert rule(replace(waiting, survivors=bound)).action == "leak"


def test_tensors_leak_past_max_growth() -> None:
    """Below max_growth they are a warning, from there on a leak."""
    assert rule(replace(TENSOR, retained=9_999)).action == "warning"
    assert rule(replace(TENSOR, retained=10_000)).action == "leak"


def test_tensors_leak_when_the_end_is_near() -> None:
    """A forecast within reach makes any size a leak."""
    assert rule(replace(TENSOR, steps_left=NEAR + 1)).action == "warning"
    assert rule(replace(TENSOR, steps_left=NEAR)).action == "leak"


def test_what_may_end_by_itself_is_a_warning() -> None:
    """Memory that nobody is seen to keep may be a buffer, full at any time."""
    large = replace(TENSOR, kind="host", retained=10_000)
    assert rule(large).action == "leak"
    assert rule(replace(large, named=False)).action == "warning"


def test_a_cache_with_an_entry_for_each_sample_is_silent_as_long_as_it_fits() -> None:
    """However little `max_growth` is: it is full once all samples have come."""
    cache = replace(TENSOR, kind="worker", retained=49_999, room=100_000, finite=True)
    assert rule(cache).action == "hold"
    assert rule(replace(cache, retained=50_000)).action == "warning"
    assert rule(replace(cache, steps_left=NEAR)).action == "warning"
    assert rule(replace(cache, finite=False)).action == "leak"


def test_what_an_outer_loop_empties_may_gather_until_half_of_the_memory() -> None:
    """An epoch's predictions go with the epoch, however many steps it has; graphs do not wait."""
    epoch = replace(TENSOR, survivors=900, retained=49_999, room=100_000, outer=True)
    assert rule(epoch).action == "hold"
    assert rule(replace(epoch, kind="host")).action == "hold"
    assert rule(replace(epoch, retained=50_000)).action == "leak"
    assert rule(replace(epoch, steps_left=NEAR)).action == "leak"
    assert rule(replace(epoch, kind="graph")).action == "leak"


def test_cycles_leak_when_nobody_collects() -> None:
    """With the collector off and idle the cycles never go."""
    assert rule(CYCLE).action == "warning"
    assert rule(replace(CYCLE, collector_idle=True)).action == "leak"
    assert rule(replace(CYCLE, retained=10_000)).action == "leak"


def test_a_warning_is_looked_at_again_later() -> None:
    """The next look comes when clearly more has gathered."""
    ruling = rule(replace(TENSOR, survivors=40))
    assert ruling.until is not None
    assert ruling.until > 44


@pytest.mark.parametrize(
    ("retained", "worth"), [((16 << 20) - 1, False), (16 << 20, True), (0, False)]
)
def test_small_growth_is_not_worth_a_warning(retained: int, worth: bool) -> None:
    """Fifty scalars for a plot are below the floor of 16 MiB on a small machine."""
    assert worth_a_warning(retained, max_growth=100 << 20, limit=1 << 30) is worth


def test_the_floor_follows_max_growth() -> None:
    """A user who sets a small max_growth is warned at a quarter of it."""
    assert worth_a_warning(6 << 20, max_growth=24 << 20, limit=1 << 40)
    assert not worth_a_warning((6 << 20) - 1, max_growth=24 << 20, limit=1 << 40)


def test_what_nothing_adds_to_is_given_time() -> None:
    """An epoch's sum that has just ended holds old graphs, but does not grow."""
    ended = replace(GRAPH, growing=False)
    assert rule(ended).action == "hold"
    assert rule(replace(ended, survivors=SURE)).action == "leak"


def test_the_next_ruling_is_due_when_growth_has_reached_a_level() -> None:
    """The nearest of what is ahead: a level of bytes, or memory that is nearly full."""
    assert steps_until_more(100, 7.0, [50, 200, 400]) == 15
    assert steps_until_more(100, 7.0, [400], steps_left=NEAR + 5) == 5
    assert steps_until_more(500, 7.0, [400], steps_left=NEAR) is None
    assert steps_until_more(100, 0.0, [400]) is None
