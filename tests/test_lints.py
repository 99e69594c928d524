"""Habits that spoil training or waste memory: each is told once, and its healthy twin never."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from programs import WATCH, Run
from torch import nn

import memguard
from memguard.explain.habits import MOST_READ, is_worth_reading
from memguard.explain.places import Spot
from memguard.judge.lints import CARRIED
from memguard.records import Finding
from memguard.sensors.gradients import MAX_OPTIMIZERS, Gradients
from memguard.sensors.unused import MAX_GRAPHLESS, MAX_MODULES, UnusedGraphs

# name of the habit: (kind, word of the summary, line of the advice, program)
HABITS: dict[str, tuple[str, str, str, str]] = {
    "gradients that nobody clears": (
        "grad",
        "never cleared between the steps of optimizer",
        "optimizer.zero_grad()",
        """
        def fit():
            for _ in range(30):
                x, y = batch()
                (model(x) - y).pow(2).mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()  # grows
        fit()
        """,
    ),
    "gradients that a trainer's method never clears": (
        "grad",
        "the steps of self.opt",
        "self.opt.zero_grad()",
        """
        class Trainer:
            def __init__(self):
                self.opt = optimizer
            def update(self):
                self.opt.step()  # grows
            def fit(self):
                for _ in range(30):
                    for x, y in (batch(), batch()):
                        ((model(x) - y).pow(2).mean() / 2).backward()
                    self.update()
        Trainer().fit()
        """,
    ),
    "an evaluation that builds graphs": (
        "graph",
        "no backward uses, 384 KiB each",
        "with torch.no_grad():",
        """
        def evaluate():
            model.eval()
            total = 0.0
            for _ in range(20):
                out = model(torch.randn(4096, 8))  # grows
                total += out.mean().item()
        evaluate()
        """,
    ),
    "a backward that keeps its graph": (
        "graph",
        "keeps its graph at every step",
        "loss.backward()",
        """
        def fit():
            for _ in range(30):
                x, y = batch()
                loss = (model(x) - y).pow(2).mean()
                optimizer.zero_grad()
                loss.backward(retain_graph=True)  # grows
                optimizer.step()
        fit()
        """,
    ),
    "a backward of a helper's that keeps its graph": (
        "graph",
        "keeps its graph at every step",
        "loss.backward()",
        """
        def back(loss):
            loss.backward(retain_graph=True)  # grows
        for _ in range(30):
            x, y = batch()
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            back(loss)
            optimizer.step()
        """,
    ),
    "a cache emptied at every step": (
        "reserved",
        "cache is emptied at every step",
        "take empty_cache() out of the loop",
        """
        def clean_up():
            if torch.cuda.is_available() or True:
                pass
            torch.cuda.empty_cache()  # grows
        for _ in range(30):
            train_step(model, optimizer)
            clean_up()
        """,
    ),
    "a collector switched off for good": (
        "cycle",
        "collection is off",
        "gc.collect()",
        """
        import gc
        gc.disable()  # grows
        try:
            for _ in range(20):
                train_step(model, optimizer)
            for _ in range(1100):
                guard.step()
        finally:
            gc.enable()
        """,
    ),
}

HEALTHY: dict[str, str] = {
    "gradients set to zero in place": """
        def fit():
            for _ in range(30):
                x, y = batch()
                loss = (model(x) - y).pow(2).mean()
                optimizer.zero_grad(set_to_none=False)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        fit()
        """,
    "gradients accumulated over four backwards": """
        for step in range(80):
            x, y = batch()
            ((model(x) - y).pow(2).mean() / 4).backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        """,
    "gradients zeroed behind autograd's back": """
        for _ in range(30):
            x, y = batch()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad.data.zero_()
        """,
    "gradients that decay": """
        for _ in range(30):
            x, y = batch()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad *= 0.9
        """,
    "two optimizers, one going backward through the other's model": """
        other = Net()
        second = torch.optim.Adam(other.parameters())
        head = nn.Linear(1, 8)
        third = torch.optim.Adam(head.parameters())
        memguard.watch(model, optimizer, other, second, head, third)
        for _ in range(30):
            x, y = batch()
            second.zero_grad(set_to_none=False)
            other(x).pow(2).mean().backward()
            second.step()
            third.zero_grad(set_to_none=False)
            other(head(y)).mean().backward()
            third.step()
        """,
    "a closure that clears": """
        lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=4)
        x, y = batch()
        def closure():
            lbfgs.zero_grad(set_to_none=False)
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            return loss
        for _ in range(12):
            lbfgs.step(closure)
        """,
    "sparse gradients that are cleared": """
        table = nn.Embedding(50, 8, sparse=True)
        sparse = torch.optim.SGD([*table.parameters()], lr=0.1)
        memguard.watch(table, sparse)
        for _ in range(30):
            sparse.zero_grad(set_to_none=False)
            table(torch.randint(0, 50, (16,))).sum().backward()
            sparse.step()
        """,
    "several backwards of one episode": """
        for _ in range(30):
            optimizer.zero_grad(set_to_none=False)
            for _ in range(3):
                x, y = batch()
                (model(x) * y).mean().backward()
            optimizer.step()
        """,
    "an inner loop of fast weights": """
        for _ in range(30):
            x, y = batch()
            fast = {name: value for name, value in model.named_parameters()}
            loss = (torch.func.functional_call(model, fast, (x,)) - y).pow(2).mean()
            slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {n: v - 0.1 * g for (n, v), g in zip(fast.items(), slopes)}
            optimizer.zero_grad(set_to_none=False)
            (torch.func.functional_call(model, fast, (x,)) - y).pow(2).mean().backward()
            optimizer.step()
            del loss, slopes, fast
        """,
    "an attack on a model in evaluation mode": """
        model.eval()
        for _ in range(20):
            x = torch.randn(4096, 8, requires_grad=True)
            slope, = torch.autograd.grad(model(x).sum(), x)
        """,
    "features of a frozen network in evaluation mode": """
        judge = Net().eval().requires_grad_(False)
        memguard.watch(model, optimizer, judge)
        for _ in range(20):
            x = torch.randn(4096, 8)
            optimizer.zero_grad()
            judge(model(x).expand(-1, 8)).mean().backward()
            optimizer.step()
        """,
    "an inner output of a network in evaluation mode": """
        seen = []
        judge = Net().eval()
        judge.first.register_forward_hook(lambda module, args, output: seen.append(output))
        memguard.watch(model, optimizer, judge)
        for _ in range(20):
            x = torch.randn(4096, 8)
            optimizer.zero_grad()
            judge(model(x).expand(-1, 8))
            seen.pop().mean().backward()
            optimizer.step()
        """,
    "an early output of a deep network in evaluation mode": """
        seen = []
        guard.close()
        deep = nn.Sequential(*(m for _ in range(250) for m in (nn.Linear(8, 8), nn.Tanh()))).eval()
        deep[3].register_forward_hook(lambda module, args, output: seen.append(output))
        guard = memguard.watch(deep)
        for _ in range(12):
            image = torch.randn(512, 8, requires_grad=True)
            deep(image)
            torch.autograd.grad(seen.pop().mean(), image)
            guard.step()
        """,
    "a branch of a network in evaluation mode that the output does not need": """
        guard.close()
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.side, self.main = Net(), Net()
            def forward(self, x):
                self.seen = self.side(x)
                return self.main(x)
        two = Two().eval()
        guard = memguard.watch(two)
        for _ in range(20):
            two.zero_grad()
            two(torch.randn(4096, 8))
            two.seen.mean().backward()
            two.seen = None
            guard.step()
        """,
    "an evaluation without graphs": """
        model.eval()
        with torch.no_grad():
            for _ in range(20):
                model(torch.randn(4096, 8)).mean().item()
        """,
    "two backwards through one graph": """
        for _ in range(30):
            x, y = batch()
            out = model(x)
            optimizer.zero_grad()
            out.mean().backward(retain_graph=True)
            (out - y).pow(2).mean().backward()
            optimizer.step()
        """,
    "a graph that the next step's backward goes through": """
        state = torch.zeros(32, 1)
        for step in range(30):
            state = (model(torch.randn(32, 8)) + (state if step % 4 else 0)) / 2
            model.zero_grad()
            state.mean().backward(retain_graph=True)
            guard.step()
        """,
    "one backward for each of several losses": """
        for _ in range(30):
            x, y = batch()
            out = model(x)
            optimizer.zero_grad()
            for loss in (out.mean(), (out - y).pow(2).mean()):
                loss.backward(retain_graph=True)
            optimizer.step()
        """,
    "a cache emptied now and then": """
        for step in range(30):
            train_step(model, optimizer)
            if step % 10 == 0:
                torch.cuda.empty_cache()
        torch.cuda.empty_cache()
        """,
    "a cache emptied by a function that mostly leaves before": """
        def clean_up(step):
            if step % 10:
                return
            torch.cuda.empty_cache()
        for step in range(30):
            train_step(model, optimizer)
            clean_up(step)
        """,
    "a cache emptied in turns that come to it": """
        for step in range(30):
            train_step(model, optimizer)
            if step % 10:
                continue
            torch.cuda.empty_cache()
        """,
    "a cache emptied by half a statement": """
        for step in range(30):
            train_step(model, optimizer)
            torch.cuda.empty_cache() if step % 10 == 0 else None
        """,
    "a cache emptied when memory has ended": """
        for step in range(30):
            try:
                train_step(model, optimizer)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
        """,
    "a helper that goes backward twice through one graph": """
        def back(loss):
            loss.backward(retain_graph=True)
        for _ in range(30):
            x, y = batch()
            out = model(x)
            optimizer.zero_grad()
            back(out.mean())
            back((out - y).pow(2).mean())
            optimizer.step()
        """,
    "a helper that goes backward for each of several losses": """
        def back(loss):
            loss.backward(retain_graph=True)
        for _ in range(30):
            x, y = batch()
            out = model(x)
            optimizer.zero_grad()
            [back(loss) for loss in (out.mean(), (out - y).pow(2).mean())]
            optimizer.step()
        """,
    "a cache emptied after each run of an installed trainer's loop": """
        trainer = {}
        code = "def run(step):\\n for _ in range(20):\\n  step()"
        exec(compile(code, "/opt/site-packages/trainer/loop.py", "exec"), trainer)
        for fold in range(2):
            trainer["run"](lambda: train_step(model, optimizer))
            torch.cuda.empty_cache()
        """,
    "a cache emptied after each comprehension of steps": """
        for epoch in range(2):
            losses = [train_step(model, optimizer).item() for _ in range(20)]
            torch.cuda.empty_cache()
        """,
    "a loop that has the young collected somewhere else": """
        import gc
        gc.disable()
        clean_up = functools.partial(getattr(gc, "col" + "lect"), 1)
        try:
            for step in range(1300):
                guard.step()
                if step == 200:
                    clean_up()
        finally:
            gc.enable()
        """,
    "a loop that collects by itself": """
        import gc
        gc.disable()
        try:
            for step in range(120):
                train_step(model, optimizer)
                if step % 50 == 0:
                    gc.collect(1)
        finally:
            gc.enable()
        """,
}


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: without one no cache is emptied, and `empty_cache` does nothing."""
    monkeypatch.setattr("memguard.lints.used_backends", lambda: ["a device"])


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_is_told_once(habit: str, tmp_path: Path) -> None:
    """A warning with its line and a way out, and a verdict of clean: nothing grows."""
    kind, summary, way_out, source = HABITS[habit]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = Run(tmp_path, source)

    [finding] = run.report.findings
    [holder] = finding.holders
    assert not run.stopped
    assert run.report.verdict == "clean"
    assert not run.report.failures
    assert (finding.kind, finding.severity) == (kind, "warning")
    assert summary in finding.summary
    assert [holder.line] == run.marked
    assert holder.file == run.file
    assert way_out in f"{holder.fix} {finding.advice}"
    assert [one.category for one in told] == [memguard.LeakWarning]
    assert told[0].lineno == run.marked[0]


