"""Where the value of a variable comes from: its assignment, its caller, an `except` clause."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from memguard.explain.definitions import bind
from memguard.explain.expressions import starts_over
from memguard.explain.program import Program
from memguard.explain.rewrite import cut_off
from memguard.explain.syntax import Piece, Scope
from memguard.explain.text import code_of

_HOPS = 3
_MOST_SITES = 8


def origin_of(program: Program, piece: Piece, value: ast.expr | None) -> str | None:
    """Source of what the variable in a value was given; None when it has none or nobody knows."""
    names = [name for name in _variables(value) if not cut_off(name)]
    if len(names) != 1:
        return None
    name = names[0].id
    for parent in piece.parents:
        for handler in parent.handlers if isinstance(parent, ast.Try) else ():
            if handler.name == name and piece.line >= handler.lineno:
                source = piece.scope.source
                caught = code_of(source, handler.type) if handler.type else "Exception"
                return f"except {caught} as {name}"
    found = _given(program, piece.scope, name, _HOPS)
    return None if found is None else code_of(found[1].source, found[0])


def _variables(value: ast.expr | None) -> Iterator[ast.Name]:
    """Plain variables that a value is, or is computed from without a call."""
    if isinstance(value, ast.Name):
        yield value
    elif isinstance(value, ast.BinOp):
        yield from _variables(value.left)
        yield from _variables(value.right)


def _given(program: Program, scope: Scope, name: str, hops: int) -> tuple[ast.expr, Scope] | None:
    """The expression a variable was given last as far as the text shows, and where it stands."""
    home = next((around for around in scope.chain() if name in around.bound()), None)
    if home is None or hops == 0:
        return None
    for value, where in _values(program, home, name):
        if isinstance(value, ast.Name):
            return _given(program, where, value.id, hops - 1) or (value, where)
        if not starts_over(value):
            return value, where
    return None


def _values(program: Program, scope: Scope, name: str) -> Iterator[tuple[ast.expr, Scope]]:
    if name in scope.parameters():
        for call, piece in itertools.islice(program.sites(scope), _MOST_SITES):
            given = (value for parameter, value in bind(call, scope) if parameter == name)
            yield from ((value, piece.scope) for value in given)
    assigned = [value for value, whole in program.assigned(name, scope) if whole]
    yield from ((value, scope) for value in reversed(assigned))
