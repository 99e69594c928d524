"""Answers to `memguard ask`: a running job's reports, asked for by a signal.

The signal is SIGURG. Nearly nobody uses it, and a process that does not handle it ignores it, so
that asking the wrong one does no harm. Its handler does no more than start a thread for the answer:
Python runs handlers in the main thread between any two instructions, where no lock may be waited
for. While the main thread is inside one long call, the answer has to wait for its end.

Question and answer are files in a folder that belongs to the user alone: whoever asks leaves an
empty `PID.WORD.ask` with a word of its own, and the answer is written beside it, `PID.WORD.answer`.
Each removes its own. A job answers all that it is asked at once, and writes nothing unasked.
"""

from __future__ import annotations

import _thread
import json
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from memguard.errors import UsageError
from memguard.records import Report
from memguard.report import data

# By identity of the guard; one handler serves all of a process.
_asked: dict[int, Callable[[], Report]] = {}
_QUESTION = re.compile(r"([0-9]+)\.([0-9a-f]{16})\.ask")
_OURS = re.compile(r"[0-9]+\.[0-9a-f]{16}\.(ask|draft|answer)")
_MOST_WORDS = 64
# Seconds after which nobody waits for an answer any more.
_LONGEST_WAIT = 3600.0
_answering = threading.Lock()

SIGNAL: signal.Signals | None = getattr(signal, "SIGURG", None)


def folder() -> Path:
    """Where questions and answers are; the same for every process of this user."""
    # Not the temporary directory that variables name: job and asker may have different ones.
    return Path("/tmp") / f"memguard-{os.getuid()}"


def is_private(place: Path) -> bool:
    """Whether it is a real folder that this user owns and nobody else may enter."""
    try:
        found = place.lstat()
    except OSError:
        return False
    owned = found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and owned and not found.st_mode & 0o077


def is_caught(pid: int | str = "self") -> bool | None:
    """Whether a process handles the signal, in Python or in C; None where the system is silent."""
    if SIGNAL is None:
        return None
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return None


def answer_with(report: Callable[[], Report]) -> Callable[[], None]:
    """Answer with this report, too, whenever this process is asked; returns the undo.

    Raises:
        UsageError: it cannot be asked: the signal is somebody else's, this is not the main thread,
            or the system has no such signal.
    """
    _listen()
    key = id(report)
    _asked[key] = report

    def undo() -> None:
        _asked.pop(key, None)
        if not _asked:
            _stop_listening()

    return undo


def _listen() -> None:
    if SIGNAL is None:
        raise UsageError("this system has no signal to be asked with")
    if signal.getsignal(SIGNAL) is _on_signal:
        return
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("`memguard ask` is not answered: only the main thread can set that up")
    # What C code handles, such as the runtime of Go, Python takes for nobody's.
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL or is_caught():
        raise UsageError("`memguard ask` is not answered: SIGURG has a handler already")
    signal.signal(SIGNAL, _on_signal)
    signal.siginterrupt(SIGNAL, False)  # what the job waits for goes on being waited for


def _stop_listening() -> None:
    if SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return  # the handler stays, and has nothing to tell
    if signal.getsignal(SIGNAL) is _on_signal:
        signal.signal(SIGNAL, signal.SIG_DFL)


def _on_signal(number: int, frame: object) -> None:
    with suppress(Exception):
        # Not `threading`, whose locks the interrupted code may hold.
        _thread.start_new_thread(_answer, ())


def _answer() -> None:
    # Signals that come together become one, and a second may come while the first is answered.
    with suppress(Exception), _answering:
        place = folder()
        # Read and written only where nobody else can have put a link in the way.
        words = _questions(place) if is_private(place) else []
        told = _told() if words else ""
        for word in words:
            with suppress(OSError):
                draft = place / f"{os.getpid()}.{word}.draft"
                draft.write_text(told, encoding="ascii")
                draft.replace(place / f"{os.getpid()}.{word}.answer")


def _questions(place: Path) -> list[str]:
    """The words by which this process is asked, and has not answered yet."""
    names = {file.name for file in place.iterdir()}
    asked = [match for match in map(_QUESTION.fullmatch, names) if match is not None]
    words = [match[2] for match in asked if match[1] == str(os.getpid())]
    return [word for word in words if f"{os.getpid()}.{word}.answer" not in names][:_MOST_WORDS]


def sweep(place: Path) -> None:
    """Remove the files in it of those who asked long ago, and were killed before they did."""
    if not is_private(place):
        return
    with suppress(OSError):
        for file in place.iterdir():
            with suppress(OSError):
                age = time.time() - file.lstat().st_mtime
                if age > _LONGEST_WAIT and _OURS.fullmatch(file.name) is not None:
                    file.unlink()


def _told() -> str:
    try:
        reports = [report() for report in list(_asked.values())]
        return '{"reports": [' + ", ".join(map(data.dumps, reports)) + "]}"
    except Exception as error:
        return json.dumps({"failed": f"{type(error).__name__}: {error}"[:300]})


def _fall_silent() -> None:
    global _answering
    _asked.clear()
    _answering = threading.Lock()  # the parent's may have been taken just then


# A forked child inherits the handler; its parent's guards are nothing it could tell of.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fall_silent)
