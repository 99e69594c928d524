"""Whether the program says itself when a step has ended, read off the code that made a guard.

A server may run a whole request, of many forwards, before its first `guard.step()`. Until then only
its code tells that the forwards are no steps.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType

from memguard.explain.syntax import Piece, Scope, Source, read_source

_WATCH, _STEP = "watch", "step"


def says_step(frame: FrameType) -> bool | None:
    """Whether `step` is asked of what the running call of `watch` in a frame gives.

    Args:
        frame: the frame that calls `watch`.

    Returns:
        None where the text does not tell: there is none, or the guard goes where it does not show.
        Takes some milliseconds, once for each file.
    """
    source = read_source(frame.f_code.co_filename)
    piece = None if source is None else _statement(source, frame.f_lineno)
    if source is None or piece is None:
        return None
    bound = _bound_by(piece)
    if isinstance(bound, bool) or bound is None:
        return bound
    is_local = isinstance(bound, ast.Name) and piece.scope.is_function
    stepped, is_handed_on = _uses(source, bound, piece.scope if is_local else source.module)
    if stepped:
        return True
    # Attributes, and variables of modules that are imported, are at hand in other files, too.
    is_at_hand = isinstance(bound, ast.Attribute) or not (is_local or _is_main(frame))
    return None if is_handed_on or is_at_hand else False


def _is_main(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "__main__"


def _statement(source: Source, line: int) -> Piece | None:
    """The innermost statement around a line, one that calls `watch` if there is one."""
    pieces = [p for scope in source.scopes for p in scope.pieces if p.top <= line <= p.last]
    calling = [piece for piece in pieces if _watches(piece)]
    found = calling or pieces
    return found[-1] if found else None


def _watches(piece: Piece) -> ast.Call | None:
    for call in piece.calls():
        name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
        if name == _WATCH:
            return call
    return None


def _bound_by(piece: Piece) -> ast.Name | ast.Attribute | bool | None:
    """What holds the guard; False when nothing can, True when it is asked to step at once."""
    call, node = _watches(piece), piece.node
    for inner in piece.nodes():
        if isinstance(inner, ast.Attribute) and inner.value is call:
            return True if inner.attr == _STEP else None
        if isinstance(inner, ast.NamedExpr) and inner.value is call:
            return inner.target
    if isinstance(node, ast.Expr):
        return False if node.value is call else None
    target: ast.expr | None = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        items = [item for item in node.items if item.context_expr is call]
        if not items:
            return None
        target = items[0].optional_vars
        if target is None:
            return False
    return target if isinstance(target, (ast.Name, ast.Attribute)) else None


def _uses(source: Source, bound: ast.Name | ast.Attribute, home: Scope) -> tuple[bool, bool]:
    """Whether the bound name is asked for `step` in a scope, and whether the guard is handed on."""
    stepped = is_handed_on = False
    for scope in source.scopes:
        if home not in scope.chain():
            continue
        for parent, node in (pair for piece in scope.pieces for pair in _pairs(piece)):
            if not _is_same(node, bound) or not isinstance(getattr(node, "ctx", None), ast.Load):
                continue
            if isinstance(parent, ast.Attribute):
                stepped = stepped or parent.attr == _STEP
            elif not isinstance(parent, ast.withitem):
                is_handed_on = True
    return stepped, is_handed_on


def _pairs(piece: Piece) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Every expression of a statement after what it is directly part of."""
    return ((node, part) for node in piece.nodes() for part in ast.iter_child_nodes(node))


def _is_same(node: ast.AST, bound: ast.Name | ast.Attribute) -> bool:
    """Whether an expression names what was bound; attributes by their own name."""
    if isinstance(bound, ast.Name):
        return isinstance(node, ast.Name) and node.id == bound.id
    return isinstance(node, ast.Attribute) and node.attr == bound.attr
