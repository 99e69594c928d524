"""References that the collector does not show: fields inside C++, arrays, context variables."""

from __future__ import annotations

import contextvars
import gc
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memguard import _kinds
from memguard._heap import family, objects_of
from memguard.explain.reading import is_tensor, isinstance_exact

if TYPE_CHECKING:
    from memguard.explain.search import Search

# Arrays are no objects of the collector's, so they are looked for from the user's variables down:
# so deep, and at so many objects.
_DEPTH = 5
_MOST_OBJECTS = 50_000
_MOST_CHILDREN = 5_000
_MOST_ELEMENTS = 100_000

_PASSED_OVER = (type, types.ModuleType, types.CodeType, types.FrameType, types.BuiltinFunctionType)


def references(search: Search, tensors: list[Any] | None = None) -> list[tuple[Any, Any]]:
    """(who refers, to what) for objects of the search that something refers to out of sight.

    Args:
        search: what was found.
        tensors: every live tensor; looked for when left out, which costs a pass over the heap.
    """
    found = [*_of_tensors(search, tensors), *_of_context_variables(search)]
    if "numpy" in sys.modules:
        found += _of_arrays(search)
    return found


def _of_tensors(search: Search, tensors: list[Any] | None) -> Iterator[tuple[Any, Any]]:
    """A tensor to its gradient, and a view to what it was cut from."""
    if not any(map(is_tensor, search.objects.values())):
        return
    with _kinds.without_overrides():
        door = _kinds.torch_door()
        for tensor in objects_of(family(door.Tensor)) if tensors is None else tensors:
            for value in (door.gradient_of(tensor), door.base_of(tensor)):
                if value is not None and id(value) in search.objects:
                    yield tensor, value


def _of_context_variables(search: Search) -> Iterator[tuple[Any, Any]]:
    for variable, value in contextvars.copy_context().items():
        if id(value) in search.objects:
            yield variable, value


def _of_arrays(search: Search) -> Iterator[tuple[Any, Any]]:
    """An array of objects to its elements, and an array to the tensor whose memory it uses."""
    for array in _arrays(search):
        for value in (*_elements(array), _base(array)):
            if id(value) in search.objects:
                yield array, value


def _arrays(search: Search) -> Iterator[Any]:
    kind = sys.modules["numpy"].ndarray
    pending = deque((value, 0) for value in search.user_variables())
    seen: set[int] = set()
    while pending and len(seen) < _MOST_OBJECTS:
        value, depth = pending.popleft()
        if id(value) in seen or search.root_module(value) is not None:
            continue
        seen.add(id(value))
        if isinstance_exact(value, kind):
            yield value
        elif depth < _DEPTH and gc.is_tracked(value) and not isinstance_exact(value, _PASSED_OVER):
            below = gc.get_referents(value)[:_MOST_CHILDREN]
            pending.extend((child, depth + 1) for child in below)
    pending.clear()


def _elements(array: Any) -> list[Any]:
    kind = sys.modules["numpy"].ndarray
    if kind.dtype.__get__(array).kind != "O" or kind.size.__get__(array) > _MOST_ELEMENTS:
        return []
    return list(kind.ravel(kind.view(array, kind)))


def _base(array: Any) -> Any:
    """What owns the memory: an array that is a view of others is followed to their origin."""
    kind = sys.modules["numpy"].ndarray
    base = array
    while isinstance_exact(base, kind):
        base = kind.base.__get__(base)
    return base
