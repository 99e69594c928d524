"""Known retentions of libraries: what they keep, until which version, and the issue about it.

Data, not code: an entry goes in when a public issue states the cause, and the versions were read
off the released packages themselves. It goes out when nobody can meet it any more.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.metadata
import re
from dataclasses import dataclass

from memguard.records import Holder, Kind, Retention


@dataclass(frozen=True, slots=True)
class Entry:
    """One known retention.

    Attributes:
        library: the distribution as pip names it, and the package that must be on the chain.
        before: first version without it, without zeros at its end; None while every version has it.
        reference: regular expression of a line of the holder's chain.
        where: glob of the holder's home in words.
        why: what the library keeps, and until when.
        remedy: what a user can do.
        link: the public issue about it.
        kind: kind of finding that it is; None where it may be any. What keeps graphs because the
            user handed over attached tensors is mended with detach(), not by the library.
    """

    library: str
    before: str | None
    reference: str
    where: str
    why: str
    remedy: str
    link: str
    kind: Kind | None = None


ENTRIES = (
    Entry(
        library="torchmetrics",
        before=None,
        reference=r"\.(preds|target): list",
        where="*",
        why="metrics that need every score at once (curves, average precision) keep the "
        "predictions and targets of each update until reset()",
        remedy="call reset() at the end of each epoch, or give thresholds= so that counts are kept",
        link="https://github.com/Lightning-AI/torchmetrics/issues/3294",
        kind="tensor",
    ),
    Entry(
        library="transformers",
        before="5.9",
        reference=r"\(\.\.\.\): .*",
        where="cache of *.*",
        why="vision models cache methods for the whole class, with the model itself in the key, "
        "so deleted models stay alive",
        remedy="update transformers, or call cache_clear() of the method when a model is dropped",
        link="https://github.com/huggingface/transformers/pull/45922",
    ),
    Entry(
        library="accelerate",
        before="1.4",
        reference=r".*\bdataloader_references\b.*",
        where="*",
        why="the gradient state of the whole process keeps every prepared data loader that was "
        "left in the middle",
        remedy="update accelerate, or run loaders to their end",
        link="https://github.com/huggingface/accelerate/pull/3391",
    ),
)


def known_retention(kind: Kind, holder: Holder) -> Retention | None:
    """The catalogue's entry for a holder of a finding of that kind; None when it is not known."""
    for entry in ENTRIES:
        if entry.kind in (None, kind) and _is_on_chain(entry, holder):
            version = _version(entry.library)
            if version is not None and _is_affected(entry, version):
                return Retention(entry.library, version, entry.why, entry.remedy, entry.link)
    return None


def _is_on_chain(entry: Entry, holder: Holder) -> bool:
    packages = {module.partition(".")[0] for module in holder.modules}
    if entry.library not in packages or not fnmatch.fnmatchcase(holder.where, entry.where):
        return False
    return any(re.fullmatch(entry.reference, line) for line in holder.chain)


def _is_affected(entry: Entry, version: str) -> bool:
    return entry.before is None or _numbers(version) < _numbers(entry.before)


def _numbers(version: str) -> tuple[int, ...]:
    """The release's numbers; what follows them (rc1, .post0, +cu126) does not count."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match is not None else ()


@functools.cache
def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None
