"""`memguard ask`: the live report of a running guarded job."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memguard.errors import MemguardError
from memguard.records import Report
from memguard.report import data, text
from memguard.report.clean import clean

if TYPE_CHECKING:
    # The class is generic for type checkers only.
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_WRONG_USAGE = 2
_NO_ANSWER = 1
_SECONDS = 10.0
_POLL = 0.02
_TRIES = 100


class _NotAsked(MemguardError):
    """The process cannot be asked; the message says why."""


class _NotAnswered(MemguardError):
    """The process was asked, and gave no report; the message says why."""


def add_parser(subparsers: _Subparsers) -> argparse.ArgumentParser:
    """Add `ask` to memguard's commands."""
    said = "tell the live report of a running job that memguard guards"
    parser = subparsers.add_parser("ask", help=said, description=said.capitalize() + ".")
    parser.add_argument("pid", type=int, metavar="PID", help="process id of the job")
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="form to write on standard output (default: text)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=_SECONDS,
        metavar="SECONDS",
        help=f"longest to wait for the answer (default: {_SECONDS:g})",
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Ask the process `args.pid`; returns the exit status."""
    try:
        reports = ask(args.pid, args.timeout)
    except _NotAsked as error:
        print(f"memguard ask: {error}", file=sys.stderr)
        return _WRONG_USAGE
    except _NotAnswered as error:
        print(f"memguard ask: {error}", file=sys.stderr)
        return _NO_ANSWER
    for report in reports:
        if args.format == "json":
            print(data.dumps(report), flush=True)
        else:
            text.print_report(report, sys.stdout)
    return 0


def ask(pid: int, timeout: float) -> list[Report]:
    """The reports of the guards in a process, one each.

    Raises:
        MemguardError: it is no process of this user's that can be asked, or it does not answer.
    """
    _check(pid)
    from memguard.asking import SIGNAL, folder, sweep

    assert SIGNAL is not None
    place = folder()
    word = secrets.token_hex(8)
    question, answer = place / f"{pid}.{word}.ask", place / f"{pid}.{word}.answer"
    try:
        _write(question)
        os.kill(pid, SIGNAL)
        return _read(_awaited(answer, pid, timeout), pid)
    except ProcessLookupError:
        raise _NotAsked(f"there is no process {pid}") from None
    except OSError as error:
        raise _NotAsked(f"cannot ask process {pid}: {error.strerror or error}") from None
    finally:
        # Others may ask at the same time: what is theirs stays, and so does the folder then.
        for file in (question, answer):
            with suppress(OSError):
                file.unlink()
        sweep(place)
        with suppress(OSError):
            place.rmdir()


def _write(question: Path) -> None:
    """Leave the question, though somebody else may remove the empty folder just now."""
    for _ in range(_TRIES):
        _make_private(question.parent)
        with suppress(FileNotFoundError):
            question.touch(mode=0o600, exist_ok=False)
            return
    raise _NotAsked(f"cannot write to {question.parent}: it is removed again and again")


def _check(pid: int) -> None:
    """Whether the process is there, this user's, and listens: SIGURG harms none, but says none."""
    if not hasattr(signal, "SIGURG") or not hasattr(os, "getuid"):
        raise _NotAsked("this system has no signal to ask with")
    import psutil

    from memguard.asking import is_caught

    if pid < 1 or pid == os.getpid():
        raise _NotAsked(f"{pid} is no process that could be asked")
    try:
        process = psutil.Process(pid)
        owner = process.uids().real
        is_gone = process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        raise _NotAsked(f"there is no process {pid}") from None
    except psutil.AccessDenied:
        raise _NotAsked(f"process {pid} belongs to somebody else") from None
    if is_gone:
        raise _NotAsked(f"process {pid} has ended")
    if owner != os.getuid():
        raise _NotAsked(f"process {pid} belongs to somebody else (user {owner})")
    if is_caught(pid) is False:
        raise _NotAsked(
            f"process {pid} does not answer: memguard does not guard it, or was not told to answer "
            "(MEMGUARD_ASK=1 or ask=True; `memguard run` answers by itself)"
        )


def _make_private(place: Path) -> None:
    from memguard.asking import is_private

    try:
        place.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _NotAsked(f"cannot make {place}: {error.strerror or error}") from None
    if not is_private(place):
        raise _NotAsked(f"{place} is not this user's own folder; remove it, or have it removed")


def _awaited(answer: Path, pid: int, timeout: float) -> str:
    until = time.monotonic() + timeout
    while not answer.exists():
        if time.monotonic() >= until:
            raise _NotAnswered(
                f"process {pid} has not answered within {timeout:g} s: its main thread is inside "
                "one long call, or memguard guards nothing there any more"
            )
        if not os.path.exists(f"/proc/{pid}") and os.path.exists("/proc/self"):
            raise _NotAnswered(f"process {pid} has ended")
        time.sleep(_POLL)
    return answer.read_text(encoding="ascii")


def _read(answer: str, pid: int) -> list[Report]:
    told: dict[str, Any] = json.loads(answer)
    if "failed" in told:
        raise _NotAnswered(f"process {pid} could not make its report: {clean(told['failed'])}")
    if not told["reports"]:
        raise _NotAnswered(f"process {pid} guards nothing, or nothing yet")
    return [Report.from_dict(report) for report in told["reports"]]
