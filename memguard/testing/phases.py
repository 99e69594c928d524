"""The parts of pytest's own running of a test that judging needs in another order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprFileLocation, ReprTracebackNative
from _pytest.junitxml import xml_key
from _pytest.runner import runtestprotocol


def forget_fixtures(item: Any) -> None:
    """Let go of fixtures' values as pytest does a moment later."""
    if getattr(item, "funcargs", None):
        item.funcargs = {}


@contextlib.contextmanager
def only_the_test(item: Any) -> Iterator[None]:
    """Inside, tearing down reaches the test itself, not the class, module and session around it."""
    state = item.session._setupstate
    plain = type(state).teardown_exact

    def teardown_exact(nextitem: pytest.Item | None) -> None:
        plain(state, item.parent)

    state.teardown_exact = teardown_exact
    try:
        yield
    finally:
        del state.teardown_exact


def tear_down_rest(item: Any, nextitem: pytest.Item | None) -> None:
    """Tear down what the next test does not share, with its output captured as ever."""
    state = item.session._setupstate
    if nextitem is not None and list(state.stack) == nextitem.listchain()[: len(state.stack)]:
        return
    capture = item.config.pluginmanager.getplugin("capturemanager")
    captured = capture.item_capture("teardown", item) if capture is not None else None
    with captured or contextlib.nullcontext():
        state.teardown_exact(nextitem)


def as_failure(item: pytest.Item, text: str) -> ExceptionChainRepr:
    """A failure without traceback that xdist, JUnit and the short summary can all tell."""
    path, line, _ = item.location
    headline = text.partition("\n")[0]
    crash = ReprFileLocation(path, (line or 0) + 1, headline)
    return ExceptionChainRepr([(ReprTracebackNative([text + "\n"]), crash, None)])


def fail_in_junit(config: pytest.Config, report: pytest.TestReport) -> None:
    """Let a JUnit file call a leak a failure; what a teardown raises is an error there."""
    file = config.stash.get(xml_key, None)
    if file is not None:
        reporter = file.node_reporter(report)
        reporter.append_error = reporter.append_failure  # type: ignore[method-assign]


def run_once_more(item: Any, nextitem: pytest.Item | None) -> bool:
    """Run a test again, untold and leaving no trace on it; whether it passed."""
    properties, sections = len(item.user_properties), len(item._report_sections)
    if hasattr(item, "_request"):
        item._request, item.funcargs = False, None
    try:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    finally:
        if hasattr(item, "_request"):
            item.funcargs = {}
        del item.user_properties[properties:], item._report_sections[sections:]
    return all(report.passed for report in reports)
