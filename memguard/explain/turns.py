"""From the variable of a loop up to the container that the loop runs over, which a user knows."""

from __future__ import annotations

import ast
from typing import Any

from memguard.explain import naming
from memguard.explain.frames import qualified_name, read_locals
from memguard.explain.program import Program
from memguard.explain.reading import entries, is_tensor, isinstance_exact, module_file
from memguard.explain.search import Search
from memguard.explain.syntax import Scope, bindings

# Containers one within another that are looked into for what the variable holds, and entries.
_MOST_DEEP = 2
_MOST_LOOKED = 1000


def above_turns(path: list[Any], search: Search) -> list[Any]:
    """The same path from the container that a loop runs over, where it begins at its variable.

    Of `for run in runs: run["losses"].append(loss)` a user knows `runs`; `run` is another one in
    each turn. The path comes back as it is where it begins otherwise, or nothing has the value.
    """
    root = naming.readable(path, search)[0]
    if root.edge.kind not in ("local", "global") or is_tensor(root.value):
        return path
    if root.edge.kind == "global":
        first = path[0] if type(path[0]) is dict else {}
        program = Program([module_file(first) or _running(search, str(root.owner))])
        scope = program.sources[0].module if program.sources else None
        variables, above = entries(first), path[:1]
    else:
        frame = search.frames.views[int(root.owner)].frame
        code = frame.f_code
        program = Program([code.co_filename])
        scope = program.find(code.co_filename, qualified_name(code), code.co_firstlineno)
        variables, above = entries(read_locals(frame)), []
    if scope is None or not _is_turned(scope, root.edge.name):
        return path
    at = next(index for index, item in enumerate(path) if item is root.value)
    ways = [way for _, value in variables if (way := _way(value, root.value)) is not None]
    return [*above, *min(ways, key=len), *path[at:]] if ways else path


def _running(search: Search, module: str) -> str | None:
    views = search.frames.views
    names = (v.frame.f_code.co_filename for v in views if v.is_module_level and v.user)
    return next(names, None) if module == "__main__" else None


def _is_turned(scope: Scope, name: str) -> bool:
    """Whether loops alone give the variable its value."""
    bound = [
        isinstance(piece.node, (ast.For, ast.AsyncFor))
        for piece in scope.pieces
        for target, _, _ in bindings(piece.node)
        if isinstance(target, ast.Name) and target.id == name
    ]
    return bool(bound) and all(bound)


def _way(value: Any, wanted: Any) -> list[Any] | None:
    """Containers from a variable's value, the first, down to the one that has what is wanted."""
    looked = 0
    ways: list[list[Any]] = [[value]] if value is not wanted else []
    for _ in range(_MOST_DEEP):
        deeper: list[list[Any]] = []
        for way in ways:
            for child in _inside(way[-1]):
                looked += 1
                if child is wanted:
                    return way
                if looked < _MOST_LOOKED:
                    deeper.append([*way, child])
        ways = deeper
    return None


def _inside(value: Any) -> list[Any]:
    if isinstance_exact(value, dict):
        return [child for _, child in entries(value)[:_MOST_LOOKED]]
    if type(value) is list or type(value) is tuple:
        return list(value[:_MOST_LOOKED])
    return []
