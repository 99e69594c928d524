"""A long run of tiny steps: whether anything gathers in a guard that warns now and then.

    python benchmarks/soak.py                     # a million steps, some minutes
    python benchmarks/soak.py --steps 100000      # what CI runs beside the rest
    python benchmarks/soak.py --steps 6000        # what the tests run

Trains a small model with an evaluation after every fifty steps. Now and then it keeps losses in one
of three ways (an attribute, a global list, a running sum), long enough to be warned about, and lets
go of them again. After a warm-up the process's memory, its file descriptors, its threads, its hooks
and what stands in the collector's callbacks are noted; at the end they must be as they were: memory
within a mebibyte, the rest exactly. Prints one JSON object; exits with 1 where something grew.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import torch

import memguard

EVALUATE_EVERY, EVALUATIONS = 50, 3
# Steps from one leak's beginning to the next one's, and how long each of the three ways is kept:
# each for longer than the one before, whose length is no leak any more once it was let go.
LEAK_EVERY, LEAK_STEPS = 1000, (150, 300, 600)
MIB = 1024**2


class Trainer:
    """Trains, evaluates, and leaks now and then in one of three ways."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, foreach=False)
        self.inputs = torch.ones(2, 4)
        self.history: list[torch.Tensor] = []
        self.total: torch.Tensor | float = 0.0

    def run(self, first: int, last: int) -> None:
        """Steps `first` up to, not including, `last`."""
        for step in range(first, last):
            loss = self.train()
            turn, within = divmod(step, LEAK_EVERY)
            kept_for = LEAK_STEPS[turn % len(LEAK_STEPS)]
            if within >= kept_for:
                if within == kept_for:
                    self.let_go()
            elif turn % 3 == 0:
                self.history.append(loss)
            elif turn % 3 == 1:
                kept.append(loss)
            else:
                self.total = self.total + loss
            if step % EVALUATE_EVERY == 0:
                self.evaluate()

    def train(self) -> torch.Tensor:
        """One step."""
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(self.inputs).sum()
        loss.backward()
        self.optimizer.step()
        return loss

    def evaluate(self) -> None:
        """A few batches without graphs."""
        self.model.eval()
        with torch.no_grad():
            for _ in range(EVALUATIONS):
                self.model(self.inputs)
        self.model.train()

    def let_go(self) -> None:
        """The end of a leak."""
        self.history.clear()
        kept.clear()
        self.total = 0.0


kept: list[torch.Tensor] = []


def counts(model: torch.nn.Module) -> dict[str, int]:
    """What must not grow at all."""
    descriptors = Path("/proc/self/fd")
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    tables = vars(sys.modules["torch.optim.optimizer"]).items()
    hooks += sum(len(table) for name, table in tables if name.startswith("_global_optimizer_p"))
    return {
        "descriptors": len(list(descriptors.iterdir())) if descriptors.exists() else 0,
        "threads": threading.active_count(),
        "hooks": hooks,
        "callbacks": len(gc.callbacks),
    }


def measured() -> int:
    """Bytes of the process that are its own and resident."""
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


def soak(steps: int, warm_up: int) -> dict[str, Any]:
    """Run so many steps; what was gained after the warm-up, and how long all of it took."""
    trainer = Trainer()
    begun = time.perf_counter()
    told = 0

    def count(report: memguard.Report) -> None:
        nonlocal told
        told += 1

    with memguard.watch(
        trainer.model,
        trainer.optimizer,
        action="log",
        on_leak=count,
        overhead=0.5,
        watchdog=3600,
        ask=True,
    ) as guard:
        trainer.run(0, warm_up)
        before, memory = counts(trainer.model), measured()
        trainer.run(warm_up, steps)
        after, gained = counts(trainer.model), measured() - memory
        report = guard.report()
    return {
        "steps": report.step,
        "seconds": round(time.perf_counter() - begun, 1),
        "gained_bytes": gained,
        "before": before,
        "after": after,
        "holders": sorted({h.name for found in report.findings for h in found.holders}),
        "told": told,
        "failures": [failure.error for failure in report.failures],
        "flat": gained <= MIB and before == after,
    }


def main() -> int:
    """Print the result; 1 where something grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps in all")
    parser.add_argument("--warm-up", type=int, default=0, help="steps before measuring (a quarter)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # A handler would write each of thousands of warnings.
    import logging

    logging.getLogger("memguard").addHandler(logging.NullHandler())
    logging.getLogger("memguard").propagate = False
    result = soak(args.steps, args.warm_up or args.steps // 4)
    print(json.dumps(result))
    return 0 if result["flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
