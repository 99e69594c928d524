"""What a report tells apart from its findings: libraries' retentions, and suppressions."""

from __future__ import annotations

from dataclasses import replace

from memguard.records import Finding, Report, Suppression
from memguard.report import words
from memguard.report.clean import clean
from memguard.units import format_count, plural

_MOST = 5  # of each sort, before "and N more"
_PATTERN, _REASON, _LINK = 100, 200, 160


def endings(report: Report) -> words.Facts:
    """The labelled lines between the findings and the closing figures; none on a plain report."""
    return [*libraries(report), *_ignored(report), *_suppressions(report)]


def libraries(report: Report) -> words.Facts:
    """Known retentions of libraries: who keeps what, why, what to do, and where it says so."""
    said: words.Facts = []
    for finding in report.libraries[:_MOST]:
        known = finding.known
        if known is None:
            continue
        name = f"{clean(known.library, 60)} {clean(known.version, 40)}"
        said.append(("library", f"{name}: {_who(finding)}"))
        said.append(("", clean(known.why, _REASON)))
        said.append(("", clean(known.remedy, _REASON)))
        said.append(("", clean(known.link, _LINK)))
    return said + _more(report.libraries, "known retention")


def _who(finding: Finding) -> str:
    if not finding.holders:
        return clean(finding.summary, _REASON)
    return words.who(finding, finding.holders[0])


def _ignored(report: Report) -> words.Facts:
    said: words.Facts = []
    # The verdict is about what was not ignored; what was is told as it was found.
    as_found = replace(report, verdict="leak")
    for one in report.ignored[:_MOST]:
        told = words.in_one_line(as_found, one.finding)
        fingerprint = clean(one.finding.fingerprint, 64)
        said.append(("ignored" if not said else "", f"{told}; fingerprint {fingerprint}"))
    return said + _more(report.ignored, "finding")


def _suppressions(report: Report) -> words.Facts:
    """Each suppression with how often it was of use; those of no use last."""
    order = sorted(report.suppressions, key=lambda one: not one.used)
    said: words.Facts = []
    for one in order[: 2 * _MOST]:
        said.append(("ignoring" if not said else "", _use(one)))
    return said + _more(order, "suppression", 2 * _MOST)


def _use(one: Suppression) -> str:
    used = f"left out {plural(one.used, 'finding')}" if one.used else "never used"
    place = f" ({clean(one.where, _PATTERN, keep_end=True)})" if one.where else ""
    reason = f": {clean(one.reason, _REASON)}" if one.reason else ""
    return f"{clean(one.pattern, _PATTERN)}{place} {used}{reason}"


def _more(
    told: tuple[object, ...] | list[Suppression], noun: str, most: int = _MOST
) -> words.Facts:
    more = len(told) - most
    return (
        [("", f"and {format_count(more)} more {noun}{'' if more == 1 else 's'}")]
        if more > 0
        else []
    )
