"""`%load_ext memguard`: cells and kernels under guard, in IPython itself."""

from __future__ import annotations

import json

import pytest
from conftest import Python
from programs import LOOP_CELL

pytest.importorskip("IPython")

CLEAN = LOOP_CELL + ".item()"

CELLS = [
    "%load_ext memguard",
    "import sys; assert 'torch' not in sys.modules",
    "%memguard",
    f"%%memguard --window 3\n{CLEAN}",
    f"%%memguard\n{LOOP_CELL}",
    "%memguard on --action log",
    CLEAN,
    "%memguard",
    "%memguard report",
    f"%%memguard\n{CLEAN}",
    "%memguard off",
    "%memguard",
    "%memguard nonsense",
    "%%memguard --window 0\n1",
    "%%memguard --windw 1\n1",
    "%%memguard\n1 / 0",
    "%%memguard\n6 * 7",
    "%%memguard\n6 * 8;",
    "%%memguard\n1 +",
    "%unload_ext memguard",
    "%memguard",
]
RUN = """\
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
told = []
for cell in json.loads(sys.stdin.read()):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = shell.run_cell(cell)
    error = result.error_before_exec or result.error_in_exec
    told.append([out.getvalue(), type(error).__name__, repr(result.result)])
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(python: Python, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What each cell wrote, and the error it ended with."""
    home = tmp_path_factory.mktemp("ipython")
    env = {"IPYTHONDIR": str(home), "NO_COLOR": "1"}
    ended = python("-c", RUN, stdin=json.dumps(CELLS), env=env, cwd=home)
    assert ended.returncode == 0, ended.stderr
    answers: list[list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return answers


def test_loading_imports_no_torch_and_guards_nothing(told: list[list[str]]) -> None:
    """A notebook sets thread counts before it imports torch."""
    assert told[0][:2] == ["", "NoneType"]
    assert told[1][:2] == ["", "NoneType"]
    assert told[2][:2] == ["memguard: nothing is guarded yet\n", "NoneType"]


def test_a_cell_is_guarded_from_its_first_line_to_its_last(told: list[list[str]]) -> None:
    """One line closes a clean cell; a leaking one is stopped and shows the error."""
    assert told[3][0].startswith("memguard: clean: 20 steps, beat optimizer")
    assert "LeakError" in told[4][0]
    assert "total += loss.item()" in told[4][0]


def test_a_kernel_is_guarded_until_it_is_switched_off(told: list[list[str]]) -> None:
    """All cells in between are one run; a cell magic in it joins in."""
    assert told[6][:2] == ["", "NoneType"]
    assert told[7][0].startswith("memguard: clean: 20 steps")
    assert told[8][0].startswith("memguard: clean: 20 steps")
    # The second cell's optimizer takes the lead from the first one's after a few turns.
    assert told[9][0].startswith("memguard: clean: 38 steps")
    assert told[11][:2] == ["memguard: nothing is guarded yet\n", "NoneType"]


def test_wrong_usage_is_one_error_that_says_what_is_accepted(told: list[list[str]]) -> None:
    """No cell is run then, and the kernel lives on."""
    assert told[12][1] == "UsageError"
    assert "accepted are on, off, report" in told[12][0]
    assert told[13][1] == "SettingsError"
    assert told[14][1] == "UsageError"


def test_a_cell_that_fails_counts_as_failed(told: list[list[str]]) -> None:
    """With its own error, shown once, so that what runs all cells stops there."""
    assert told[4][1] == "LeakError"
    assert told[15][1] == "ZeroDivisionError"
    assert told[15][0].count("division by zero") == 1
    assert "memguard: " not in told[15][0]
    assert told[18][1] == "SyntaxError"
    assert told[18][0].count("SyntaxError") == 1


def test_a_cell_has_its_value(told: list[list[str]]) -> None:
    """Shown once, unless a semicolon says otherwise."""
    assert told[16][0].count("42") == 1
    assert told[16][2] == "42"
    assert "48" not in told[17][0]


def test_unloading_takes_the_magics_out(told: list[list[str]]) -> None:
    """IPython knows them no more."""
    assert told[19][:2] == ["", "NoneType"]
    assert told[20][1] == "UsageError"
