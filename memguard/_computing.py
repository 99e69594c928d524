"""Whether other threads compute with torch: then nobody reads what their backward may let go of.

A backward lets go of what its nodes have saved while the interpreter runs on in other threads. To
unpack a saved tensor at that moment is a segmentation fault (seen with torch 2.13: eight training
loops in threads, a ledger taken in one of them), and so is to read a gradient that it puts in place
(four loops, one of which leaks).
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType

# Threads in which a watched model was called or an optimizer stepped.
_threads: set[int] = set()

# Parts of torch that a thread which computes has on its stack. Loaders and the compiler's own
# threads, which wait in others, are no danger.
_COMPUTING = tuple(
    os.path.join("torch", *part) + os.sep for part in (("autograd",), ("nn", "modules"), ("optim",))
)
_MAX_DEPTH = 64

# What a thread that waits for work stands in: a pool's, a server's between two requests.
_WAITING = ("threading.py", "queue.py", "thread.py", "selectors.py", "connection.py", "socket.py")

# Threads that are remembered at most, the living ones first.
_MOST = 1024


def note() -> None:
    """This thread computes."""
    ident = threading.get_ident()
    if ident not in _threads:
        if len(_threads) >= _MOST:
            _threads.intersection_update(set(sys._current_frames()))
        _threads.add(ident)


def others() -> bool:
    """Whether another thread that has computed is at work, or one computes now.

    Costs some microseconds a thread.
    """
    mine = threading.get_ident()
    frames = sys._current_frames()
    # Among the frames is this one: to keep it would make a cycle that holds the user's variables.
    frames.pop(mine, None)
    try:
        return any(
            (ident in _threads and not _waits(frame)) or _computes(frame)
            for ident, frame in frames.items()
        )
    finally:
        frames.clear()


def _waits(frame: FrameType) -> bool:
    return os.path.basename(frame.f_code.co_filename) in _WAITING


def _computes(frame: FrameType | None) -> bool:
    for _ in range(_MAX_DEPTH):
        if frame is None:
            return False
        if any(part in frame.f_code.co_filename for part in _COMPUTING):
            return True
        frame = frame.f_back
    return False
