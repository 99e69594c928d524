"""How long an explanation takes on a large heap, side by side with objgraph.

    python benchmarks/explanation.py [--large] [--rounds N] [--json FILE]

Beside a million lists (ten million with --large, 2 GB) live a thousand losses of past steps, each
with its graph: in a list three attributes deep, in a list that a closure captures, in a list of a
function that runs in another thread. Asked are, in turn: the guard's whole explanation (search,
chain, source line, advice), `memguard.why_alive` of one loss, and `objgraph.find_backref_chain` of
the same loss.
"""

from __future__ import annotations

import argparse
import bisect
import gc
import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import objgraph
import torch

import memguard
from memguard import _torch
from memguard.explain.accumulation import Question
from memguard.explain.explain import explain

SURVIVORS = 1000
HEAP, LARGE_HEAP = 1_000_000, 10_000_000
GOALS = {HEAP: 0.5, LARGE_HEAP: 5.0}  # seconds
WEIGHT = torch.ones(8, requires_grad=True)

Numbers = list[int]
Measure = Callable[[torch.Tensor, Numbers], None]


class Namespace:
    """Something with attributes."""


app: Any = Namespace()


def make_loss(numbers: Numbers) -> torch.Tensor:
    """One step's loss; notes the number at which the step's graph begins."""
    numbers.append(torch._C._autograd._get_sequence_nr())
    return (WEIGHT * 2.0).sum()


def in_attributes(measure: Measure) -> None:
    """A list three attributes deep, below a variable of the module."""
    numbers: Numbers = []
    app.trainer = Namespace()
    app.trainer.history = Namespace()
    app.trainer.history.losses = []
    for _ in range(SURVIVORS):
        app.trainer.history.losses.append(make_loss(numbers))
    measure(app.trainer.history.losses[SURVIVORS // 2], numbers)
    del app.trainer


def in_closure(measure: Measure) -> None:
    """A list that a function captures; the function is a variable of the module."""
    global record
    numbers: Numbers = []
    record, one = make_recorder(numbers)
    for _ in range(SURVIVORS):
        record()
    measure(one(), numbers)
    del record


def make_recorder(numbers: Numbers) -> tuple[Callable[[], None], Callable[[], torch.Tensor]]:
    """A function that keeps each loss in a list of its own, and one that shows one of them."""
    kept: list[torch.Tensor] = []

    def record() -> None:
        kept.append(make_loss(numbers))

    return record, lambda: kept[len(kept) // 2]


def in_thread(measure: Measure) -> None:
    """A list of a function that runs in another thread."""
    numbers: Numbers = []
    shown: list[torch.Tensor] = []
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        losses = []
        for _ in range(SURVIVORS):
            losses.append(make_loss(numbers))
        shown.append(losses[SURVIVORS // 2])
        ready.set()
        done.wait()

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    ready.wait()
    try:
        measure(shown.pop(), numbers)
    finally:
        done.set()
        thread.join()


CASES = {"three attributes": in_attributes, "closure": in_closure, "another thread": in_thread}


def by_guard(loss: torch.Tensor, numbers: Numbers) -> str:
    """The guard's explanation; answers with the holder it names."""

    def step_of(node: Any) -> int:
        # The thread's own numbers begin anew, so its graphs are dated by those noted there.
        return bisect.bisect_right(numbers, _torch.node_sequence(node) or 0) - 1

    births = range(SURVIVORS)
    found = explain(Question("graph", SURVIVORS + 3, births, step_of, window=2)).located
    if not found or found[0].statement is None:
        return "nobody"
    return f"{found[0].place.expression} at line {found[0].statement.line}"


def by_why_alive(loss: torch.Tensor, numbers: Numbers) -> str:
    """`memguard.why_alive`; answers with the holder it names first."""
    holders = memguard.why_alive(loss).holders
    return f"{holders[0].name} at line {holders[0].line}" if holders else "nobody"


def by_objgraph(loss: torch.Tensor, numbers: Numbers) -> str:
    """`objgraph.find_backref_chain`; answers with the types on the chain."""
    chain = objgraph.find_backref_chain(loss, objgraph.is_proper_module)
    if len(chain) == 1:
        return "nobody"
    return " < ".join(type(item).__name__ for item in reversed(chain[:-1]))


TOOLS = {"guard": by_guard, "why_alive": by_why_alive, "objgraph": by_objgraph}


def compare(case: str, rounds: int, rows: list[dict[str, Any]]) -> Measure:
    """A function that has the tools take turns and adds a row for each, of median and worst."""

    def measure(loss: torch.Tensor, numbers: Numbers) -> None:
        gc.collect()
        times: dict[str, list[float]] = {name: [] for name in TOOLS}
        answers: dict[str, str] = {}
        for _ in range(rounds):
            for name, ask in TOOLS.items():
                begun = time.perf_counter()
                answers[name] = ask(loss, numbers)
                times[name].append(time.perf_counter() - begun)
        for name, taken in times.items():
            row = {"case": case, "tool": name, "seconds": statistics.median(taken)}
            rows.append({**row, "worst": max(taken), "answer": answers[name]})

    return measure


def main() -> int:
    """Print the table; the exit status says whether the goal was met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--large", action="store_true", help="a heap of ten million objects")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to a file as well")
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = LARGE_HEAP if args.large else HEAP
    heap = [[number] for number in range(size)]
    rows: list[dict[str, Any]] = []
    for case, keep in CASES.items():
        keep(compare(case, args.rounds, rows))
    print(f"{len(heap):,} objects beside {SURVIVORS:,} survivors; {args.rounds} rounds;", end=" ")
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    for row in rows:
        times = f"{row['seconds']:7.3f} s  (worst {row['worst']:.3f})"
        print(f"{row['case']:18}{row['tool']:11}{times}  {row['answer']}")
    if args.json is not None:
        args.json.write_text(json.dumps({"objects": size, "rows": rows}, indent=1))
    slow = [row for row in rows if row["tool"] != "objgraph" and row["worst"] > GOALS[size]]
    print(f"goal: {GOALS[size]} s at most: {'missed' if slow else 'met'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
