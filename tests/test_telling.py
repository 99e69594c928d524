"""What a finding brings about: the user's function, the action, the flag, the report file."""

from __future__ import annotations

import errno
import gc
import logging
import math
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from models import TASKS, Run, train, train_step
from torch import Tensor, nn

import memguard
from memguard import LeakError, LeakWarning, Report
from memguard.investigation import Case, Investigator, Outcome
from memguard.records import Amount, Finding, Growth, Kind
from memguard.report import data
from memguard.telling import MOST_FILES

MLP = TASKS[0]


def leaking(steps: int = 40, **settings: Any) -> Run:
    """A watched run whose running sum leaks, warnings swallowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        return train(MLP, steps, leak=True, **settings)


def failures(run: Run) -> dict[str, str]:
    assert run.guard is not None
    return {failure.part: failure.error for failure in run.guard.report().failures}


def until_stopped(
    guard: memguard.Guard, model: nn.Module, optimizer: torch.optim.Optimizer, kept: list[Tensor]
) -> int:
    """Steps of a leaking loop that looks at the flag; the leak is warned about once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(40):
            kept.append(train_step(MLP, model, optimizer, step))
            if guard.should_stop:
                break
    assert [warning.category for warning in caught] == [LeakWarning]
    return step


# --- raise ---


def test_what_a_loop_does_on_its_way_out_is_done() -> None:
    """The error comes from the step: handlers, finally and context managers of the loop run."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    done: list[str] = []
    with pytest.raises(RuntimeError), memguard.watch(model, optimizer):
        try:
            for step in range(40):
                kept.append(train_step(MLP, model, optimizer, step))
        except LeakError as error:
            done.append(error.report.verdict)
            raise
        finally:
            done.append("checkpoint")

    assert done == ["leak", "checkpoint"]


# --- the user's function ---


def test_the_function_sees_a_leak_before_it_is_raised() -> None:
    """It may save a checkpoint; returning nothing leaves the action as it was set."""
    seen: list[Report] = []
    with pytest.raises(LeakError) as caught:
        leaking(action="raise", on_leak=seen.append)

    (report,) = seen
    assert report.verdict == "leak"
    assert report.findings == caught.value.report.findings


@pytest.mark.parametrize("decision", ["log", "off"])
def test_the_function_decides_by_what_it_returns(
    decision: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The name of another action takes the place of the one that was set."""
    bare = train(MLP, leak=True)
    run = leaking(action="raise", on_leak=lambda report: decision)

    assert run.same_as(bare)
    assert bool(caplog.records) == (decision == "log")
    assert failures(run) == {}


def test_the_function_may_ask_for_a_stop() -> None:
    """Then the flag is set, whatever the action."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    with memguard.watch(model, optimizer, on_leak=lambda report: "stop") as guard:
        steps = until_stopped(guard, model, optimizer, kept)

    assert steps < 20


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda report: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda report: True, "ValueError: it returned bool; accepted: None, raise, warn, log,"),
        (lambda report: "rise", "ValueError: it returned rise; accepted: None, raise, warn, log,"),
        ("nowhere:save", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_a_function_that_fails_hides_no_leak(function: Any, said: str) -> None:
    """The action that was set is done all the same, and the report names the failure."""
    with pytest.raises(LeakError):
        leaking(action="raise", on_leak=function)
    run = leaking(action="log", on_leak=function)

    assert failures(run)["on_leak"].startswith(said)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, LeakError])
def test_a_function_may_end_the_job(kind: type[BaseException]) -> None:
    """To exit, to interrupt or to raise the leak itself is a decision, no failure."""

    def ends(report: Report) -> None:
        raise kind("enough", report) if kind is LeakError else kind()

    with pytest.raises(kind):
        leaking(action="log", on_leak=ends)


def test_a_function_is_imported_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable names it, and what it names is imported and never evaluated."""
    seen: list[Report] = []
    module = types.ModuleType("checkpoints")
    module.save = seen.append  # type: ignore[attr-defined]
    monkeypatch.setenv("MEMGUARD_ON_LEAK", "checkpoints:save")
    healthy = train(MLP, action="raise")
    assert failures(healthy) == {}
    monkeypatch.setitem(sys.modules, "checkpoints", module)
    with pytest.raises(LeakError):
        leaking(action="raise")

    assert len(seen) == 1


