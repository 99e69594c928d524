"""Levels of memory: which curves are steady growth, and when they would reach the limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from series import GROWING, HEALTHY, MIB, SECONDS_PER_STEP, STEPS, Curve, believed, noise, rises

from memguard.judge import growth
from memguard.judge.levels import FEWEST, MOST_AS_BEFORE, MOST_READINGS, Level, Reading, Rise, rise

RECORDED = sorted((Path(__file__).parent / "growth_curves").glob("*.json"))

# How far a forecast made half way may be off.
ACCURACY = 0.1


def at_half_way(found: dict[int, Rise], end: int) -> Rise:
    return found[min(step for step in found if step >= end / 2)]


def off(forecast_steps: int, actual: int) -> float:
    return abs(forecast_steps - actual) / actual


@pytest.mark.parametrize("name", GROWING)
def test_a_forecast_at_half_way_is_near(name: str) -> None:
    """Half way to the limit the steps that are left are told to a tenth, and the time with them."""
    curve = GROWING[name]
    limit = int((max(map(curve, range(STEPS))) - 0.5) * MIB)
    end = next(step for step in range(STEPS) if curve(step) * MIB >= limit)
    if name == "peaks now and then":  # the line is what is forecast, not a peak that comes alone
        end, limit = STEPS - 1, int(curve(STEPS - 1) * MIB)
    seen = at_half_way(rises(curve), end)
    told = growth.outlook(seen, limit, seen.last.bytes)
    assert told is not None
    assert told.seconds is not None
    left = end - seen.last.step
    assert off(told.steps, left) < ACCURACY
    assert off(round(told.seconds / SECONDS_PER_STEP), left) < ACCURACY
    assert told.low < told.steps < told.high


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_a_forecast_of_a_recorded_leak_is_near(file: Path) -> None:
    """The same for growth as it was (`benchmarks/growth_curves.py` records such curves).

    Kept strings, workers that cache, a model traced each step, a profiler that is never stopped.
    """
    points = [(step, kilobytes << 10) for step, kilobytes in json.loads(file.read_text())]
    (end, limit), level, found = points[-1], Level(), {}
    for step, size in points:
        level.add(Reading(step, float(step), size))
        seen = rise(level.readings, 8 * MIB)
        found |= {step: seen} if seen is not None else {}
    seen = at_half_way(found, end)
    told = growth.outlook(seen, limit, seen.last.bytes)
    assert told is not None
    assert off(told.steps, end - seen.last.step) < ACCURACY


def test_recorded_leaks_are_at_hand() -> None:
    """The test above has something to test."""
    assert {file.stem for file in RECORDED} == {"profiler", "strings", "tracing", "workers"}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_curve_has_no_forecast(name: str) -> None:
    """Noise, teeth, plateaus and jumps are no growth."""
    assert not believed(HEALTHY[name])


@pytest.mark.parametrize(
    "curve",
    [
        pytest.param(lambda i: 500 + 600 * min(1, i / 400), id="a line that ends"),
        pytest.param(lambda i: 500 + 600 * (1 - 0.99**i), id="levelling off"),
        pytest.param(lambda i: 500 + 3 * (i % 400), id="long teeth"),
    ],
)
def test_what_looked_like_growth_is_taken_back(curve: Curve) -> None:
    """A cache that is full, a tooth that has come down: no growth from then on."""
    found = rises(curve)
    assert found
    assert max(found) < 900


def test_a_second_tooth_is_no_growth() -> None:
    """What was let go after so many steps may rise as long again."""
    assert max(rises(lambda i: 500 + (i % 300), steps=590)) <= 300


def test_growth_of_another_phase_does_not_count() -> None:
    """An evaluation has more memory: that is no growth of the training before it."""
    level = Level()
    for step in range(60):
        phase = "evaluation" if step >= 40 else "training"
        size = 500 + (20 * (step - 40) if phase == "evaluation" else 0)
        level.add(Reading(step, float(step), size * MIB, phase))
        if step < 40 + FEWEST:
            assert rise(level.readings, 32 * MIB) is None


def test_an_epoch_that_never_ends_is_growth() -> None:
    """What one epoch has let go excuses the next for some time, and not for the rest of the run."""
    level, lasted, evaluation = Level(), 60, 200
    seen = []
    for epoch, steps in ((0, lasted), (1, 400)):
        for turn in range(steps):
            step = turn + epoch * (lasted + evaluation)
            level.add(Reading(step, float(step), (500 + 2 * turn) * MIB, "training", epoch))
            if epoch and rise(level.readings, 32 * MIB) is not None:
                seen.append(turn)
    assert seen == list(range(MOST_AS_BEFORE * (lasted - 1) + 1, 400))


def test_a_small_rise_is_none() -> None:
    """Growth below what is worth a look is not looked at."""
    assert not rises(lambda i: 500 + 0.5 * i, least=2000 * MIB)


def test_the_warm_up_is_passed_over() -> None:
    """Growth begins where it becomes even, not with the process."""
    found = rises(lambda i: 500 + 40 * min(i, 20) + 0.5 * i)
    assert found[max(found)].retained < 0.5 * STEPS * MIB * 1.1


def test_a_jump_is_not_counted_as_retained() -> None:
    """What came at once before the growth is no part of it."""
    found = rises(lambda i: 500 + 0.5 * i + 200 * (i > 2))
    assert found[max(found)].retained <= 0.5 * STEPS * MIB * 1.05


def test_readings_are_bounded_and_span_the_run() -> None:
    """A long run keeps a few hundred readings, its first and its last among them."""
    level = Level()
    for step in range(100_000):
        level.add(Reading(step, float(step), 500 * MIB + step))
    assert len(level.readings) <= MOST_READINGS
    assert level.readings[0].step == 0
    assert level.readings[-1].step == 99_999


def test_a_shift_changes_no_growth() -> None:
    """What was given back is taken off what was read before."""
    level = Level()
    for step in range(100):
        level.add(Reading(step, float(step), step * MIB))
    before = rise(level.readings, 32 * MIB)
    level.shift(-50 * MIB)
    after = rise(level.readings, 32 * MIB)
    assert before is not None
    assert after is not None
    assert before.per_step == after.per_step
    assert after.last.bytes == before.last.bytes - 50 * MIB


@settings(max_examples=25, deadline=None)
@given(
    period=some.integers(2, 60),
    height=some.floats(1, 400),
    spread=some.floats(0, 40),
    jumps=some.lists(some.tuples(some.integers(20, 400), some.floats(0, 300)), max_size=3),
    seed=some.integers(0, 1 << 30),
)
def test_bounded_memory_is_silent(
    period: int, height: float, spread: float, jumps: list[tuple[int, float]], seed: int
) -> None:
    """Teeth, noise and late jumps together are no growth two teeth after the start or a jump.

    Within those a jump from the top of one tooth to the bottom of the next may look like any rise.
    """
    rough = noise(spread, seed)

    def curve(step: int) -> float:
        jumped = sum(size for at, size in jumps if step > at)
        return 500 + height * (step % period) / period + rough(step) + jumped

    begin = 2 * period + max((at for at, _ in jumps), default=0)
    assert not [step for step in believed(curve, steps=600) if step > begin]


def test_a_forecast_without_growth_is_none() -> None:
    """A level that falls reaches no limit."""
    now = Reading(100, 1.0, 100 * MIB)
    falling = Rise(now, now, 0, -1.0, -1.0, -1.0, 0.1, 0)
    assert growth.outlook(falling, 1 << 30, 0) is None


def test_a_forecast_is_for_the_device() -> None:
    """Teeth reach the limit before the floor does; the device is named."""
    first, last = Reading(0, 0.0, 0), Reading(100, 10.0, 100 * MIB)
    seen = Rise(first, last, 100 * MIB, 1.0 * MIB, 0.9 * MIB, 1.1 * MIB, 0.1, 50 * MIB)
    told = growth.outlook(seen, 250 * MIB, 100 * MIB, "cuda:1")
    assert told is not None
    assert (told.steps, told.limit, told.device) == (100, 250 * MIB, "cuda:1")
    assert told.seconds == pytest.approx(10.0)
