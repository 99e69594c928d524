"""Between looks a step is only counted, and nothing is lost by that."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memguard
from memguard.clock import tape as tapes
from memguard.clock.beats import Clock, Leader
from memguard.clock.tape import (
    BACKWARD,
    EVALUATION,
    GRADIENT,
    MANUAL,
    OPTIMIZER,
    OTHER,
    TRAINING,
    Tape,
)
from memguard.guard import Guard
from memguard.pace import CLOSE_STEPS, GAPS, MAX_STRETCH, MIDDLE_GAPS, WIDE_GAPS, Pace
from memguard.sensors.governor import FREE_STEPS, Governor

SETTLED = CLOSE_STEPS + 3 * sum(GAPS)


# --- the tape ---


def test_a_tape_takes_what_there_is_room_for_in_order() -> None:
    """Events come off as they went on, with their sources; the tape is closed then."""
    tape = Tape()
    assert not tape.takes(TRAINING, 5)
    tape.open(3)
    put = [(TRAINING, 2**47 + 8), (OPTIMIZER, 7), (MANUAL, 0)]
    assert all(tape.takes(event, source) for event, source in put)
    assert not tape.takes(TRAINING, 5)
    assert tape.take_off() == put
    assert tape.take_off() == []
    assert not tape.takes(TRAINING, 5)


def test_a_tape_is_never_longer_than_its_bound() -> None:
    """A loop of countless forwards a step does not fill the memory with numbers."""
    tape = Tape()
    tape.open(10**9)
    while tape.takes(TRAINING, 1):
        assert len(tape.events) <= tapes.MAX_EVENTS
    assert len(tape.events) == tapes.MAX_EVENTS


@pytest.mark.parametrize("seed", range(20))
def test_the_clock_hears_from_a_tape_what_it_hears_at_once(seed: int) -> None:
    """Whatever the mixture of events, the beats are the same."""
    dice = random.Random(seed)
    events = [
        (
            dice.choice((TRAINING, EVALUATION, OPTIMIZER, BACKWARD, GRADIENT, OTHER)),
            dice.choice((1, 2)),
        )
        for _ in range(300)
    ]
    at_once, later, tape = Clock(), Clock(), Tape()
    methods: dict[int, Callable[[int], bool]] = {
        TRAINING: lambda source: at_once.forward(source, training=True),
        EVALUATION: lambda source: at_once.forward(source, training=False),
        OPTIMIZER: at_once.optimizer,
        BACKWARD: lambda source: at_once.backward(),
        GRADIENT: lambda source: at_once.gradient(),
        OTHER: lambda source: False,
    }
    beats = [methods[event](source) for event, source in events]
    heard = []
    for event, source in events:
        if not tape.takes(event, source):
            heard += tape.take_off()
            tape.open(dice.randrange(1, 50))
            tape.takes(event, source)
    heard += tape.take_off()
    assert [later.hear(event, source) for event, source in heard] == beats
    assert state_of(later) == state_of(at_once)


def state_of(clock: Clock) -> dict[str, object]:
    """All that a clock knows."""
    leaders = {
        name: (leader._leader, leader._turns)
        for name, leader in vars(clock).items()
        if isinstance(leader, Leader)
    }
    return {**vars(clock), **leaders}


# Steps as loops have them, again and again: plain ones, others that stand in their midst.
STEPS = (
    [(TRAINING, 1), (OPTIMIZER, 9)],
    [(TRAINING, 1), (TRAINING, 1), (TRAINING, 2), (OPTIMIZER, 9)],
    [(OPTIMIZER, 8), (OPTIMIZER, 9)],
    [(TRAINING, 1), (EVALUATION, 2), (OPTIMIZER, 9)],
    [(EVALUATION, 1)],
    [(BACKWARD, 0), (OPTIMIZER, 8)],
    [(TRAINING, 1)],
    [(MANUAL, 0)],
)


@pytest.mark.parametrize("seed", range(60))
def test_steps_alike_are_heard_as_one_by_one(seed: int) -> None:
    """A tape that repeats itself leaves the clock as its events by themselves would."""
    dice = random.Random(seed)
    events = [
        event
        for _ in range(dice.randrange(2, 12))
        for event in STEPS[min(dice.randrange(9), dice.randrange(9), 7)] * dice.randrange(1, 40)
    ]
    at_once, later = Clock(), Clock()
    for clock in (at_once, later):
        clock.await_word(dice.choice((0, 0, 5)) if seed % 3 else 7)
    later._word_due = at_once._word_due
    while events:
        tape, events = events[:128], events[128:]
        heard = [at_once.hear(*event) for event in tape]
        assert later.hear_all(tape) == heard[-1]
        assert state_of(later) == state_of(at_once)


def test_steps_between_two_noted_ones_are_dated_evenly() -> None:
    """A node of a step that was only counted is told to be of that step, or next to it."""
    clock = Clock()
    clock.note_sequence(100)
    for _ in range(4):
        clock.manual()
    clock.note_sequence(140)
    assert [clock.step_of(number) for number in (99, 100, 109, 110, 125, 139, 140, 999)] == [
        -1,
        0,
        0,
        1,
        2,
        3,
        4,
        4,
    ]


# --- the pace ---


class Time:
    """A clock that goes on by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(
    steps: int, events: Callable[[int], int], watchful: bool = False, cost: float = 4e-4
) -> list[int]:
    """Steps that were looked at, when step `n` has so many events and takes 10 ms.

    A look takes 400 microseconds, or as many seconds as are given.
    """
    time, tape, looks, passed = Time(), Tape(), [], 0
    governor = Governor(0.01, time)
    pace = Pace(governor, tape)
    for step in range(1, steps + 1):
        time.now += 0.01
        taken = [tape.takes(TRAINING, 1) for _ in range(events(step))]
        if all(taken):
            passed += 1
            continue
        governor.count(passed)
        passed = 0
        pace.woken(len(tape.take_off()), step - 1, within=taken[0])
        pace.heard(taken.count(False))
        governor.end_step()
        if pace.look_is_due(step):
            looks.append(step)
            pace.looked(step, watchful)
            if not pace.is_free(step):
                governor.charge(cost)
        else:
            pace.rest(step)
    return looks


