"""A guard that warns now and then gains nothing.

CI runs a hundred thousand steps beside the rest; the million are a command in `benchmarks/soak.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Python

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak.py"


@pytest.mark.source
def test_a_run_with_leaks_that_come_and_go_gains_nothing(python: Python) -> None:
    """Memory within a mebibyte; descriptors, threads, hooks and callbacks exactly as before.

    A step of this loop takes half a millisecond while something is under suspicion.
    """
    done = python(SOAK, "--steps", "6000", "--warm-up", "3000")
    found = json.loads(done.stdout)

    assert found["steps"] == 6_000
    assert found["gained_bytes"] <= 1024**2
    assert found["after"] == found["before"]
    assert found["failures"] == []
    assert found["told"] >= 3
    assert len(found["holders"]) >= 2  # of three
    assert (done.returncode, done.stderr) == (0, "")
