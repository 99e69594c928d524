"""The process's own memory, as plain figures."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

# Where Linux tells this process's memory, in pages: all, resident, shared.
_STATM = "/proc/self/statm"


@dataclass(frozen=True, slots=True)
class InUse:
    """What the process has in use at one moment; bytes.

    Attributes:
        resident: in RAM.
        virtual: of address space.
        private: in RAM and of this process alone, see `private_of`.
    """

    resident: int
    virtual: int
    private: int


class Host:
    """Reads this process's memory.

    On Linux from the one small file that tells it, elsewhere through psutil: between steps, with
    cold caches, psutil takes a hundred microseconds for what that file says.

    Exact private memory (`smaps_rollup`) would take 160 microseconds in a small process and
    milliseconds in a large one, as the kernel walks all of its pages.
    """

    __slots__ = ("_page", "_process")

    def __init__(self) -> None:
        import psutil

        self._process: Any = psutil.Process(os.getpid())
        self._page = os.sysconf("SC_PAGE_SIZE") if os.path.exists(_STATM) else 0

    def read(self) -> InUse:
        """All that is known of the process, by one reading."""
        if not self._page:
            told = self._process.memory_info()
            return InUse(int(told.rss), int(told.vms), _private(told))
        file = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        try:
            virtual, resident, shared, *_ = map(int, os.read(file, 256).split())
        finally:
            os.close(file)
        page = self._page
        return InUse(resident * page, virtual * page, (resident - shared) * page)

    def resident(self) -> int:
        """Bytes resident in RAM."""
        return self.read().resident

    def private(self) -> int:
        """Bytes in RAM that belong to this process alone, see `private_of`."""
        return self.read().private


def private_of(process: Any) -> int:
    """Bytes in RAM of a process that no file and no shared memory backs.

    Mapped files are left out: the kernel takes their pages back when it needs them. What a child
    still shares with its parent since a fork is counted, so that writing to it is no growth.

    Args:
        process: a `psutil.Process`.
    """
    return _private(process.memory_info())


def _private(told: Any) -> int:
    private = getattr(told, "private", None)  # Windows
    if private is not None:
        return int(private)
    return int(told.rss) - int(getattr(told, "shared", 0))  # macOS does not tell what is shared


def trim() -> bool:
    """Have the C library give back what it holds free; False where it cannot be asked (not glibc).

    What it gives back was free already, so nothing of the program's changes. Takes milliseconds for
    a gigabyte; for use after a suspicion only.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is None:
        return False
    give_back(0)
    return True
