"""How one setting's value is read: text or an object in, the setting's value out.

Each reader takes the value and the folder where a relative path starts, and raises ValueError,
TypeError or LookupError for what it does not accept; `settings` turns that into words.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from memguard.patterns import Pattern, checked, read_line, read_lines
from memguard.units import format_bytes, parse_share, parse_size

Action = Literal["raise", "warn", "log", "stop", "off"]

_SWITCH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_ACTIONS: dict[str, Action] = {
    **{word: "raise" if on else "off" for word, on in _SWITCH.items()},
    "raise": "raise",
    "warn": "warn",
    "log": "log",
    "stop": "stop",
}
_WHOLE_NUMBER = re.compile(r"\s*[0-9]{1,18}\s*")
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_LONGEST = 1e6  # some eleven days; beyond years, waiting overflows
_REPORT_ENDINGS = (".json", ".html", ".txt")
_REPORT_FIELDS = ("rank", "pid", "step")
_LONGEST_SHOWN = 80
# Names that nobody gives to what a finding is about, so that a list which is missing is noticed.
_LIST_ENDINGS = (".txt", ".supp", ".ignore")
_WILD = re.compile(r"[*?:]")


def shown(value: object) -> str:
    """What was found instead of a value that is accepted, in one line of an error message."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a value's own repr may do anything
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


@dataclass(frozen=True, slots=True)
class Size:
    """An amount of memory: so many bytes, or a share of a total known later.

    Attributes:
        bytes: the amount; None when it is a share.
        share: share of the total, above 0 and at most 1; None when it is bytes.
    """

    bytes: int | None = None
    share: float | None = None

    def of(self, total: int) -> int:
        """The bytes meant, given that the whole is `total` bytes."""
        return self.bytes if self.bytes is not None else int((self.share or 0.0) * total)

    def __str__(self) -> str:
        if self.bytes is not None:
            return format_bytes(self.bytes)
        return f"{100 * (self.share or 0.0):g}%"


def read_action(value: Any, folder: str) -> Action:
    """A reaction by its name, or the usual words and numbers for yes and no."""
    if not isinstance(value, (str, bool, int)):
        raise TypeError(value)
    return _ACTIONS[str(value).strip().lower()]


def read_switch(value: Any, folder: str) -> bool:
    """Yes or no, by the usual words and numbers."""
    if not isinstance(value, (str, bool, int)):
        raise TypeError(value)
    return _SWITCH[str(value).strip().lower()]


def read_steps(value: Any, folder: str) -> int:
    """A number of steps, 1 or more."""
    steps = _whole(value)
    if steps < 1:
        raise ValueError(value)
    return steps


def _whole(value: Any) -> int:
    # True and False are integers to Python, but nobody means one step by `window=True`.
    if isinstance(value, bool):
        raise TypeError(value)
    if isinstance(value, str):
        if not _WHOLE_NUMBER.fullmatch(value):
            raise ValueError(value)
        return int(value)
    return operator.index(value)


def read_size(value: Any, folder: str) -> Size:
    """More than nothing: a whole number of bytes, a size with a unit, or a percentage."""
    if isinstance(value, Size):
        return value
    if isinstance(value, str) and "%" in value:
        size = Size(share=parse_share(value))
    else:
        size = Size(bytes=parse_size(value) if isinstance(value, str) else _whole(value))
    if not (size.bytes or size.share) or (size.bytes or 0) < 0:
        raise ValueError(value)
    return size


def read_share(value: Any, folder: str) -> float:
    """A share above 0 and at most 1, as a number or a percentage."""
    if isinstance(value, bool) or not isinstance(value, (str, Real)):
        raise TypeError(value)
    share = parse_share(value) if isinstance(value, str) else float(value)
    # Written so that a NaN is refused too.
    if not 0.0 < share <= 1.0:
        raise ValueError(value)
    return share


def read_seconds(value: Any, folder: str) -> float:
    """A number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, (str, Real)):
        raise TypeError(value)
    seconds = float(value)
    if not 0.0 < seconds < _LONGEST:
        raise ValueError(value)
    return seconds


def read_function(value: Any, folder: str) -> Callable[..., Any] | str:
    """A function, or where it will be found: nothing is imported before it is called."""
    if callable(value):
        function: Callable[..., Any] = value
        return function
    if not isinstance(value, str) or not _REFERENCE.fullmatch(value.strip()):
        raise ValueError(value)
    return value.strip()


def read_report(value: Any, folder: str) -> str:
    """A file name memguard can write a report to, made absolute."""
    path = os.fspath(value)
    if not isinstance(path, str) or not path.lower().endswith(_REPORT_ENDINGS):
        raise ValueError(value)
    # Only these three, letter for letter: format fields could otherwise reach into objects.
    plain = re.sub("{(" + "|".join(_REPORT_FIELDS) + ")}", "", path)
    if "{" in plain or "}" in plain:
        raise ValueError(value)
    # A script that changes folder must not move the report.
    return os.path.join(folder, path)


class Unreadable(ValueError):
    """A value is of the right sort and yet wrong; the message says in a few words how."""


def read_ignore(value: Any, folder: str) -> tuple[Pattern, ...]:
    """Patterns from one text, from several, or from files of one pattern a line.

    Commas part the patterns of one text, as the environment and the command line have it. In a list
    each entry is one pattern, commas and all, or one file.
    """
    if isinstance(value, str) and not isinstance(value, Pattern):
        return tuple(p for line in value.splitlines() for p in _in_line(line, folder))
    given = [value] if isinstance(value, (str, os.PathLike)) else list(value)
    return tuple(pattern for entry in given for pattern in _patterns(entry, folder))


def _in_line(line: str, folder: str) -> list[Pattern]:
    """The patterns and files of one line; a reason behind them is that of each pattern."""
    if _is_list(line.strip(), folder):
        return _patterns(line.strip(), folder)
    text, reason = read_line(line)
    found: list[Pattern] = []
    for part in filter(None, map(str.strip, text.split(","))):
        found += _patterns(part, folder, reason)
    return found


def _is_list(entry: str, folder: str) -> bool:
    """Whether the text is the name of a file of patterns.

    `train.py` beside the folder's own train.py means that script's findings, not a list.
    """
    return os.path.isfile(os.path.join(folder, entry)) and not entry.endswith(".py")


def _patterns(entry: Any, folder: str, reason: str = "") -> list[Pattern]:
    if isinstance(entry, Pattern):
        return [checked(entry)]  # read before, as settings that are handed on
    try:
        if isinstance(entry, os.PathLike) or (isinstance(entry, str) and _is_list(entry, folder)):
            return list(read_lines(_lines(os.path.join(folder, entry)), os.fspath(entry)))
        if not isinstance(entry, str):
            raise TypeError(entry)
        if entry.lower().endswith(_LIST_ENDINGS) and not _WILD.search(entry):
            raise Unreadable("there is no such file")
        lines = [read_line(line) for line in entry.splitlines()]
        return [checked(Pattern(text, why or reason)) for text, why in lines if text]
    except ValueError as error:
        raise Unreadable(str(error)) from None


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read().splitlines()
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is no UTF-8 text") from error


def current_folder() -> str:
    """Where relative paths start, also in a folder that was deleted under us."""
    try:
        return os.getcwd()
    except OSError:
        return os.curdir