def gaps_of(looks: list[int]) -> set[int]:
    """The distances from look to look."""
    return {after - before for before, after in itertools.pairwise(looks)}


def test_looks_grow_rare_as_a_loop_settles() -> None:
    """Every step at first, every few steps for a while, as rarely as they are dear in the end."""
    looks = paced(1000, lambda step: 2)
    assert looks[:FREE_STEPS] == list(range(1, FREE_STEPS + 1))
    assert gaps_of([look for look in looks if FREE_STEPS < look <= CLOSE_STEPS]) == set(GAPS)
    assert gaps_of([look for look in looks if look > SETTLED]) == set(MIDDLE_GAPS)


@pytest.mark.parametrize(
    ("cost", "gaps"),
    [(3e-5, GAPS), (9e-5, (7, 9, 13)), (4e-4, MIDDLE_GAPS), (1e-3, WIDE_GAPS)],
)
def test_looks_come_as_often_as_they_are_not_felt(cost: float, gaps: tuple[int, ...]) -> None:
    """Cheap beside a step of 10 ms they come every few steps, dear ones every forty."""
    looks = [look for look in paced(3000, lambda step: 2, cost=cost) if look > SETTLED]
    assert gaps_of(looks) == set(gaps)
    share = cost * len(looks) / (0.01 * (looks[-1] - looks[0]))
    assert share < 0.005


def test_looks_that_the_budget_does_not_pay_for_come_rarely_but_come() -> None:
    """What takes half a step each time is put off, up to a bound."""
    looks = [look for look in paced(5000, lambda step: 2, cost=5e-3) if look > SETTLED]
    assert max(WIDE_GAPS) < max(gaps_of(looks)) <= MAX_STRETCH * max(WIDE_GAPS)


def test_memory_that_climbs_is_looked_at_no_more_rarely_than_midway() -> None:
    """A rise is judged by readings that come with looks."""
    time = Time()
    governor = Governor(0.01, time)
    pace = Pace(governor, Tape())

    def gaps(climbs: bool) -> list[int]:
        found = []
        for _ in range(3):
            time.now += 100.0
            governor.charge(0.01)
            found.append(pace.looked(1000, False, climbs=climbs) - 1000)
        return found

    assert gaps(climbs=False) == list(WIDE_GAPS)
    assert gaps(climbs=True) == list(MIDDLE_GAPS)


def test_every_step_is_looked_at_under_suspicion() -> None:
    """As long as the budget allows."""
    assert paced(300, lambda step: 2, watchful=True, cost=5e-5) == list(range(1, 301))


@pytest.mark.parametrize("period", range(2, 13))
def test_what_happens_every_so_many_steps_is_met(period: int) -> None:
    """No rhythm of a loop hides from the rhythm of the looks."""
    looks = paced(5000, lambda step: 2)
    assert {look % period for look in looks if look > SETTLED} == set(range(period))


def test_a_look_is_no_later_than_something_is_to_be_said() -> None:
    """A wide gap, or one that was stretched, is cut short; a step that has passed is the next."""
    pace = Pace(Governor(0.01, Time()), Tape())
    looked = {by: pace.looked(1000, False, by=by) for by in (1002, 990, 5000)}
    assert (looked[1002], looked[990]) == (1002, 1001)
    assert looked[5000] <= 1000 + max(WIDE_GAPS)


def test_dear_looks_are_rare_from_the_first_steps_on() -> None:
    """Of 20 ms each in a loop of 10 ms: the budget decides, as it does later on."""

    def taken(cost: float) -> int:
        time = Time()
        governor = Governor(0.01, time)
        pace, looks = Pace(governor, Tape()), 0
        for step in range(1, CLOSE_STEPS):
            time.now += 0.01
            governor.end_step()
            if pace.look_is_due(step):
                governor.charge(cost)
                pace.looked(step, False, cost=cost)
                looks += step > FREE_STEPS
        return looks

    assert taken(0.02) < taken(5e-5) / 3


