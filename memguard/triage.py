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
        """The finding as it is to be told; None when suppressions leave all of it out.

        Each holder is matched by itself: what somebody else keeps is a leak of its own, which is
        told although it came with one that is ignored. The same goes for a library's known
        retention, which alone is marked as such and is no more than a warning, as nothing that the
        user has written is at fault; beside a holder of the user's it waits until that is mended.
        """
        left = self._without_ignored(finding)
        if left is None:
            return None
        known = [known_retention(left.kind, holder) for holder in left.holders]
        own = [holder for holder, its in zip(left.holders, known, strict=True) if its is None]
        if known and not own:
            return replace(left, severity="warning", known=known[0])
        return _with_holders(left, own)

    def _without_ignored(self, finding: Finding) -> Finding | None:
        """The finding with the holders that no suppression leaves out; None when it is ignored."""
        whole = words_of(finding)
        each = [words_of_holder(finding, holder) for holder in finding.holders]
        first: Pattern | None = None
        left = set(range(len(each)))
        is_whole = False
        for index, pattern in enumerate(self._patterns):
            if pattern.matches(whole):
                out, is_whole = set(range(len(each))), True
            else:
                out = {at for at, words in enumerate(each) if pattern.matches(words)}
                if not out:
                    continue
            self._matched.setdefault(index, set()).add(finding.fingerprint)
            first = first if first is not None else pattern
            left -= out
        if first is None:
            return finding
        all_gone = is_whole or not left
        gone = [holder for at, holder in enumerate(finding.holders) if all_gone or at not in left]
        ignored = Ignored(_with_holders(finding, gone), str(first), first.reason, first.where)
        self._ignored[finding.fingerprint] = ignored
        if all_gone:
            return None
        return _with_holders(finding, [finding.holders[at] for at in sorted(left)])

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
    """What the patterns of each field are matched with, as far as it is all holders'."""
    return {
        "fingerprint": [finding.fingerprint],
        "kind": [finding.kind],
        "module": list(finding.modules),
    }


def words_of_holder(finding: Finding, holder: Holder) -> dict[str, list[str]]:
    """The same for one of its holders: what is true of another one counts for nothing."""
    words = words_of(finding)
    words["holder"] = [holder.name, holder.where]
    words["file"] = _files(holder)
    words["module"] += [*holder.modules, *_dotted(holder)]
    return words


def _with_holders(finding: Finding, holders: Sequence[Holder]) -> Finding:
    """The finding with some of its holders; its advice is about the first of them."""
    if len(holders) == len(finding.holders):
        return finding
    ways = "; ".join(filter(None, (holders[0].fix, holders[0].alternative)))
    advice = finding.advice if holders[0] is finding.holders[0] else ways or finding.advice
    return replace(finding, holders=tuple(holders), advice=advice)


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
