"""A run may be as long as it likes: nothing gathers in the guard, and no leak becomes deadly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Python

HERE = str(Path(__file__).parent)

CHAIN = """\
import sys, warnings
import torch
import memguard
torch.set_num_threads(1)
warnings.simplefilter("ignore", memguard.LeakWarning)
steps = int(sys.argv[1])
weight = torch.ones((), requires_grad=True)
"""

# The state of each step comes from the last one's: a chain as long as the run.
MANUAL = (
    CHAIN
    + """
guard = memguard.watch(action="warn")
state = torch.zeros(())
for step in range(steps):
    state = state * 0.5 + weight
    guard.step()
report = guard.report()
print(report.step, report.verdict, len(report.failures), flush=True)
"""
)

# A running sum of losses, each of them trained on.
TRAINED = (
    CHAIN
    + """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
    def forward(self, inputs):
        return self.weight * inputs
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
guard = memguard.watch(model, optimizer, action="warn")
inputs = torch.ones(())
total = torch.zeros(())
for step in range(steps):
    loss = model(inputs)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = total + loss
report = guard.report()
print(report.step, report.verdict, len(report.failures), flush=True)
"""
)

ENDINGS = {
    "at exit": "",
    "dropped": "del state, total\n",
    "closed first": "guard.close(); del state, total\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("program", ["manual", "trained"])
def test_a_leak_that_is_only_warned_about_may_run_for_ever(
    program: str, ending: str, python: Python, tmp_path: Path
) -> None:
    """300,000 links of a chain die without overflowing the stack, whenever they are let go."""
    steps = 300_000 if ending == "dropped" else 100_000
    text = {"manual": MANUAL, "trained": TRAINED}[program] + ENDINGS[ending]
    file = tmp_path / "program.py"
    file.write_text(text.replace("del state, total", "state = total = None"))
    done = python(file, str(steps))

    assert done.stdout.split() == [str(steps), "leak", "0"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


MEASURED = """\
import gc, json, os, sys, tracemalloc, warnings, weakref
sys.path.insert(0, {here!r})
import torch
import memguard
from models import Mlp, hooks_of
torch.set_num_threads(1)
warnings.simplefilter("ignore", memguard.LeakWarning)
first, last, leaking = {first}, {last}, {leaking}

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
inputs = torch.ones(2, 4)
guard = memguard.watch(model, optimizer, action="warn")
folder = os.path.join(os.path.dirname(memguard.__file__), "*")
only_ours = [tracemalloc.Filter(True, folder)]
total = torch.zeros(())

def train(steps):
    global loss, total
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).sum()
        loss.backward()
        optimizer.step()
        if leaking:
            total = total + loss

def ours():
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces(only_ours)
    by_line = {{str(s.traceback): s.size for s in snapshot.statistics("lineno")}}
    return sum(by_line.values()), by_line

train(64)
tracemalloc.start()
train(first - 64)
before, lines = ours()
counts = [len(gc.callbacks), hooks_of(model)]
train(last - first)
after, later = ours()
reference = weakref.ref(loss)
gradient = weakref.ref(model.weight.grad)
if not leaking:
    del loss
    model.weight.grad = None
growth = sorted(((later[k] - lines.get(k, 0), k) for k in later), reverse=True)[:5]
print(json.dumps({{
    "before": before, "after": after, "growth": growth,
    "counts": counts == [len(gc.callbacks), hooks_of(model)],
    "alive": [reference() is not None, gradient() is not None],
    "step": guard.report().step, "verdict": guard.report().verdict,
    "failures": [f.error for f in guard.report().failures],
}}))
"""


def measure(python: Python, folder: Path, first: int, last: int, leaking: bool) -> dict[str, Any]:
    """Bytes that lines of memguard hold after `first` and after `last` steps, and more."""
    program = folder / "program.py"
    program.write_text(MEASURED.format(here=HERE, first=first, last=last, leaking=leaking))
    done = python(program)

    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["step"] == last
    assert found["failures"] == []
    return found


def test_nothing_gathers_in_a_guard_over_a_hundred_thousand_steps(
    python: Python, tmp_path: Path
) -> None:
    """Its memory is flat, and nothing of the last step lives any longer than the loop lets it."""
    found = measure(python, tmp_path, 20_000, 100_000, leaking=False)

    assert found["after"] - found["before"] < 64 * 1024, found["growth"]
    assert found["counts"]
    assert found["alive"] == [False, False]
    assert found["verdict"] == "clean"


def test_nothing_gathers_in_a_guard_that_warned(python: Python, tmp_path: Path) -> None:
    """The leak is the loop's: what the guard knows about it does not grow with it."""
    found = measure(python, tmp_path, 4_000, 20_000, leaking=True)

    assert found["after"] - found["before"] < 64 * 1024, found["growth"]
    assert found["counts"]
    assert found["verdict"] == "leak"


HEALTHY_DEEP = """\
import sys
import torch
import memguard
torch.set_num_threads(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
with memguard.watch(model, optimizer) as guard:
    for step in range(20):
        state = torch.zeros(1, 1)
        for _ in range(8_000):
            state = model(state)
        loss = state.sum()
        del state
        if step == 19:
            del loss  # a graph that deep, dropped without a backward
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(guard.report().verdict)
"""


def test_a_deep_healthy_graph_is_dropped_safely(python: Python, tmp_path: Path) -> None:
    """A model called thousands of times in one step makes a chain of outputs that must not kill."""
    program = tmp_path / "program.py"
    program.write_text(HEALTHY_DEEP)
    done = python(program)

    assert (done.returncode, done.stdout, done.stderr) == (0, "clean\n", "")
