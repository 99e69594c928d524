"""Buffers that fill: memory that was asked for whole, whose pages come as they are written.

An array of `numpy.empty` or `torch.empty` takes no memory until somebody writes to it, so a process
whose replay buffer fills grows although nothing new is kept. How much of a buffer is in memory only
the system knows (`mincore`).
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

from memguard import _torch
from memguard._storage import place_of
from memguard.explain.containers import untracked_below
from memguard.explain.frames import Frames
from memguard.explain.graph import live_tensors
from memguard.explain.reading import isinstance_exact

# Smaller buffers come from the heap, whose pages are written again and again.
SMALLEST = 4 << 20

# Bytes of buffers that the system is asked about; a gigabyte takes it half a millisecond.
MOST_BYTES = 64 << 30

# By address and bytes of a buffer, how many of its bytes are not in memory.
Untouched = dict[tuple[int, int], int]


def untouched() -> Untouched:
    """What is not yet in memory of the large buffers that live (a heap pass; Linux only)."""
    if sys.platform != "linux":
        return {}
    found: Untouched = {}
    asked = 0
    for buffer in _buffers():
        asked += buffer[1]
        if asked > MOST_BYTES:
            break
        missing = _missing(*buffer)
        if missing >= mmap.PAGESIZE:
            found[buffer] = missing
    return found


def filled_since(before: Untouched) -> tuple[int, int]:
    """(bytes that came into memory meanwhile, bytes still to come) of the buffers seen before."""
    living = set(_buffers()) if before else set()
    now = {buffer: _missing(*buffer) for buffer in before if buffer in living}
    filled = sum(max(0, before[buffer] - missing) for buffer, missing in now.items())
    return filled, sum(now.values())


def _buffers() -> list[tuple[int, int]]:
    """(address, bytes) of the large buffers of tensors and arrays, largest first."""
    with _torch.without_overrides():
        found = {place_of(tensor) for tensor in live_tensors()}
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is not None:
        with Frames() as frames:
            arrays = untracked_below(frames, lambda item: isinstance_exact(item, array))
            found.update(_place_of_array(item, array) for item in arrays)
            arrays.clear()
    return sorted((one for one in found if one[1] >= SMALLEST), key=lambda one: -one[1])


def _place_of_array(item: Any, cls: Any) -> tuple[int, int]:
    """(address, bytes) of what an array was cut from; (0, 0) where it is no array's own memory."""
    base: Any = item
    while isinstance_exact(base, cls):
        item, base = base, cls.base.__get__(base)
    if base is not None:  # a file that is mapped, another library's
        return 0, 0
    return int(cls.__array_interface__.__get__(item)["data"][0]), int(cls.nbytes.__get__(item))


def _missing(address: int, size: int) -> int:
    """Bytes of a range of addresses that are not in memory; 0 where nobody tells."""
    begin = address - address % mmap.PAGESIZE
    pages = -(-(address + size - begin) // mmap.PAGESIZE)
    told = (ctypes.c_ubyte * pages)()
    ask = getattr(ctypes.CDLL(None), "mincore", None)
    length = ctypes.c_size_t(pages * mmap.PAGESIZE)
    if ask is None or ask(ctypes.c_void_p(begin), length, told) != 0:
        return 0
    return bytes(told).count(0) * mmap.PAGESIZE
