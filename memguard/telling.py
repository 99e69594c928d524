"""Telling of findings as the settings say: the user's function, the action, the report file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from memguard import _torch, reactions
from memguard.errors import LeakError, LeakWarning
from memguard.parts import Parts
from memguard.reactions import NAMES, Action
from memguard.records import Report
from memguard.references import imported
from memguard.report.clean import clean
from memguard.settings import Function, Settings
from memguard.values import read_action

# Files written in the course of a run, by names that differ (`{step}`); the last report is written
# in any case.
MOST_FILES = 4


class Teller:
    """Tells what was found. Whatever of it fails is named in the report, and the job goes on.

    Attributes:
        should_stop: whether a leak was told that the loop is to be stopped for.
        before_raising: called with the report of a leak that is about to be raised.
    """

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._files: set[str] = set()
        self.should_stop = False
        self.before_raising: Callable[[Report], None] | None = None

    def tell(self, report: Report, news: Report) -> None:
        """Tell the user of news.

        Args:
            report: all that is known.
            news: the same with nothing but what was not told before.

        Raises:
            LeakError: the action, or the user's function, says so.
            LeakWarning: filters turn the warning of a leak into an exception.
        """
        self.write(report)
        is_leak = news.verdict == "leak"
        action: Action = self._settings.action
        if is_leak and self._settings.on_leak is not None:
            action = self._asked(self._settings.on_leak, report) or action
        if is_leak and action == "raise" and self.before_raising is not None:
            self._parts.do("display", self.before_raising, report)
        if is_leak and action == "stop":
            self.should_stop = True
        try:
            reactions.react(action, news, self._parts.note, self._settings.source)
        except LeakError:
            raise
        except LeakWarning:
            # Filters turn warnings into errors; only a leak may end the job.
            if is_leak:
                raise
        except Exception as error:
            self._parts.note("reaction", error)

    def _asked(self, function: Function, report: Report) -> Action | None:
        """What the user's function wants to be done; None where it leaves that to the settings."""
        try:
            wanted = imported(function)(report)
            return None if wanted is None else _action(wanted)
        except LeakError:
            raise
        except Exception as error:
            # Its own failure, such as a disk too full for a checkpoint, hides no leak.
            self._parts.note("on_leak", error)
            failed = f"on_leak failed with {type(error).__name__}: {clean(str(error), 200)}"
            reactions.mention(f"{failed}; doing {self._settings.action} instead")
            return None

    def write(self, report: Report, last: bool = False) -> None:
        """Write the report file, where one is asked for; only a few of different names."""
        if self._settings.report is None or (not last and len(self._files) >= MOST_FILES):
            return
        rank = self._parts.do("rank", _torch.rank) or 0
        template, source = self._settings.report, self._settings.source
        path = reactions.write(report, template, rank, None, self._parts.note, source)
        if path is not None:
            self._files.add(path)


def _action(wanted: object) -> Action:
    # Yes and no would leave open what is meant by them.
    if isinstance(wanted, str):
        with suppress(LookupError):
            return read_action(wanted, "")
    shown = clean(wanted, 40) if isinstance(wanted, str) else type(wanted).__name__
    raise ValueError(f"it returned {shown}; accepted: None, {', '.join(NAMES)}")
