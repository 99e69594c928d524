"""Where nobody can be named, the report says why and does not guess."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from models import TASKS, train
from programs import Run
from things import Thing

import memguard
from memguard import LeakError, LeakWarning
from memguard.figures import Figures
from memguard.report import text

MLP = TASKS[0]


@pytest.fixture
def thawed() -> Iterator[None]:
    """Whatever a test froze is thawed afterwards."""
    yield
    gc.unfreeze()


FROZEN = """\
import gc
class Keeper:
    def __init__(self):
        self.losses = []
def keeping():
    keeper = Keeper()
    def keep(loss):
        keeper.losses.append(loss)
    return keep
keepers = [keeping()]
gc.freeze()
for step in range(40):
    keepers[0](train_step(model, optimizer))
"""


@pytest.mark.usefixtures("thawed")
def test_what_is_frozen_is_said_to_be_out_of_reach(tmp_path: Path) -> None:
    """`gc.freeze()` hides a holder from every search: that is no sign of C++."""
    run = Run(tmp_path, FROZEN)

    assert run.stopped
    (finding,) = run.report.findings
    assert finding.holders == ()
    assert "gc.freeze() has taken" in finding.unnamed
    assert "gc.unfreeze()" in finding.unnamed
    assert "C++" not in text.render(run.report)


@pytest.mark.usefixtures("thawed")
def test_why_alive_says_how_much_is_frozen() -> None:
    """An answer without a holder is no proof where the search could not go everywhere."""
    kept = {"thing": Thing()}
    gc.freeze()
    answer = memguard.why_alive(kept["thing"])

    assert answer.kept[0].frozen == gc.get_freeze_count() > 0
    assert "behind gc.freeze()" in str(answer)
    gc.unfreeze()
    assert "gc.freeze()" not in str(memguard.why_alive(kept["thing"]))


def test_too_little_memory_for_a_search_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leak is told by what was counted; a search would end the job before the leak does."""
    monkeypatch.setattr(Figures, "room", lambda _: 5 * 1024**2)
    with pytest.raises(LeakError) as caught:
        train(MLP, leak=True, action="raise")

    report = caught.value.report
    assert report.failures == ()
    assert report.findings[0].holders == ()
    assert "5 MiB of free memory are too little for a search" in report.findings[0].unnamed


def test_a_search_that_runs_out_of_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that fails in the midst; the loop computes what it computes without."""
    bare = train(MLP, leak=True)

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("memguard.investigation.explain", full)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        watched = train(MLP, leak=True, action="warn")

    assert watched.guard is not None
    (failure,) = watched.guard.report().failures
    assert (failure.part, failure.error[:11]) == ("graph explanation", "MemoryError")
    assert watched.same_as(bare)
