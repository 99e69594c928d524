"""The guard changes no result, and a part of it that fails ends nothing but itself."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from models import TASKS, Run, Task, train, train_step
from torch import Tensor, nn

import memguard
from memguard import LeakError, LeakWarning
from memguard.clock.beats import Clock
from memguard.clock.sources import Sources
from memguard.clock.tape import Tape
from memguard.figures import Figures
from memguard.guard import Guard
from memguard.investigation import Investigator
from memguard.pace import Pace
from memguard.sensors.audit import Audit
from memguard.sensors.canaries import Canaries
from memguard.sensors.census import Census
from memguard.sensors.governor import Governor

MLP = TASKS[0]


def leaking(task: Task, steps: int = 40, **settings: Any) -> Run:
    """A watched run whose running sum leaks, its warning swallowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        return train(task, steps, leak=True, action="warn", **settings)


# --- same results ---


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_watching_changes_no_bit_of_a_healthy_run(task: Task) -> None:
    """Losses, parameters and buffers are the same with and without the guard."""
    bare, watched = train(task), train(task, action="raise")

    assert watched.guard is not None
    assert watched.guard.report().step >= 40
    assert watched.guard.report().failures == ()
    assert watched.same_as(bare)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_watching_changes_no_bit_of_a_leaking_run(task: Task) -> None:
    """Also where a leak is found, explained and warned about on the way."""
    bare, watched = train(task, leak=True), leaking(task)

    assert watched.guard is not None
    assert watched.guard.report().verdict == "leak"
    assert watched.guard.report().failures == ()
    assert watched.same_as(bare)


def test_watching_draws_no_random_numbers() -> None:
    """The generator of the loop is where it would be without the guard."""
    leaking(MLP)
    watched = torch.get_rng_state()
    train(MLP, leak=True)

    assert torch.equal(torch.get_rng_state(), watched)


def test_gradients_are_the_same_object_with_and_without_the_guard() -> None:
    """The guard neither replaces nor keeps a gradient between the steps of the loop."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer):
        for step in range(20):
            train_step(MLP, model, optimizer, step)
        grads = [parameter.grad for parameter in model.parameters()]
        optimizer.zero_grad(set_to_none=False)

    assert [parameter.grad for parameter in model.parameters()] == grads
    assert all(grad is not None and not grad.any() for grad in grads)


# --- failures stay inside ---


class Broken(Exception):
    """What a failing part raises in these tests."""


def broken(*_: Any, **__: Any) -> Any:
    raise Broken("on purpose")


def name_of(value: Any) -> str:
    """The name a parameter of a test goes by."""
    return str(getattr(value, "__name__", value))


PARTS = (
    (Census, "look", "census"),
    (Census, "take_fresh", "census"),
    (Canaries, "_place", "canaries"),
    (Canaries, "survey", "graph judge"),
    (Audit, "begin", "audit"),
    (Audit, "end", "audit"),
    (Investigator, "investigate", "graph explanation"),
    (Figures, "memory", "memory figures"),
)


@pytest.mark.parametrize(
    ("cls", "method", "part"), PARTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_part_that_fails_is_named_and_the_loop_ends_as_without_it(
    cls: type, method: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broken sensor costs its own findings, never the job."""
    bare = train(MLP, leak=True)
    monkeypatch.setattr(cls, method, broken)
    watched = leaking(MLP)

    assert watched.guard is not None
    failures = {failure.part: failure.error for failure in watched.guard.report().failures}
    assert failures[part] == "Broken: on purpose"
    assert watched.same_as(bare)


# What runs in every event, before any part has its turn.
EVENTS = (
    (Sources, "_judge"),
    (Sources, "_concerns"),
    (Clock, "optimizer"),
    (Clock, "forward"),
    (Census, "expected_cost"),
    (Governor, "end_step"),
    (Tape, "take_off"),
    (Pace, "look_is_due"),
)


