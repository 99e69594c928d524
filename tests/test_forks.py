"""Forked and spawned processes of a watched program run as if nobody watched."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Python
from models import TASKS, evaluate, hooks_of, train_step
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import memguard
from memguard import LeakError, _events, _hooks

MLP = TASKS[0]
HERE = str(Path(__file__).parent)

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="forking is for POSIX systems")
# Python 3.12 warns of every fork while there are threads, and torch has some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Prepared(Dataset[tuple[Tensor, Tensor]]):
    """Samples made by torch modules in the worker, the watched model among them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.scale = nn.Linear(8, 8)

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs = torch.full((8,), float(index))
        # Graphs kept in the worker, as many as samples: nobody there should look at them.
        self.kept = [*getattr(self, "kept", []), self.model(inputs).sum()]
        assert gc.isenabled()
        return self.scale(inputs).detach() / 100, torch.tensor(index % 4)


@forks
@pytest.mark.parametrize("persistent", [False, True])
def test_forked_workers_of_a_watched_loop_are_left_alone(
    persistent: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Data made by two workers trains the watched model; the workers say nothing."""
    model, optimizer = MLP.set_up()
    loader = DataLoader(
        Prepared(model),
        batch_size=6,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=persistent,
    )
    steps = 0
    with memguard.watch(model, optimizer) as guard:
        for _ in range(3):
            for inputs, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                steps += 1
        report = guard.report()
        del loader

    assert report.step == steps == 48
    assert (report.verdict, report.failures) == ("clean", ())
    assert report.clock["forwards"] == steps
    assert capfd.readouterr().err == ""


def in_a_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked child; its exceptions fail the test."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer: Any = {"value": work()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.load(pipe)
    _, status = os.waitpid(child, 0)

    assert status == 0
    assert "error" not in answer, answer.get("error")
    return answer["value"]


@forks
def test_a_forked_child_that_leaks_on_its_own_is_not_stopped(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The guard belongs to the process it was made in: the child's is silent, whatever it does."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer, report=tmp_path / "report.json") as guard:
        for step in range(5):
            train_step(MLP, model, optimizer, step)

        def leak() -> list[Any]:
            kept = [train_step(MLP, model, optimizer, step) for step in range(40)]
            kept += [MLP.loss(model.eval(), step) for step in range(40)]
            gc.collect()
            guard.step()
            report = guard.report()
            guard.close()
            return [len(kept), report.step, report.verdict, (tmp_path / "report.json").exists()]

        assert in_a_child(leak) == [80, 5, "clean", False]
        for step in range(5):
            train_step(MLP, model, optimizer, step)
        assert (guard.report().step, guard.report().verdict) == (10, "clean")
    assert (tmp_path / "report.json").exists()
    assert capfd.readouterr().err == ""


@forks
def test_a_forked_child_trains_the_same_bits() -> None:
    """What the child computes is what it computes without the guard."""

    def train() -> list[float]:
        model, optimizer = MLP.set_up()
        with memguard.watch(model, optimizer):
            train_step(MLP, model, optimizer, 0)

            def rest() -> list[float]:
                losses = [train_step(MLP, model, optimizer, step).item() for step in range(20)]
                return [*losses, *evaluate(MLP, model)]

            found: list[float] = in_a_child(rest)
        return found

    model, optimizer = MLP.set_up()
    train_step(MLP, model, optimizer, 0)
    bare = [train_step(MLP, model, optimizer, step).item() for step in range(20)]

    assert train() == [*bare, *evaluate(MLP, model)]


@forks
def test_a_forked_child_may_watch_its_own_loop() -> None:
    """Also for the objects its parent watches: the child gets a guard of its own."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer) as guard:

        def leak() -> list[Any]:
            own = memguard.watch(model, optimizer)
            kept: list[Tensor] = []
            try:
                for step in range(40):
                    kept.append(train_step(MLP, model, optimizer, step))
            except LeakError as error:
                own.close()
                return [own is guard, error.report.verdict, hooks_of(model) > 0]
            return [own is guard, own.report().verdict, False]

        assert in_a_child(leak)[:2] == [False, "leak"]
        assert guard.report().step == 0


@forks
def test_the_child_may_drop_the_model() -> None:
    """Collecting the watched model in the child closes nothing in the parent and writes nothing."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer) as guard:
        train_step(MLP, model, optimizer, 0)
        models = [model, optimizer]
        del model, optimizer

        def drop() -> bool:
            models.clear()
            gc.collect()
            return True

        assert in_a_child(drop)
        assert not guard.closed
        assert guard.report().step == 1


@forks
def test_the_child_may_drop_the_model_whatever_threads_its_parent_had(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A lock that another thread held at the fork is nobody's there: nothing waits for it."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer):
        train_step(MLP, model, optimizer, 0)
        models = [model, optimizer]
        del model, optimizer

        def drop() -> bool:
            models.clear()
            gc.collect()
            with memguard.watch(MLP.set_up()[0]):
                return True

        with _hooks._placed._lock, _events._optimizer_steps._lock:
            assert in_a_child(drop)
    assert capfd.readouterr().err == ""


SPAWNING = """\
import sys
sys.path.insert(0, {here!r})
import torch
import torch.multiprocessing as mp
import multiprocessing
from models import TASKS, hooks_of, train_step
import memguard

TASK = TASKS[0]

def work(rank, model, optimizer, results):
    kept = []
    for step in range(40):
        kept.append(train_step(TASK, model, optimizer, step))
    results.put((rank, kept[-1].item(), model.training))

def serve(model, inputs, results):
    results.put(model(inputs).tolist())

if __name__ == "__main__":
    model, optimizer = TASK.set_up()
    guard = memguard.watch(model, optimizer)
    for step in range(5):
        train_step(TASK, model, optimizer, step)
    assert hooks_of(model) > 5
    if {method!r} == "spawn":
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(work, (model, optimizer, results), nprocs=1)
        assert results.get()[0] == 0
    model.eval()
    inputs = TASK.batch(0)[0]
    expected = model(inputs).tolist()
    context = multiprocessing.get_context({method!r})
    results = context.SimpleQueue()
    process = context.Process(target=serve, args=(model, inputs, results))
    process.start()
    found = results.get()
    process.join()
    assert process.exitcode == 0
    assert found == expected
    assert guard.report().verdict == "clean"
    print("done")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_watched_model_goes_to_spawned_workers(
    method: str, python: Python, tmp_path: Path
) -> None:
    """Model and optimizer are pickled with their process; the workers train and answer silently."""
    if method == "forkserver" and sys.platform == "win32":
        pytest.skip("no fork server there")
    program = tmp_path / "program.py"
    program.write_text(SPAWNING.format(here=HERE, method=method))
    done = python(program)

    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
