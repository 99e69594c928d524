"""A report as text: for a terminal, a traceback or a log."""

from __future__ import annotations

import os
import shutil
import textwrap
from dataclasses import dataclass
from typing import TextIO

from memguard.records import Finding, Holder, Report
from memguard.report import drawing, words
from memguard.report.clean import columns, fit
from memguard.report.endings import endings, libraries
from memguard.units import plural

_COLORS = {
    "leak": "1;31",
    "suspect": "1;33",
    "warning": "1;33",
    "info": "1;36",
    "clean": "1;32",
    "place": "1",
    "mark": "1;31",
    "fix": "32",
    "faint": "2",
}
_NARROWEST, _WIDEST, _USUAL = 40, 120, 100
_MARGIN = 5  # columns before line numbers and before why and fix
_LABEL = 10  # columns of growth, forecast, memory
_MOST_WHY = 2  # lines of a sentence in the short text


@dataclass(frozen=True, slots=True)
class Paper:
    """What text is written on: so many columns, coloured or not."""

    width: int
    color: bool

    def paint(self, style: str, text: str) -> str:
        return f"\x1b[{_COLORS[style]}m{text}\x1b[0m" if self.color and text else text

    def labelled(self, facts: words.Facts, margin: int, label: int) -> list[str]:
        """Facts with their labels in one column and their words wrapped in the next."""
        lines = []
        for name, said in facts:
            indent = " " * (margin + label)
            parts = said.split("\n") if name == "fix" else self._wrapped(said, len(indent))
            style = "fix" if name in ("fix", "or") else ""
            for i, part in enumerate(parts):
                lead = " " * margin + self.paint("faint", name) + " " * (label - len(name))
                lines.append((indent if i else lead) + (self.paint(style, part) if style else part))
        return lines

    def _wrapped(self, said: str, indent: int) -> list[str]:
        return textwrap.wrap(said, self.width - indent, break_on_hyphens=False) or [""]


def render(report: Report, *, color: bool = False, width: int = _USUAL, short: bool = False) -> str:
    """The report as text, without a final newline.

    Args:
        report: the report to tell.
        color: paint it with ANSI colours.
        width: columns to wrap sentences at; source lines and paths are left whole. At least 40.
        short: only what fits a traceback: headline, statement, why, fix and when memory runs out.
    """
    paper = Paper(max(width, _NARROWEST), color)
    return "\n".join(_short(report, paper) if short else _full(report, paper))


def one_line(report: Report) -> str:
    """The line that closes a run: verdict, steps, beat and memguard's own cost."""
    steps = plural(report.step, "step")
    told = f"memguard: {report.verdict}{words.left_out(report)}: {steps}, {words.beat(report)}"
    if report.step <= 0 and report.verdict == "clean":
        told += ": nothing was judged"
    if report.findings:
        told += f"; {words.in_one_line(report, report.findings[0], after_others=False)}"
    if len(report.findings) > 1:
        told += f" and {plural(len(report.findings) - 1, 'more finding')}"
    if report.libraries:
        told += f"; {plural(len(report.libraries), 'known retention')} of libraries"
    if report.failures:
        told += f"; {plural(len(report.failures), 'part')} of memguard failed"
    share = words.cost(report)
    return told + (f"; memguard took {share.replace('step time', 'the time')}" if share else "")


def print_report(report: Report, stream: TextIO, *, color: bool | None = None) -> None:
    """Write the report to a stream, in colour where it is a terminal that wants colour.

    Args:
        report: the report to tell.
        stream: where to; characters its encoding lacks are replaced.
        color: force colour on or off; None asks the terminal and `NO_COLOR`.

    Raises:
        OSError: the stream cannot be written.
    """
    wanted, width = _terminal(stream)
    text = render(report, color=wanted if color is None else color, width=width)
    stream.write(fit(text + "\n", getattr(stream, "encoding", None)))
    stream.flush()


def _terminal(stream: TextIO) -> tuple[bool, int]:
    """Whether the stream is a terminal that wants colour, and how many columns to use."""
    try:
        from rich.console import Console
    except ImportError:
        is_terminal = stream.isatty()
        color = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size((_USUAL, 24)).columns
    else:
        console = Console(file=stream)
        is_terminal, width = console.is_terminal, console.width
        color = bool(is_terminal and console.color_system and not console.no_color)
        color = color and not console.legacy_windows
    return color, max(60, min(width, _WIDEST)) if is_terminal else _USUAL


def _full(report: Report, paper: Paper) -> list[str]:
    if not report.findings:
        return [_headline(report, None, paper), *_closing(report, paper)]
    lines: list[str] = []
    for finding in report.findings[: words.MOST_FINDINGS]:
        lines += [*_finding(report, finding, paper), ""]
    rest = report.findings[words.MOST_FINDINGS :]
    if rest:
        lines += [*_others(report, rest, paper), ""]
    if len(report.findings) == 1:
        lines.pop()  # the closing lines belong to the only finding's numbers
    return [*lines, *_closing(report, paper)]