@pytest.mark.parametrize(
    ("cls", "method"), EVENTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_an_event_that_fails_is_named_and_raises_nothing_into_the_loop(
    cls: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the clock may end the job; without it the guard can only fall silent."""
    bare = train(MLP, leak=True)
    monkeypatch.setattr(cls, method, broken)
    watched = leaking(MLP)

    assert watched.guard is not None
    assert "Broken: on purpose" in {found.error for found in watched.guard.report().failures}
    assert watched.same_as(bare)


def test_every_part_may_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing left that works the loop is a bare one."""
    bare = train(MLP, leak=True)
    for cls, method, _ in PARTS:
        monkeypatch.setattr(cls, method, broken)
    watched = leaking(MLP)

    assert watched.guard is not None
    assert watched.guard.report().verdict != "leak"
    assert watched.same_as(bare)


def test_a_failed_explanation_still_tells_the_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted is said even where nobody can be named."""
    monkeypatch.setattr(Investigator, "investigate", broken)

    with pytest.raises(LeakError, match="past steps' autograd graphs are still alive") as caught:
        train(MLP, leak=True, action="raise")

    assert [failure.part for failure in caught.value.report.failures] == ["graph explanation"]


def test_a_reaction_that_fails_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong while telling is told in the report."""
    bare = train(MLP, leak=True)
    monkeypatch.setattr("memguard.reactions.warn", broken)
    watched = leaking(MLP)

    assert watched.guard is not None
    assert [failure.part for failure in watched.guard.report().failures] == ["reaction"]
    assert watched.same_as(bare)


def test_an_unwritable_report_does_not_end_the_job() -> None:
    """A report file in a folder that is none is a warning."""
    bare = train(MLP)
    with pytest.warns(memguard.MemguardWarning, match="cannot write report"):
        watched = train(MLP, report="/dev/null/report.json")

    assert watched.same_as(bare)


# --- the exception ---


def leak_until_raised(
    model: nn.Module, optimizer: torch.optim.Optimizer, kept: list[Tensor], steps: int = 40
) -> tuple[int, LeakError]:
    """Train, keeping every loss, until the guard stops it; (steps done, the error)."""
    for step in range(steps):
        loss = MLP.loss(model, step)
        loss.backward()
        kept.append(loss)
        try:
            optimizer.step()
        except LeakError as error:
            return step, error
    raise AssertionError("the leak was not found")


def leak_with_own_classes() -> list[weakref.ref[type]]:
    """Train with a module and a function of classes made here, until the guard raises."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: Tensor) -> Tensor:
            return values * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    class Net(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return cast("Tensor", Double.apply(super().forward(values)))

    model = Net(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total: Any = 0
    with pytest.raises(LeakError), memguard.watch(model, optimizer):
        for _ in range(40):
            loss = model(torch.ones(2, 4)).mean()
            loss.backward()
            optimizer.step()
            total += loss
    return [weakref.ref(Net), weakref.ref(Double)]


def test_the_classes_of_a_program_die_with_it() -> None:
    """A class holds through its methods all that its module does; nothing of ours holds a class."""
    classes = leak_with_own_classes()
    gc.collect()

    assert [known() for known in classes] == [None, None]


def test_the_error_leaves_the_optimizer_step_with_its_report() -> None:
    """The step that confirmed the leak raises; its update has been made."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    with memguard.watch(model, optimizer) as guard:
        _, error = leak_until_raised(model, optimizer, kept)

        assert isinstance(error, RuntimeError)
        assert error.report.verdict == "leak"
        assert error.report.findings == guard.report().findings
        assert error.report.step == guard.report().step


def test_after_the_error_the_loop_can_go_on_and_is_not_stopped_again() -> None:
    """Who catches the error has been told; the same leak is not told every step."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    with memguard.watch(model, optimizer) as guard:
        leak_until_raised(model, optimizer, kept)
        told = guard.report().step
        for step in range(60):
            kept.append(train_step(MLP, model, optimizer, step))

        assert guard.report().step == told + 60
        assert guard.report().verdict == "leak"


def test_the_optimizer_has_stepped_when_the_error_is_raised() -> None:
    """Nothing of the step is lost: a checkpoint made in the handler is whole."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer):
        steps, _ = leak_until_raised(model, optimizer, [])
    bare, bare_optimizer = MLP.set_up()
    for step in range(steps + 1):
        MLP.loss(bare, step).backward()
        bare_optimizer.step()

    for watched, expected in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.equal(watched, expected)


# --- other threads ---


def test_a_thread_that_trains_something_else_disturbs_nobody() -> None:
    """Two loops in two threads, one of them watched: both compute what they would alone."""
    # Without dropout: random numbers are shared by all threads.
    task, other = TASKS[1], TASKS[2]
    bare, alone = train(task), train(other)
    found: list[Run] = []
    thread = threading.Thread(target=lambda: found.append(train(other)))
    model, optimizer = task.set_up()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with memguard.watch(model, optimizer) as guard:
        thread.start()
        losses = [train_step(task, model, optimizer, step).item() for step in range(10)]
        thread.join()

    assert losses == bare.losses[:10]
    assert guard.report().step == 10
    assert not all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found[0].losses[:10] == alone.losses[:10]


def test_graphs_made_in_other_threads_are_not_dated_by_this_ones_numbers() -> None:
    """Each thread numbers its nodes from zero; a fresh thread's are new all the same."""
    model, optimizer = MLP.set_up()
    other = TASKS[1].set_up()[0]
    latest: list[Tensor] = []
    with memguard.watch(model, optimizer) as guard:
        for step in range(200):
            work = threading.Thread(target=lambda: latest.append(TASKS[1].loss(other, 0)))
            work.start()
            work.join()
            del latest[:-1]
            train_step(MLP, model, optimizer, step)

        assert guard.report().verdict == "clean"
        assert guard.report().step == 200


def test_graphs_made_in_part_by_another_thread_are_not_dated_by_this_ones_numbers() -> None:
    """A thread that makes few nodes a step (as backward threads of a device do) counts slowly."""
    model, optimizer = MLP.set_up()
    scale = torch.ones((), requires_grad=True)
    with ThreadPoolExecutor(1) as elsewhere, memguard.watch(model, optimizer) as guard:
        for step in range(100):
            optimizer.zero_grad()
            loss = MLP.loss(model, step) * elsewhere.submit(lambda: scale * 2).result()
            loss.backward()
            optimizer.step()

        assert guard.report().verdict == "clean"
        assert guard.report().step == 100


def test_only_the_watched_optimizer_ends_steps_when_threads_train_side_by_side() -> None:
    """The other thread's optimizer steps are not this loop's."""
    model, optimizer = MLP.set_up()
    other, other_optimizer = TASKS[1].set_up()
    stop = threading.Event()

    def elsewhere() -> None:
        step = 0
        while not stop.is_set():
            train_step(TASKS[1], other, other_optimizer, step)
            step += 1

    thread = threading.Thread(target=elsewhere)
    with memguard.watch(model, optimizer) as guard:
        thread.start()
        try:
            for step in range(100):
                train_step(MLP, model, optimizer, step)
        finally:
            stop.set()
            thread.join()
        report = guard.report()

    assert report.step == 100
    assert report.verdict == "clean"
    assert report.failures == ()


def test_two_threads_each_with_its_own_guard() -> None:
    """Guards of different threads neither block nor see each other."""
    reports: dict[str, Guard] = {}

    def loop(task: Task) -> None:
        model, optimizer = task.set_up()
        guard = memguard.watch(model, optimizer)
        for step in range(60):
            train_step(task, model, optimizer, step)
        reports[task.name] = guard
        guard.close()

    threads = [threading.Thread(target=loop, args=(task,)) for task in TASKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {name: guard.report().step for name, guard in reports.items()} == dict.fromkeys(
        (task.name for task in TASKS), 60
    )
    assert all(guard.report().verdict == "clean" for guard in reports.values())