@pytest.mark.parametrize("name", ["__main__", "train", "jobs.train"])
def test_a_function_of_the_running_program_is_not_imported_anew(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By `__main__`, the file's name or that of `python -m`: the script is not run once more."""
    seen: list[Report] = []
    main = types.ModuleType("__main__")
    main.save = seen.append  # type: ignore[attr-defined]
    (tmp_path / "train.py").write_text("raise SystemExit('run twice')\n")
    if "." in name:
        main.__spec__ = ModuleSpec(name, None)
    else:
        main.__file__ = str(tmp_path / "train.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(LeakError):
        leaking(action="raise", on_leak=f"{name}:save")

    assert len(seen) == 1


class Trainer:
    """A user's own, with a method for leaks."""

    def __init__(self) -> None:
        self.model, self.optimizer = MLP.set_up()
        self.told: list[object] = []

    def save(self, told: object) -> None:
        self.told.append(told)

    def watch(self) -> memguard.Guard:
        return memguard.watch(self.model, self.optimizer, on_leak=self.save, on_step=self.save)


def test_a_method_keeps_neither_its_object_nor_the_model() -> None:
    """The folds of a cross-validation go one after the other, and their guards with them."""
    guards, models = [], []
    for _ in range(2):
        trainer = Trainer()
        guards.append(trainer.watch())
        assert trainer.watch() is guards[-1]
        train_step(MLP, trainer.model, trainer.optimizer, 0)
        assert len(trainer.told) == 1
        models.append(weakref.ref(trainer.model))
        del trainer
        gc.collect()

    assert [model() for model in models] == [None, None]
    assert all(guard.closed for guard in guards)


def test_a_method_whose_object_is_gone_is_named() -> None:
    """It cannot be called, and the report says so."""
    trainer = Trainer()
    model, optimizer = trainer.model, trainer.optimizer
    with trainer.watch() as guard:
        del trainer
        train_step(MLP, model, optimizer, 0)

    (failure,) = guard.report().failures
    assert failure.error == "ReferenceError: the object whose method Trainer.save is has gone"


def test_a_closed_guard_holds_no_function() -> None:
    """Nor what it closes over, however long the guard itself is kept."""
    model, optimizer = MLP.set_up()

    def save(told: object) -> None:
        """Has to do with the model."""

    function = weakref.ref(save)
    guard = memguard.watch(model, optimizer, on_leak=save, on_step=save)
    del save
    train_step(MLP, model, optimizer, 0)
    assert function() is not None
    guard.close()

    assert function() is None


def test_a_function_that_is_nowhere_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not nine hours later, when the leak is there; what is there is not imported for that."""
    (tmp_path / "checkpoints_here.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    train(MLP, 2, action="warn", on_leak="checkpoints_here:save")
    assert capsys.readouterr().err == ""
    train(MLP, 2, action="warn", on_leak="checkpoint_there.sub:save")

    assert capsys.readouterr().err == (
        "memguard: on_leak is checkpoint_there.sub:save: there is no module "
        "'checkpoint_there.sub' to import it from\n"
    )


def test_a_warning_is_no_leak() -> None:
    """The function is for leaks: what may be one is told as ever."""
    seen: list[Report] = []
    model, optimizer = MLP.set_up()
    ring: list[Tensor] = []
    with memguard.watch(model, optimizer, on_leak=seen.append) as guard:
        for step in range(60):
            ring.append(train_step(MLP, model, optimizer, step))
            del ring[:-16]

        assert guard.report().verdict != "leak"
    assert seen == []


# --- stop ---


def test_stop_sets_a_flag_that_the_loop_may_honour() -> None:
    """The loop ends at a point of its own; nothing is raised."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    with memguard.watch(model, optimizer, action="stop") as guard:
        assert not guard.should_stop
        steps = until_stopped(guard, model, optimizer, kept)

    assert steps < 20
    assert guard.should_stop  # also when the guard is closed


# --- warn again ---


def test_a_leak_is_warned_about_again_only_when_it_has_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few lines tell how a leak goes on over hundreds of steps, and one look goes into it.

    Another would not be earned for hours.
    """
    looks: list[int] = []
    investigate = Investigator.investigate

    def counted(self: Investigator, case: Case) -> Outcome:
        looks.extend([case.now] if case.kind == "graph" else [])
        return investigate(self, case)

    monkeypatch.setattr(Investigator, "investigate", counted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = train(MLP, 400, leak=True, action="warn", overhead=1e-6)
    told = [warning for warning in caught if issubclass(warning.category, LeakWarning)]

    assert run.guard is not None
    (finding,) = run.guard.report().findings
    assert finding.growth.total.graphs > 150
    assert finding.holders[0].survivors == finding.growth.total.graphs
    assert f"{finding.holders[0].survivors:,} past steps" in finding.summary
    assert 3 <= len(told) <= 1 + math.log2(400 / 7)
    assert len(looks) == 1


@pytest.mark.parametrize("kind", ["graph", "tensor", "cycle", "host", "worker", "reserved"])
@pytest.mark.parametrize("action", ["raise", "warn"])
def test_a_finding_of_any_kind_is_told_again_only_when_it_has_doubled(
    kind: Kind, action: str
) -> None:
    """By its graphs or tensors, and by its bytes where it has none."""
    with memguard.watch(MLP.set_up()[0], action=action) as guard:
        cases, told = guard._loop.cases, []
        for size in (100, 110, 150, 199, 200, 300, 399, 400, 500):
            counted = kind in ("graph", "tensor", "cycle")
            total = Amount(graphs=size, bytes=1 << 50) if counted else Amount(bytes=size)
            growth = Growth(Amount(bytes=1), total)
            cases.add(Finding(kind, "warning", "it grows", "f1", 1, 2, growth))
            told += [size] * len(cases.to_tell)
            cases.to_tell.clear()

    assert told == [100, 200, 400]


def test_cycles_are_told_again_only_when_as_much_waits_as_tensors_are_spoken_of() -> None:
    """A collection comes in between: ten small ones and then twenty are no news."""
    with memguard.watch(MLP.set_up()[0], action="warn") as guard:
        cases, told = guard._loop.cases, []
        for size in (10, 20, 1 << 40, 3 << 40):
            growth = Growth(Amount(bytes=1), Amount(graphs=size, bytes=size))
            cases.add(Finding("cycle", "warning", "it waits", "f1", 1, 2, growth))
            told += [size] * len(cases.to_tell)
            cases.to_tell.clear()

    assert told == [10, 1 << 40, 3 << 40]


def test_what_has_no_size_is_told_once() -> None:
    """A habit retains nothing, and is no news when it is seen again."""
    with memguard.watch(MLP.set_up()[0]) as guard:
        for _ in range(3):
            guard._loop.cases.add(Finding("grad", "warning", "a habit", "f1", 1, 2))
        told = list(guard._loop.cases.to_tell)
        guard._loop.cases.to_tell.clear()

    assert len(told) == 1


def test_a_leak_that_was_raised_is_not_raised_again() -> None:
    """Who goes on after the error has decided."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    raised = 0
    with memguard.watch(model, optimizer):
        for step in range(100):
            try:
                kept.append(train_step(MLP, model, optimizer, step))
            except LeakError:
                raised += 1
                kept.append(MLP.loss(model, step))

    assert raised == 1


@pytest.mark.parametrize("source", [True, False])
def test_a_warning_shows_the_programs_line_only_where_it_may(source: bool, tmp_path: Path) -> None:
    """Python itself reads it from the file, for a leak and for a report that cannot be written."""
    (script := tmp_path / "train.py").write_text(
        "kept = []\ndef turn(step, one_step):\n    kept.append(one_step(step))  # SECRET\n"
    )
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(script.read_text(), str(script), "exec"), names)
    model, optimizer = MLP.set_up()
    where = str(tmp_path / "missing" / "report.json")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with memguard.watch(model, optimizer, action="warn", source=source, report=where):
            for step in range(12):
                names["turn"](step, lambda step: train_step(MLP, model, optimizer, step))
    said = "".join(
        warnings.formatwarning(one.message, one.category, one.filename, one.lineno)
        for one in caught
    )
    names.clear()

    assert ("train.py:3: " if source else "train.py>:3: ") + "LeakWarning: " in said
    assert "MemguardWarning: cannot write report" in said
    assert ("SECRET" in said) == source
    assert ("with memguard.watch(model" in said) == source


# --- log ---


def test_a_log_record_has_fields_to_filter_by(caplog: pytest.LogCaptureFixture) -> None:
    """Beside the whole report: verdict, step, and the worst finding's holder and place."""
    run = leaking(action="log")
    record = caplog.records[0]
    assert run.guard is not None
    holder = run.guard.report().findings[0].holders[0]
    fields = {key: value for key, value in vars(record).items() if key.startswith("memguard_")}

    assert record.levelno == logging.ERROR
    assert fields["memguard_verdict"] == "leak"
    assert fields["memguard_kind"] == "graph"
    assert fields["memguard_step"] > 5
    assert fields["memguard_holder"] == holder.name == "total"
    assert (fields["memguard_file"], fields["memguard_line"]) == (holder.file, holder.line)


# --- the file ---


def test_only_a_few_files_are_written_and_the_last_is_among_them(tmp_path: Path) -> None:
    """`{step}` in the name does not fill a disk."""
    model, optimizer = MLP.set_up()
    lists: list[list[Tensor]] = [[] for _ in range(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        with memguard.watch(
            model, optimizer, action="warn", report=tmp_path / "{rank}-{pid}-{step}.json"
        ) as guard:
            for step in range(500):
                lists[0].append(train_step(MLP, model, optimizer, step))
    written = sorted(tmp_path.iterdir(), key=lambda file: int(file.stem.split("-")[2]))

    assert 2 <= len(written) <= MOST_FILES + 1
    assert data.loads(written[-1].read_bytes()).step == guard.report().step == 500


def _full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", [(Path, "open"), (Path, "replace")])
def test_a_full_disk_is_one_warning_and_named(
    place: tuple[type, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No half a file is left, the leak is raised all the same, and its report says what failed."""
    monkeypatch.setattr(*place, _full)
    with (
        pytest.warns(memguard.MemguardWarning, match="No space left on device") as caught,
        pytest.raises(LeakError),
    ):
        leaking(action="raise", report=tmp_path / "report.json")
    monkeypatch.undo()

    assert all("\n" not in str(warning.message) for warning in caught)
    assert list(tmp_path.iterdir()) == []


# --- what fails in telling ---


def raising(error: Exception) -> Callable[..., Any]:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    return fails


def test_a_leak_whose_text_cannot_be_made_is_raised_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its summary is told, and the report is with it."""
    monkeypatch.setattr("memguard.report.text.render", raising(KeyError("color")))
    with pytest.raises(LeakError, match="past steps' autograd graphs are still alive") as caught:
        leaking(action="raise")

    assert caught.value.report.findings


def test_a_logger_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler's failure is in the report."""
    monkeypatch.setattr(logging.Logger, "log", raising(OSError("gone")))
    run = leaking(action="log")

    assert failures(run) == {"log": "OSError: gone"}


def test_a_stream_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what shows warnings."""
    bare = train(MLP, leak=True)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", raising(ValueError("closed file")))
        run = train(MLP, leak=True, action="warn")

    assert failures(run) == {"warning": "ValueError: closed file"}
    assert run.same_as(bare)
    assert torch.isfinite(torch.tensor(run.losses)).all()
