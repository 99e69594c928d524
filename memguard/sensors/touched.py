"""One account of the autograd nodes that were touched and are alive, for all who touch any.

A node that was ever touched from Python is freed recursively: a run of them as deep as the C stack
ends in a segmentation fault when the user's tensor dies. Measured on torch 2.13: with a stack of
1 MiB a run of 4,500 is freed safely and one of 6,000 is not; with 8 MiB some 20,000 are too many.
Nobody knows whether what two parts have touched lies along one chain, so all of it is added up.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, Protocol

# Nodes touched and alive at a time, and those in a thread of whose stack nothing is known.
MOST = 8000
MOST_IN_THREADS = 4000

# Of them ledgers together touch no more than this, several forward passes of usual models.
MOST_OF_LEDGERS = 2000

# Bytes of stack for each, twice as many as were measured.
_BYTES_EACH = 512

# By thread, how many it may touch.
_here = threading.local()


class Toucher(Protocol):
    """Somebody who counts by himself what he has touched."""

    @property
    def touched(self) -> int:
        """Nodes touched and, as far as is known, alive."""


class Life:
    """Put into the metadata of touched nodes, so that it lives as long as any of them does."""

    __slots__ = ("__weakref__",)


# By what lives as long as they do, how many were touched; and who counts by himself.
_lives: list[tuple[weakref.ref[Any], int]] = []
_touchers: weakref.WeakSet[Any] = weakref.WeakSet()


def note(life: Any, nodes: int) -> None:
    """Count nodes for as long as `life` is alive, which is held weakly."""
    if nodes:
        _lives.append((weakref.ref(life), nodes))


def join(toucher: Toucher) -> None:
    """Count what somebody has touched for as long as he is alive."""
    _touchers.add(toucher)


def room() -> int:
    """How many nodes more may be touched now."""
    living = [(life, nodes) for life, nodes in list(_lives) if life() is not None]
    _lives[:] = living
    counted: int = sum(one.touched for one in list(_touchers))
    return max(0, most() - counted - sum(nodes for _, nodes in living))


def most() -> int:
    """How many nodes may be touched and alive at a time, by the stack of this thread.

    A graph may die in another thread, with less; ledgers and looks each stay well below what the
    smallest usual stack bears.
    """
    found = getattr(_here, "most", None)
    if found is None:
        size = _stack_size()
        main = threading.current_thread() is threading.main_thread()
        found = _here.most = size // _BYTES_EACH if size else MOST if main else MOST_IN_THREADS
    return min(MOST, found)


def _stack_size() -> int:
    """Bytes of stack that this thread has; 0 where the C library does not tell.

    `threading.stack_size` is no way to ask: called without a size it sets the default for threads.
    """
    try:
        return _asked_of_the_library()
    except Exception:  # another C library
        return 0


def _asked_of_the_library() -> int:
    import ctypes

    library = ctypes.CDLL(None)
    library.pthread_self.restype = ctypes.c_void_p
    thread, size = ctypes.c_void_p(library.pthread_self()), ctypes.c_size_t()
    if sys.platform == "darwin":
        library.pthread_get_stacksize_np.restype = ctypes.c_size_t
        return int(library.pthread_get_stacksize_np(thread))
    attributes = ctypes.create_string_buffer(512)  # larger than any C library's
    if library.pthread_getattr_np(thread, attributes):
        return 0
    library.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    library.pthread_attr_destroy(attributes)
    return min(size.value, 1 << 40)
