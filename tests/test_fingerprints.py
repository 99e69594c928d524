"""Fingerprints: one for each bug, the same in every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Python
from programs import PRELUDE

from memguard.explain.accumulation import Located
from memguard.explain.advice import Advice
from memguard.explain.fingerprint import fingerprint
from memguard.explain.places import Place, Statement
from memguard.report import data


def located(**changes: Any) -> Located:
    """A list of losses in fit(), changed as asked."""
    place = {
        "kind": "local",
        "name": "losses",
        "expression": "losses",
        "container": "list",
        "file": "/home/ada/train.py",
        "function": "fit",
        "first_line": 3,
    }
    statement = {"file": "/home/ada/train.py", "line": 6, "code": "losses.append(loss)"}
    for name, value in changes.items():
        (statement if name in ("line", "code") else place)[name] = value
    advice = Advice("why", None, None, "advice")
    return Located(
        Place(**place),  # type: ignore[arg-type]
        Statement(**statement, verb="append"),  # type: ignore[arg-type]
        advice,
        (),
        "list",
        9,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"line": 96},
        {"first_line": 93},
        {"file": "/mnt/rank7/job/train.py"},
        {"container": "deque", "path": "[...]"},
        {"numbers": {"step": 12}},
    ],
)
def test_where_a_bug_stands_is_not_its_fingerprint(change: dict[str, Any]) -> None:
    """Another line, folder or look at it is still the same bug."""
    assert fingerprint("graph", [located(**change)]) == fingerprint("graph", [located()])


@pytest.mark.parametrize(
    "change",
    [
        {"name": "kept"},
        {"function": "evaluate"},
        {"kind": "global"},
        {"file": "/home/ada/evaluate.py"},
        {"code": "losses.append(output)"},
    ],
)
def test_another_bug_has_another_fingerprint(change: dict[str, Any]) -> None:
    """The variable, its home, its file and the statement make a bug."""
    assert fingerprint("graph", [located(**change)]) != fingerprint("graph", [located()])


def test_another_kind_of_growth_has_another_fingerprint() -> None:
    """Graphs and tensors in the same list are two findings."""
    assert fingerprint("graph", [located()]) != fingerprint("tensor", [located()])


def test_the_order_of_holders_is_not_in_the_fingerprint() -> None:
    """Which of two lists is looked at first depends on when one looks."""
    both = [located(), located(name="outputs")]

    assert fingerprint("graph", both) == fingerprint("graph", both[::-1])


def test_without_a_holder_the_module_makes_the_bug() -> None:
    """What C++ keeps is told apart by the module whose outputs survive."""
    first, second = (fingerprint("graph", [], [name]) for name in ("blocks.1", "head"))

    assert first != second
    assert fingerprint("graph", [], ["blocks.1"]) == first


@pytest.mark.parametrize(
    ("file", "other"),
    [
        ("/tmp/ipykernel_11/301.py", "/tmp/ipykernel_12/914.py"),
        ("<ipython-input-5-abc>", "<ipython-input-6-abd>"),
    ],
)
def test_a_notebooks_cell_keeps_its_fingerprint(file: str, other: str) -> None:
    """Cells are numbered anew in each session."""
    assert fingerprint("graph", [located(file=file)]) == fingerprint("graph", [located(file=other)])


def test_runs_ranks_and_hash_seeds_agree(python: Python, tmp_path: Path) -> None:
    """The same bug, below other lines, on other ranks, with other hash seeds: one fingerprint."""
    found = set()
    for rank in range(3):
        program = tmp_path / f"rank{rank}" / "train.py"
        program.parent.mkdir()
        kept = "history = collections.defaultdict(list); kept = {'a', 'b', 'c'}\n"
        loop = "for _ in range(40):\n    loss = train_step(model, optimizer)\n"
        grows = "    for name in kept: history[name].append(loss)\n"
        watch = "memguard.watch(model, optimizer)\n"
        program.write_text(PRELUDE + "\n" * rank + watch + kept + loop + grows)
        env = {"RANK": str(rank), "PYTHONHASHSEED": str(rank), "MEMGUARD_REPORT": "{rank}.json"}
        python(program, cwd=tmp_path, env=env)
        report = data.loads((tmp_path / f"{rank}.json").read_text())
        found.add(report.findings[0].fingerprint)

    assert len(found) == 1
