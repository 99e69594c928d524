"""Patterns of findings to leave out: how they are written, alone or in a file with reasons.

A pattern is `field:glob`, several joined with ` & ` must all match, and a glob without a field
matches any of them. `*` stands for any text and `?` for one character; brackets mean themselves,
since holders have them: `losses[...]`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence

FIELDS = ("fingerprint", "kind", "holder", "file", "module")

_FIELD = re.compile(r"([A-Za-z]{2,}):(.*)", re.DOTALL)
# With blanks around it, or before a field: a file's name may have an `&` of its own.
_JOINED = re.compile(rf"\s+&(?:\s+|$)|^&\s+|\s*&\s*(?=(?:{'|'.join(FIELDS)}):)")
_REASON = re.compile(r"(?:^|\s)#\s*(.*)", re.DOTALL)


class Pattern(str):
    """One pattern, which is its own text.

    Attributes:
        reason: why findings are left out, in the user's words.
        where: file and line it was read from, `known.txt:3`; empty for one that was given itself.
    """

    reason: str
    where: str

    def __new__(cls, text: str, reason: str = "", where: str = "") -> Pattern:
        pattern = super().__new__(cls, text)
        pattern.reason, pattern.where = reason, where
        return pattern

    def matches(self, words: Mapping[str, Sequence[str]]) -> bool:
        """Whether each of its parts matches one of the words of its field."""
        return all(
            any(map(re.compile(_glob(glob)).fullmatch, _words_of(words, field)))
            for field, glob in parts_of(self)
        )


def _words_of(words: Mapping[str, Sequence[str]], field: str) -> Iterator[str]:
    for name in (field,) if field else FIELDS:
        yield from words.get(name, ())


def _glob(glob: str) -> str:
    return fnmatch.translate(glob.replace("[", "[[]"))


def parts_of(text: str) -> list[tuple[str, str]]:
    """(field, glob) of each part of a pattern; the field is empty where any may match.

    Raises:
        ValueError: a part begins with a word and a colon, and the word is no field; or nothing
            follows the colon or stands beside an `&`, so that it could never match.
    """
    parts = []
    for part in _JOINED.split(text):
        match = _FIELD.fullmatch(part.strip())
        field, glob = (match[1], match[2].strip()) if match is not None else ("", part.strip())
        if field and field not in FIELDS:
            raise ValueError(f"{field!r}{{}} is no field, known are {', '.join(FIELDS)}")
        if not glob:
            raise ValueError(f"{text.strip()!r}{{}} has an empty part, which matches nothing")
        parts.append((field, glob))
    return parts


def read_line(line: str) -> tuple[str, str]:
    """(pattern, reason) of a line `pattern  # reason`; both may be empty."""
    match = _REASON.search(line)
    text = line[: match.start()] if match is not None else line
    return text.strip(), match[1].strip() if match is not None else ""


def read_lines(lines: Sequence[str], name: str) -> Iterator[Pattern]:
    """The patterns of a file of them.

    A comment behind a pattern is its reason; comments on lines of their own are the reason of the
    patterns below them, up to the next blank line.

    Args:
        lines: the file's lines.
        name: how the file is called in reports.

    Raises:
        ValueError: a pattern is wrong; the message says in which line.
    """
    above: list[str] = []
    commenting = False
    for number, line in enumerate(lines, start=1):
        text, reason = read_line(line)
        if not text and reason:
            above = [*above, reason] if commenting else [reason]
        elif not line.strip():
            above = []
        commenting = not text and bool(line.strip())
        if text:
            yield checked(Pattern(text, reason or " ".join(above), f"{name}:{number}"))


def checked(pattern: Pattern) -> Pattern:
    """The pattern, when it can be read.

    Raises:
        ValueError: it names an unknown field or has an empty part; the message says where.
    """
    try:
        parts_of(pattern)
    except ValueError as error:
        place = f" in {pattern.where}" if pattern.where else ""
        raise ValueError(str(error).replace("{}", place)) from None
    return pattern
