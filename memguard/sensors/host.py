"""The process's memory and what bounds it, as plain figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

# cgroup v1 writes "no limit" as a page-rounded 2**63 - 1.
_NO_LIMIT = 1 << 60
_CGROUP_USED = "/sys/fs/cgroup/memory.current"
_CGROUP_DETAILS = "/sys/fs/cgroup/memory.stat"


class Host:
    """Reads this process's memory through psutil (about 10 microseconds a read)."""

    __slots__ = ("_process",)

    def __init__(self) -> None:
        import psutil

        self._process: Any = psutil.Process(os.getpid())

    def resident(self) -> int:
        """Bytes resident in RAM."""
        return int(self._process.memory_info().rss)


def host_limit(files: tuple[str, ...] = _CGROUP_LIMITS) -> int:
    """Bytes the process may use: the cgroup's limit where there is one, else the machine's RAM."""
    import psutil

    total = int(psutil.virtual_memory().total)
    for name in files:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit() and int(text) < min(_NO_LIMIT, total):
            return int(text)
    return total


def host_room() -> int:
    """Bytes that may still be taken before the machine's RAM or the cgroup's limit is full."""
    import psutil

    room = int(psutil.virtual_memory().available)
    limit, used = _number_in(_CGROUP_LIMITS[0]), _number_in(_CGROUP_USED)
    if limit is not None and used is not None:
        # Pages of files that nobody has asked for lately are given up first.
        room = min(room, limit - used + _inactive_files())
    return max(0, room)


def _number_in(name: str) -> int | None:
    try:
        return int(Path(name).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max"
        return None


def _inactive_files() -> int:
    try:
        lines = Path(_CGROUP_DETAILS).read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
