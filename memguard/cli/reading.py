"""Reading a saved report for a command, with one line on standard error where that fails."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from memguard.errors import ReportError
from memguard.records import Report
from memguard.report import data
from memguard.report.clean import clean, fit

WRONG_USAGE = 2


def read(file: str, command: str) -> Report | None:
    """The report that a file holds; None when it cannot be read, which is told then.

    Args:
        file: path of a report written as JSON.
        command: who asks, for the message: `memguard show`.
    """
    try:
        return data.loads(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        # ReportError is a ValueError, and so is a path with a NUL in it.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        if isinstance(error, ReportError):
            reason = str(error).removeprefix("reading a report: ")
        named = clean(file, 200, keep_end=True)
        print(f"{command}: cannot read {named}: {reason}", file=sys.stderr)
        return None


def write(text: str) -> None:
    """Write to standard output, whatever its encoding; a reader that leaves early is no error."""
    with readers_may_leave():
        print(fit(text, sys.stdout.encoding), flush=True)


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """Inside, what is written and flushed may be more than the reader wants."""
    try:
        yield
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python flushes once more at exit: to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
