"""The post-mortem: written when memory is near its end or has ended, with what little there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from models import Mlp
from sample_reports import RUNNING_SUM_FINDING

import memguard
from memguard._kinds import is_out_of_memory
from memguard.figures import Figures, Seen
from memguard.ledgers import Account, Ledger, Row
from memguard.postmortem import MOMENTS_EVERY, MOST, PostMortem
from memguard.records import Finding, Report
from memguard.report.postmortem import Moment, brief, render
from memguard.sensors.allocator import Allocation
from memguard.sensors.host import InUse
from memguard.settings import Settings

GIB = 1 << 30
LEDGER = Ledger((Account("cpu", (Row("activations", 6 * GIB),), 8 * GIB),))

LEAKING = """
import resource
import psutil
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.Adam(model.parameters())
kept = []

def fit():
    x = torch.randn(512, 256)
    for step in range(400):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if step == 3:
            most = psutil.Process().memory_info().vms + (150 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        kept.append(model(x))  # grows

fit()
"""


def test_a_job_that_runs_out_of_address_space_leaves_a_post_mortem(
    python: Any, tmp_path: Path
) -> None:
    """With the error, the last steps, the ledger, the finding with its line, and the lever."""
    (tmp_path / "train.py").write_text(LEAKING)
    words = ("-m", "memguard", "run", "--action", "warn", "--report", "out.json", "train.py")
    done = python(*words, cwd=tmp_path)

    assert done.returncode == 1
    assert "can't allocate memory" in done.stderr
    told = (tmp_path / "out.postmortem.txt").read_text()
    line = next(n for n, text in enumerate(LEAKING.splitlines(), 1) if "# grows" in text)
    assert "can't allocate memory" in told.splitlines()[0]
    assert "last steps" in told
    assert "past steps' graphs" in told
    assert "lever: fix the leak" in told
    assert f"train.py:{line} in fit" in told
    assert memguard.report.data.loads((tmp_path / "out.json").read_text()).verdict == "leak"


class Machine(Figures):
    """A machine of the test's own, and a program that fills it."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.in_use = 2 * GIB
        self.peak = 2 * GIB

    def seen(self) -> Seen:
        card = Allocation("cuda:0", GIB, self.peak, peak=self.peak, limit=4 * GIB)
        return Seen(InUse(self.in_use, self.in_use, self.in_use), (card,))

    def host_standing(self, process: InUse) -> tuple[int, int]:
        return process.resident, 8 * GIB


class Job:
    """A post-mortem with a clock, a machine and a report of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, report: Path | None) -> None:
        self.now = 0.0
        self.machine = Machine()
        self.is_short = False
        monkeypatch.setattr("memguard.postmortem.time.monotonic", lambda: self.now)
        settings = Settings(report=None if report is None else str(report))
        self.end = PostMortem(settings, self.machine, self._findings, self._report)
        self.end.prepare()

    def _findings(self) -> list[Finding]:
        return [RUNNING_SUM_FINDING]

    def _report(self) -> Report:
        if self.is_short:
            raise MemoryError
        return Report("leak", 12, (RUNNING_SUM_FINDING,), ledger=LEDGER)

    def look(self, step: int) -> None:
        """A step ends, long enough after the one before to be looked at."""
        self.now += MOMENTS_EVERY
        self.end.hear(step, self.machine.seen())


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A job with a report file."""
    job = Job(monkeypatch, tmp_path / "{rank}-out.json")
    yield job
    job.end.end()


def test_one_is_written_once_when_the_end_is_near(job: Job, tmp_path: Path) -> None:
    """Beside the report, with the figures of the host and the device at the last looks."""
    file = tmp_path / "0-out.postmortem.txt"
    job.look(1)
    assert not file.exists()
    job.machine.in_use = int(7.7 * GIB)
    job.look(2)
    told = file.read_text()
    assert "after 2 steps: the end is near: 7.7 GiB of 8 GiB of the host are in use" in told
    assert "2 GiB" in told
    assert "cuda:0" in told
    assert "total_loss" in told
    file.unlink()
    job.look(3)
    assert not file.exists()


def test_what_a_step_takes_at_its_peak_is_near_the_end(job: Job, tmp_path: Path) -> None:
    """When a step ends its activations are gone: with 98 % at the peak the next may be the last."""
    job.machine.peak = int(0.94 * 4 * GIB)
    job.look(1)
    assert not list(tmp_path.iterdir())
    job.machine.peak = int(0.98 * 4 * GIB)
    job.look(2)
    told = (tmp_path / "0-out.postmortem.txt").read_text()
    assert "3.9 GiB of 4 GiB of cuda:0 were in use at the peak of a step" in told


def test_a_peak_from_before_the_loop_is_no_steps(job: Job, tmp_path: Path) -> None:
    """A checkpoint that was loaded has left its peak: that the device was full once is no end."""
    job.machine.peak = int(0.98 * 4 * GIB)
    job.look(1)
    job.look(2)
    assert not list(tmp_path.iterdir())
    job.machine.peak += 1 << 20
    job.look(3)
    told = (tmp_path / "0-out.postmortem.txt").read_text()
    assert "after 3 steps: the end is near" in told


def test_the_short_form_stands_where_there_is_no_memory_for_more(job: Job, tmp_path: Path) -> None:
    """What was known before is on disk although the report could not be made."""
    job.look(7)
    job.is_short = True
    job.end.ended(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    told = (tmp_path / "0-out.postmortem.txt").read_text()
    assert "after 7 steps: RuntimeError: DefaultCPUAllocator" in told
    assert RUNNING_SUM_FINDING.summary in told
    assert "where memory is" not in told


def test_a_program_that_runs_out_again_and_again_is_told_a_few_times(
    job: Job, tmp_path: Path
) -> None:
    """Whoever looks for the largest batch that fits does so on purpose."""
    file = tmp_path / "0-out.postmortem.txt"
    written = []
    for _ in range(MOST + 2):
        job.end.ended(MemoryError())
        written.append(file.exists())
        file.unlink(missing_ok=True)
    assert written == [True] * MOST + [False] * 2


def test_a_folder_that_is_not_there_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is told on standard error instead."""
    job = Job(monkeypatch, tmp_path / "none" / "out.json")
    job.end.ended(MemoryError())
    job.end.end()
    assert "post-mortem: MemoryError: no memory left" in capfd.readouterr().err


def test_without_a_report_it_goes_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """When memory has ended, and not when it is only near its end."""
    job = Job(monkeypatch, None)
    job.machine.in_use = 8 * GIB
    job.look(1)
    assert not capfd.readouterr().err
    job.end.ended(MemoryError("of 3 GiB"))
    job.end.end()
    told = capfd.readouterr().err
    assert "post-mortem after 1 step: MemoryError: of 3 GiB" in told
    assert "activations" in told


def test_a_device_tells_of_its_end(job: Job, tmp_path: Path, monkeypatch: Any) -> None:
    """CUDA's allocator is given one observer, whose listeners go with their guard."""
    attached: list[Any] = []
    events = memguard._events
    monkeypatch.setattr(events, "_device_memory", events._DeviceMemory())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(memguard._torch, "attach_memory_observer", attached.append)
    job.look(1)
    job.look(2)
    [observer] = attached
    observer(0, 2 * GIB, 4 * GIB, GIB)
    file = tmp_path / "0-out.postmortem.txt"
    assert "on device 0: 2 GiB were wanted, 1 GiB of 4 GiB were free" in file.read_text()
    file.unlink()
    job.end.end()
    observer(0, 2 * GIB, 4 * GIB, GIB)
    assert not file.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_none(job: Job, tmp_path: Path) -> None:
    """The file is the parent's."""
    child = os.fork()
    if not child:
        job.end.ended(MemoryError())
        os._exit(0)
    os.waitpid(child, 0)
    assert not list(tmp_path.iterdir())


def test_a_block_that_runs_out_of_memory_leaves_one(tmp_path: Path) -> None:
    """The guard's own block sees the exception; any other leaves nothing."""
    model = Mlp()
    with pytest.raises(KeyError), memguard.watch(model, report=tmp_path / "first.json"):
        raise KeyError
    with pytest.raises(MemoryError), memguard.watch(model, report=tmp_path / "second.json"):
        raise MemoryError
    assert {file.name for file in tmp_path.iterdir()} == {
        "first.json",
        "second.json",
        "second.postmortem.txt",
    }


def test_a_program_that_ran_out_of_memory_leaves_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard that nobody has closed looks at the exit at what ended the program, once."""
    model = Mlp()
    guard = memguard.watch(model, report=tmp_path / "out.json")
    monkeypatch.setattr("sys.last_value", MemoryError("at the end"), raising=False)
    memguard.watching._close_all()
    assert guard.closed
    assert "MemoryError: at the end" in (tmp_path / "out.postmortem.txt").read_text()


def _caused_by(cause: Exception) -> Exception:
    error = ValueError("the step failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (_caused_by(MemoryError()), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("can't allocate memory"), False),
        (None, False),
    ],
)
def test_what_says_that_memory_has_ended(error: Exception | None, ended: bool) -> None:
    """Python's error, torch's, the host allocator's, and what was raised from one."""
    assert is_out_of_memory(error) is ended


def test_it_is_told_without_a_single_look() -> None:
    """A job may die in its first step."""
    told = brief("MemoryError", [], [])
    assert told.startswith("memguard: post-mortem: MemoryError")
    assert "no step was looked at" in told
    assert "nothing was found" in told


def test_the_last_steps_are_a_table() -> None:
    """A column a device; what was not there yet is blank, and foreign text is harmless."""
    moments = [
        Moment(8, 0.5, (("cpu", GIB),)),
        Moment(9, 1.0, (("cpu", 2 * GIB), ("cuda:0", 3 * GIB))),
    ]
    told = render("bad\x1b[2J", moments, Report("clean", 9), ()).splitlines()
    rows = [line for line in told if line.strip().endswith(" s")]
    assert "\x1b" not in "".join(told)
    assert rows[0].split() == ["8", "1", "GiB", "at", "0.5", "s"]
    assert rows[1].split() == ["9", "2", "GiB", "3", "GiB", "at", "1.0", "s"]
