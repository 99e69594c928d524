"""Growth a step, its pace in words, and the forecast."""

from __future__ import annotations

import pytest
from memguard.judge import growth
from memguard.judge.chains import Look, keeps_reaching


def test_growth_each_step() -> None:
    """Survivors of every step: one a step, totals by count."""
    grown = growth.growth([3, 4, 5, 6], now=9, window=2, nodes=10, size=100)
    assert (grown.per_step.graphs, grown.per_step.nodes, grown.per_step.bytes) == (1.0, 10, 100)
    assert (grown.total.graphs, grown.total.nodes, grown.total.bytes) == (4.0, 40, 400)


def test_growth_every_fourth_step() -> None:
    """Rare survivors weigh a quarter a step."""
    grown = growth.growth([0, 4, 8, 12], now=15, window=2, nodes=0, size=400)
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
    assert growth.rate_in_words(births, births[-1] + 3, 2) == words


def test_forecast_divides_what_is_left() -> None:
    """Steps left are the free bytes over the growth, within a range around it."""
    forecast = growth.forecast(limit=1000, used=200, per_step=8, uncertainty=0.1)
    assert forecast is not None
    assert forecast.steps == 100
    assert forecast.low < 100 < forecast.high


def test_no_growth_no_forecast() -> None:
    """Without growth there is no end to tell."""
    assert growth.forecast(1000, 200, 0, 0.1) is None


def test_regular_births_are_certain() -> None:
    """The range widens with the irregularity of the births."""
    assert growth.spread([0, 1, 2, 3, 4]) == growth.LEAST_SPREAD
    assert growth.spread([0, 1, 9, 10, 30]) > growth.LEAST_SPREAD


def test_a_chain_reaches_ever_further_back() -> None:
    """Looks that go on reaching the same old step are a chain."""
    assert keeps_reaching([Look(8, 0), Look(12, 0), Look(16, 0)], window=2, patience=5)


@pytest.mark.parametrize(
    "looks",
    [
        [Look(8, 7), Look(12, 11), Look(16, 15)],
        [Look(8, 0), Look(12, 8), Look(16, 12)],
        [Look(8, 0), Look(12, 0)],
        [Look(4, 0), Look(5, 0), Look(6, 0)],
        [Look(8, None), Look(12, None), Look(16, None)],
        [Look(8, 0), Look(12, 0), Look(16, None)],
    ],
)
def test_windows_and_short_looks_are_no_chain(looks: list[Look]) -> None:
    """What lets go now and then, or was seen too seldom, is no chain."""
    assert not keeps_reaching(looks, window=2, patience=5)
