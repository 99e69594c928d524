"""What happens with a report: raise, warn, log, write a file or call back."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Literal, NoReturn

from memguard.errors import LeakError, LeakWarning, MemguardWarning, SettingsError
from memguard.records import Report
from memguard.report import data, text
from memguard.report.clean import clean

Action = Literal["raise", "warn", "log", "stop", "off"] | Callable[[Report], object]
Failed = Callable[[str, Exception], None]

NAMES = ("raise", "warn", "log", "stop", "off")
# Frames of these packages stand between the user's line and here.
_NOT_THE_USER = ("memguard", "torch")


def _ignore(part: str, error: Exception) -> None:
    """Where nobody keeps a list of what failed."""


def react(action: Action, report: Report, failed: Failed = _ignore, source: bool = True) -> None:
    """Do with a report what the action says.

    Only a confirmed leak is raised: with `raise`, anything less is warned about, and so is what a
    library is known to retain. `stop` warns; who asked for it sets the flag. A report without
    findings causes nothing.

    Args:
        action: `raise`, `warn`, `log`, `off`, or a function to call with the report; what that
            function raises is passed on.
        report: what was found.
        failed: told by name what of the telling failed, and how.
        source: whether lines of the program may be shown.

    Raises:
        LeakError: the action is `raise` and the verdict is `leak`.
        SettingsError: there is no such action.
    """
    if callable(action):
        action(report)
        return
    if action not in NAMES:
        raise SettingsError(
            f"action is {clean(repr(action))}, accepted: {', '.join(NAMES)} or a function"
        )
    if action == "off" or not (report.findings or report.libraries):
        return
    if action == "log":
        log(report, failed)
    elif action == "raise" and report.verdict == "leak":
        raise_leak(report, failed)
    else:
        warn(report, failed, source)


def _in_words(report: Report, failed: Failed) -> str:
    """The short text; where it cannot be made, the summaries, since a leak must be told."""
    try:
        return text.render(report, short=True)
    except Exception as error:
        failed("text", error)
        return "; ".join(found.summary for found in (*report.findings, *report.libraries))


def raise_leak(report: Report, failed: Failed = _ignore) -> NoReturn:
    """Raise the report as a `LeakError` that names variable, line and fix.

    Raises:
        LeakError: always.
    """
    raise LeakError(_in_words(report, failed), report)


def warn(report: Report, failed: Failed = _ignore, source: bool = True) -> None:
    """Warn of the report at the line that makes memory grow, else at the line now running.

    Python prints that line beside the warning; without `source` it is kept from finding the file.

    Raises:
        LeakWarning: warning filters turn it into an exception.
    """
    message = LeakWarning(_in_words(report, failed))
    file, line = _statement(report) or _users_line()
    try:
        # A registry of its own: the same line may leak again in a later run of the loop.
        warnings.warn_explicit(
            message, LeakWarning, _shown(file, source), line, _module_of(file), registry={}
        )
    except LeakWarning:
        raise
    except Exception as error:
        # A stream that is closed or a hook that fails must not end the job.
        failed("warning", error)


def log(report: Report, failed: Failed = _ignore) -> None:
    """Log the report to the logger `memguard`: a leak as an error, anything less as a warning.

    The record carries the whole report, as plain data, in its attribute `memguard`, and what one
    would filter by in `memguard_verdict`, `_step`, `_kind`, `_fingerprint`, `_holder`, `_file` and
    `_line`, the last five of the worst finding.
    """
    level = logging.ERROR if report.verdict == "leak" else logging.WARNING
    if not (report.findings or report.libraries):
        level = logging.INFO
    message = _in_words(report, failed)
    try:
        logging.getLogger("memguard").log(level, "%s", message, extra=_fields(report))
    except Exception as error:  # a handler that fails must not end the job
        failed("log", error)


def _fields(report: Report) -> dict[str, Any]:
    finding = next(iter((*report.findings, *report.libraries)), None)
    holder = finding.holders[0] if finding is not None and finding.holders else None
    return {
        "memguard": report.to_dict(),
        "memguard_verdict": report.verdict,
        "memguard_step": report.step,
        "memguard_kind": finding.kind if finding is not None else None,
        "memguard_fingerprint": finding.fingerprint if finding is not None else None,
        "memguard_holder": holder.name if holder is not None else None,
        "memguard_file": holder.file if holder is not None else None,
        "memguard_line": holder.line if holder is not None else None,
    }


def write(
    report: Report,
    template: str | os.PathLike[str],
    rank: int = 0,
    pid: int | None = None,
    failed: Failed = _ignore,
    source: bool = True,
) -> str | None:
    """Write the report to a file; what goes wrong is a `MemguardWarning`, never an exception.

    Args:
        report: the report to keep.
        template: path, with `{rank}`, `{pid}` and `{step}` filled in; its ending chooses the form.
        rank: rank of this process in the job.
        pid: process id; this process's when left out.
        failed: told what went wrong.
        source: whether a line of the program may be shown with the warning.

    Returns:
        The path written, or None when it could not be.
    """
    try:
        path = data.expand(template, rank=rank, pid=pid, step=report.step)
        data.save(report, path)
    except Exception as error:
        failed("report file", error)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        named = clean(os.fspath(template), keep_end=True)
        mention(f"cannot write report to {named}: {clean(reason)} ({type(error).__name__})", source)
        return None
    return path


def _shown(file: str, source: bool) -> str:
    """The file's name; in the brackets of what is no file, Python does not look its lines up."""
    return file if source or file.startswith("<") else f"<{file}>"


def mention(message: str, source: bool = True) -> None:
    """Warn at the user's line with a `MemguardWarning` that no filter turns into an exception."""
    file, line = _users_line()
    with suppress(Exception):  # nor must the telling of it, whatever filters say
        warnings.warn_explicit(
            MemguardWarning(message),
            MemguardWarning,
            _shown(file, source),
            line,
            module=_module_of(file),
        )


def _statement(report: Report) -> tuple[str, int] | None:
    for finding in report.findings:
        for holder in finding.holders:
            if holder.file is not None and holder.line is not None:
                return holder.file, holder.line
    return None


def _users_line() -> tuple[str, int]:
    """File and line of the innermost frame that is the user's."""
    # The stacklevel of warnings cannot skip frames by package before Python 3.12.
    frame = sys._getframe()
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_THE_USER:
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _module_of(file: str) -> str:
    """Name of the module a file is, as warning filters know it."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return "__main__" if main == file else PurePath(file).stem or "<unknown>"
