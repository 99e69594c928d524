"""Findings: the same bug reads the same, and its growth is measured."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from holder_cases import TIGHT
from programs import Run

from memguard import investigation
from memguard.records import Finding

LEAK = """
def fit():
    losses = []
    for _ in range({steps}):
        losses.append(train_step(model, optimizer))
fit()
"""


@pytest.fixture(scope="module")
def finding(tmp_path_factory: pytest.TempPathFactory) -> Finding:
    """The finding of a list of losses."""
    return Run(tmp_path_factory.mktemp("leak"), LEAK.format(steps=40)).report.findings[0]


def test_the_fingerprint_is_stable(tmp_path: Path, finding: Finding) -> None:
    """Another folder and other lines above do not change it; another variable does."""
    moved = Run(tmp_path, "\n\n\nprint('more')\n" + LEAK.format(steps=30)).report.findings[0]
    renamed = Run(tmp_path, LEAK.format(steps=40).replace("losses", "kept")).report.findings[0]
    assert moved.fingerprint == finding.fingerprint
    assert renamed.fingerprint != finding.fingerprint


def test_the_growth_is_measured(finding: Finding) -> None:
    """One graph a step, nodes counted, no activations after backward."""
    assert finding.growth.per_step.graphs == 1.0
    assert finding.growth.per_step.nodes > 3
    assert finding.growth.per_step.bytes == 0
    assert finding.growth.total.graphs == len(range(finding.first_step, finding.step - 2))


def test_activations_are_weighed(tmp_path: Path) -> None:
    """Graphs without backward keep what they saved: the bytes of the activations, once each."""
    run = Run(
        tmp_path,
        """
        kept = []
        for _ in range(40):
            x, y = batch()
            optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
            kept.append(model(x))
        """,
    )
    finding = run.report.findings[0]
    # The input of each layer: 32 x 8 and 32 x 16 numbers; the rectifier's result is the second's.
    expected = 32 * 8 * 4 + 32 * 16 * 4
    assert finding.growth.per_step.bytes == expected
    assert finding.saved_bytes == expected * finding.growth.total.graphs
    assert finding.forecast is not None
    # The record has the time that the text tells.
    assert (finding.forecast.seconds or 0) > 0


def test_tensors_are_counted_alike_throughout_a_report(tmp_path: Path) -> None:
    """A step may leave several: summary and holder count them all, and weigh each step once."""
    run = Run(
        tmp_path,
        """
        kept = []
        for _ in range(60):
            train_step(model, optimizer)
            kept.append(torch.randn(400, 100)[0])
        """,
        watch=TIGHT,
    )
    finding = run.report.findings[0]
    holder = finding.holders[0]
    assert finding.kind == "tensor"
    # The slice, and what it was cut from.
    assert holder.survivors == pytest.approx(2 * finding.growth.total.graphs, rel=0.5)
    assert finding.summary.startswith(f"{holder.survivors:,} tensors ")
    assert holder.bytes == pytest.approx(finding.growth.total.bytes, rel=0.1)


def test_a_graph_kept_once_in_fifty_steps_counts_once(tmp_path: Path) -> None:
    """Its forward runs between two steps that were only counted, in neither of which it begins."""
    run = Run(
        tmp_path,
        """
        hardest = []
        def mine(step):
            x, y = batch()
            losses = (model(x) - y).pow(2).flatten()
            hardest.append((step, losses[losses.argmax()]))
        for step in range(600):
            train_step(model, optimizer)
            if step % 50 == 49:
                mine(step)
        """,
        watch="guard = memguard.watch(model, optimizer, overhead=1.0)\n",
    )
    finding = run.report.findings[0]
    kept = 1 + (finding.step - 50) // 50
    assert (finding.growth.total.graphs, finding.holders[0].survivors) == (kept, kept)
    assert "one more every 50 steps" in finding.summary


def test_inputs_that_graphs_have_saved_are_the_graphs(tmp_path: Path) -> None:
    """Large batches that a leaking graph keeps for its backward are told with it, and named."""
    run = Run(
        tmp_path,
        """
        wide = nn.Linear(4096, 1)
        optimizer = torch.optim.SGD(wide.parameters(), lr=0.01)
        guard = memguard.watch(wide, optimizer, max_growth="8MiB")
        losses = []
        for step in range(40):
            loss = wide(torch.randn(256, 4096)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
            losses.append(loss)  # grows
        """,
        watch="",
    )
    (finding,) = (one for one in run.report.findings if one.severity == "leak")
    assert (finding.kind, finding.holders[0].name) == ("graph", "losses")
    assert finding.saved_bytes >= 5 * 256 * 4096 * 4


def test_a_leak_that_goes_on_is_counted_on(tmp_path: Path) -> None:
    """What is told of it later is no less than there is, though few steps were looked at."""
    run = Run(
        tmp_path,
        """
        total = torch.zeros(())
        for step in range(500):
            loss = train_step(model, optimizer)
            total = total + loss  # grows
        report = guard.report()
        """,
        watch="guard = memguard.watch(model, optimizer, action='log')\n",
    )
    (finding,) = run.report.findings
    assert finding.summary.endswith("one more each step")
    assert finding.growth.total.graphs == pytest.approx(finding.step, abs=4)


CYCLES = """
class Node:
    def __init__(self, value):
        self.value, self.me = value, self
for _ in range(30):
    Node(train_step(model, optimizer))
"""


@pytest.mark.filterwarnings("ignore::memguard.LeakWarning")
def test_cycles_that_the_collector_frees_a_moment_earlier_are_cycles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may run while memguard looks at what is alive: nothing in C++ holds them for that."""
    measure = investigation._storage_bytes

    def collected_meanwhile() -> int:
        gc.collect(0)
        return measure()

    monkeypatch.setattr(investigation, "_storage_bytes", collected_meanwhile)
    usual = gc.get_threshold()
    gc.set_threshold(100_000, *usual[1:])
    try:
        run = Run(tmp_path, CYCLES)
    finally:
        gc.set_threshold(*usual)
    assert not run.stopped, run.report.findings
    assert [finding.kind for finding in run.report.findings] == ["cycle"]
