"""In a real IPython session: its cells' lines, the results it keeps, `why_alive` at the prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import PRELUDE

import memguard
from memguard import watching

pytest.importorskip("IPython")

Session = Callable[..., dict[str, Any]]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Session]:
    """Runs cells one after the other in a session of its own and gives its variables."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    # The shell has no variable here: it would be a holder of the user's.
    InteractiveShell.instance().history_manager.enabled = False

    def run(*cells: str) -> dict[str, Any]:
        for cell in cells:
            done = InteractiveShell.instance().run_cell(cell, store_history=True)
            assert done.error_before_exec is None
        return InteractiveShell.instance().user_ns

    try:
        yield run
    finally:
        for guard in list(watching._guards.values()):
            guard.close()
        # What a cell failed with keeps its frames.
        vars(InteractiveShell.instance().InteractiveTB).pop("tb", None)
        InteractiveShell.instance().reset(new_session=False)
        InteractiveShell.clear_instance()
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)


SETUP = (PRELUDE, "guard = memguard.watch(model, optimizer, action='log')")


def test_a_list_grown_by_a_function_of_another_cell(session: Session) -> None:
    """The line is that of the cell in which the function was written."""
    names = session(
        *SETUP,
        "losses = []",
        "def fit():\n    for _ in range(12):\n"
        "        losses.append(train_step(model, optimizer))\n",
        "fit()",
    )
    (finding,) = names["guard"].report().findings
    (holder,) = finding.holders
    assert (holder.name, holder.line) == ("losses", 3)
    assert holder.code == "losses.append(train_step(model, optimizer))"
    assert holder.fix == "losses.append(train_step(model, optimizer).item())"


def test_results_that_cells_show_are_kept_by_the_session(session: Session) -> None:
    """What holds them is `Out`, and a semicolon at the cell's end is the way out."""
    names = session(*SETUP, *["train_step(model, optimizer)"] * 20)
    holder = names["guard"].report().findings[0].holders[0]
    assert holder.name == "Out"
    assert holder.fix == "train_step(model, optimizer);"


def test_results_that_end_in_a_semicolon_are_not_kept(session: Session) -> None:
    """The way out that is told is one."""
    names = session(*SETUP, *["train_step(model, optimizer);"] * 20)
    assert names["guard"].report().findings == ()


def test_why_alive_says_which_result_it_is(session: Session) -> None:
    """A tensor that was shown is told as `Out[2]`, without blaming the cell that asks."""
    names = session("import torch, memguard", "torch.randn(3)", "answer = memguard.why_alive(_2)")
    answer = names["answer"]
    assert isinstance(answer, memguard.alive.WhyAlive)
    first = answer.holders[0]
    assert first.name == "Out[2]"
    assert first.code is None


def test_a_cell_that_failed_keeps_the_variables_of_its_functions(session: Session) -> None:
    """The local of the function that raised is named, though the function has ended."""
    names = session(
        "import torch, memguard, weakref",
        "def fail():\n    kept = torch.randn(7)\n    seen.append(weakref.ref(kept))\n    1 / 0\n",
        "seen = []",
        "fail()",
        "answer = memguard.why_alive(seen[0]())",
    )
    names = [(holder.name, holder.where) for holder in names["answer"].holders]
    assert ("kept", "local of fail") in names
