"""Small training programs as text, run as a user's file and judged by the report they cause."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path
from typing import Any

import pytest

from memguard import LeakError, Report

PRELUDE = """
import collections, functools, threading, queue
import torch
from torch import nn
import memguard

torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def batch():
    return torch.randn(32, 8), torch.randn(32, 1)

def train_step(model, optimizer):
    x, y = batch()
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""

# Why something stays when its program has ended.
IN_CPP = "a cycle through C++, which no collection frees"
IN_CONTEXT = "the thread's context keeps what is set in it, and the variable"
COMPILED = "torch.compile keeps the guards of what it compiled, also after a reset"
TORCHSCRIPT = "TorchScript keeps the constants of what it compiled as long as the process lives"

# A cell of a notebook whose running sum leaks.
LOOP_CELL = """\
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = 0.0
for turn in range(20):
    loss = model(torch.randn(2, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss"""

WATCH = "guard = memguard.watch(model, optimizer)\n"


def staying(value: object, reason: str) -> Any:
    """A parameter of a test that leaves something behind on purpose, where there is a reason."""
    marks = [pytest.mark.leaky(reason=reason), pytest.mark.memguard(repeat=1)] if reason else []
    return pytest.param(value, marks=marks)


class Run:
    """What became of a program.

    Attributes:
        report: the report of the leak that stopped it, or of its end.
        stopped: whether a leak stopped it.
        marked: line numbers that end in `# grows`.
    """

    def __init__(
        self, folder: Path, source: str, name: str = "train.py", watch: str = WATCH
    ) -> None:
        text = PRELUDE + watch + textwrap.dedent(source)
        file = folder / name
        file.write_text(text)
        lines = text.splitlines()
        self.file = str(file)
        self.marked = [i for i, line in enumerate(lines, 1) if line.rstrip().endswith("# grows")]
        self.report, self.stopped = self._run(file)

    @staticmethod
    def _run(file: Path) -> tuple[Report, bool]:
        from memguard import watching

        try:
            # One at a time: a guard left open by a program that ends would judge the next one.
            variables = runpy.run_path(str(file), run_name="__main__")
            return variables["guard"].report(), False
        except LeakError as leak:
            return leak.report, True
        finally:
            for guard in list(watching._guards.values()):
                guard.close()
