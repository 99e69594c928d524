"""Living tensors that no other row of the ledger claims."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from memguard import _storage, _torch
from memguard._heap import family, objects_of
from memguard.sensors.holdings import Holdings

# Tensors counted between two looks at the clock.
_AT_ONCE = 256


def living_tensors() -> list[Any]:
    """Every tensor the collector knows, newest first (a heap pass, 60 ms for a million objects).

    A collection in the midst of it moves tensors on to the next generation, so that some may be
    there twice; none is missed.
    """
    classes = family(_torch.Tensor)
    found: list[Any] = []
    for generation in (0, 1, 2):
        found += reversed(objects_of(classes, generation))
    return found


def claim_others(
    holdings: Holdings, tensors: Iterable[Any], until: float
) -> tuple[dict[str, tuple[int, Any]], bool]:
    """Count what is left, attached tensors as activations.

    Args:
        holdings: where to, after all else was counted.
        tensors: every living tensor.
        until: when to stop, on the clock of `time.perf_counter`.

    Returns:
        By part of `other`, its bytes and its largest tensor; and whether all was met.
    """
    largest: dict[str, tuple[int, Any]] = {}
    most: dict[str, int] = {}
    for index, tensor in enumerate(tensors):
        if index % _AT_ONCE == 0 and time.perf_counter() > until:
            return largest, False
        if holdings.knows(tensor):
            continue
        if _torch.is_attached(tensor):
            holdings.claim("activations", "", tensor)
            continue
        part = _shape(tensor)
        size = holdings.claim("other", part, tensor)
        before, largest_yet = largest.get(part, (0, None))
        if size > most.get(part, 0):
            most[part], largest_yet = size, tensor
        if size:
            largest[part] = before + size, largest_yet
    return largest, True


def _shape(tensor: Any) -> str:
    """The device, type and sizes of a tensor, under which tensors of one purpose are told."""
    storages = _storage.storages_of(tensor)
    where = storages[0].device if storages else ""
    return f"{where} {_torch.type_of(tensor)}"