def _headline(report: Report, finding: Finding | None, paper: Paper) -> str:
    mood = words.mood(report, finding)
    apart = words.left_out(report) if finding is None else ""
    return f"memguard: {paper.paint(mood, mood)}{apart}: {words.summary(report, finding)}"


def _finding(report: Report, finding: Finding, paper: Paper) -> list[str]:
    lines = [_headline(report, finding, paper), ""]
    chain: list[str] = []
    if finding.holders:
        first = finding.holders[0]
        lines += _holder(finding, first, paper)
        chain = tree(drawing.references(finding, first), paper)
    else:
        lines += _nobody(report, finding, paper)
    lines += ["", *chain, ""] if chain else [""]
    facts = words.others(finding) + words.facts(report, finding, with_total=not chain)
    if len(report.findings) > 1:
        facts.append(("found", words.found(report, finding)))
    return [*lines, *paper.labelled(facts, 2, _LABEL)]


def _holder(finding: Finding, holder: Holder, paper: Paper) -> list[str]:
    rows = drawing.source_rows(holder)
    notes = [("who", words.who(finding, holder)), *words.notes(holder)]
    notes += words.remedies(finding, holder)
    return [
        "  " + paper.paint("place", words.place(holder)),
        *source(rows, paper),
        *paper.labelled(notes, _MARGIN, _gutter(rows)),
    ]


def _nobody(report: Report, finding: Finding, paper: Paper) -> list[str]:
    said = words.unheld(report, finding)
    lines = paper.labelled([("", said)], 2, 0) if said else []
    return lines + paper.labelled(words.remedies(finding, None), _MARGIN, _gutter([]))


def _gutter(rows: list[drawing.SourceRow]) -> int:
    # why and fix are three letters, line numbers mostly no longer.
    return max([3, *(len(str(row.number)) for row in rows)]) + 2


def source(rows: list[drawing.SourceRow], paper: Paper) -> list[str]:
    """Source lines with their numbers, the holder's statement marked."""
    digits = max((len(str(row.number)) for row in rows), default=0)
    lines = []
    for row in rows:
        number = f"{row.number:>{digits}}".ljust(_gutter(rows))
        if row.marked:
            mark = paper.paint("mark", ">")
            lines.append(f"  {mark}  {number}{paper.paint('place', row.text)}")
        else:
            lines.append(f"     {paper.paint('faint', number)}{row.text}".rstrip())
    return lines


def tree(chain: list[drawing.Reference], paper: Paper) -> list[str]:
    """A chain drawn from its root down, the suspect stretch underlined."""
    lines = []
    for depth, reference in enumerate(chain):
        indent = "  " + "   " * max(depth - 1, 0) + ("└─ " if depth else "")
        lines.append(indent + reference.text)
        suspect = columns(reference.text[reference.start : reference.end])
        if suspect:
            before = len(indent) + columns(reference.text[: reference.start])
            lines.append(" " * before + paper.paint("mark", "~" * suspect))
    return lines


def _others(report: Report, findings: tuple[Finding, ...], paper: Paper) -> list[str]:
    said = [words.in_one_line(report, finding) for finding in findings]
    return paper.labelled(words.listed(said, "finding"), 2, _LABEL)


def _closing(report: Report, paper: Paper) -> list[str]:
    return paper.labelled([*endings(report), *words.closing(report)], 2, _LABEL)


def _short(report: Report, paper: Paper) -> list[str]:
    """Headline first and bare: a traceback puts the exception's name before it."""
    if not report.findings:
        return [words.summary(report), *paper.labelled(libraries(report), 2, _LABEL)]
    finding, others = report.findings[0], report.findings[1:]
    suspect = "suspect: " if words.mood(report, finding) == "suspect" else ""
    lines = [suspect + words.summary(report, finding)]
    holder = finding.holders[0] if finding.holders else None
    if holder is not None:
        rows = drawing.statement_rows(holder)
        who = [] if rows else [("who", words.who(finding, holder))]
        notes = [*who, *words.notes(holder), *words.remedies(finding, holder)]
        lines += ["  " + words.place(holder), *source(rows, paper)]
        lines += paper.labelled(_brief(notes, paper), _MARGIN, _gutter(rows))
    else:
        lines += _nobody(report, finding, paper)
    if len(finding.holders) > 1:
        lines.append(f"     and {plural(len(finding.holders) - 1, 'more holder')}")
    facts = words.facts(report, finding, with_total=True)
    pressing = [fact for fact in facts if fact[0] in ("growth", "forecast")]
    lines += paper.labelled(pressing, 2, _LABEL)
    return lines + _others(report, others, paper)


def _brief(notes: words.Facts, paper: Paper) -> words.Facts:
    room = (paper.width - _MARGIN - 5) * _MOST_WHY
    return [
        (name, textwrap.shorten(said, room, placeholder=" …") if name == "why" else said)
        for name, said in notes
    ]
