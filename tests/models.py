"""Small models and the loops that train them, shared by the tests that prove the guard harmless."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import memguard
from memguard.guard import Guard

# Models this small only lose by sharing their work among threads.
torch.set_num_threads(1)

# Every tenth step is followed by an evaluation of this many batches.
EVALUATE_EVERY = 10
EVALUATIONS = 3


class Mlp(nn.Module):
    """Two blocks with dropout, so that one stray draw of a random number changes every loss."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.3)),
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.3)),
        )
        self.head = nn.Linear(width, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(inputs))
        return out


class Cnn(nn.Module):
    """Convolutions with batch norm, whose running statistics change at every training forward."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(4 * 4 * 4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(inputs).flatten(1))
        return out


class Recurrent(nn.Module):
    """An LSTM that returns a tuple, as sequence models do."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, state = self.lstm(inputs)
        return self.head(out[:, -1]), state


@dataclass(frozen=True)
class Task:
    """A model, its data and its optimizer; the same numbers each time it is set up.

    Attributes:
        shape: shape of one batch of inputs.
        closure: whether the optimizer calls the model itself, many times a step.
    """

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    closure: bool = False

    def set_up(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A new model with its optimizer, from a fixed seed."""
        torch.manual_seed(7)
        model = self.model()
        return model, self.optimizer(model)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a step; drawn apart from the global random numbers."""
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(self.shape, generator=generator)
        return inputs, torch.randint(4, (self.shape[0],), generator=generator)

    def loss(self, model: nn.Module, step: int) -> Tensor:
        """The loss of one batch."""
        inputs, labels = self.batch(step)
        out = model(inputs)
        logits = out[0] if isinstance(out, tuple) else out
        return nn.functional.cross_entropy(logits, labels)


TASKS = (
    Task("mlp", Mlp, (6, 8), lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)),
    Task("cnn", Cnn, (6, 1, 8, 8), lambda m: torch.optim.Adam(m.parameters(), lr=0.01)),
    Task(
        "recurrent",
        Recurrent,
        (6, 5, 8),
        lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=4),
        closure=True,
    ),
)


@dataclass
class Run:
    """What a training run computed, to be compared bit for bit.

    Attributes:
        losses: training and evaluation losses in the order they came.
        values: final parameters and buffers by name.
        guard: the guard that watched, closed by now; None for a bare run.
    """

    losses: list[float]
    values: dict[str, Tensor]
    guard: Guard | None

    def same_as(self, other: Run) -> bool:
        """Whether losses, parameters and buffers are the same bits."""
        return (
            self.losses == other.losses
            and self.values.keys() == other.values.keys()
            and all(torch.equal(value, other.values[name]) for name, value in self.values.items())
        )


def train(task: Task, steps: int = 40, leak: bool = False, **settings: Any) -> Run:
    """Train from a fixed seed, watched when settings are given (`action="warn"` will do).

    Args:
        task: what to train.
        steps: training steps.
        leak: whether the loop keeps a running sum of losses with their graphs.
        settings: keywords of `memguard.watch`; none means a bare run.
    """
    model, optimizer = task.set_up()
    watching = memguard.watch(model, optimizer, **settings) if settings else None
    with watching or contextlib.nullcontext():
        losses = list(_losses(task, model, optimizer, steps, leak))
    values = {name: value.clone() for name, value in model.state_dict().items()}
    return Run(losses, values, watching)


def _losses(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, leak: bool
) -> Iterator[float]:
    total: Tensor | float = 0.0
    for step in range(steps):
        loss = train_step(task, model, optimizer, step)
        if leak:
            total = total + loss
        yield loss.item()
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            yield from evaluate(task, model)
    if leak:
        yield torch.as_tensor(total).item()


def train_step(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Tensor:
    """One training step; returns its loss, graph and all."""
    losses: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = task.loss(model, step)
        loss.backward()
        losses.append(loss)
        return loss

    if task.closure:
        optimizer.step(closure)  # type: ignore[arg-type]
    else:
        closure()
        optimizer.step()
    return losses[-1]


def evaluate(task: Task, model: nn.Module) -> list[float]:
    """Losses of a few batches in evaluation mode, without graphs."""
    model.eval()
    with torch.no_grad():
        losses = [task.loss(model, 1000 + batch).item() for batch in range(EVALUATIONS)]
    model.train()
    return losses


def hooks_of(model: nn.Module) -> int:
    """Forward hooks in a model and everything below it."""
    return sum(len(module._forward_hooks) for module in model.modules())


class Watched:
    """A model under a guard in its first steps, when every module carries a hook."""

    def __init__(self, task: Task, steps: int = 5) -> None:
        # Modules are not audited where compiled code was seen, were it that of another test.
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None:
            dynamo.reset()
            dynamo.utils.counters.clear()
        self._inputs = task.batch(0)[0]
        self.model, self.optimizer = task.set_up()
        self.guard: Guard = memguard.watch(self.model, self.optimizer)
        for step in range(steps):
            train_step(task, self.model, self.optimizer, step)

    def outputs(self, model: nn.Module) -> Tensor:
        """What a model computes in evaluation mode."""
        was_training = model.training
        model.eval()
        with torch.no_grad():
            outputs: Tensor = model(self._inputs)
        model.train(was_training)
        return outputs