@pytest.mark.parametrize("many", [50, 400])
def test_an_evaluation_now_and_then_makes_no_long_tape(many: int) -> None:
    """Steps with far more events than usual do not put off the next look."""
    looks = paced(3000, lambda step: many if step % 250 == 0 else 2)
    assert max(gaps_of(looks)) <= max(WIDE_GAPS) + 2


# --- under a guard ---


def plain(step: int, model: nn.Module, optimizers: list[Any]) -> None:
    """One forward, one backward, one step."""
    optimizers[0].zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizers[0].step()


def accumulating(step: int, model: nn.Module, optimizers: list[Any]) -> None:
    """Three forwards a step, five in every seventh."""
    optimizers[0].zero_grad()
    for _ in range(5 if step % 7 == 0 else 3):
        model(torch.ones(2, 4)).sum().backward()
    optimizers[0].step()


def alternating(step: int, model: nn.Module, optimizers: list[Any]) -> None:
    """Two optimizers, the second in every third step only."""
    plain(step, model, optimizers)
    if step % 3 == 0:
        optimizers[1].step()


def evaluating(step: int, model: nn.Module, optimizers: list[Any]) -> None:
    """Twenty evaluation forwards after every fiftieth step."""
    plain(step, model, optimizers)
    if step % 50 == 0:
        model.eval()
        with torch.no_grad():
            for _ in range(20):
                model(torch.ones(2, 4))
        model.train()


def asking(step: int, model: nn.Module, optimizers: list[Any], guard: Guard | None = None) -> None:
    """A step, and sometimes a question about it."""
    plain(step, model, optimizers)


def run(turn: Callable[..., None], steps: int, each: Callable[[Guard], object]) -> dict[str, Any]:
    """What the clock has counted after so many turns."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-4) for _ in range(2)]
    with memguard.watch(model, *optimizers) as guard:
        for step in range(1, steps + 1):
            turn(step, model, optimizers)
            each(guard)
        report = guard.report()
    assert report.verdict == "clean"
    assert not report.failures
    counted = {key: report.clock[key] for key in ("beat", "optimizer_steps", "forwards")}
    return {**counted, "step": report.step}


@pytest.mark.parametrize("turn", [plain, accumulating, alternating, evaluating])
def test_nothing_is_counted_differently(
    turn: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard that rests has counted the same steps and events as one that never does."""
    resting = run(turn, 400, lambda guard: None)
    with monkeypatch.context() as patched:
        patched.setattr(Tape, "open", lambda self, room: None)
        awake = run(turn, 400, lambda guard: None)
    assert resting == awake


def test_a_report_is_up_to_date_in_the_midst_of_a_rest() -> None:
    """Asking counts what was put down in passing, and asking does not end the rest."""
    asked: list[int] = []
    rests: list[bool] = []

    def ask(guard: Guard) -> None:
        asked.append(guard.report().step)
        rests.append(guard._loop._tape.room > 0)

    run(plain, 300, ask)
    assert asked == list(range(1, 301))
    assert sum(rests[SETTLED:]) > 0.8 * len(rests[SETTLED:])


def test_a_pause_counts_what_came_before_it() -> None:
    """Steps before a pause count, those in it do not, wherever the rest stands."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with memguard.watch(model, optimizer) as guard:
        for step in range(SETTLED + 5):
            plain(step, model, [optimizer])
        with guard.pause():
            for step in range(50):
                plain(step, model, [optimizer])
        plain(0, model, [optimizer])
        assert guard.report().step == SETTLED + 6


@pytest.mark.parametrize("begin", [SETTLED, SETTLED + 7, SETTLED + 40])
def test_a_leak_that_begins_late_is_found_soon(begin: int) -> None:
    """A settled loop is looked at rarely, but at the first survivor as closely as at the start."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    kept: list[Tensor] = []
    with memguard.watch(model, optimizer, overhead=1.0), pytest.raises(memguard.LeakError) as told:
        for step in range(begin + 100):
            loss = model(torch.ones(2, 4)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step >= begin:
                kept.append(loss)
    (finding,) = told.value.report.findings
    assert finding.holders[0].code == "kept.append(loss)"
    assert finding.step - begin <= max(WIDE_GAPS) + 8
    # Those of the steps that were only counted are told apart at the look.
    assert finding.summary.endswith("one more each step")
    assert abs(finding.first_step - begin) <= 1


def test_tensors_that_are_met_together_are_counted_one_by_one() -> None:
    """Two tensors a step are two a step, though twenty steps go by from look to look."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    kept: list[Tensor] = []
    with (
        memguard.watch(model, optimizer, overhead=1.0, action="log", max_growth="4MiB") as guard,
    ):
        for step in range(SETTLED + 400):
            plain(step, model, [optimizer])
            if step > SETTLED:
                kept += [torch.zeros(2**12), torch.zeros(2**12)]
    (finding,) = guard.report().findings
    assert finding.kind == "tensor"
    assert "2 more each step" in finding.summary
