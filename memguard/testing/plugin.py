"""The pytest plugin: options, markers and the fixture; loads nothing more before it is asked."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from memguard.testing.tester import Tester

CHECKER = "memguard-checker"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """The options and their ini twins."""
    group = parser.getgroup("memguard", "tests that leave tensors or graphs behind (memguard)")
    told = {
        "--memguard": "check every test, and fail those that leak",
        "--memguard=fail": "the same",
        "--memguard=warn": "check every test, and warn of those that leak",
        "--memguard=report": "check every test, and only list those that leak",
        "--memguard=off": "check no test but those that are marked",
    }
    # A word that is not known is taken here, and refused in plainer words than the parser's own.
    told |= dict.fromkeys(_words(pluginmanager) - told.keys(), argparse.SUPPRESS)
    for name, text in told.items():
        # Whole words, since an optional value would swallow the path that follows.
        group.addoption(
            name,
            action="store_const",
            const=name.partition("=")[2] if "=" in name else "fail",
            dest="memguard",
            default=None,
            help=text,
        )
    group.addoption(
        "--memguard-repeat",
        metavar="N",
        default=None,
        help="runs of a test that leaves something, at most: what grows each time is a leak "
        "(default 2; 1: whatever is left is one)",
    )
    group.addoption(
        "--memguard-report",
        metavar="FILE",
        default=None,
        help="write what was found to this file, as JSON",
    )
    group.addoption(
        "--memguard-ignore",
        metavar="PATTERN",
        action="append",
        default=None,
        help="leave out what matches (holder:..., kind:..., file:..., fingerprint:..., or a file "
        "of patterns); may be given more than once",
    )
    parser.addini("memguard", "fail, warn, report or off: as --memguard", default="off")
    parser.addini("memguard_repeat", "as --memguard-repeat", default="")
    parser.addini("memguard_report", "as --memguard-report", default="")
    parser.addini("memguard_ignore", "as --memguard-ignore, one a line", type="linelist")


def _words(manager: pytest.PytestPluginManager) -> set[str]:
    """The arguments of the command line that are `--memguard=` and a word."""
    config = manager.getplugin("pytestconfig")
    given = config.invocation_params.args if config is not None else ()
    return {str(one) for one in given if str(one).startswith("--memguard=")}


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known, and start where the session asks for it."""
    from memguard.testing.options import MARKERS

    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    wanted = config.getoption("memguard")
    if wanted is not None or config.getini("memguard") != "off":
        _start(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start where a test asks for it."""
    manager = config.pluginmanager
    if not manager.hasplugin(CHECKER) and any(map(_asks, items)):
        _start(config)
    if manager.hasplugin(CHECKER):
        from memguard.testing.options import WrongOption

        try:
            manager.getplugin(CHECKER).plan(items)
        except WrongOption as error:
            raise pytest.UsageError(f"memguard: {error}") from None


def _asks(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("memguard") or item.get_closest_marker("no_leak")
    return marked is not None or "memguard" in getattr(item, "fixturenames", ())


def _start(config: pytest.Config) -> None:
    from memguard.settings import Settings

    # Whoever runs a job can always silence memguard, however it was switched on.
    if Settings.read({}, pyproject=None).off:
        return
    from memguard.testing.checking import Checker
    from memguard.testing.options import WrongOption

    try:
        checker = Checker(config)
    except WrongOption as error:
        raise pytest.UsageError(f"memguard: {error}") from None
    config.pluginmanager.register(checker, CHECKER)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Where workers of xdist run the tests, only their reports say that one was checked."""
    manager = session.config.pluginmanager
    if manager.hasplugin("dsession") and not manager.hasplugin(CHECKER):
        manager.register(_Awaiting(session.config))


class _Awaiting:
    """Starts telling with the first report of a test that was checked."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look whether it was."""
        manager = self._config.pluginmanager
        told = hasattr(report, "memguard_judged") or hasattr(report, "memguard_failed")
        if told and not manager.hasplugin(CHECKER):
            _start(self._config)
            manager.getplugin(CHECKER).pytest_runtest_logreport(report)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str | tuple[str, dict[str, bool]]] | None:
    """A leaky test has its own letter; a checked one has passed only when it is gone."""
    told = getattr(report, "memguard", None)
    if told is None or not (report.passed or report.failed):  # one that is run again by a plugin
        return None
    if told == "wait":
        return "", "", ""
    if told == "mended":
        return "failed", "F", ("NOT LEAKY", {"red": True})
    if report.failed:
        return "failed", "L", ("LEAKED", {"red": True})
    return ("passed", "l", "PASSED, LEAKY") if told == "leaky" else ("passed", ".", "PASSED")


@pytest.fixture(name="memguard")
def memguard_fixture(request: pytest.FixtureRequest) -> Iterator[Tester]:
    """A guard for loops inside a test, and assertions about memory.

    `memguard.watch(model, optimizer)` is a guard that closes with the test,
    `memguard.expect_freed(obj, "the model")` fails it if the object is alive after it, and
    `memguard.assert_freed(obj)` and `memguard.assert_no_growth(fn, repeat=5)` fail at once.
    """
    from memguard.testing.options import EXPECTED
    from memguard.testing.tester import Tester

    tester = Tester()
    request.node.stash[EXPECTED] = tester.expected
    yield tester
    tester.close()
