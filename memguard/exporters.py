"""Ready-made functions for `on_step`: six figures to Prometheus, OpenTelemetry, loggers.

    memguard.watch(model, optimizer, on_step=memguard.exporters.prometheus())

Each function here returns one that takes a step's figures (see `FIGURES`). What goes out of the
process, and when, is the monitoring library's doing; memguard opens no port and no connection.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memguard.errors import UsageError

OnStep = Callable[[Mapping[str, float]], None]

# What goes out: the figure's name, its unit (as UCUM has it, for OpenTelemetry), what it says.
FIGURES: tuple[tuple[str, str, str], ...] = (
    ("steps", "{step}", "Steps ended so far."),
    ("memory_bytes", "By", "Memory allocated on the devices in use; resident memory without any."),
    ("retained_graphs", "{graph}", "Autograd graphs of past steps that outlived their time."),
    ("retained_bytes", "By", "Memory kept by the leaks and growths found so far."),
    ("leaks", "{leak}", "Leaks found so far."),
    ("overhead_ratio", "1", "Share of time that memguard itself took."),
)
_COUNTER = "steps"


def prometheus(registry: Any = None, **labels: str) -> OnStep:
    """Figures as Prometheus metrics: `memguard_steps_total`, `memguard_memory_bytes`, ...

    Args:
        registry: a `prometheus_client.CollectorRegistry`; the library's own by default.
        labels: labels of every metric, such as `rank="0"`.

    Returns:
        A function for `on_step`; it sets six numbers, some microseconds a step.

    Raises:
        UsageError: prometheus-client is not installed.
        ValueError: the registry has these metrics already.
    """
    client = _needed("prometheus_client", "prometheus-client")
    given = {"labelnames": tuple(labels)}
    if registry is not None:
        given["registry"] = registry
    counter = client.Counter("memguard_steps_total", FIGURES[0][2], **given)
    gauges = {
        name: client.Gauge(f"memguard_{name}", said, **given)
        for name, _, said in FIGURES
        if name != _COUNTER
    }
    if labels:
        counter = counter.labels(**labels)
        gauges = {name: gauge.labels(**labels) for name, gauge in gauges.items()}
    counted = 0.0

    def on_step(figures: Mapping[str, float]) -> None:
        nonlocal counted
        counter.inc(max(0.0, figures[_COUNTER] - counted))
        counted = figures[_COUNTER]
        for name, gauge in gauges.items():
            gauge.set(figures[name])

    return on_step


def opentelemetry(meter: Any = None, **attributes: str) -> OnStep:
    """Figures as OpenTelemetry metrics: `memguard.steps`, `memguard.memory`, ...

    Args:
        meter: an OpenTelemetry `Meter`; that of the global provider by default.
        attributes: attributes of every observation.

    Returns:
        A function for `on_step`; it only keeps the figures, which are read when the library
        collects.

    Raises:
        UsageError: opentelemetry-api is not installed.
    """
    metrics = _needed("opentelemetry.metrics", "opentelemetry-api")
    meter = meter if meter is not None else metrics.get_meter("memguard")
    latest: dict[str, float] = {}

    def reader(name: str) -> Callable[[Any], Iterator[Any]]:
        def observe(options: Any) -> Iterator[Any]:
            if name in latest:
                yield metrics.Observation(latest[name], attributes)

        return observe

    for name, unit, said in FIGURES:
        create = (
            meter.create_observable_counter if name == _COUNTER else meter.create_observable_gauge
        )
        create(_dotted(name), [reader(name)], unit=unit, description=said)

    return latest.update


def _dotted(name: str) -> str:
    # OpenTelemetry has units beside the name, not in it.
    return "memguard." + name.removesuffix("_bytes").removesuffix("_ratio").replace("_", ".")


def tensorboard(writer: Any, every: int = 10) -> OnStep:
    """Figures as scalars `memguard/memory_bytes` and so on.

    Args:
        writer: a TensorBoard `SummaryWriter`, or anything with its `add_scalar(tag, value, step)`.
        every: steps from one writing to the next.

    Raises:
        UsageError: the writer has no `add_scalar`, or `every` is no number above 0.
    """
    if not callable(getattr(writer, "add_scalar", None)):
        raise UsageError(
            f"exporters.tensorboard: writer is of type {type(writer).__name__}; "
            "accepted: a SummaryWriter, or what has add_scalar(tag, value, step)"
        )

    def write(step: int, scalars: dict[str, float]) -> None:
        for tag, value in scalars.items():
            writer.add_scalar(tag, value, step)

    return _now_and_then(write, every, "tensorboard")


def logger(run: Any, every: int = 10) -> OnStep:
    """Figures to a logger of experiments, known by its methods and not by its name.

    Args:
        run: what has `log_metrics(figures, step=...)` (MLflow, Lightning, Comet) or `log(figures)`
            (a W&B run, an Accelerate tracker). Where `log` takes `commit`, as W&B's does, the
            figures wait for the program's own next `log`, so that its steps stay as they are.
        every: steps from one writing to the next.

    Raises:
        UsageError: `run` has neither method, or `every` is no number above 0.
    """
    log_metrics, log = getattr(run, "log_metrics", None), getattr(run, "log", None)
    if callable(log_metrics):
        return _now_and_then(lambda step, figures: log_metrics(figures, step=step), every, "logger")
    if not callable(log):
        raise UsageError(
            f"exporters.logger: run is of type {type(run).__name__}; "
            "accepted: what has log_metrics(figures, step=...) or log(figures)"
        )
    taken = _parameters(log)
    if "commit" in taken:
        return _now_and_then(lambda _, figures: log(figures, commit=False), every, "logger")
    if "step" in taken:
        return _now_and_then(lambda step, figures: log(figures, step=step), every, "logger")
    return _now_and_then(lambda _, figures: log(figures), every, "logger")


def _now_and_then(
    write: Callable[[int, dict[str, float]], object], every: int, name: str
) -> OnStep:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise UsageError(
            f"exporters.{name}: every is of type {type(every).__name__}, or below 1; "
            "accepted: a whole number of steps, 1 or more"
        )

    def on_step(figures: Mapping[str, float]) -> None:
        step = int(figures[_COUNTER])
        if step % every == 0:
            write(step, {f"memguard/{k}": v for k, v in figures.items() if k != _COUNTER})

    return on_step


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built in, and silent about itself
        return frozenset()


def _needed(module: str, distribution: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise UsageError(
            f"exporters.{name}: needs {distribution}, which cannot be imported ({error}); "
            f"pip install {distribution}"
        ) from None
