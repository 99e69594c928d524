"""What the ledger counts: each storage once, under the first row that claims it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memguard import _storage
from memguard.ledgers import HOST, Holding, RowName

# (row, part, device, data type)
_Shelf = tuple[RowName, str, str, str]


class Holdings:
    """Sums of bytes by row, part, device and data type; holds no tensor.

    Args:
        devices_used: whether a device's allocator is in use; only then may memory be page-locked.
    """

    def __init__(self, devices_used: bool = False) -> None:
        self._pins = devices_used
        self._seen: set[int] = set()
        # Bytes, storages, pinned bytes, shared bytes.
        self._sums: dict[_Shelf, list[int]] = {}

    def claim(self, row: RowName, part: str, tensor: Any) -> int:
        """Count the tensor's storages that nobody has claimed yet; returns their bytes."""
        new = [one for one in _storage.storages_of(tensor) if one.key not in self._seen]
        if not new:
            return 0
        pinned, shared = self.place_of(tensor)
        if row == "other":
            row = "pinned" if pinned else "shared" if shared else row
        return self.add(row, part, new, pinned, shared)

    def place_of(self, tensor: Any) -> tuple[bool, bool]:
        """Whether the tensor is page-locked, and whether it is shared or mapped."""
        return self._pins and _storage.is_pinned(tensor), _storage.is_shared(tensor)

    def add(
        self,
        row: RowName,
        part: str,
        storages: Iterable[_storage.Storage],
        pinned: bool = False,
        shared: bool = False,
    ) -> int:
        """Count storages that nobody has claimed yet; returns their bytes."""
        added = 0
        for one in storages:
            if one.key in self._seen:
                continue
            self._seen.add(one.key)
            added += one.bytes
            sums = self._sums.setdefault((row, part, one.device, one.dtype), [0, 0, 0, 0])
            sums[0] += one.bytes
            sums[1] += 1
            if one.device == HOST:
                sums[2] += one.bytes * pinned
                sums[3] += one.bytes * (shared and not pinned)
        return added

    def knows(self, tensor: Any) -> bool:
        """Whether all the tensor's storages are counted already."""
        return all(one.key in self._seen for one in _storage.storages_of(tensor))

    def found(self) -> tuple[Holding, ...]:
        """All that was counted."""
        return tuple(Holding(*shelf, *sums) for shelf, sums in self._sums.items() if sums[0])
