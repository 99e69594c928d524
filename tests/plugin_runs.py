"""Pytest in pytest: small test files, run under the plugin in this process."""

from __future__ import annotations

import textwrap
from typing import Protocol

import pytest

# A run in this process forgets the modules that it was the first to load, and torch cannot be
# loaded twice; nor may memguard's parts be there twice, each with a loader that has the whole run.
import memguard.guard
import memguard.testing.asserting
import memguard.testing.checking
import memguard.testing.leftovers
import memguard.testing.plugin
import memguard.testing.tester
import memguard.watching  # noqa: F401

LEAK = """
import torch
KEPT = []

def test_leak():
    KEPT.append(torch.ones(3, requires_grad=True).sum())
"""
# Plugins that are there for the tests that name them alone.
OTHERS = ("asyncio", "hypothesispytest", "rerunfailures")
OWN_LEAK = "import pytest\n" + LEAK


class Run(Protocol):
    """Runs pytest on a test file under the plugin."""

    def __call__(
        self,
        source: str,
        *words: str,
        ini: str = "",
        apart: bool = False,
        conftest: str = "",
        beside: str = "",
    ) -> pytest.RunResult: ...


def runner(pytester: pytest.Pytester) -> Run:
    """Runs in the folder of `pytester`.

    The plugin is named on the command line, so that it is the one beside these tests.
    """

    def run(
        source: str,
        *words: str,
        ini: str = "",
        apart: bool = False,
        conftest: str = "",
        beside: str = "",
    ) -> pytest.RunResult:
        pytester.makeini(f"[pytest]\naddopts = -p no:cacheprovider\n{ini}\n")
        if conftest:
            pytester.makeconftest(textwrap.dedent(conftest))
        path = pytester.path / "test_run.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        plugin = ("-p", "no:memguard", "-p", "memguard.testing.plugin")
        for other in OTHERS:
            plugin += () if other == beside else ("-p", f"no:{other}")
        plugin += ("-W", "ignore::pytest.PytestAssertRewriteWarning")
        if apart:
            return pytester.runpytest_subprocess(*plugin, *words)
        return pytester.runpytest_inprocess(*plugin, *words)

    return run
