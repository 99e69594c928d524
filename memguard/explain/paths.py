"""Paths through what a search found: up to the best root, down to a survivor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def path_to_root(search: Search, start: int) -> list[Any]:
    """Objects from the root a user knows best down to the object `start`.

    The user's own variables come first, parameters after those of whoever handed the object over,
    then the shorter path, then other roots; with equal claims the name decides, so that the same
    program gives the same path. Without any root the longest line of ancestors is returned, its
    top first.
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
                    came_from[parent] = key
                    following.append(parent)
                    last = parent
        frontier, distance = following, distance + 1
    path: list[Any] = []
    at: int | None = best[1] if best is not None else last
    while at is not None:
        path.append(search.objects[at])
        at = came_from[at]
    return path


def _rank(search: Search, key: int) -> tuple[int, int, int, str] | None:
    """(not the user's, a parameter, kind of root, name) when the object is a root, else None."""
    item = search.objects[key]
    stranger = 0 if search.is_user_root(item) else 1
    module = search.root_module(item)
    if module is not None:
        return stranger, 0, 1, module
    holding = search.frames.holding(item)
    if holding:
        index, name = holding[0]
        view = search.frames.views[index]
        return (0 if view.user else 1), int(view.borrows(name)), 0, f"{index:06d}{name}"
    built = search.built.get(key)
    if built is not None:
        return 0, 0, 0, f"{built.index:06d}{built.name}"
    if search.is_root(item):
        return stranger, 0, 2, type(item).__name__
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


def _loop(came_from: dict[int, int], start: int, end: int) -> list[int]:
    loop = [end]
    while loop[-1] != start:
        loop.append(came_from[loop[-1]])
    return loop[::-1]
