"""The fingerprint of a bug: the same in every run, on every rank, wherever its line moves."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from memguard.explain.accumulation import Located

_DIGITS = 6


def fingerprint(kind: str, located: Sequence[Located], modules: Sequence[str] = ()) -> str:
    """Six hex digits of what a bug is: no address, index or line number goes in.

    The first holder alone counts: how many more there are depends on when one looks, and on what
    a rank keeps beside the others.

    Args:
        kind: kind of the finding.
        located: its holders, the most telling first.
        modules: paths of the modules whose outputs survive; they count where there is no holder.
    """
    parts = [kind]
    for one in located[:1]:
        place = one.place
        owner = place.owner or place.function or ""
        code = one.statement.code if one.statement is not None else ""
        parts += [place.kind, place.name, owner, _file(place.file or ""), code]
    if not located:
        parts += modules[:1]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:_DIGITS]


def _file(name: str) -> str:
    """The file without its folder; notebooks number their cells anew in each run."""
    if name.startswith("<") or "ipykernel_" in name:
        return "<cell>"
    return os.path.basename(name)