@pytest.mark.parametrize("twin", HEALTHY)
def test_its_healthy_twin_is_left_alone(twin: str, tmp_path: Path) -> None:
    """No warning and no finding of any kind."""
    run = Run(tmp_path, HEALTHY[twin])

    assert not run.report.findings
    assert not run.report.failures


@pytest.mark.filterwarnings("ignore::memguard.LeakWarning")
def test_the_unused_graph_is_weighed(tmp_path: Path) -> None:
    """What one evaluation forward saves: the batch and the hidden layer, four bytes a number."""
    run = Run(tmp_path, HABITS["an evaluation that builds graphs"][3].replace("4096", "8192"))
    [finding] = run.report.findings
    assert f"{8192 * (8 + 16) * 4 // 1024} KiB" in finding.summary


def test_an_evaluation_without_graphs_is_soon_left_alone() -> None:
    """And so are modules that died: their places are for others, and never taken for theirs."""
    unused = UnusedGraphs()
    module = nn.Linear(2, 2)
    sampled = unused.of(module)
    assert sampled is not None
    for _ in range(MAX_GRAPHLESS):
        assert sampled.is_wanting
        sampled.forward([])
    assert sampled.settled
    assert unused.of(module) is sampled
    others = [nn.Linear(2, 2) for _ in range(MAX_MODULES)]
    late = others.pop()
    assert all(unused.of(other) is not None for other in others)
    assert unused.of(late) is None
    others.clear()
    found = unused.of(late)
    assert found is not None
    assert found.is_wanting
    unused.remove()


