"""Taking the program's source out of a report that is to leave the house."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from memguard.records import Finding, Holder, Report


def without_source(report: Report) -> Report:
    """The report without lines of the program, as written or rewritten.

    Names of variables, functions and files, and line numbers stay: they are what a report is for.
    """
    ignored = (replace(one, finding=_finding(one.finding)) for one in report.ignored)
    return replace(
        report,
        findings=_all(report.findings),
        libraries=_all(report.libraries),
        ignored=tuple(ignored),
    )


def _all(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(map(_finding, findings))


def _finding(finding: Finding) -> Finding:
    # The advice is the holder's line, rewritten.
    return replace(finding, holders=tuple(map(_holder, finding.holders)), advice="")


def _holder(holder: Holder) -> Holder:
    return replace(holder, code=None, context=(), fix=None, alternative=None)
