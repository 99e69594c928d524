"""Child processes, such as a DataLoader's workers, each by its private memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from memguard.sensors.host import private_of

# Children that are read; of more these stand for all.
MOST_CHILDREN = 64

# Seconds for which the children are asked what is theirs alone; the last one asked may pass it.
EXACT_SECONDS = 0.1


class Children:
    """Reads the memory of this process's children through psutil (12 microseconds a child).

    Those that `multiprocessing` has started are known by it. Asking the system for all the others
    takes milliseconds, since every process of the machine must be asked for its parent.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def find_all(self) -> None:
        """Ask the system for children of any kind, and for theirs."""
        import psutil

        for child in psutil.Process(os.getpid()).children(recursive=True):
            self._known.setdefault(child.pid, child)

    def private(self) -> dict[int, int]:
        """Private bytes by process id, of those that live."""
        import psutil

        for pid in _started_by_multiprocessing():
            if pid not in self._known:
                try:
                    self._known[pid] = psutil.Process(pid)
                except psutil.Error:
                    continue
        sizes: dict[int, int] = {}
        for pid, process in list(self._known.items()):
            try:
                size = private_of(process)
            except psutil.Error:
                size = 0
            if not size:  # it has ended, whether anybody waited for it or not
                del self._known[pid]
            elif len(sizes) < MOST_CHILDREN:
                sizes[pid] = size
        return sizes


def exact_sizes(clock: Callable[[], float] = time.perf_counter) -> list[tuple[str, int]]:
    """Name and private bytes of every process below this one; those that just end are left out.

    A forked child shares pages with its parent until either writes there. Here only what is its own
    alone counts, and finding that out takes milliseconds a child, up to hundreds of one with much
    memory: once `EXACT_SECONDS` are spent the others count with what they share.
    """
    import psutil

    found = []
    until = clock() + EXACT_SECONDS
    for child in psutil.Process(os.getpid()).children(recursive=True)[:MOST_CHILDREN]:
        try:
            exact = getattr(child.memory_full_info(), "uss", 0) if clock() < until else 0
            size = int(exact) or private_of(child)
            found.append((f"{child.name()} {child.pid}", size))
        except psutil.Error:
            continue
    return found


def _started_by_multiprocessing() -> list[int]:
    """Process ids; read past `active_children`, which waits for those that have ended."""
    module: Any = sys.modules.get("multiprocessing.process")
    children = getattr(module, "_children", ())  # a set of Process, in Python 3.4 to 3.14
    return [pid for pid in (child.pid for child in list(children)) if pid is not None]