def test_a_second_guard_sees_what_the_first_has_asked() -> None:
    """Also where something keeps the nodes that add up gradients, as distributed training does."""
    model = nn.Linear(4, 4)
    kept = [p.view_as(p).grad_fn.next_functions[0][0] for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps(gradients: Gradients, *, clear: bool) -> int:
        for _ in range(6):
            if clear:
                optimizer.zero_grad(set_to_none=False)
            gradients.forward()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            asked = gradients.stepped(optimizer)
        gradients.remove()
        return asked.uncleared if asked is not None else 0

    assert steps(Gradients(), clear=True) == 0
    assert steps(Gradients(), clear=False) >= CARRIED
    assert kept


def test_optimizers_that_died_leave_their_places() -> None:
    """A program that makes one for each of many fits has each of them asked."""
    gradients = Gradients()
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    made = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(MAX_OPTIMIZERS + 1)]
    late = made.pop()
    for optimizer in made:
        asked = gradients.stepped(optimizer)
        assert asked is not None
        asked.settled = True
    assert gradients.stepped(late) is None
    del optimizer
    made.clear()
    assert gradients.curious
    assert gradients.stepped(late) is not None
    gradients.remove()


def test_a_habit_can_be_ignored(tmp_path: Path) -> None:
    """A suppression of its kind leaves it out, and the report says so."""
    run = Run(
        tmp_path,
        HABITS["gradients that nobody clears"][3],
        watch='guard = memguard.watch(model, optimizer, ignore="kind:grad")\n',
    )
    assert not run.report.findings
    assert [one.finding.kind for one in run.report.ignored] == ["grad"]


