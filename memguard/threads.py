"""Threads: in which watched loops have run, and what they are running now.

With several loops, what is new may be any loop's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Set as AbstractSet
from types import CodeType, FrameType

from memguard import _computing

# By thread, the loops that ran in it.
_loops: dict[int, set[int]] = {}


def is_alone(loop: int) -> bool:
    """Note that `loop` runs in this thread; whether no other living thread runs a watched loop."""
    _computing.note()
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


def is_main() -> bool:
    """Whether this is the main thread."""
    return threading.get_ident() == threading.main_thread().ident


def runs_another(codes: AbstractSet[CodeType]) -> bool:
    """Whether any thread runs a function of these, beside the one of them that asks.

    Looks at code objects only: the frames' variables are not read, and no frame is kept.
    """
    return _calls(sys._getframe(), codes, beside=1) or any(
        _calls(frame, codes, beside=0)
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )


def _calls(frame: FrameType | None, codes: AbstractSet[CodeType], beside: int) -> bool:
    while frame is not None:
        if frame.f_code in codes:
            if not beside:
                return True
            beside -= 1
        frame = frame.f_back
    return False
