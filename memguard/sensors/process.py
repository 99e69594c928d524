"""The private memory of this process and of its children, as plain figures."""

from __future__ import annotations

from typing import Any

# More children than this are not asked one by one.
MAX_CHILDREN = 64


def private_memory() -> int:
    """Bytes of this process that no other process and no file shares (20 microseconds on Linux)."""
    import psutil

    return _private(psutil.Process())


def _private(process: Any) -> int:
    info = process.memory_info()
    if hasattr(info, "private"):  # Windows
        return int(info.private)
    if hasattr(info, "shared"):  # Linux: resident pages of files and of shared memory
        return max(0, int(info.rss) - int(info.shared))
    return int(getattr(process.memory_full_info(), "uss", info.rss))


def children() -> list[tuple[str, int]]:
    """Name and private bytes of every process below this one; those that just end are left out.

    A forked child shares pages with its parent until either writes there: only what is its own
    alone counts, and finding that out takes milliseconds a child.
    """
    import psutil

    found = []
    for child in psutil.Process().children(recursive=True)[:MAX_CHILDREN]:
        try:
            size = int(getattr(child.memory_full_info(), "uss", 0)) or _private(child)
            found.append((f"{child.name()} {child.pid}", size))
        except psutil.Error:
            continue
    return found
