"""Forked and spawned processes of a watched program run as if nobody watched."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Python
from models import TASKS, evaluate, hooks_of, train_step
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import memguard
from memguard import LeakError, _events, _hooks, watching
from memguard.cli import run
from memguard.settings import Settings
from memguard.startup import forked

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


GUARDED = """\
import multiprocessing, os, sys
from memguard.startup import boot
boot.begin()
import torch
from torch.utils.data import DataLoader, Dataset
from memguard import watching

def train(leaky):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = 0.0
    for _ in range(20):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss if leaky else loss.item()

model = torch.nn.Linear(4, 1)

def serve():
    answers = []
    try:
        for _ in range(20):
            answers.append(model(torch.randn(2, 4)))
    except RuntimeError:
        sys.exit(5)

class Prepared(Dataset):
    kept = []
    def __len__(self):
        return 30
    def __getitem__(self, index):
        self.kept.append(model(torch.randn(2, 4)))
        return len(watching.open_guards())

context = multiprocessing.get_context("fork")
for work in (lambda: train(True), lambda: train(False), lambda: sum(range(9))):
    process = context.Process(target=work)
    process.start()
    process.join()
    print("ended", process.pid, process.exitcode, flush=True)
loader = DataLoader(Prepared(), num_workers=1, multiprocessing_context="fork")
print("guards of a worker", sum(int(found) for batch in loader for found in batch), flush=True)
child = os.fork()
if child == 0:
    serve()
print("ended", child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@forks
def test_forks_of_a_guarded_program_are_guarded_once_they_run_a_loop(
    python: Python, tmp_path: Path
) -> None:
    """Training and serving children are told of; loaders' workers and idle children are not."""
    program = tmp_path / "program.py"
    program.write_text(GUARDED)
    env = {"MEMGUARD": "1", "MEMGUARD_REPORT": "{pid}.json"}
    done = python("-W", "ignore", program, env=env, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    ended = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ended")]
    (leaky, *_), (healthy, *_), (idle, *_), (server, *_) = ended
    assert [status for _, status in ended] == ["1", "0", "0", "5"]
    assert "guards of a worker 0\n" in done.stdout
    told = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*.json")}
    assert told.keys() & {pid for pid, _ in ended} == {leaky, healthy, server}
    names = [h["name"] for pid in (leaky, server) for h in told[pid]["findings"][0]["holders"]]
    assert names == ["total", "answers"]
    assert (told[healthy]["verdict"], told[healthy]["step"]) == ("clean", 20)
    # multiprocessing shows what its child fails with; the server kept it to itself.
    assert done.stderr.count("memguard.LeakError: 7 past steps") == 1
    assert done.stderr.count("(the program went on)") == 1
    assert idle not in told


def test_forks_of_a_program_under_the_command_have_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for a report's file that is the parent's own."""
    given: list[Settings] = []
    monkeypatch.setattr("memguard.watching.guard_process", lambda settings: SimpleNamespace())
    monkeypatch.setattr("memguard.startup.forked.guard_children", given.append)
    for report in ("one.json", "{pid}.json"):
        run._Guarding(Settings(action="log", report=report), {})._start()

    assert [(one.action, one.report) for one in given] == [("log", None), ("log", "{pid}.json")]


@forks
@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("watches", [False, True])
def test_what_a_fork_waits_with_is_gone_after_its_first_call_or_step(
    watches: bool, calls: bool
) -> None:
    """Also where the child watches its loop itself: then there is one guard, and it is that one."""
    leave_alone = forked.guard_children(Settings(action="log"))
    model, optimizer = MLP.set_up()
    train_step(MLP, model, optimizer, 0)

    def first() -> list[Any]:
        before = len(torch.nn.modules.module._global_forward_hooks)
        own = memguard.watch(model, optimizer, action="log") if watches else None
        MLP.loss(model, 0) if calls else optimizer.step()
        guards = watching.open_guards()
        waiting = forked._waiting
        assert waiting is not None
        found = [before, len(guards), guards == [own], waiting.is_on]
        for guard in guards:
            guard.finish()
        return [*found, len(torch.nn.modules.module._global_forward_hooks)]

    try:
        found = in_a_child(first)
    finally:
        leave_alone()
    assert found == [1, 1, watches, False, 0]
    assert in_a_child(lambda: len(torch.nn.modules.module._global_forward_hooks)) == 0
