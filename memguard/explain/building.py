"""Containers in the making: a comprehension builds them, and no variable names them yet."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from memguard.explain.consuming import Consumer, Span, consumers, name_at
from memguard.explain.frames import FrameView
from memguard.explain.reading import class_name, is_tensor
from memguard.explain.syntax import read_source

if TYPE_CHECKING:
    from memguard.explain.search import Search

_BUILT = (list, tuple, set, frozenset, dict, collections.deque, collections.OrderedDict)


@dataclass(frozen=True, slots=True)
class Built:
    """Something being built.

    Attributes:
        index: the frame whose statement builds it.
        name: what the statement assigns it to, or the expression where it assigns nothing.
        iterated: whether it is not built but gone over, by a `for` loop that alone holds it.
    """

    index: int
    name: str
    iterated: bool = False


def containers(search: Search) -> dict[int, Built]:
    """Objects that nothing refers to and that a running statement of the user's is building."""
    open_ends = {key: item for key, item in search.objects.items() if _is_open(search, key, item)}
    if not open_ends:
        return {}
    found: dict[int, Built] = {}
    running = list(_running(search.frames.views))
    for key, item in open_ends.items():
        kind = "Tensor" if is_tensor(item) else class_name(type(item))
        matching = (built for built, consumer in running if consumer.container == kind)
        first = next(matching, None)
        if first is not None:
            found[key] = first
    open_ends.clear()
    return found


def _is_open(search: Search, key: int, item: Any) -> bool:
    if search.frames.owned(item):
        return False
    for parent in search.parents.get(key, ()):
        # The arguments of a call in C, as `functools.reduce` has them, are a tuple of nobody's.
        if type(search.objects[parent]) is not tuple or search.parents.get(parent):
            return False
    # By identity: a metaclass may compare as it likes.
    return any(type(item) is kind for kind in _BUILT) or is_tensor(item)


def _running(views: list[FrameView]) -> Iterator[tuple[Built, Consumer]]:
    """What the statements of the user's frames are building now, innermost first."""
    for index, view in enumerate(views):
        source = read_source(view.frame.f_code.co_filename) if view.user else None
        # A comprehension that is a frame of its own (up to 3.11) is told by the one that made it.
        if source is None or view.is_expression:
            continue
        line = view.spot().line
        for consumer in reversed(list(consumers(source, line, _executing(view.frame)))):
            name = consumer.name or _callers_name(views, index)
            yield Built(index, name or f"what {view.spot().function} returns"), consumer


def _callers_name(views: list[FrameView], index: int) -> str | None:
    """What the callers make of a returned value: the target of the first that assigns it."""
    for view in views[index + 1 :]:
        if view.ident != views[index].ident or view.is_expression:
            break
        source = read_source(view.frame.f_code.co_filename) if view.user else None
        name = name_at(source, view.spot().line) if source is not None else None
        if name is not None:
            return name
    return None


def _executing(frame: FrameType) -> Span | None:
    """The part of the text that a frame is executing; None where Python does not tell (3.10)."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None or frame.f_lasti < 0:
        return None
    found = next(itertools.islice(positions(), frame.f_lasti // 2, None), None)
    if found is None or None in found:
        return None
    first, last, column, end = found
    return first, column, last, end
