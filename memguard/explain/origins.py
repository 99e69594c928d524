"""Where the value of a variable comes from: its assignment, its caller, an `except` clause."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from memguard.explain.definitions import bind
from memguard.explain.expressions import starts_over
from memguard.explain.program import Program
from memguard.explain.rewrite import cut_off
from memguard.explain.syntax import Piece, Scope, dotted, words
from memguard.explain.text import code_of

_OF_ONE = words("item backward")
_OF_MANY = words(
    "mean sum max min std var norm argmax argmin size shape view reshape flatten squeeze softmax "
    "topk sort quantile numel dim cat unsqueeze T transpose permute tolist median"
)
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


def is_single(program: Program, piece: Piece, value: ast.expr | None) -> bool | None:
    """Whether the variable in a value is one number, by its other uses; None when none tells."""
    names = [name for name in _variables(value) if not cut_off(name)]
    return _single(program, piece.scope, names[0].id, _HOPS) if len(names) == 1 else None


def _single(program: Program, scope: Scope, name: str, hops: int) -> bool | None:
    uses = {
        use
        for piece in program.naming(scope.source, name)
        if piece.scope is scope
        for node in piece.nodes()
        if (use := _use_of(node, name)) is not None
    }
    if uses or hops == 0 or name not in scope.parameters():
        return uses.pop() if len(uses) == 1 else None
    told: set[bool | None] = set()
    for call, piece in itertools.islice(program.sites(scope), _MOST_SITES):
        for parameter, value in bind(call, scope):
            if parameter == name and isinstance(value, ast.Name):
                told.add(_single(program, piece.scope, value.id, hops - 1))
    return told.pop() if len(told) == 1 else None


def _use_of(node: ast.AST, name: str) -> bool | None:
    """What one use of a variable says: `loss.backward()` True, `rows.mean()` and `x[0]` False."""

    def is_it(part: ast.AST) -> bool:
        return isinstance(part, ast.Name) and part.id == name

    if isinstance(node, ast.Attribute) and is_it(node.value):
        return True if node.attr in _OF_ONE else False if node.attr in _OF_MANY else None
    if isinstance(node, ast.Subscript) and is_it(node.value):
        return False
    if isinstance(node, ast.Call) and node.args and is_it(node.args[0]):
        function = dotted(node.func)
        return {"float": True, "len": False}.get(function)
    if isinstance(node, ast.FormattedValue) and is_it(node.value):
        return True if node.format_spec is not None else None
    return None


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
