"""Paths through what a search found: up to the best root, down to a survivor."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from memguard.explain.reading import class_name, entries, is_optimizer, own_dict
from memguard.explain.search import Search


def children_of(search: Search) -> dict[int, list[int]]:
    """The found references the other way round, nearest to the survivors first."""
    children: dict[int, list[int]] = {}
    for child, parents in search.parents.items():
        for parent in parents:
            children.setdefault(parent, []).append(child)
    for found in children.values():
        found.sort(key=lambda key: search.level.get(key, 0))
    return children


def path_to_root(search: Search, start: int, *, by_model: bool = False) -> list[Any]:
    """Objects from the root a user knows best down to the object `start`.

    The user's own variables come first, parameters after those of whoever handed the object over,
    then the shorter path, then other roots; with equal claims the name decides, so that the same
    program gives the same path. Without any root the longest line of ancestors is returned, its
    top first.

    Args:
        search: what was found.
        start: identity of the object.
        by_model: pass by optimizers' lists of parameters, which a model has as well.
    """
    came_from: dict[int, int | None] = {start: None}
    frontier, distance = [start], 0
    best: tuple[tuple[int, int, int, int, str], int] | None = None
    last = start
    while frontier:
        for key in frontier:
            rank = _rank(search, key)
            if rank is not None:
                claim = (rank[0], rank[1], distance, rank[2], rank[3])
                if best is None or claim < best[0]:
                    best = (claim, key)
        if best is not None and best[0][:2] == (0, 0):
            break
        following: list[int] = []
        for key in frontier:
            if key != start and search.is_root(search.objects[key]):
                continue
            for parent in search.parents.get(key, ()):
                if parent not in came_from:
                    if by_model and _lists_parameters(search, parent, key, came_from[key]):
                        continue
                    came_from[parent] = key
                    following.append(parent)
                    last = parent
        frontier, distance = following, distance + 1
    return _unwind_up(search, came_from, best[1] if best is not None else last)


def _unwind_up(search: Search, came_from: dict[int, int | None], top: int) -> list[Any]:
    path: list[Any] = []
    at: int | None = top
    while at is not None:
        path.append(search.objects[at])
        at = came_from[at]
    return path


# Levels looked at once more for a path that a user knows better.
_MOST_DEEPENED = 5


def best_path(search: Search, start: int) -> list[Any]:
    """The path to the root a user knows best, looked for further up where none is at hand.

    The search ends as soon as each survivor has a root, be it another one's or an optimizer's,
    which has the parameters only because the model does.
    """
    for _ in range(_MOST_DEEPENED):
        path = path_to_root(search, start, by_model=True)
        if search.is_owned_root(path[0]):
            return path
        if not search.deepen(start):
            break
    path = path_to_root(search, start, by_model=True)
    return path if search.is_user_root(path[0]) else path_to_root(search, start)


def _lists_parameters(search: Search, parent: int, child: int, below: int | None) -> bool:
    """Whether the parent is an optimizer, reached by its list of parameter groups."""
    if not is_optimizer(search.objects[parent]):
        return False
    near = (search.objects[key] for key in (child, below) if key is not None)
    return any(type(item) is list for item in near)


def _rank(search: Search, key: int) -> tuple[int, int, int, str] | None:
    """(not the user's, a parameter, kind of root, name) when the object is a root, else None."""
    item = search.objects[key]
    stranger = 0 if search.is_user_root(item) else 1
    module = search.root_module(item)
    if module is not None:
        return stranger, 0, 1, module
    built = search.built.get(key)
    if built is not None:
        return 0, 0, 0, f"{built.index:06d}{built.name}"
    holding = search.frames.holding(item)
    if holding:
        index, name = holding[0]
        view = search.frames.views[index]
        return (0 if view.user else 1), int(view.borrows(name)), 0, f"{index:06d}{name}"
    if search.is_root(item):
        return stranger, 0, 2, class_name(type(item))
    return None


def path_down(
    search: Search, start: int, wanted: Callable[[int], bool], children: dict[int, list[int]]
) -> list[Any]:
    """Objects below `start` on the shortest way to an object for which `wanted` holds."""
    came_from: dict[int, int | None] = {start: None}
    frontier = [start]
    while frontier:
        following: list[int] = []
        for key in frontier:
            if key != start and wanted(key):
                return _unwind(search, came_from, key)
            for child in children.get(key, ()):
                if child not in came_from:
                    came_from[child] = key
                    following.append(child)
        frontier = following
    return []


def _unwind(search: Search, came_from: dict[int, int | None], end: int) -> list[Any]:
    path: list[Any] = []
    at: int | None = end
    while at is not None and came_from[at] is not None:
        path.append(search.objects[at])
        at = came_from[at]
    return path[::-1]


def cycle_through(search: Search, children: dict[int, list[int]]) -> list[int]:
    """Identities along one cycle among the found objects, in the direction of the references."""
    for start in sorted(search.objects, key=lambda key: search.level[key]):
        item = search.objects[start]
        if not search.is_root(item) and refers_to_itself(item):
            return [start]
        came_from: dict[int, int] = {}
        frontier = [start]
        while frontier:
            key = frontier.pop(0)
            for child in children.get(key, ()):
                if child == start:
                    return _loop(came_from, start, key)
                if child not in came_from:
                    came_from[child] = key
                    frontier.append(child)
    return []


def refers_to_itself(item: Any) -> bool:
    """Whether an object has itself among what it refers to."""
    # A function of its own: a variable that the expression captures would be one more reference.
    if any(child is item for child in gc.get_referents(item)):
        return True
    # Once it was asked for, an instance's dict stands between the two.
    return any(value is item for _, value in entries(own_dict(item)))


def _loop(came_from: dict[int, int], start: int, end: int) -> list[int]:
    loop = [end]
    while loop[-1] != start:
        loop.append(came_from[loop[-1]])
    return loop[::-1]
