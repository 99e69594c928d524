"""Growth a step, its pace in words, and the forecast."""

from __future__ import annotations

import pytest

from memguard.case_words import Case, at_its_pace
from memguard.judge import growth
from memguard.judge.chains import Look, keeps_reaching
from memguard.records import Kind


def test_growth_each_step() -> None:
    """Survivors of every step: one a step, totals by count."""
    grown = growth.growth([3, 4, 5, 6], 4, now=9, nodes=10, size=100)
    assert (grown.per_step.graphs, grown.per_step.nodes, grown.per_step.bytes) == (1.0, 10, 100)
    assert (grown.total.graphs, grown.total.nodes, grown.total.bytes) == (4.0, 40, 400)


def test_growth_every_fourth_step() -> None:
    """Rare survivors weigh a quarter a step."""
    grown = growth.growth([0, 4, 8, 12], 4, now=15, nodes=0, size=400)
    assert grown.per_step.bytes == 100


@pytest.mark.parametrize(
    ("births", "words"),
    [
        ([0, 1, 2, 3], "one more each step"),
        ([0, 4, 8], "one more every 4 steps"),
        ([0, 1000, 2000], "one more every 1,000 steps"),
        ([0, 1, 2, 4, 5, 6, 7, 8], "one more each step"),
    ],
)
def test_pace_in_words(births: list[int], words: str) -> None:
    """The pace is said as a person would."""
    assert growth.rate_in_words(births, len(births), births[-1] + 3) == words


@pytest.mark.parametrize(
    ("births", "survivors", "words"),
    [
        ([0, 20, 40], 20.0, "one more each step"),
        ([0, 20, 40], 60.0, "3 more each step"),
        ([0, 20, 40], 4.0, "one more every 5 steps"),
    ],
)
def test_pace_of_survivors_met_together(births: list[int], survivors: float, words: str) -> None:
    """What several steps left behind is spread over them."""
    assert growth.rate_in_words(births, len(births), births[-1], survivors) == words


@pytest.mark.parametrize(
    ("births", "grows"),
    [
        ([0, 500, 501, 502, 503, 504], [500, 501, 502, 503, 504]),
        ([0, 3, 500, 520, 540, 560, 580], [500, 520, 540, 560, 580]),
        ([0, 10, 20, 30, 40], [0, 10, 20, 30, 40]),
        ([0, 1, 2, 100, 101, 102, 200, 201, 202], [0, 1, 2, 100, 101, 102, 200, 201, 202]),
        ([0, 500, 1000], [0, 500, 1000]),
    ],
)
def test_what_survives_from_long_before_is_not_growth(births: list[int], grows: list[int]) -> None:
    """A survivor of the first step does not slow down a leak that began late."""
    assert growth.since_it_grows(births) == grows


def test_forecast_divides_what_is_left() -> None:
    """Steps left are the free bytes over the growth, within a range around it."""
    forecast = growth.forecast(limit=1000, used=200, per_step=8, uncertainty=0.1)
    assert forecast is not None
    assert forecast.steps == 100
    assert forecast.low < 100 < forecast.high


def test_a_forecast_has_the_time_that_its_steps_take() -> None:
    """The record has what the text tells; a time that was measured stays as it is."""
    forecast = growth.forecast(limit=1000, used=200, per_step=8, uncertainty=0.1)
    in_time = growth.timed(forecast, 0.5)
    assert in_time is not None
    assert in_time.seconds == 50
    assert growth.timed(in_time, 2.0) == in_time
    assert growth.timed(forecast, 0.0) == forecast
    assert growth.timed(None, 0.5) is None


def test_no_growth_no_forecast() -> None:
    """Without growth there is no end to tell."""
    assert growth.forecast(1000, 200, 0, 0.1) is None


def test_regular_births_are_certain() -> None:
    """The range widens with the irregularity of the births."""
    assert growth.spread([0, 1, 2, 3, 4]) == growth.LEAST_SPREAD
    assert growth.spread([0, 1, 9, 10, 30]) > growth.LEAST_SPREAD


@pytest.mark.parametrize(
    ("kind", "births", "why", "told"),
    [
        ("graph", [0, 1, 2, 3], "rows keeps it of every step", "rows keeps it of every step"),
        ("graph", [0, 9, 18], "rows keeps it of every step", "rows keeps it of one step in 9"),
        ("graph", [0, 9, 18], "kept: every step's values", "kept: those steps' values"),
        ("graph", [0, 9, 18], "hangs on every step before", "hangs on those before"),
        ("tensor", [0, 9, 18], "gathers x of every step", "gathers x of some steps"),
    ],
)
def test_a_reason_is_true_of_the_pace(kind: Kind, births: list[int], why: str, told: str) -> None:
    """What one step in nine leaves is not said to be of every step."""
    case = Case(kind, births[-1] + 3, births, "as judged")
    assert at_its_pace(why, case, len(births)) == told


def test_steps_that_are_stood_for_count() -> None:
    """When some steps are forgotten, those that stand for them keep the pace right."""
    assert growth.rate_in_words([0, 2, 4, 6, 8], 9, 11) == "one more each step"


def look(step: int, oldest: int | None) -> Look:
    """A look that reached every step from the oldest on."""
    return Look(step, () if oldest is None else tuple(range(oldest, step)))


def test_a_chain_reaches_ever_further_back() -> None:
    """Looks that reach one step more with each step of the loop are a chain."""
    assert keeps_reaching([look(8, 0), look(12, 0), look(16, 0)], window=2, patience=5)


@pytest.mark.parametrize(
    "looks",
    [
        [look(8, 7), look(12, 11), look(16, 15)],
        [look(8, 0), look(12, 8), look(16, 12)],
        [look(8, 0), look(12, 0)],
        [look(4, 0), look(5, 0), look(6, 0)],
        [look(8, None), look(12, None), look(16, None)],
        [look(8, 0), look(12, 0), look(16, None)],
        [Look(20, (0, 19)), Look(40, (0, 39)), Look(60, (0, 59))],
    ],
)
def test_windows_short_looks_and_one_old_graph_are_no_chain(looks: list[Look]) -> None:
    """What lets go now and then, was seen too seldom, or is one graph used again is no chain."""
    assert not keeps_reaching(looks, window=2, patience=5)