@pytest.mark.filterwarnings("error::memguard.LeakWarning")
def test_a_habit_never_ends_the_job(tmp_path: Path) -> None:
    """Not even where warnings are errors."""
    run = Run(tmp_path, HABITS["gradients that nobody clears"][3])
    assert not run.stopped
    assert _kinds(run.report.findings) == ["grad"]


def test_a_cache_is_not_spoken_of_without_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU `empty_cache` does nothing, so neither does it any harm."""
    monkeypatch.setattr("memguard.lints.used_backends", list)
    run = Run(tmp_path, HABITS["a cache emptied at every step"][3])
    assert not run.report.findings


def test_only_files_that_name_a_habit_are_parsed(tmp_path: Path) -> None:
    """And those only where it is soon done: a loop must not wait for it."""
    plain, naming, long = (tmp_path / name for name in ("plain.py", "naming.py", "long.py"))
    plain.write_text("step()\n")
    naming.write_text("empty_cache()\n")
    long.write_text("# padding\n" * (MOST_READ // 10))
    spots = [Spot(str(file), "main", 1, 1) for file in (plain, naming, long)]

    assert not is_worth_reading(spots[:1], ["empty_cache"])
    assert is_worth_reading(spots[:2], ["empty_cache"])
    assert not is_worth_reading(spots[:2], ["retain_graph"])
    assert not is_worth_reading(spots, ["empty_cache"])


def test_a_long_file_is_not_read_for_its_habits(tmp_path: Path) -> None:
    """What it does at every step is not told, and no step waits."""
    padding = "# padding\n" * (MOST_READ // 10)
    run = Run(tmp_path, HABITS["a cache emptied at every step"][3], watch=WATCH + padding)
    assert not run.report.findings


def _kinds(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.kind for finding in findings]
