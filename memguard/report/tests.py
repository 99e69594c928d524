"""What is said about tests that leave something behind: the failure, the table, the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memguard.records import Finding, Holder
from memguard.report import drawing, words
from memguard.report.clean import clean
from memguard.report.text import Paper, source, tree
from memguard.units import format_bytes, plural

SCHEMA = "memguard.tests/1"
_WORTH_TELLING = 1024
_LABEL = 10
_MARGIN = 5
_MOST_ROWS = 20
_NAME = 60


def summary(
    name: str, graphs: int, tensors: int, modules: int, optimizers: int, *, size: int
) -> str:
    """The headline: `test_train leaves 3 graphs behind, 1.2 MiB`."""
    counts = ((modules, "module"), (optimizers, "optimizer"), (graphs, "graph"))
    parts = [plural(count, noun) for count, noun in counts if count]
    # What a graph has saved is tensors, too.
    if tensors and not graphs:
        parts.append(plural(tensors, "tensor"))
    told = " and ".join(parts) or "something"
    weight = f", {format_bytes(size)}" if size >= _WORTH_TELLING else ""
    return f"{clean(name, _NAME)} leaves {told} behind{weight}"


def render(finding: Finding, runs: int, *, color: bool = False, width: int = 100) -> str:
    """A leaky test's failure: headline, line, why, fix and chain.

    Args:
        finding: what was left behind, and who holds it.
        runs: how often the test was run.
        color: paint it with ANSI colours.
        width: columns to wrap sentences at.
    """
    finding = _of_runs(finding)
    paper = Paper(width, color)
    lines = [paper.paint("leak", clean(finding.summary, 240)), ""]
    if finding.holders:
        lines += _holder(finding, finding.holders[0], paper)
    else:
        lines += paper.labelled([("", finding.unnamed)], 2, 0)
    facts = list(words.others(finding))
    if runs > 1:
        facts.append(("growth", f"each of {plural(runs, 'run')} left something more"))
    else:
        facts.append(("growth", "judged by one run (repeat=1)"))
    facts.append(("memguard", f"fingerprint {clean(finding.fingerprint, 40)}"))
    return "\n".join([*lines, "", *paper.labelled(facts, 2, _LABEL)])


def _holder(finding: Finding, holder: Holder, paper: Paper) -> list[str]:
    rows = drawing.source_rows(holder)
    notes = [("who", words.who(finding, holder)), *words.notes(holder)]
    notes += words.remedies(finding, holder)
    return [
        "  " + paper.paint("place", words.place(holder)),
        *source(rows, paper),
        *paper.labelled(notes, _MARGIN, max([3, *(len(str(row.number)) for row in rows)]) + 2),
        "",
        *tree(drawing.references(finding, holder), paper),
    ]


def _of_runs(finding: Finding) -> Finding:
    """The finding in words of tests, which have runs where loops have steps."""
    holders = tuple(
        replace(
            one, why=one.why.replace("every step", "every run").replace("each step", "each run")
        )
        for one in finding.holders
    )
    return replace(finding, holders=holders)


def mended(name: str, reason: str) -> str:
    """The failure of a test that is marked leaky and is not."""
    told = f" ({clean(reason, 200)})" if reason else ""
    return (
        f"{clean(name, _NAME)} is marked leaky{told} but leaves nothing behind: take the mark off"
    )


def expected(label: str, holder: str) -> str:
    """The failure of `expect_freed`."""
    return (
        f"{clean(label, 200)} was expected to be freed with the test and is still alive\n\n{holder}"
    )


def row(
    test: str, outcome: str, finding: Finding | None, *, seconds: float = 0.0, note: str = ""
) -> dict[str, Any]:
    """One test as plain data: a row of the table and of the session's file."""
    holder = finding.holders[0] if finding is not None and finding.holders else None
    total = finding.growth.total if finding is not None else None
    return {
        "test": test,
        "outcome": outcome,
        "kind": finding.kind if finding is not None else "",
        "survivors": int(total.graphs) if total is not None else 0,
        "nodes": total.nodes if total is not None else 0,
        "bytes": total.bytes if total is not None else 0,
        "holder": holder.name if holder is not None else "",
        "where": holder.where if holder is not None else "",
        "file": holder.file if holder is not None else None,
        "line": holder.line if holder is not None else None,
        "chain": list(holder.chain) if holder is not None else [],
        "fix": holder.fix if holder is not None else None,
        "summary": finding.summary if finding is not None else "",
        "fingerprint": finding.fingerprint if finding is not None else "",
        "seconds": round(seconds, 6),
        "note": note,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tests that left something, the heaviest first, in aligned columns."""
    worst = sorted(rows, key=lambda row: (-row["bytes"], -row["survivors"], row["test"]))
    cells = [("test", "outcome", "kind", "survivors", "bytes", "holder")]
    for one in worst[:_MOST_ROWS]:
        at = f" ({one['where']})" if one["where"] else ""
        cells.append(
            (
                clean(one["test"], 100, keep_end=True),
                one["outcome"],
                one["kind"],
                str(one["survivors"]),
                format_bytes(one["bytes"]),
                clean(one["holder"] + at, 80) or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    more = len(worst) - _MOST_ROWS
    return lines + ([f"and {plural(more, 'more test')}"] if more > 0 else [])


def slowest(rows: Sequence[Mapping[str, Any]], most: int = 3) -> str:
    """The tests whose judging took longest, in one line; empty where none took 10 ms."""
    slow = sorted((row for row in rows if row["seconds"] >= 0.01), key=lambda row: -row["seconds"])
    told = [f"{row['test']} {row['seconds']:.2f} s" for row in slow[:most]]
    return f"judging took longest for {', '.join(told)}" if told else ""


def closing(
    rows: Sequence[Mapping[str, Any]], judged: int, texts: Sequence[str], verbosity: int
) -> list[str]:
    """What ends a session: a line with -q, the table, and with -v all that was said."""
    leaked = sum(row["outcome"] == "leaked" for row in rows)
    line = f"{plural(judged, 'test')} judged, {leaked or 'none'} leaked"
    if not rows:
        return [line] if verbosity > 0 else []
    if verbosity < 0:
        return [line]
    lines = [*table(rows), line]
    if verbosity > 0:
        for text in filter(None, texts):
            lines += ["", *text.split("\n")]
        told = slowest(rows)
        lines += ["", told] if told else []
    return lines


def session(rows: Sequence[Mapping[str, Any]], judged: int, seconds: float) -> dict[str, Any]:
    """The session as plain data, ready for `json.dumps`."""
    outcomes = [row["outcome"] for row in rows]
    return {
        "schema": SCHEMA,
        "judged": judged,
        "leaked": outcomes.count("leaked"),
        "seconds": round(seconds, 6),
        "tests": [dict(row) for row in rows],
    }
