"""A report as one HTML file that needs nothing else: no script, no network, no second file."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from memguard.records import Finding, Holder, Report
from memguard.report import drawing, ledger, words
from memguard.report.clean import clean
from memguard.report.endings import endings
from memguard.units import plural

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --paper: #fdfdfb; --card: #fff; --line: #dcdfe4;
  --faint: #626b7a; --leak: #b3261e; --warn: #8a5300; --good: #1a7040; --info: #175e97;
  --mark: #fdecea; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ec; --paper: #14171c; --card: #1b1f26;
  --line: #343b46; --faint: #99a3b3; --leak: #ff8a80; --warn: #f3b95f; --good: #79d29a;
  --info: #84c5f7; --mark: #3a2323; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 62rem; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, sans-serif; }
h1, h2 { line-height: 1.3; margin: 0 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; }
h3 { font-size: .95rem; color: var(--faint); margin: 1.5rem 0 .4rem; }
article, header, footer { margin: 0 0 1.5rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 1.2rem 1.4rem; }
.mood { border: 1px solid; border-radius: 4px; padding: .05em .45em; margin-right: .5em;
  font-size: .8em; font-weight: 600; }
.leak { color: var(--leak); } .suspect, .warning { color: var(--warn); }
.clean { color: var(--good); } .info { color: var(--info); }
.place { font-weight: 600; margin: .8rem 0 .3rem; overflow-wrap: anywhere; }
pre, code, .fix dd, .or dd { font: .9rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
pre { overflow-x: auto; margin: 0; padding: .6rem 0; border: solid var(--line);
  border-width: 1px 0; }
pre span { display: block; min-height: 1.5em; padding: 0 .6rem; min-width: max-content; }
pre i { color: var(--faint); font-style: normal; user-select: none; }
pre .here { background: var(--mark); font-weight: 600; }
pre u { text-decoration: underline wavy var(--leak); text-underline-offset: 3px; }
dl { margin: .8rem 0 0; } dl div { display: flex; gap: 1rem; padding: .15rem 0; }
dt { flex: 0 0 5.5rem; color: var(--faint); }
dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.fix dd { color: var(--good); font-weight: 600; white-space: pre-wrap; }
details { color: var(--faint); } summary { cursor: pointer; }
@media print { body { padding: 0; max-width: none; } article { break-inside: avoid; }
  pre { overflow: visible; white-space: pre-wrap; } }
"""


def render(report: Report) -> str:
    """The report as a complete HTML page, everything foreign in it escaped."""
    # Whoever renders a stranger's report runs nothing of it, even were an escape forgotten.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    findings = "".join(_finding(report, finding) for finding in report.findings)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>memguard: {_html(report.verdict)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{_header(report)}{findings}{_memory(report)}{_footer(report)}</body>\n</html>\n"
    )


def _html(text: object) -> str:
    # Lone surrogates and control characters were already made harmless by clean.
    return escape(str(text), quote=True)


def _header(report: Report) -> str:
    headline = words.summary(report)
    if report.findings:
        found = plural(len(report.findings), "finding")
        headline = f"{found} in {plural(report.step, 'step')}"
    if report.ignored:
        headline = f"{words.left_out(report).strip()}: {headline}"
    return f"<header><h1>{_mood(report.verdict)}{_html(headline)}</h1></header>\n"


def _mood(word: str) -> str:
    return f'<span class="mood {_html(word)}">{_html(word)}</span>'


def _finding(report: Report, finding: Finding) -> str:
    parts = [
        f"<h2>{_mood(words.mood(report, finding))}{_html(words.summary(report, finding))}</h2>"
    ]
    chain = ""
    if finding.holders:
        first = finding.holders[0]
        parts.append(_holder(finding, first))
        chain = _chain(drawing.references(finding, first))
    else:
        said = words.unheld(report, finding)
        parts += [f"<p>{_html(said)}</p>"] if said else []
        parts.append(_facts(words.remedies(finding, None)))
    if chain:
        parts.append(f"<h3>What refers to what</h3>{chain}")
    facts = words.others(finding)
    facts += words.facts(report, finding, with_total=not chain)
    parts.append(_facts([*facts, ("found", words.found(report, finding))]))
    return "<article>\n" + "\n".join(part for part in parts if part) + "\n</article>\n"


def _holder(finding: Finding, holder: Holder) -> str:
    notes = [("who", words.who(finding, holder)), *words.notes(holder)]
    place = f'<p class="place">{_html(words.place(holder))}</p>'
    return place + _source(holder) + _facts([*notes, *words.remedies(finding, holder)])


def _source(holder: Holder) -> str:
    rows = drawing.source_rows(holder)
    if not rows:
        return ""
    digits = max(len(str(row.number)) for row in rows)
    lines = [
        f"<span{' class=here' if row.marked else ''}><i>{row.number:>{digits}}  </i>"
        f"{_html(row.text)}</span>"
        for row in rows
    ]
    return f"<pre>{''.join(lines)}</pre>"


def _chain(chain: list[drawing.Reference]) -> str:
    lines = []
    for depth, reference in enumerate(chain):
        text, start, end = reference.text, reference.start, reference.end
        suspect = f"<u>{_html(text[start:end])}</u>" if start < end else ""
        branch = "   " * (depth - 1) + "└─ " if depth else ""
        lines.append(
            f"<span><i>{branch}</i>{_html(text[:start])}{suspect}{_html(text[end:])}</span>"
        )
    return f"<pre>{''.join(lines)}</pre>" if lines else ""


def _facts(facts: words.Facts) -> str:
    rows = "".join(
        f"<div{_class(label)}><dt>{_html(label)}</dt><dd>{_html(said)}</dd></div>"
        for label, said in facts
    )
    return f"<dl>{rows}</dl>" if rows else ""


def _class(label: str) -> str:
    return ' class="fix"' if label == "fix" else ""


def _memory(report: Report) -> str:
    if not report.ledger.accounts:
        return ""
    lines = (f"<span>{_html(line)}</span>" for line in ledger.render(report.ledger).split("\n"))
    return f"<article>\n<h2>Where memory is</h2><pre>{''.join(lines)}</pre>\n</article>\n"


def _footer(report: Report) -> str:
    known: dict[str, Mapping[str, Any]] = {
        "environment": report.environment,
        "clock": report.clock,
        "overhead": report.overhead,
    }
    rows = [
        (clean(key, 40), clean(value, 200))
        for data in known.values()
        for key, value in list(data.items())[:40]
    ]
    details = f"<details><summary>Environment</summary>{_facts(rows)}</details>" if rows else ""
    return f"<footer>{_facts(endings(report))}{_facts(words.closing(report))}\n{details}</footer>\n"
