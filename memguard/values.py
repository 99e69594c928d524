"""How one setting's value is read: text or an object in, the setting's value out.

Each reader takes the value and the folder where a relative path starts, and raises ValueError,
TypeError or LookupError for what it does not accept; `settings` turns that into words.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from memguard.units import format_bytes, parse_share, parse_size

Action = Literal["raise", "warn", "log", "off"]

_ACTIONS: dict[str, Action] = {
    **dict.fromkeys(("raise", "1", "true", "yes", "on"), "raise"),
    "warn": "warn",
    "log": "log",
    **dict.fromkeys(("off", "0", "false", "no"), "off"),
}
_WHOLE_NUMBER = re.compile(r"\s*[0-9]{1,18}\s*")
_REPORT_ENDINGS = (".json", ".html", ".txt")
_REPORT_FIELDS = ("rank", "pid", "step")


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


def read_ignore(value: Any, folder: str) -> tuple[str, ...]:
    """Patterns from one text, from several, or from files of one pattern a line."""
    given = [value] if isinstance(value, (str, os.PathLike)) else list(value)
    return tuple(pattern for entry in given for pattern in _patterns(entry, folder))


def _patterns(entry: Any, folder: str) -> Iterator[str]:
    path = os.path.join(folder, os.fspath(entry))
    # `train.py` beside the folder's own train.py means that script's findings, not a list in it.
    if isinstance(entry, os.PathLike) or (os.path.isfile(path) and not path.endswith(".py")):
        try:
            with open(path, encoding="utf-8-sig") as file:
                lines = file.read().splitlines()
        except OSError as error:
            raise ValueError(entry) from error
    elif isinstance(entry, str):
        lines = entry.replace(",", "\n").splitlines()
    else:
        raise TypeError(entry)
    for line in lines:
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            yield pattern
