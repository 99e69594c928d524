"""The two drawings of a report, laid out but not yet painted: the source and the chain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent

from memguard.records import Finding, Holder
from memguard.report import words
from memguard.report.clean import clean, clean_lines
from memguard.units import plural

_AROUND = 4  # source lines shown on either side of the statement
_MOST_STATEMENT = 3
_MOST_REFERENCES = 14
# A long chain loses its middle: its beginning says whose it is, its end what it holds.
_KEPT_FIRST = 4
_WIDEST = 160


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source line as shown; `marked` where the holder's statement begins."""

    number: int
    text: str
    marked: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference of a chain as shown.

    Attributes:
        text: the whole line.
        start, end: the part of `text` that is suspect; equal when none is.
    """

    text: str
    start: int = 0
    end: int = 0


def source_rows(holder: Holder) -> list[SourceRow]:
    """The statement among the source lines around it, indented alike."""
    line = holder.line
    texts = {part.line: part.text for part in holder.context}
    if line is None:
        shown = sorted(texts)[: 2 * _AROUND + 1]
    else:
        if line not in texts and holder.code:
            texts.update(enumerate(clean_lines(holder.code, _WIDEST, _MOST_STATEMENT), line))
        shown = sorted(n for n in texts if abs(n - line) <= _AROUND)
    # A newline inside one line is foreign; only those of ours may split the text again.
    raw = [texts[n][: 2 * _WIDEST].expandtabs(4).replace("\n", "\\n") for n in shown]
    even = dedent("\n".join(raw)).split("\n")
    return [
        SourceRow(n, clean(text.rstrip(), _WIDEST), n == line)
        for n, text in zip(shown, even, strict=False)
    ]


def statement_rows(holder: Holder) -> list[SourceRow]:
    """The statement alone."""
    if holder.line is None or not holder.code:
        return []
    lines = clean_lines(holder.code, _WIDEST, _MOST_STATEMENT)
    return [SourceRow(n, text, n == holder.line) for n, text in enumerate(lines, holder.line)]


def references(finding: Finding, holder: Holder) -> list[Reference]:
    """The chain from root to survivors: its suspect stretch marked, what it keeps at the end."""
    drawn = chain(holder.chain, holder.name)
    if not drawn:
        return []
    leaf = words.survivors(finding, holder)
    return drawn if leaf is None or _is_leaf(drawn[-1].text) else [*drawn, Reference(leaf)]


def chain(entries: Sequence[str], name: str) -> list[Reference]:
    """A chain with the references from `name` on marked, its middle left out when it is long."""
    entries = [clean(entry, _WIDEST) for entry in entries]
    if not entries:
        return []
    suspect = _suspect_from(entries, name)
    drawn = [_reference(entry, name, i - suspect) for i, entry in enumerate(entries)]
    if len(drawn) > _MOST_REFERENCES:
        left_out = len(drawn) - _MOST_REFERENCES + 1
        gap = Reference(f"… {plural(left_out, 'reference')} left out")
        drawn = [*drawn[:_KEPT_FIRST], gap, *drawn[_KEPT_FIRST + left_out :]]
    return drawn


def _suspect_from(entries: Sequence[str], name: str) -> int:
    for wanted in _spellings(name):
        found = [i for i, entry in enumerate(entries) if _position(entry, wanted) >= 0]
        if found:
            return found[-1]
    return len(entries) - 1


def _spellings(name: str) -> list[str]:
    """The name, then its parts, last first: a chain says `.history` of `trainer.history`."""
    whole = clean(name)
    return [whole, *reversed(re.findall(r"[^\W\d]\w*", whole))]


def _position(entry: str, name: str) -> int:
    match = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", _label(entry)) if name else None
    return match.start() if match else -1


def _label(entry: str) -> str:
    # The type of what is referred to follows the reference: "losses: list of 9".
    return entry.partition(": ")[0]


def _is_leaf(entry: str) -> bool:
    return _label(entry).rstrip("s") in ("graph", "tensor")


def _reference(entry: str, name: str, offset: int) -> Reference:
    if offset < 0 or entry == "…" or _is_leaf(entry):
        return Reference(entry)
    start = 0
    if offset == 0:
        positions = (_position(entry, wanted) for wanted in _spellings(name))
        start = next((position for position in positions if position >= 0), 0)
    return Reference(entry, start, len(_label(entry)))
