"""What memguard raises and warns with; imports nothing else of the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memguard.records import Report


class MemguardError(Exception):
    """Base of every exception memguard raises on its own account."""


class SettingsError(MemguardError, ValueError):
    """A setting has a value memguard cannot read; the message says which, and what is accepted."""


class UsageError(MemguardError, TypeError):
    """A call was made with something memguard cannot work with; the message says with what."""


class ReportError(MemguardError, ValueError):
    """A saved report cannot be read back; the message says why."""


class LeakError(MemguardError, RuntimeError):
    """Memory is leaking; raised out of the step that confirmed it.

    Its message is the short report, so a plain traceback already names variable and line.

    Attributes:
        report: the whole `Report`, the same that a report file would hold.
    """

    report: Report

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[type[LeakError], tuple[str, Report]]:
        return type(self), (str(self), self.report)


class LeakWarning(UserWarning):
    """Memory is leaking, or grows in a way worth a look; the loop goes on."""


class MemguardWarning(UserWarning):
    """memguard could not do something it was asked to do; the loop goes on."""


def leak_behind(error: BaseException) -> LeakError | None:
    """The leak that made a program fail: the exception itself, or what it was raised from."""
    seen: set[int] = set()
    part: BaseException | None = error
    while part is not None and id(part) not in seen:
        if isinstance(part, LeakError):
            return part
        seen.add(id(part))
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return None


# Tracebacks and warning filters show the name a user imports.
for _public in (
    MemguardError,
    SettingsError,
    UsageError,
    ReportError,
    LeakError,
    LeakWarning,
    MemguardWarning,
):
    _public.__module__ = "memguard"
