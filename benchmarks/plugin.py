"""What the pytest plugin costs: a passing test in a large heap, and a suite of trivial tests.

    python benchmarks/plugin.py            # prints both
    python benchmarks/plugin.py --heap 0   # the suite alone

The first figure is the time that the plugin's own calls take around one trivial test, in a process
whose heap has the given number of objects. The second is a whole `pytest` on 1,000 trivial tests,
with `--memguard` and without, in turn, each in a process of its own: the median of the ratios.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = 1000
BARE = ("-p", "no:memguard")
ASKED = "--memguard"
SUITE = """
import pytest
import torch

@pytest.mark.parametrize("number", range({tests}))
def test_trivial(number):
    assert number >= 0
"""


def per_test(heap: int, rounds: int = 2000) -> tuple[float, float]:
    """(median, 99th percentile) seconds of the plugin's look at a test that leaves nothing."""
    import torch

    from memguard.sensors.births import Births
    from memguard.testing.runs import Runs

    kept = [[number] for number in range(heap)]
    model = torch.nn.Linear(8, 8)
    gc.collect()
    births = Births()
    births.install()
    times = []
    try:
        for _ in range(rounds):
            runs = Runs(births)
            began = time.perf_counter()
            runs.begin()
            taken = time.perf_counter() - began
            model(torch.ones(4, 8)).sum().backward()
            model.zero_grad()
            began = time.perf_counter()
            runs.end()
            times.append(taken + time.perf_counter() - began)
    finally:
        births.remove()
    del kept
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


def suite(folder: Path, *words: str) -> float:
    """Seconds that pytest takes for the suite."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    # Compiled once, like anything installed; else each process would compile memguard anew.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heap", type=int, default=500_000, help="objects; 0 leaves this out")
    parser.add_argument("--rounds", type=int, default=15, help="of suites; 0 leaves them out")
    parser.add_argument("--plugin", default="", help="module to load, where it is not installed")
    wanted = parser.parse_args()
    if wanted.heap:
        median, worst = per_test(wanted.heap)
        print(f"{wanted.heap:,} objects: {median * 1e3:.3f} ms a passing test", end="")
        print(f" (99th percentile {worst * 1e3:.3f} ms)")
    if not wanted.rounds:
        return
    plugin = ("-p", "no:memguard", "-p", wanted.plugin) if wanted.plugin else ()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_suite.py").write_text(SUITE.format(tests=TESTS))
        suite(folder, *plugin, ASKED)
        times: dict[tuple[str, ...], list[float]] = {BARE: [], plugin: [], (*plugin, ASKED): []}
        for round_ in range(wanted.rounds):
            # Back and forth, so that a machine that slows down favours none of them.
            for words in list(times)[:: -1 if round_ % 2 else 1]:
                times[words].append(suite(folder, *words))
        bare = times[BARE]
        idle, asked = (
            statistics.median(
                mine / theirs for mine, theirs in zip(times[words], bare, strict=True)
            )
            for words in (plugin, (*plugin, ASKED))
        )
        print(f"{TESTS:,} trivial tests: {asked:.3f} times with --memguard,", end="")
        print(f" {idle:.3f} times installed and not asked", end="")
        print(f" ({statistics.median(bare):.2f} s bare)")


if __name__ == "__main__":
    main()
