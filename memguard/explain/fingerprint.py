"""The fingerprint of a bug: the same in every run, on every rank, wherever its line moves."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from memguard.explain.accumulation import Located

_DIGITS = 6


def fingerprint(kind: str, located: Sequence[Located], modules: Sequence[str] = ()) -> str:
    """Six hex digits of what a bug is: no address, index or line number goes in.

    One holder alone counts, the first by name: which of several is the most telling, and how many
    there are, depends on when one looks and on what a rank keeps beside the others.

    Args:
        kind: kind of the finding.
        located: its holders.
        modules: paths of the modules whose outputs survive; they count where there is no holder.
    """
    return fingerprint_of(kind, *min(map(_parts, located), default=list(modules[:1])))


def fingerprint_of(*words: str) -> str:
    """The same of words that say what a finding is, where it has no accumulation point."""
    text = "\0".join(words)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_DIGITS]


def _parts(located: Located) -> list[str]:
    place = located.place
    owner = place.owner or place.function or ""
    code = located.statement.code if located.statement is not None else ""
    return [place.kind, place.name, owner, _file(place.file or ""), code]


def _file(name: str) -> str:
    """The file without its folder; notebooks number their cells anew in each run."""
    if name.startswith("<") or "ipykernel_" in name:
        return "<cell>"
    return os.path.basename(name)
