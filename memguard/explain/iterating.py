"""Iterators that only the `for` loop going over them holds, on a stack that nobody can read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from memguard.explain.building import Built
from memguard.explain.frames import FrameView, is_user_file, qualified_name
from memguard.explain.places import Spot
from memguard.explain.reading import class_name, lineage, members
from memguard.explain.syntax import read_source

if TYPE_CHECKING:
    from memguard.explain.search import Search


def iterators(search: Search) -> dict[int, Built]:
    """Iterators that nothing refers to while a running loop of the user's goes over something."""
    open_ends = {key: item for key, item in search.objects.items() if _is_open(search, key, item)}
    if not open_ends:
        return {}
    found: dict[int, Built] = {}
    running = list(_running(search.frames.views))
    words = _generator_names(search)
    for key, item in open_ends.items():
        # What the loop's line calls is what it goes over; without that the innermost loop is.
        matching = [index for index, calls in running if calls & words] or [i for i, _ in running]
        if matching:
            found[key] = Built(matching[0], class_name(type(item)), iterated=True)
    open_ends.clear()
    return found


def _is_open(search: Search, key: int, item: Any) -> bool:
    if search.parents.get(key) or search.frames.known(item):
        return False
    return any("__next__" in members(cls) for cls in lineage(type(item)))


def _generator_names(search: Search) -> set[str]:
    return {item.__name__ for item in search.objects.values() if type(item) is GeneratorType}


def _running(views: list[FrameView]) -> Iterator[tuple[int, set[str]]]:
    """(frame, names in the head) of the `for` loops in whose bodies the user's frames stand."""
    for index, view in enumerate(views):
        source = read_source(view.frame.f_code.co_filename) if view.user else None
        if source is None or view.is_expression:
            continue
        line = view.spot().line
        for piece in reversed(source.scope_at(line).pieces):
            node = piece.node
            if not isinstance(node, (ast.For, ast.AsyncFor)):
                continue
            if node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0):
                parts = list(ast.walk(node.iter))
                names = {part.id for part in parts if isinstance(part, ast.Name)}
                yield index, names | {p.attr for p in parts if isinstance(p, ast.Attribute)}


def with_generators(stack: Sequence[Spot], search: Search) -> list[Spot]:
    """The stack with the user's suspended generators that its loops go over, as inner calls.

    Their loops turn with those loops, so what they gather and let go of is judged by them.
    """
    spots = list(stack)
    for key, built in search.built.items():
        if not built.iterated:
            continue
        outer = search.frames.views[built.index].spot()
        at = spots.index(outer) if outer in spots else len(spots)
        spots[at:at] = [spot for spot in _suspended(search, key) if spot not in spots]
    return spots


def _suspended(search: Search, top: int) -> list[Spot]:
    """Where the generators below an iterator stand, innermost first."""
    found: list[tuple[int, Spot]] = []
    mask = search.below.get(top, 0)
    for key, item in search.objects.items():
        frame = item.gi_frame if type(item) is GeneratorType else None
        if frame is None or not search.below.get(key, 0) & mask or item.gi_running:
            continue
        code = frame.f_code
        if is_user_file(code.co_filename):
            line = frame.f_lineno or code.co_firstlineno
            spot = Spot(code.co_filename, qualified_name(code), code.co_firstlineno, line)
            found.append((search.level[key], spot))
    found.sort(key=lambda pair: pair[0])
    return [spot for _, spot in found]
