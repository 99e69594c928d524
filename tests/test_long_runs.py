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
weight = torch.nn.Parameter(torch.ones(()))
chain = torch.zeros(())
"""

# The state of each step is made from the last one's: a chain as long as the run.
CARRIED = """\
guard = memguard.watch(action="warn"{settings})
for step in range(steps):
    chain = chain * 0.5 + weight
    guard.step()
"""

# A running sum of losses, each of them trained on.
TRAINED = """\
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = weight
    def forward(self, inputs):
        return self.weight * inputs
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, foreach=False)
guard = memguard.watch(model, optimizer, action="warn"{settings})
inputs = torch.ones(())
for step in range(steps):
    loss = model(inputs)
    loss.backward()
    optimizer.step()
    chain = chain + loss
"""

TOLD = """\
report = guard.report()
print(report.step, report.verdict, len(report.failures), flush=True)
"""


def lets_a_chain_go(python: Python, folder: Path, text: str, steps: int, verdict: str) -> None:
    """The program runs to its end, and its chain dies without overflowing the stack."""
    program = folder / "program.py"
    program.write_text(CHAIN + text)
    done = python(program, str(steps))

    assert done.stdout.split() == [str(steps), verdict, "0"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


DROPPED, CLOSED = "chain = None\n", "guard.close()\n"


@pytest.mark.parametrize(
    ("steps", "ending"),
    [(300_000, DROPPED), (100_000, ""), (100_000, CLOSED + DROPPED)],
    ids=["dropped", "at exit", "closed first"],
)
def test_a_chain_that_is_only_warned_about_may_grow_for_ever(
    steps: int, ending: str, python: Python, tmp_path: Path
) -> None:
    """Each step carries all before it."""
    text = CARRIED.format(settings="") + TOLD + ending
    lets_a_chain_go(python, tmp_path, text, steps, "leak")


def test_a_running_sum_that_is_only_warned_about_may_grow_for_ever(
    python: Python, tmp_path: Path
) -> None:
    """So does the total of a training loop, which keeps every graph."""
    text = TRAINED.format(settings="") + TOLD + DROPPED
    lets_a_chain_go(python, tmp_path, text, 100_000, "leak")


def test_a_chain_that_is_ignored_may_grow_for_ever(python: Python, tmp_path: Path) -> None:
    """A finding nobody wants to hear of is looked at no more often, whatever looks may cost."""
    text = CARRIED.format(settings=", ignore='*', overhead=1.0")
    told = TOLD.replace("report.verdict", "report.verdict != 'leak'")
    lets_a_chain_go(python, tmp_path, text + told + DROPPED, 60_000, "True")


MEASURED = """\
import gc, json, os, sys, tracemalloc, types, warnings, weakref
sys.path.insert(0, {here!r})
import torch
import memguard
from models import hooks_of
torch.set_num_threads(1)
warnings.simplefilter("ignore", memguard.LeakWarning)
first, last, leaking = {first}, {last}, {leaking}

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, foreach=False)
inputs = torch.ones(2, 4)
guard = memguard.watch(model, optimizer, action="warn", overhead=1.0)  # as busy as it may be
total = torch.zeros(())

def train(steps):
    global output, loss, total
    for step in range(steps):
        optimizer.zero_grad()
        output = model(inputs)
        loss = output.sum()
        loss.backward()
        optimizer.step()
        if leaking:
            total = total + loss

OTHERS = (type, types.ModuleType, types.FunctionType, types.CodeType, torch.nn.Module,
          torch.optim.Optimizer, torch.Tensor)

def reachable():
    "Bytes of all that hangs on the guard and on memguard's modules."
    gc.collect()
    names = [name for name in sys.modules if name.partition(".")[0] == "memguard"]
    pending = [guard, *(vars(sys.modules[name]) for name in names)]
    builtins = vars(__import__("builtins"))
    seen, size = {{id(builtins), id(globals())}}, 0
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, OTHERS):
            continue
        seen.add(id(item))
        size += sys.getsizeof(item)
        pending.extend(gc.get_referents(item))
    return size

def ours():
    "Bytes by line of memguard, as far as they were allocated since tracing began."
    gc.collect()
    folder = os.path.join(os.path.dirname(memguard.__file__), "*")
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, folder)])
    return {{str(found.traceback): found.size for found in snapshot.statistics("lineno")}}

train(first)
before, counts = reachable(), [len(gc.callbacks), hooks_of(model)]
collections = gc.get_stats()[0]["collections"]
train(last - first - 2 * {traced})
collections = gc.get_stats()[0]["collections"] - collections
tracemalloc.start()
train({traced})  # what is bounded is replaced by what is traced
earlier = ours()
train({traced})
later = ours()
tracemalloc.stop()
lines = sorted(((later[line] - earlier.get(line, 0), line) for line in later), reverse=True)
after = reachable()
references = [*map(weakref.ref, (output, loss, model.weight.grad))]
del output, loss
model.weight.grad = None
print(json.dumps({{
    "growth": after - before, "traced": sum(size for size, _ in lines), "lines": lines[:5],
    "collections": collections, "counts": counts == [len(gc.callbacks), hooks_of(model)],
    "held": [reference() is not None for reference in references],
    "step": guard.report().step, "verdict": guard.report().verdict,
    "failures": [failure.error for failure in guard.report().failures],
}}))
"""


def measure(python: Python, folder: Path, **values: Any) -> dict[str, Any]:
    """What the guard holds after `last` steps and did not after `first`."""
    program = folder / "program.py"
    program.write_text(MEASURED.format(here=HERE, **values))
    done = python(program)

    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["step"] == values["last"]
    assert found["failures"] == []
    return found


def test_nothing_gathers_in_a_guard_over_a_hundred_thousand_steps(
    python: Python, tmp_path: Path
) -> None:
    """Its memory is flat, and nothing of the last step lives longer than the loop lets it."""
    found = measure(python, tmp_path, first=20_000, last=100_000, traced=12_000, leaking=False)

    assert found["growth"] < 64 * 1024
    assert found["traced"] < 64 * 1024, found["lines"]
    assert found["counts"]
    # A loop this small makes no garbage for the collector, and neither do we.
    assert found["collections"] < 80
    assert found["held"] == [False, False, False]
    assert found["verdict"] == "clean"


def test_nothing_gathers_in_a_guard_that_warned(python: Python, tmp_path: Path) -> None:
    """The leak is the loop's: what the guard knows about it does not grow with it."""
    found = measure(python, tmp_path, first=4_000, last=20_000, traced=5_000, leaking=True)

    assert found["growth"] < 64 * 1024
    assert found["traced"] < 64 * 1024, found["lines"]
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
    for step in range(10):
        state = torch.zeros(1, 1)
        for _ in range(4_000):
            state = model(state)
        loss = state.sum()
        del state
        if step == 9:
            del loss  # a graph that deep, dropped without a backward
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report = guard.report()
    print(report.verdict, report.step)
"""


def test_a_deep_healthy_graph_is_dropped_safely(python: Python, tmp_path: Path) -> None:
    """A model called thousands of times in one step makes a chain of outputs that must not kill."""
    program = tmp_path / "program.py"
    program.write_text(HEALTHY_DEEP)
    done = python(program)

    assert (done.returncode, done.stdout, done.stderr) == (0, "clean 9\n", "")
