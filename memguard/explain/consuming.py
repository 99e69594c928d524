"""Expressions that run a loop by themselves: comprehensions, and calls that use up a generator."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memguard.explain.syntax import Piece, Source, dotted
from memguard.explain.text import code_of

# What a call makes of the iterable it is given: the type of what exists meanwhile.
_MAKERS = {
    "list": "list",
    "sorted": "list",
    "tuple": "tuple",
    "set": "set",
    "frozenset": "frozenset",
    "dict": "dict",
    "OrderedDict": "OrderedDict",
    "deque": "deque",
    "sum": "Tensor",
    "reduce": "Tensor",
}
_LONGEST = 40

# First line and column, last line and column; columns count bytes, as the parser does.
Span = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Consumer:
    """One expression that runs a loop.

    Attributes:
        piece: the statement it stands in.
        container: type of what it builds: `list`, `Tensor` for a sum.
        value: what each turn adds; None when there is no expression for it.
        name: what the statement assigns it to; None for a `return`, the expression's own text
            where it goes nowhere else.
    """

    piece: Piece
    container: str
    value: ast.expr | None
    name: str | None


def consumers(source: Source, line: int, running: Span | None = None) -> Iterator[Consumer]:
    """The consumers in the statements at a line, inner ones last.

    Args:
        source: the file.
        line: the line being executed.
        running: the part being executed, where Python tells.
    """
    scope = source.scope_at(line)
    for piece in scope.pieces:
        if not piece.top <= line <= piece.last:
            continue
        for node in piece.nodes():
            built = _built_by(node)
            if built is not None and isinstance(node, ast.expr) and _has(node, line, running):
                yield Consumer(piece, *built, _name(piece, node))


def name_at(source: Source, line: int) -> str | None:
    """What the statement at a line assigns to; None for a `return`, or when there is none."""
    for piece in source.scope_at(line).pieces:
        if piece.top <= line <= piece.last:
            return _target(piece.node)
    return None


def _built_by(node: ast.AST) -> tuple[str, ast.expr | None] | None:
    """(type of what is built, what each turn adds)."""
    if isinstance(node, ast.ListComp):
        return "list", node.elt
    if isinstance(node, ast.SetComp):
        return "set", node.elt
    if isinstance(node, ast.DictComp):
        return "dict", node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        starred = any(isinstance(part, ast.Starred) for part in node.elts)
        return ("set" if isinstance(node, ast.Set) else "list", None) if starred else None
    if not isinstance(node, ast.Call) or not node.args:
        return None
    container = _MAKERS.get(dotted(node.func).rpartition(".")[2])
    if container is None:
        return None
    given = node.args[0]
    value = given.elt if isinstance(given, ast.GeneratorExp) else None
    if container == "dict" and isinstance(value, ast.Tuple) and len(value.elts) == 2:
        value = value.elts[1]
    return container, value


def _has(node: ast.expr, line: int, running: Span | None) -> bool:
    last = node.end_lineno or node.lineno
    if running is None:
        return node.lineno <= line <= last
    first_line, first_column, last_line, last_column = running
    begins = (node.lineno, node.col_offset) <= (first_line, first_column)
    return begins and (last_line, last_column) <= (last, node.end_col_offset or 0)


def _name(piece: Piece, node: ast.expr) -> str | None:
    named = (n for n in piece.nodes() if isinstance(n, ast.NamedExpr) and n.value is node)
    walrus = next(named, None)
    if walrus is not None:
        return dotted(walrus.target)
    target = _target(piece.node)
    if target is not None or isinstance(piece.node, ast.Return):
        return target
    text = code_of(piece.scope.source, node)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2].rstrip()} …"


def _target(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return ast.unparse(node.target) if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else None
