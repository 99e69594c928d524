"""From births and deaths to clean, suspect or confirmed, on series written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memguard.judge.survivors import CONFIRM, Survey, Track, advance, completed

WINDOW, PATIENCE = 2, 5


def run(
    lifetime: Callable[[int], int | None], steps: int, born: Callable[[int], bool] = lambda s: True
) -> list[str]:
    """States after each step when what is born in step s lives `lifetime(s)` steps, None: ever."""
    track, states, alive = Track(WINDOW), [], {}
    for now in range(1, steps + 1):
        birth = now - 1
        if born(birth):
            alive[birth] = lifetime(birth)
        died = [b for b, life in alive.items() if life is not None and now - b >= life]
        deaths = [now - b for b in died]
        for b in died:
            del alive[b]
        track, opinion = advance(track, Survey(now, sorted(alive), deaths), PATIENCE)
        states.append(opinion.state)
    return states


def test_a_graph_kept_each_step_is_confirmed_within_ten() -> None:
    """Nothing dies: suspected with `patience` survivors, confirmed two later."""
    states = run(lambda s: None, 12)
    assert states.index("suspect") + 1 == WINDOW + PATIENCE
    assert states.index("confirmed") + 1 == WINDOW + PATIENCE + CONFIRM


@pytest.mark.parametrize("life", [1, 2, 3, 4, 6])
def test_what_dies_soon_is_clean(life: int) -> None:
    """Graphs that live a few steps are never suspected."""
    assert set(run(lambda s: life, 60)) == {"clean"}


@pytest.mark.parametrize("bound", [8, 16, 40])
def test_a_ring_is_clean_once_it_turns(bound: int) -> None:
    """A ring looks like a leak until it is full; afterwards it is clean for good."""
    states = run(lambda s: bound, 300)
    assert set(states[2 * bound :]) == {"clean"}


@pytest.mark.parametrize("period", [4, 6, 20, 50])
def test_a_sawtooth_is_clean_after_its_first_tooth(period: int) -> None:
    """What is emptied every so many steps is clean from the first emptying on."""
    states = run(lambda s: period - s % period, 6 * period)
    assert set(states[period:]) == {"clean"}


def test_a_plateau_is_clean() -> None:
    """Survivors of the first steps that stop coming are no leak."""
    states = run(lambda s: None, 200, born=lambda s: s < 6)
    assert set(states[40:]) == {"clean"}


@pytest.mark.parametrize("every", [3, 4, 10, 100])
def test_a_rare_leak_is_confirmed(every: int) -> None:
    """One survivor every so many steps is a leak as well; seven of them are enough."""
    states = run(lambda s: None, 10 * every, born=lambda s: s % every == 0)
    assert "confirmed" in states
    assert states.index("confirmed") <= 8 * every


def test_a_leak_beside_a_ring_is_confirmed() -> None:
    """A ring of ten steps delays the verdict on a leak, but does not hide it."""
    track, confirmed = Track(WINDOW), None
    for now in range(1, 100):
        leaked = list(range(0, now, 2))
        ring = [b for b in range(1, now, 2) if now - b < 10]
        deaths = [10] if now > 10 and (now - 10) % 2 else []
        births = sorted([*leaked, *ring])
        track, opinion = advance(track, Survey(now, births, deaths), PATIENCE)
        if opinion.state == "confirmed" and confirmed is None and now > 12:
            confirmed = now
    assert confirmed is not None


def test_one_old_graph_is_clean() -> None:
    """A single graph pinned for long (the best loss so far) is not growth."""
    assert set(run(lambda s: None, 100, born=lambda s: s == 3)) == {"clean"}


def test_steps_that_could_not_be_seen_do_not_end_a_suspicion() -> None:
    """When the budget leaves steps out, silence about them is no sign of healing."""
    observed = [*range(16), 60, 61, 62]
    births = [*range(16)]
    track = Track(WINDOW)
    track, before = advance(track, Survey(18, births, (), observed[:16]), PATIENCE)
    track, after = advance(track, Survey(60, births, (), observed[:16]), PATIENCE)
    assert before.state == "suspect"
    assert after.state == "suspect"
    track, healed = advance(track, Survey(65, births, (), [*observed, 63, 64]), PATIENCE)
    assert healed.state == "clean"


def test_the_reason_counts() -> None:
    """The opinion's reason names how many survivors are how old."""
    track = Track(WINDOW)
    for now in range(1, 10):
        track, opinion = advance(track, Survey(now, list(range(now))), PATIENCE)
    assert "survivors of 7 steps are older than 2 steps" in opinion.reason


def test_steps_that_a_walk_finds_between_births_are_births_of_a_chain() -> None:
    """A look each twenty steps saw four links; the walk finds the others."""
    assert completed([20, 40, 60], range(5, 80)) == (*range(5, 19), *range(20, 61))


def test_a_node_that_is_dated_one_step_off_is_no_birth_of_its_own() -> None:
    """One graph each fifty steps, whose first nodes are taken for the step's before."""
    assert completed([50, 100, 150], [49, 50, 99, 100, 101, 149]) == (50, 100, 150)
    assert completed([10, 12, 14], [11, 12, 13]) == (10, 11, 12, 13, 14)
