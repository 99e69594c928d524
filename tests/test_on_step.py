"""The figures of each step, told to a function of the user's, and the ready-made ones."""

from __future__ import annotations

import sys
import time
import types
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
from models import TASKS, train

import memguard
from memguard import LeakWarning, SettingsError, UsageError, exporters
from memguard.clock.tape import MAX_EVENTS, Tape
from memguard.step_figures import StepFigures

MLP = TASKS[0]
NAMES = [name for name, _, _ in exporters.FIGURES]
FIGURES = {
    "steps": 20,
    "memory_bytes": 2048,
    "retained_graphs": 3,
    "retained_bytes": 512,
    "leaks": 1,
    "overhead_ratio": 0.25,
}


def leaking(**settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        return train(MLP, leak=True, action="warn", **settings)


def test_each_step_is_told_with_six_figures_and_changes_no_bit() -> None:
    """All of them in their order, and the losses of a bare run."""
    told: list[dict[str, float]] = []
    bare, watched = train(MLP, leak=True), leaking(on_step=told.append)

    assert watched.guard is not None
    assert [figures["steps"] for figures in told] == [*range(1, watched.guard.report().step + 1)]
    assert all(list(figures) == NAMES for figures in told)
    assert watched.same_as(bare)


def test_figures_follow_what_happens() -> None:
    """A leak shows in its graphs, its bytes and its number; the memory is the process's."""
    told: list[dict[str, float]] = []
    guard = leaking(on_step=told.append).guard
    (finding,) = guard.report().findings

    assert told[0]["leaks"] == told[0]["retained_graphs"] == 0
    assert told[-1]["leaks"] == 1
    assert told[-1]["retained_graphs"] >= 5
    assert told[-1]["retained_bytes"] == finding.growth.total.bytes
    assert told[-1]["memory_bytes"] > 50 * 1024**2
    assert 0 < told[-1]["overhead_ratio"] < 1


def test_dear_figures_are_read_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is not asked for at every step of a fast loop."""
    read: list[int] = []
    monkeypatch.setattr(StepFigures, "_memory", lambda _: read.append(1) or 7)
    train(MLP, on_step=lambda figures: None)

    assert 1 <= len(read) < 10


def test_what_the_function_takes_is_not_what_watching_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow plot is the user's own; the overhead is memguard's."""
    passed, clock = [0.0], time.perf_counter

    def plots(figures: dict[str, float]) -> None:
        passed[0] += 100.0

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + passed[0])
    guard = train(MLP, on_step=plots).guard

    assert guard is not None
    assert passed[0] >= 1000.0
    assert 0.0 < guard.report().overhead["seconds"] < 100.0


def test_a_dict_is_the_callers_own() -> None:
    """Who keeps or changes one changes nothing for the next step."""
    told: list[dict[str, float]] = []

    def note(figures: dict[str, float]) -> None:
        told.append(dict(figures))
        figures.clear()

    train(MLP, on_step=note)

    assert all(list(figures) == NAMES for figures in told)


def test_without_a_function_steps_are_counted_in_passing() -> None:
    """Only who asks for each step pays for it: the tape has room, or it has none."""
    usual, none = Tape(), Tape(most=0)
    usual.open(1000)
    none.open(1000)

    assert (usual.room, none.room) == (MAX_EVENTS, 0)


@pytest.mark.parametrize("kind", [ValueError, MemoryError, RecursionError])
def test_a_function_that_fails_is_called_no_more_and_named(kind: type[Exception]) -> None:
    """The job goes on as without it."""
    calls: list[int] = []

    def fails(figures: dict[str, float]) -> None:
        calls.append(1)
        raise kind

    bare, watched = train(MLP), train(MLP, on_step=fails)

    assert watched.guard is not None
    (failure,) = watched.guard.report().failures
    assert failure.part == "on_step"
    assert failure.error.startswith(kind.__name__)
    assert calls == [1]
    assert watched.same_as(bare)


