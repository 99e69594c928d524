"""What watching costs: watched and bare steps of one loop, interleaved in one process.

    python benchmarks/overhead.py [--processes N] [--rounds N] [--json FILE]

The same model, data and optimizer make watched (W) and bare (B) steps in turn, W B B W; for a bare
step the guard's hooks and its collector callback are taken out of torch's and Python's tables, and
put back afterwards, outside the time that is measured. A round is 274 watched and as many bare
steps, twice the rhythm of the guard's looks, and gives one ratio of times. All of it lies behind
the first 128 steps, in which the guard looks closely; what those cost is told apart.

As its memory happens to lie, a process may be faster or slower by a percent, its watched steps by
another than its bare ones. So several processes measure, and the median of theirs counts.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

import memguard
from memguard.pace import CLOSE_STEPS, WIDE_GAPS
from memguard.sensors.governor import FREE_STEPS

ROUND = 2 * sum(WIDE_GAPS)  # watched steps: in so many the guard's looks come round again
WARM_UP = CLOSE_STEPS + 2 * ROUND
TARGET_STEP = 4.5e-3  # seconds
HEAPS = (10_000, 1_000_000)

# Half of the time that passes is bare, but the guard takes all of it for the loop's.
OVERHEAD = 0.005


class Job:
    """A small transformer with its data and optimizer, sized to a step of 4 to 5 ms."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [
            nn.TransformerEncoderLayer(48, 4, 96, dropout=0.1, batch_first=True) for _ in range(2)
        ]
        self.model = nn.Sequential(nn.Linear(16, 48), *layers, nn.Linear(48, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = 1
        self.resize()

    def resize(self) -> None:
        """Choose the batch size that makes a step last as long as wanted."""
        for self.batch in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
            self.inputs = torch.randn(self.batch, 20, 16)
            self.labels = torch.randint(4, (self.batch * 20,))
            self.run(5)
            if low(self.run(20)) > TARGET_STEP * 0.9:
                return

    def step(self) -> None:
        """Train on one batch; the step's graph dies with it."""
        self.optimizer.zero_grad()
        logits: Tensor = self.model(self.inputs)
        nn.functional.cross_entropy(logits.flatten(0, 1), self.labels).backward()
        self.optimizer.step()

    def run(self, steps: int) -> list[float]:
        """Train; seconds of each step."""
        return [timed_step(self)[0] for _ in range(steps)]


def low(times: list[float]) -> float:
    """The tenth percentile: what it takes when nothing else wants the processor."""
    return statistics.quantiles(times, n=10)[0]


def timed_step(job: Job) -> tuple[float, float]:
    """Seconds of one step, by the clock and of the processor."""
    begun, processor = time.perf_counter(), time.thread_time()
    job.step()
    return time.perf_counter() - begun, time.thread_time() - processor


class Node:
    """One object of a heap, as programs have them."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.children: list[Any] = []


def heap(size: int) -> list[Any]:
    """Some `size` objects that the collector tracks: instances, lists, dicts and tuples."""
    found: list[Any] = []
    for index in range(size // 4):
        node = Node(index)
        found.append({"node": node, "pair": (node, [index])})
    return found


Tables = tuple[dict[int, Any], dict[int, Any], list[Any]]


class Switch:
    """Takes a guard's hooks out of a loop, and puts them back where they were."""

    def __init__(self, job: Job) -> None:
        self.tables: Tables = (
            job.model._forward_hooks,
            torch_optimizer._global_optimizer_post_hooks,
            gc.callbacks,
        )
        self.kept: list[Any] = [table.copy() for table in self.tables]

    def off(self) -> None:
        """From now on the loop is bare."""
        for table in self.tables:
            table.clear()

    def on(self) -> None:
        """From now on the loop is watched."""
        forward, step, collector = self.tables
        forward.update(self.kept[0])
        step.update(self.kept[1])
        collector.extend(self.kept[2])


@dataclass(frozen=True)
class Cost:
    """What watching cost beside one heap.

    Attributes:
        objects: objects the collector tracks.
        step: milliseconds of a bare step that nothing disturbs.
        ratio: median over the rounds of watched by bare time; of several processes, of theirs.
        low: first quartile of the ratios; of several processes, the least.
        high: third quartile of the ratios; of several processes, the most.
        processor: the median ratio in processor time, which other programs disturb less.
        undisturbed: ratio of the tenth percentiles, taken for each place in a round by itself,
            since the guard looks more closely at every so manieth step.
        collections: collections of each generation in bare and in watched steps.
        own: share of the watched time that the guard says it took.
        close: microseconds a step that the guard says it took before: of the steps it watches
            closely after those in which watching is free.
    """

    objects: int
    step: float
    ratio: float
    low: float
    high: float
    processor: float
    undisturbed: float
    collections: tuple[list[int], list[int]]
    own: float
    close: float


class Steps:
    """Times of the steps of one sort."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.seconds: list[float] = []
        self.processor: list[float] = []
        self.collections = [0, 0, 0]

    def run(self) -> None:
        """Make one more step."""
        before = gc.get_stats()
        seconds, processor = timed_step(self.job)
        after = gc.get_stats()
        self.seconds.append(seconds)
        self.processor.append(processor)
        for generation, (old, new) in enumerate(zip(before, after, strict=True)):
            self.collections[generation] += new["collections"] - old["collections"]


def ratios(watched: list[float], bare: list[float]) -> list[float]:
    """One ratio of sums for each round."""
    starts = range(0, len(watched), ROUND)
    return [sum(watched[at : at + ROUND]) / sum(bare[at : at + ROUND]) for at in starts]


def undisturbed(times: list[float]) -> float:
    """Seconds of a round in which every step took its tenth percentile."""
    return sum(low(times[place::ROUND]) for place in range(ROUND))


def measure(objects: int, rounds: int) -> Cost:
    """Ratios of watched to bare steps beside a heap of `objects`."""
    job, kept = Job(), heap(objects)
    gc.collect()
    with memguard.watch(job.model, job.optimizer, overhead=OVERHEAD) as guard:
        job.run(FREE_STEPS)
        free = guard.report().overhead["seconds"]
        job.run(CLOSE_STEPS - FREE_STEPS)
        close = guard.report().overhead["seconds"] - free
        job.run(WARM_UP - CLOSE_STEPS)
        before = guard.report().overhead["seconds"]
        switch, watched, bare = Switch(job), Steps(job), Steps(job)
        for _ in range(rounds * ROUND // 2):
            watched.run()
            switch.off()
            bare.run()
            bare.run()
            switch.on()
            watched.run()
        report = guard.report()
    if report.verdict != "clean" or report.failures:
        raise SystemExit(f"the guard is not as it should be: {report}")
    del kept
    found = sorted(ratios(watched.seconds, bare.seconds))
    quarter = len(found) // 4
    return Cost(
        objects,
        1000 * undisturbed(bare.seconds) / ROUND,
        statistics.median(found),
        found[quarter],
        found[-1 - quarter],
        statistics.median(ratios(watched.processor, bare.processor)),
        undisturbed(watched.seconds) / undisturbed(bare.seconds),
        (bare.collections, watched.collections),
        (report.overhead["seconds"] - before) / sum(watched.seconds),
        1e6 * close / (CLOSE_STEPS - FREE_STEPS),
    )


@dataclass(frozen=True)
class Event:
    """Microseconds of one kind of event."""

    name: str
    a_step: float
    low: float
    median: float
    mean: float
    most: float


@contextmanager
def timed(table: Any, key: Any, times: list[float]) -> Iterator[None]:
    """Inside, each call of `table[key]` leaves its time in `times`."""
    original: Callable[..., Any] = table[key]

    def hook(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            times.append(time.perf_counter() - begun)

    table[key] = hook
    try:
        yield
    finally:
        table[key] = original


def events(objects: int, steps: int) -> list[Event]:
    """What each event costs by itself, as the loop meets it."""
    job, kept = Job(), heap(objects)
    gc.collect()
    names = ("forward of the root", "optimizer step", "collection, start and stop")
    times: tuple[list[float], ...] = ([], [], [])
    with memguard.watch(job.model, job.optimizer):
        job.run(WARM_UP)
        forward, step, collector = Switch(job).tables
        (first,), (second,) = forward, step
        position = next(at for at, f in enumerate(collector) if "memguard" in repr(f))
        with timed(forward, first, times[0]), timed(step, second, times[1]):
            original = collector[position]
            with timed(collector, position, times[2]):
                job.run(steps)
            collector[position] = original
    del kept
    return [
        Event(
            name,
            len(seconds) / steps,
            1e6 * low(seconds),
            1e6 * statistics.median(seconds),
            1e6 * statistics.fmean(seconds),
            1e6 * max(seconds),
        )
        for name, seconds in zip(names, times, strict=True)
        if seconds
    ]


def told(cost: Cost) -> str:
    """One line on a heap."""
    bare, watched = cost.collections
    return (
        f"{cost.objects:>9,} objects   step {cost.step:.2f} ms   watched/bare {cost.ratio:.4f} "
        f"({cost.low:.4f} to {cost.high:.4f}), processor {cost.processor:.4f}, "
        f"undisturbed {cost.undisturbed:.4f}   "
        f"collections {bare} bare, {watched} watched   the guard says {cost.own:.2%}, "
        f"{cost.close:.0f} microseconds a step while it watched closely"
    )


def of_processes(costs: list[Cost]) -> Cost:
    """What several processes have measured beside the same heap, as one."""
    each = sorted(costs, key=lambda cost: cost.ratio)
    middle = each[len(each) // 2]

    def median(name: str) -> float:
        return statistics.median(getattr(cost, name) for cost in costs)

    return replace(
        middle,
        ratio=median("ratio"),
        low=each[0].ratio,
        high=each[-1].ratio,
        processor=median("processor"),
        undisturbed=median("undisturbed"),
        own=median("own"),
        close=median("close"),
    )


def in_a_process(objects: int, rounds: int) -> Cost:
    """What a process of its own measures."""
    command = [sys.executable, __file__, "--beside", str(objects), "--rounds", str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return Cost(**json.loads(done.stdout))


def main() -> None:
    """Measure beside a small and a large heap, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=7, help="processes that measure in turn")
    rounds = f"rounds of {2 * ROUND} steps a heap, in each process"
    parser.add_argument("--rounds", type=int, default=4, help=rounds)
    parser.add_argument(
        "--beside", type=int, metavar="OBJECTS", help="measure here, beside one heap"
    )
    parser.add_argument("--json", help="file to write the figures to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.beside is not None:
        print(json.dumps(asdict(measure(options.beside, options.rounds))))
        return
    print(f"torch {torch.__version__}, Python {platform.python_version()}, one thread")
    measured: dict[int, list[Cost]] = {objects: [] for objects in HEAPS}
    for _ in range(options.processes):
        for objects in HEAPS:
            measured[objects].append(in_a_process(objects, options.rounds))
    costs = [of_processes(each) for each in measured.values()]
    for cost in costs:
        print(told(cost), flush=True)
    found = []
    for objects in HEAPS:
        print(f"microseconds an event, {objects:,} objects:")
        for event in events(objects, 1000):
            found.append({"objects": objects, **asdict(event)})
            print(
                f"  {event.name:<28} {event.a_step:.3f} a step   "
                f"tenth percentile {event.low:6.1f}   "
                f"median {event.median:6.1f}   "
                f"mean {event.mean:6.1f}   most {event.most:8.1f}",
                flush=True,
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"command": sys.argv, "costs": [*map(asdict, costs)], "events": found}, file)


if __name__ == "__main__":
    main()
