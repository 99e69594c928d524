"""Record how memory grows in leaking programs: curves such as `tests/growth_curves` holds.

    python benchmarks/growth_curves.py strings|tracing|workers|profiler FILE

Each runs 400 steps and writes pairs of a step and kilobytes: the process's private memory, and of
`workers` its children's. Forecasts made half way are tested against the second half.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from memguard.sensors.host import Host
from memguard.sensors.workers import Children

STEPS = 400


def model() -> nn.Module:
    """Twenty layers."""
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))


def train(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step."""
    network(torch.randn(32, 64)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def strings() -> Iterator[None]:
    """A log of texts that is kept."""
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    log: list[str] = []
    while True:
        train(network, optimizer)
        log.extend(f"{len(log)} {'x' * (500 + len(log) % 900)}" for _ in range(2500))
        yield


def tracing() -> Iterator[None]:
    """A model that is traced anew at each step."""
    network = model()
    while True:
        torch.jit.trace(network, torch.randn(32, 64))
        yield


class Samples(Dataset[Any]):
    """A dataset that keeps all that it has decoded."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return STEPS * 20

    def __getitem__(self, index: int) -> Any:
        self.kept[index] = torch.randn(1 << 15)
        return self.kept[index]


def workers() -> Iterator[None]:
    """A loader whose two workers cache."""
    for _ in DataLoader(Samples(), batch_size=20, shuffle=True, num_workers=2):
        yield


def profiler() -> Iterator[None]:
    """A profiler that is started and never stopped."""
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    running = torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True)
    running.start()
    while True:
        train(network, optimizer)
        yield


PROGRAMS: dict[str, Callable[[], Iterator[None]]] = {
    one.__name__: one for one in (strings, tracing, workers, profiler)
}


def main(name: str, file: str) -> None:
    """Run one program and write its curve."""
    host, children = Host(), Children()
    points = []
    for step, _ in zip(range(1, STEPS + 1), PROGRAMS[name](), strict=False):
        if step <= 16 or step % 4 == 0:
            size = sum(children.private().values()) if name == "workers" else host.private()
            points.append([step, size >> 10])
    Path(file).write_text(json.dumps(points), encoding="ascii")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in PROGRAMS:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
    sys.stdout.flush()
    os._exit(0)  # a profiler that is still running is not waited for
