"""One tensor that gets longer: a cache that is concatenated, a sparse buffer that gains entries.

There is never more than one of it, so nothing that counts tensors sees it. Storages are compared by
size instead: all but the one that grew have the sizes they had.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from memguard import _storage, _torch
from memguard.explain.advice import Advice
from memguard.explain.graph import live_tensors
from memguard.explain.places import Place

# The largest storages that are compared.
MOST_STORAGES = 256


@dataclass(frozen=True, slots=True)
class Storages:
    """The storages of one device at one moment.

    Attributes:
        total: bytes of all of them.
        count: how many there are.
        largest: bytes of the largest ones, largest first.
    """

    total: int
    count: int
    largest: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Longer:
    """A tensor whose storage is larger than it was; let go of it soon."""

    tensor: Any
    gained: int
    bytes: int


def storages(device: str) -> Storages:
    """The storages of all tensors on a device (a heap pass, 60 ms for a million objects)."""
    sizes = sorted((size for size, _ in _by_storage(device).values()), reverse=True)
    return Storages(sum(sizes), len(sizes), tuple(sizes[:MOST_STORAGES]))


def longer_than(before: Storages, device: str) -> Longer | None:
    """The tensor that has gained most since `before`; None when none has.

    What is as large as before is taken to be the same; what is left over on both sides is the
    tensor that has grown, and what it was.
    """
    now = sorted(_by_storage(device).values(), key=lambda pair: -pair[0])[:MOST_STORAGES]
    old = Counter(before.largest)
    fresh = []
    for size, tensor in now:
        if old[size] > 0:
            old[size] -= 1
        else:
            fresh.append((size, tensor))
    left = sorted(old.elements(), reverse=True)
    found = [
        Longer(tensor, size - (left[at] if at < len(left) else 0), size)
        for at, (size, tensor) in enumerate(fresh)
    ]
    return max(found, key=lambda one: one.gained, default=None)


def is_sparse(tensor: Any) -> bool:
    """Whether a tensor has an entry for each time that something was added to it."""
    with _torch.without_overrides():
        return bool(tensor.is_sparse)


def sparse_advice(place: Place) -> Advice:
    """What helps where it is a sparse tensor that gains entries: it cannot be cut."""
    name = place.expression
    if place.kind == "state":
        why = f"{name} has a sparse momentum buffer, to which each step adds its entries anew"
        ways = (
            "momentum=0 or torch.optim.SparseAdam for layers with sparse=True",
            "put momentum_buffer.coalesce() into its place now and then: it adds up equal entries",
        )
    else:
        why = f"{name} is a sparse tensor to which entries are added anew, equal ones as well"
        ways = (
            f"{name} = {name}.coalesce() now and then: it adds up equal entries",
            "a dense tensor where most entries are used",
        )
    return Advice(why, None, "; or ".join(ways), ways[0])


def _by_storage(device: str) -> dict[int, tuple[int, Any]]:
    """(bytes, one of its tensors) by storage."""
    found: dict[int, tuple[int, Any]] = {}
    with _torch.without_overrides():
        for tensor in live_tensors():
            key, size = _storage.storage_of(tensor)
            if size and _torch.device_name(tensor) == device:
                found[key] = size, tensor
    return found
