"""Whatever of memguard fails, however and whenever: the job ends as without it, and is told.

Spots, kinds of failures and moments stand in `faults.py`.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import KINDS, MOMENTS, SPOTS, Fault, Spot, cells, nothing
from models import TASKS, Run, Watched, train, train_step
from torch import Tensor, nn

import memguard
from memguard import LeakError, LeakWarning, MemguardWarning
from memguard.parts import Parts

MLP = TASKS[0]
STEPS = 16


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> Iterator[None]:
    """What the test session has made is out of the searches' way, which makes them fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def bare() -> Run:
    """The leaking run that nobody watches."""
    return train(MLP, STEPS, leak=True)


def run(**settings: Any) -> Run:
    """The same run, watched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        warnings.simplefilter("ignore", MemguardWarning)
        return train(MLP, STEPS, leak=True, **{"action": "warn", **settings})


def failures(found: Run) -> dict[str, str]:
    assert found.guard is not None
    return {failure.part: failure.error for failure in found.guard.report().failures}


@pytest.mark.parametrize(("spot", "kind", "moment"), cells())
def test_a_fault_ends_nothing_but_the_part_it_strikes(
    spot: Spot,
    kind: str,
    moment: str,
    bare: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The losses are the same bit for bit, and the report names the part and the failure."""
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        fault = Fault(spot, KINDS[kind], MOMENTS[moment]).install(patch)
        watched = run(**dict(spot.settings))
    found = failures(watched)

    assert fault.struck
    assert watched.same_as(bare)
    assert [part for part in found if part in spot.parts], found
    assert all(error.startswith(kind) for error in found.values()), found


def test_the_matrix_is_as_large_as_it_says() -> None:
    """At least 60 cells, and every layer of the package in it."""
    layers = {str(spot).partition(":")[0].partition(".")[0] for spot in SPOTS}

    assert len(cells()) >= 60
    assert {"sensors", "clock", "pace", "suspicion", "explain", "report", "reactions"} <= layers


