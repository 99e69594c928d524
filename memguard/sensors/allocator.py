"""What the devices' caching allocators say; no peak is reset, nothing is synchronised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memguard import _torch
from memguard.sensors.devices import Backend


@dataclass(frozen=True, slots=True)
class Allocation:
    """One device's allocator at one moment.

    Attributes:
        device: as torch writes it: `cuda:0`.
        allocated: bytes of live tensors.
        reserved: bytes taken from the driver.
        active: bytes of blocks in use, those that wait for a stream included.
        inactive: bytes of free parts of blocks that cannot be given back, as others are in use.
        peak: most bytes ever allocated at once, or since somebody reset it; 0 when unknown.
        retries: times that the whole cache was given back because nothing fitted any more.
        ooms: out-of-memory errors.
        limit: bytes that the program may take from the driver; 0 when unknown.
    """

    device: str
    allocated: int
    reserved: int
    active: int = 0
    inactive: int = 0
    peak: int = 0
    retries: int = 0
    ooms: int = 0
    limit: int = 0


def allocations(backends: Sequence[Backend]) -> list[Allocation]:
    """One record a device in use (tens of microseconds a device, most of it the C call)."""
    return [_allocation(backend, figure) for backend in backends for figure in backend.figures()]


def _allocation(backend: Backend, figure: Mapping[str, Any]) -> Allocation:
    name = figure["name"]
    index = int(name.rpartition(":")[2])
    told = _torch.allocator_statistics(backend.name, index) or {}
    allocated = int(figure["allocated"])
    return Allocation(
        device=name,
        allocated=allocated,
        reserved=int(figure["reserved"]),
        active=_bytes(told, "active_bytes", "current") or allocated,
        inactive=_bytes(told, "inactive_split_bytes", "current"),
        peak=_bytes(told, "allocated_bytes", "peak"),
        retries=int(told.get("num_alloc_retries", 0)),
        ooms=int(told.get("num_ooms", 0)),
        limit=backend.usable(dict(figure)),
    )


def _bytes(told: Mapping[str, Any], name: str, which: str) -> int:
    return int(told.get(name, {}).get("all", {}).get(which, 0))
