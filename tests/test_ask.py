"""`memguard ask`: a running job tells its report, and nothing else is disturbed."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from models import TASKS, train_step

import memguard
from memguard import asking, watching
from memguard.cli import ask, main
from memguard.settings import Settings

pytestmark = pytest.mark.skipif(asking.SIGNAL is None, reason="no SIGURG there")
MLP = TASKS[0]
MODEL = MLP.set_up()[0]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of questions, apart from everybody's."""
    folder = tmp_path / "questions"
    monkeypatch.setattr(asking, "folder", lambda: folder)
    return folder


@pytest.fixture
def guard() -> Iterator[memguard.Guard]:
    """A guard that answers, some steps into its loop."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer, ask=True) as found:
        for step in range(5):
            train_step(MLP, model, optimizer, step)
        yield found


def asked(place: Path, word: str = "0123456789abcdef") -> Any:
    """What this process answers when it is asked by hand."""
    place.mkdir(mode=0o700, exist_ok=True)
    (place / f"{os.getpid()}.{word}.ask").touch()
    signal.raise_signal(signal.SIGURG)
    answer, until = place / f"{os.getpid()}.{word}.answer", time.monotonic() + 5
    while not answer.exists() and time.monotonic() < until and len(word) == 16:
        time.sleep(0.01)
    return json.loads(answer.read_text()) if answer.exists() else None


JOB = """\
import os
from pathlib import Path
from memguard import asking, watching
asking.folder = lambda: Path({folder!r})
import torch, memguard
torch.set_num_threads(1)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
memguard.watch(model, optimizer, action="log", ask=True)
while not os.path.exists({stop!r}):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def test_a_running_job_is_asked_for_its_report(
    tmp_path: Path, place: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Text and JSON on standard output, the job none the wiser, and no file left behind."""
    stop, program = tmp_path / "stop", tmp_path / "job.py"
    program.write_text(JOB.format(folder=str(place), stop=str(stop)))
    with subprocess.Popen(
        [sys.executable, program], env=environment, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            until = time.monotonic() + 60
            while main(["ask", str(job.pid)]) == 2 and time.monotonic() < until:
                time.sleep(0.1)  # not yet guarded
            told = capsys.readouterr().out
            status = main(["ask", str(job.pid), "--format", "json"])
        finally:
            stop.touch()
        assert job.stderr is not None
        said = job.stderr.read()
    report = memguard.Report.from_dict(json.loads(capsys.readouterr().out))

    assert told.startswith("memguard: clean: nothing kept growing")
    assert (status, job.returncode, said) == (0, 0, "")
    assert report.environment["pid"] == job.pid
    assert report.step >= 0
    assert not place.exists()


@pytest.mark.parametrize(
    ("pid", "said"),
    [
        (0, "0 is no process that could be asked"),
        (os.getpid(), "is no process that could be asked"),
        (2**22 + 1, f"there is no process {2**22 + 1}"),
    ],
    ids=["none", "this one", "too large"],
)
def test_what_is_no_process_is_refused(
    pid: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on standard error and status 2."""
    assert main(["ask", str(pid)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_process_that_is_not_guarded_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """It is told so where the system tells who listens, and never harmed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        status = main(["ask", str(other.pid), "--timeout", "0.3"])
        assert other.poll() is None
        other.communicate(b"\n")

    assert status in (1, 2)
    assert "does not guard it" in capsys.readouterr().err or status == 1
    assert other.returncode == 0


def test_a_job_inside_one_long_call_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    """The wait ends, with the likely reason; the question is taken back."""
    monkeypatch.setattr(ask, "_check", lambda pid: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert main(["ask", str(other.pid), "--timeout", "0.1"]) == 1
        other.communicate(b"\n")

    assert "has not answered within 0.1 s: its main thread is" in capsys.readouterr().err
    assert not place.exists()


def test_somebody_elses_process_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even by root, whose folder is another one."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert main(["ask", str(other.pid)]) == 2
        other.communicate(b"\n")

    assert "belongs to somebody else" in capsys.readouterr().err


def test_the_answer_is_the_live_report(guard: memguard.Guard, place: Path) -> None:
    """Of each guard of the process that answers."""
    told = asked(place)

    assert [report["step"] for report in told["reports"]] == [5]
    assert guard.report().step == 5


def test_every_guard_of_the_process_answers(guard: memguard.Guard, place: Path) -> None:
    """And one that is closed does not."""
    other = memguard.watch(MODEL, ask=True)
    assert len(asked(place)["reports"]) == 2
    other.close()
    assert len(asked(place, "0" * 16)["reports"]) == 1
    assert signal.getsignal(signal.SIGURG) is not signal.SIG_DFL
    guard.close()
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


def test_only_who_wants_to_be_asked_has_a_handler() -> None:
    """A guard of one loop leaves the process's signals alone."""
    with memguard.watch(MODEL):
        assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


def test_a_handler_of_the_users_stays(guard: memguard.Guard) -> None:
    """Whether it was there before us, or has come since."""
    guard.close()

    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGURG, mine)
    try:
        with memguard.watch(MODEL, ask=True) as other:
            assert signal.getsignal(signal.SIGURG) is mine
            assert "SIGURG has a handler already" in other.report().failures[0].error
        signal.signal(signal.SIGURG, signal.SIG_DFL)
        with memguard.watch(MODEL, ask=True):
            signal.signal(signal.SIGURG, mine)
        assert signal.getsignal(signal.SIGURG) is mine
    finally:
        signal.signal(signal.SIGURG, signal.SIG_DFL)


def test_a_guard_made_in_a_thread_goes_without() -> None:
    """Handlers are the main thread's business."""
    guards: list[memguard.Guard] = []
    thread = threading.Thread(target=lambda: guards.append(memguard.watch(MODEL, ask=True)))
    thread.start()
    thread.join()
    handler = signal.getsignal(signal.SIGURG)
    guards[0].close()

    assert handler is signal.SIG_DFL
    (failure,) = guards[0].report().failures
    assert failure.part == "ask"
    assert "only the main thread" in failure.error


def test_a_handler_in_c_stays() -> None:
    """Python takes the signal for nobody's then; the runtime of Go has one, for instance."""
    if asking.is_caught() is None:
        pytest.skip("the system does not tell who handles signals")
    heard: list[int] = []
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(heard.append)
    library = ctypes.CDLL(None)
    library.signal.restype = ctypes.c_void_p
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal(signal.SIGURG, ctypes.cast(handler, ctypes.c_void_p))
    try:
        with memguard.watch(MODEL, ask=True) as guard:
            signal.raise_signal(signal.SIGURG)
        signal.raise_signal(signal.SIGURG)
    finally:
        library.signal(signal.SIGURG, None)

    assert heard == [signal.SIGURG] * 2
    assert [failure.part for failure in guard.report().failures] == ["ask"]


def test_a_whole_process_whose_signal_is_somebody_elses_says_nothing() -> None:
    """Nobody has asked for it there."""

    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGURG, mine)
    try:
        guard = watching.guard_process(Settings())
        guard.finish(write=False)
    finally:
        signal.signal(signal.SIGURG, signal.SIG_DFL)

    assert guard.report().failures == ()


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("word", ["", "..", "x" * 100, "0123456789ABCDEF"])
def test_a_strange_question_is_not_answered(word: str, place: Path) -> None:
    """Only a word of sixteen hexadecimal digits becomes part of a file's name."""
    assert asked(place, word) is None
    time.sleep(0.05)  # the time an answer would need
    assert [file.name for file in place.iterdir()] == [f"{os.getpid()}.{word}.ask"]


@pytest.mark.usefixtures("guard")
def test_all_who_ask_at_once_are_answered(place: Path) -> None:
    """Signals that come together are one; each question has its file, and nobody else's counts."""
    words = [f"{number:016x}" for number in range(4)]
    place.mkdir(mode=0o700)
    (place / f"1.{'f' * 16}.ask").touch()
    for word in words:
        (place / f"{os.getpid()}.{word}.ask").touch()
    told = asked(place, words[0])
    files = [place / f"{os.getpid()}.{word}.answer" for word in words]
    until = time.monotonic() + 5
    while not all(file.exists() for file in files) and time.monotonic() < until:
        time.sleep(0.01)

    assert [json.loads(file.read_text()) for file in files] == [told] * 4
    assert not (place / f"1.{'f' * 16}.answer").exists()


def test_who_asks_removes_what_is_stale_and_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was left there hours ago; another's question stays, and what is not memguard's."""
    monkeypatch.setattr(ask, "_check", lambda pid: None)
    monkeypatch.setattr(os, "kill", _only_looks(os.kill))
    place.mkdir(mode=0o700)
    names = (f"7.{'1' * 16}.ask", f"7.{'2' * 16}.ask", f"7.{'3' * 16}.answer", "mine.txt")
    fresh, *old, mine = (place / name for name in names)
    for file in (fresh, *old, mine):
        file.touch()
    for file in (*old, mine):
        os.utime(file, (0, 0))
    assert main(["ask", str(os.getpid()), "--timeout", "0"]) == 1

    assert set(place.iterdir()) == {fresh, mine}
    assert "has not answered" in capsys.readouterr().err
    place.chmod(0o755)
    os.utime(fresh, (0, 0))
    assert main(["ask", str(os.getpid()), "--timeout", "0"]) == 2
    assert fresh.exists()
    capsys.readouterr()


def _only_looks(kill: Callable[[int, int], None]) -> Callable[[int, int], None]:
    return lambda pid, number: kill(pid, 0)


@pytest.mark.usefixtures("guard")
def test_a_folder_that_others_may_enter_is_not_used(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor one that is a link: in a folder for everybody, somebody else may have put it there."""
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    asked_at = place / f"{os.getpid()}.{'0' * 16}.ask"
    asked_at.touch()
    signal.raise_signal(signal.SIGURG)
    time.sleep(0.1)  # the time an answer would need
    assert list(place.iterdir()) == [asked_at]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert main(["ask", str(other.pid)]) == 2
        other.communicate(b"\n")
    assert not asking.is_private(place)
    (link := place.with_name("link")).symlink_to(place)
    assert not asking.is_private(link)
    capsys.readouterr()


def test_a_report_that_fails_is_told_as_such(place: Path) -> None:
    """The asker hears why; the job hears nothing."""

    def fails() -> memguard.Report:
        raise OSError("out of ink")

    undo = asking.answer_with(fails)
    try:
        assert asked(place) == {"failed": "OSError: out of ink"}
    finally:
        undo()
    with pytest.raises(memguard.MemguardError, match="could not make its report: OSError: out of"):
        ask._read('{"failed": "OSError: out of ink"}', 7)
    with pytest.raises(memguard.MemguardError, match="process 7 guards nothing"):
        ask._read('{"reports": []}', 7)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forking is for POSIX systems")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_has_nothing_to_tell(guard: memguard.Guard, place: Path) -> None:
    """It inherits the handler, and answers that it guards nothing."""
    child = os.fork()
    if child == 0:
        os._exit(0 if asked(place) == {"reports": []} else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert not guard.closed


def test_asking_imports_no_torch(python: Any) -> None:
    """The command is there at once."""
    program = textwrap.dedent("""
        import sys
        from memguard.cli import main
        status = main(["ask", "0"])
        assert "torch" not in sys.modules
        sys.exit(status)
    """)
    done = python("-c", program)

    assert (done.returncode, done.stdout) == (2, "")