@pytest.mark.parametrize("seed", range(10))
def test_faults_at_random_end_nothing(
    seed: int, bare: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several parts at once, each now and then: the job never notices."""
    monkeypatch.chdir(tmp_path)
    chance = random.Random(seed)
    with monkeypatch.context() as patch:
        faults = [
            Fault(spot, chance.choice(list(KINDS.values())), lambda _: chance.random() < 0.1)
            for spot in SPOTS
        ]
        for fault in faults:
            fault.install(patch)
        watched = run(
            action=chance.choice(["warn", "log", "stop"]), report="report.json", on_step=nothing
        )

    assert sum(fault.struck for fault in faults) > 0
    assert watched.same_as(bare)


INTERRUPTED = [
    spot
    for spot in SPOTS
    if str(spot)
    in (
        "sensors.canaries:Canaries.place",
        "suspicion:advance",
        "investigation:explain",
        "report.text:render",
        "figures:Figures.memory",
        "telling:imported",
    )
]


@pytest.mark.parametrize("spot", INTERRUPTED, ids=str)
def test_an_interruption_passes_through_every_part(
    spot: Spot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches the user's loop from wherever it strikes; the guard goes on after it."""
    model, optimizer = MLP.set_up()
    total: Tensor | float = 0.0
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        fault = Fault(spot, KeyboardInterrupt, MOMENTS["first"]).install(patch)
        with memguard.watch(model, optimizer, **{"action": "warn", **dict(spot.settings)}) as guard:
            interrupted = 0
            for step in range(30):
                try:
                    total = total + train_step(MLP, model, optimizer, step)
                except KeyboardInterrupt:
                    interrupted += 1
            report = guard.report()

    assert fault.struck == interrupted == 1
    assert report.failures == ()
    assert report.step >= 28


# --- little room on the stack ---


class Deep(nn.Module):
    """Goes down some hundred calls before it calls what is watched."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs: Tensor, depth: int) -> Tensor:
        if depth > 0:
            return self.forward(inputs, depth - 1)
        out: Tensor = self.inner(inputs)
        return out


def deepest(model: Deep, inputs: Tensor) -> int:
    """How far down the model can go."""
    low, high = 0, sys.getrecursionlimit()
    while high - low > 1:
        middle = (low + high) // 2
        try:
            model(inputs, middle)
            low = middle
        except RecursionError:
            high = middle
    return low


def test_a_model_that_leaves_no_room_on_the_stack_runs_as_without() -> None:
    """Our hook needs frames that are not there: the event is lost, the user's call is not."""
    inputs = torch.ones(1, 4)
    model = Deep()
    # torch calls hooks through one more frame of its own, which is not ours to save.
    model.inner.register_forward_hook(lambda *_: None)
    limit = deepest(model, inputs)
    with memguard.watch(model.inner):
        depths = [model(inputs, depth).shape for depth in range(limit - 60, limit + 1)]

    assert len(depths) == 61


def test_a_part_that_finds_no_room_on_the_stack_is_named() -> None:
    """Noting the failure itself needs none."""
    parts = Parts(lambda: 1)

    def endless(depth: int) -> int:
        return endless(depth + 1)

    def at_the_end(depth: int) -> None:
        try:
            at_the_end(depth + 1)
        except RecursionError:
            parts.do("census", endless, 0)

    at_the_end(0)

    assert parts.failures["census"].error.startswith("RecursionError")


# --- what users do ---


def test_exceptions_of_the_users_own_hooks_are_the_users(bare: Run) -> None:
    """A hook that raises does so with and without us, and the loop goes on alike."""
    watched = Watched(MLP)
    handle = watched.model.register_forward_hook(lambda *_: 1 / 0)
    for step in range(5):
        with pytest.raises(ZeroDivisionError):
            train_step(MLP, watched.model, watched.optimizer, step)
    handle.remove()
    for step in range(5):
        train_step(MLP, watched.model, watched.optimizer, step)
    report = watched.guard.report()
    watched.guard.close()

    assert report.failures == ()
    assert report.step == 10


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_a_guard_may_be_closed_within_any_hook(where: str) -> None:
    """From there on the loop is a bare one; nothing of ours is left in it."""
    model, optimizer = MLP.set_up()
    plain, plain_optimizer = MLP.set_up()
    guard = memguard.watch(model, optimizer)

    def close(*_: Any) -> None:
        guard.close()

    if where == "forward":
        model.body[0].register_forward_hook(close)
    elif where == "backward":
        model.head.register_full_backward_hook(close)
    else:
        optimizer.register_step_post_hook(close)
    for step in range(10):
        found = train_step(MLP, model, optimizer, step)
        expected = train_step(MLP, plain, plain_optimizer, step)
        assert found.shape == expected.shape

    assert guard.closed
    assert guard.report().failures == ()


def test_guards_within_guards_see_what_is_theirs() -> None:
    """Of the same objects one guard, of others another; each ends with its own block."""
    model, optimizer = MLP.set_up()
    other, other_optimizer = MLP.set_up()
    with memguard.watch(model, optimizer) as outer:
        with (
            memguard.watch(model, optimizer) as same,
            memguard.watch(other, other_optimizer) as own,
        ):
            for step in range(12):
                train_step(MLP, model, optimizer, step)
                train_step(MLP, other, other_optimizer, step)
            assert same is outer
            assert (outer.report().step, own.report().step) == (12, 12)
        assert (outer.closed, own.closed) == (False, True)
        train_step(MLP, model, optimizer, 0)
        assert outer.report().step == 13
    assert outer.closed
    assert outer.report().failures == own.report().failures == ()


@pytest.mark.parametrize("switch", [gc.disable, gc.freeze], ids=lambda f: str(f.__name__))
def test_a_collector_that_is_off_or_frozen_changes_nothing(switch: Any) -> None:
    """The leak is found, and the collector is left as the user wants it."""
    enabled = gc.isenabled()
    switch()
    off = gc.isenabled()
    try:
        with pytest.raises(LeakError) as caught:
            train(MLP, STEPS, leak=True, action="raise")
        assert gc.isenabled() == off
    finally:
        if enabled:
            gc.enable()

    (finding,) = caught.value.report.findings
    assert [holder.name for holder in finding.holders] == ["total"]


def test_loops_in_many_threads_end_as_without() -> None:
    """Eight loops, each with a guard of its own, one of them leaking: only that one is stopped."""
    ended: dict[int, Any] = {}

    def loop(number: int) -> None:
        model, optimizer = MLP.set_up()
        kept: list[Tensor] = []
        try:
            with memguard.watch(model, optimizer) as guard:
                for step in range(90):
                    loss = train_step(MLP, model, optimizer, step)
                    if number == 3:
                        kept.append(loss)
                ended[number] = guard.report()
        except LeakError as error:
            ended[number] = error.report

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {number for number, report in ended.items() if report.verdict == "leak"} <= {3}
    assert all(report.failures == () for report in ended.values())
    assert ended[0].step == 90


ENDS = """\
import os, sys, threading
import torch, memguard
torch.set_num_threads(1)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = memguard.watch(model, optimizer, watchdog=60, ask=True, report={report!r})
def steps(count):
    for step in range(count):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
steps(20)
{ending}
"""
ENDINGS = {
    "os._exit": ("os._exit(7)", 7, False),
    "sys.exit in a thread that runs on": (
        "t = threading.Thread(target=steps, args=(30,)); t.start(); sys.exit(5)",
        5,
        True,
    ),
    "SIGTERM": ("import signal; signal.raise_signal(signal.SIGTERM)", -15, False),
}


@pytest.mark.parametrize(("ending", "status", "writes"), ENDINGS.values(), ids=ENDINGS)
def test_a_job_ends_as_it_would(
    ending: str, status: int, writes: bool, python: Any, tmp_path: Path
) -> None:
    """Its own status, nothing on standard error, and a report where Python still ends in order."""
    if status < 0 and os.name == "nt":
        pytest.skip("no such signals there")
    program, report = tmp_path / "job.py", tmp_path / "report.json"
    program.write_text(ENDS.format(report=str(report), ending=ending))
    done = python(program)

    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
    assert report.exists() == writes
