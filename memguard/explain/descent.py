"""The way down from the user's variables, which saves the search its last passes over the heap.

Going up costs a pass over the whole heap for each reference, however near the root is. Most holders
lie a few references below a variable of the user's, and looking there costs milliseconds.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from memguard.explain.reading import is_optimizer, is_tensor, isinstance_exact

# Objects looked at from all roots together, and of any one of them: some ten milliseconds.
MAX_OBJECTS = 30_000
MAX_CHILDREN = 4096
MAX_DEPTH = 10


class Descent:
    """What lies below the user's variables, as far as it was looked at.

    Args:
        roots: the variables' values and the modules' dicts, the likeliest to be meant first.
        is_foreign: whether an object is not to be gone through: memguard's own, a library's module.
    """

    def __init__(self, roots: list[Any], is_foreign: Callable[[Any], bool]) -> None:
        self.parents: dict[int, Any] = {}
        self._walk(roots, is_foreign)

    def _walk(self, roots: list[Any], is_foreign: Callable[[Any], bool]) -> None:
        seen = {id(root) for root in roots}
        frontier, looked = list(roots), 0
        for _ in range(MAX_DEPTH):
            following: list[Any] = []
            for item in frontier:
                for child in _children(item):
                    if id(child) in seen or not gc.is_tracked(child):
                        continue
                    seen.add(id(child))
                    looked += 1
                    if looked > MAX_OBJECTS:
                        return
                    self.parents[id(child)] = item
                    if _goes_on(child) and not is_foreign(child):
                        following.append(child)
            frontier = following

    def way_to(self, item: Any) -> list[Any]:
        """Objects from a root down to the one that refers to `item`; empty when it was not met."""
        way: list[Any] = []
        child = item
        while id(child) in self.parents:
            parent = self.parents[id(child)]
            # Another thread may have let go of something since, and its identity be another's now.
            if not any(found is child for found in _children(parent)):
                return []
            way.append(parent)
            child = parent
        return way[::-1]

    def release(self) -> None:
        """Let go of everything that was looked at."""
        self.parents.clear()


def _children(item: Any) -> Iterator[Any]:
    return islice(gc.get_referents(item), MAX_CHILDREN)


def _goes_on(item: Any) -> bool:
    """Whether to go through it: frames, modules and tensors lead elsewhere.

    An optimizer has its parameters only because the model has them, and the model tells more.
    """
    if isinstance_exact(item, (types.FrameType, types.ModuleType, types.CodeType)):
        return False
    return not is_tensor(item) and not is_optimizer(item)