def test_interrupting_the_function_interrupts_the_job() -> None:
    """Ctrl-C is the user's wherever it strikes."""

    def interrupted(figures: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(MLP, on_step=interrupted)


def test_a_guard_may_be_closed_by_the_function() -> None:
    """Enough seen: from then on the loop is a bare one."""
    guards: list[memguard.Guard] = []

    def close(figures: dict[str, float]) -> None:
        guards[0].close()

    model, optimizer = MLP.set_up()
    guards.append(memguard.watch(model, optimizer, on_step=close))
    for step in range(12):
        optimizer.zero_grad()
        MLP.loss(model, step).backward()
        optimizer.step()

    assert guards[0].report().step == 1
    assert guards[0].report().failures == ()


def test_a_function_is_imported_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is where to find it; a name that is not there is a failure and no more."""
    told: list[Mapping[str, float]] = []
    module = types.ModuleType("plots")
    module.Plot = types.SimpleNamespace(step=told.append)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plots", module)
    train(MLP, on_step="plots:Plot.step")
    lost = train(MLP, on_step="plots:Plot.stop").guard

    assert len(told) == 40
    assert lost is not None
    assert [failure.part for failure in lost.report().failures] == ["on_step"]
    with pytest.raises(SettingsError, match="on_step is 3; accepted: a function"):
        memguard.watch(on_step=3)  # type: ignore[arg-type]


# --- ready-made ---


def test_prometheus_serves_the_figures_by_its_own_rules() -> None:
    """A counter ends in _total, the rest are gauges in base units."""
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    on_step = exporters.prometheus(registry, rank="0")
    on_step({**FIGURES, "steps": 19})
    on_step(FIGURES)
    served = client.generate_latest(registry).decode()

    assert 'memguard_steps_total{rank="0"} 20.0' in served
    assert 'memguard_memory_bytes{rank="0"} 2048.0' in served
    assert 'memguard_overhead_ratio{rank="0"} 0.25' in served
    kinds = [line.split()[3] for line in served.splitlines() if line.startswith("# TYPE")]
    assert kinds.count("counter") == 1
    with pytest.raises(ValueError, match="memguard_steps"):
        exporters.prometheus(registry)


def test_opentelemetry_reads_the_figures_when_it_collects() -> None:
    """Names with dots, units beside them."""
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = metrics.MeterProvider([reader])
    on_step = exporters.opentelemetry(provider.get_meter("test"), rank="0")
    on_step(FIGURES)
    collected = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    found = {one.name: (one.unit, one.data.data_points[0].value) for one in collected}
    provider.shutdown()

    assert found == {
        "memguard.steps": ("{step}", 20),
        "memguard.memory": ("By", 2048),
        "memguard.retained.graphs": ("{graph}", 3),
        "memguard.retained": ("By", 512),
        "memguard.leaks": ("{leak}", 1),
        "memguard.overhead": ("1", 0.25),
    }


class Writer:
    """Has what TensorBoard's SummaryWriter has."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.scalars.append((tag, scalar_value, global_step or 0))


def test_tensorboard_gets_scalars_now_and_then() -> None:
    """One scalar a figure, at every tenth step."""
    writer = Writer()
    on_step = exporters.tensorboard(writer)
    for step in range(1, 21):
        on_step({**FIGURES, "steps": step})

    assert {step for _, _, step in writer.scalars} == {10, 20}
    assert ("memguard/memory_bytes", 2048, 20) in writer.scalars
    assert len(writer.scalars) == 2 * (len(NAMES) - 1)


class Mlflow:
    """Has what MLflow's module and Lightning's loggers have."""

    def __init__(self) -> None:
        self.told: list[tuple[dict[str, float], Any]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.told.append((metrics, step))


class Wandb(Mlflow):
    """Has what a W&B run has."""

    log_metrics = None  # type: ignore[assignment]

    def log(
        self, data: dict[str, float], step: int | None = None, commit: bool | None = None
    ) -> None:
        self.told.append((data, commit))


class Tracker(Mlflow):
    """Has what Accelerate's trackers have."""

    log_metrics = None  # type: ignore[assignment]

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.told.append((values, step))


class Plain(Mlflow):
    """Takes a dict and nothing else."""

    log_metrics = None  # type: ignore[assignment]

    def log(self, values: dict[str, float]) -> None:
        self.told.append((values, None))


@pytest.mark.parametrize(
    ("kind", "second"), [(Mlflow, 20), (Wandb, False), (Tracker, 20), (Plain, None)]
)
def test_a_logger_is_known_by_its_methods(kind: type[Mlflow], second: Any) -> None:
    """With the step where it takes one; W&B's own step stays the program's."""
    run = kind()
    exporters.logger(run, every=20)(FIGURES)

    ((figures, also),) = run.told
    assert also == second
    assert figures["memguard/leaks"] == 1
    assert "memguard/steps" not in figures


def test_what_cannot_be_written_to_is_refused_with_what_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line each: wrong object, wrong number, missing library."""
    with pytest.raises(UsageError, match="writer is of type int; accepted: a SummaryWriter"):
        exporters.tensorboard(3)
    with pytest.raises(UsageError, match="run is of type int; accepted: what has log_metrics"):
        exporters.logger(3)
    for wrong in (0, True, "ten"):
        with pytest.raises(UsageError, match="every is of type"):
            exporters.tensorboard(Writer(), every=wrong)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    for function, name in (
        (exporters.prometheus, "prometheus-client"),
        (exporters.opentelemetry, "opentelemetry-api"),
    ):
        with pytest.raises(UsageError, match=f"needs {name}"):
            function()
