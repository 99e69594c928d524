"""Sorts findings: the user's own, a library's known retention, or left out by a suppression."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from memguard.catalogue import known_retention
from memguard.patterns import Pattern
from memguard.records import Finding, Holder, Ignored, Suppression

# Folders of a file that may count as packages of its module.
_MOST_PACKAGES = 8


class Triage:
    """Sorts the findings of one guard, and notes which suppressions were of use.

    Args:
        patterns: the suppressions in force.
    """

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        # By fingerprint: a finding that is made again as it grows is still one.
        self._ignored: dict[str, Ignored] = {}
        self._matched: dict[int, set[str]] = {}

    def sort(self, finding: Finding) -> Finding | None:
        """The finding as it is to be told; None when a suppression leaves it out.

        A library's known retention is marked as such and is no more than a warning: nothing that
        the user has written is at fault.
        """
        words = words_of(finding)
        matching = [i for i, pattern in enumerate(self._patterns) if pattern.matches(words)]
        for index in matching:
            self._matched.setdefault(index, set()).add(finding.fingerprint)
        if matching:
            pattern = self._patterns[matching[0]]
            ignored = Ignored(finding, str(pattern), pattern.reason, pattern.where)
            self._ignored[finding.fingerprint] = ignored
            return None
        known = known_retention(finding)
        return replace(finding, severity="warning", known=known) if known is not None else finding

    def ignored(self) -> tuple[Ignored, ...]:
        """What was left out, in the order in which it was found."""
        return tuple(self._ignored.values())

    def suppressions(self) -> tuple[Suppression, ...]:
        """Each pattern, with how many findings it matched; those of no use among them."""
        return tuple(
            Suppression(str(one), len(self._matched.get(index, ())), one.reason, one.where)
            for index, one in enumerate(self._patterns)
        )


def words_of(finding: Finding) -> dict[str, list[str]]:
    """What the patterns of each field are matched with."""
    words: dict[str, list[str]] = {
        "fingerprint": [finding.fingerprint],
        "kind": [finding.kind],
        "holder": [],
        "file": [],
        "module": list(finding.modules),
    }
    for holder in finding.holders:
        words["holder"] += [holder.name, holder.where]
        words["file"] += _files(holder)
        words["module"] += [*holder.modules, *_dotted(holder)]
    return words


def _files(holder: Holder) -> list[str]:
    """The file as Python knows it, with slashes, and its bare name."""
    file = (holder.file or "").replace(os.sep, "/")
    return [file, PurePosixPath(file).name] if file else []


def _dotted(holder: Holder) -> Iterator[str]:
    """The module that the file may be imported as: `train`, `package.train`, and so on."""
    path = PurePosixPath((holder.file or "").replace(os.sep, "/"))
    parts = [*path.parts[:-1], path.stem] if path.suffix == ".py" else []
    for count in range(1, min(len(parts), _MOST_PACKAGES) + 1):
        yield ".".join(parts[-count:])
