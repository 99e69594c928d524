"""Threads in which watched loops have run; with several, what is new may be any loop's."""

from __future__ import annotations

import sys
import threading

# By thread, the loops that ran in it.
_loops: dict[int, set[int]] = {}


def is_alone(loop: int) -> bool:
    """Note that `loop` runs in this thread; whether no other living thread runs a watched loop."""
    _loops.setdefault(threading.get_ident(), set()).add(loop)
    if len(_loops) > 1:
        # The numbers alone: among the frames is this one, and to hold it would make a cycle that
        # keeps the user's frames and tensors until a collection.
        living = set(sys._current_frames())
        for ident in [ident for ident in list(_loops) if ident not in living]:
            _loops.pop(ident, None)
    return len(_loops) == 1


def forget(loop: int) -> None:
    """The loop has ended."""
    for ident in [ident for ident, loops in list(_loops.items()) if loop in loops]:
        _loops[ident].discard(loop)
        if not _loops[ident]:
            _loops.pop(ident, None)
