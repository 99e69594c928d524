"""Whether the program says itself when a step has ended, read off the code that made a guard.

A server may run a whole request, of many forwards, before its first `guard.step()`. Until then only
its code tells that the forwards are no steps.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType
from typing import Literal

from memguard.explain.syntax import Piece, Scope, Source, read_source

_WATCH, _STEP = "watch", "step"

# `sometimes` is within a branch, which may never be taken; `perhaps` means that the text does not
# tell: there is none, or the guard goes where it does not show.
Said = Literal["always", "sometimes", "perhaps", "never"]


def says_step(frame: FrameType) -> Said:
    """Whether `step` is asked of what the running call of `watch` in a frame gives.

    Takes some milliseconds, once for each file.

    Args:
        frame: the frame that calls `watch`.
    """
    source = read_source(frame.f_code.co_filename)
    piece = None if source is None else _statement(source, frame.f_lineno)
    if source is None or piece is None:
        return "perhaps"
    bound = _bound_by(piece)
    if bound is None:
        return "perhaps"
    if isinstance(bound, bool):
        return "always" if bound else "never"
    is_local = isinstance(bound, ast.Name) and piece.scope.is_function
    stepping, is_handed_on = _uses(source, bound, piece.scope if is_local else source.module)
    if stepping:
        is_certain = any(not _is_in_branch(one, piece, bound) for one in stepping)
        return "always" if is_certain else "sometimes"
    if isinstance(bound, ast.Attribute):
        # Whoever has the object has the guard. Its class is the one to ask it for a step, though;
        # where its file asks nothing at all for one, nobody is expected to.
        is_at_hand = _asks_for_steps(source)
    else:
        # A variable of a module that is imported is at hand in other files.
        is_at_hand = not (is_local or _is_main(frame))
    return "perhaps" if is_handed_on or is_at_hand else "never"


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


def _uses(source: Source, bound: ast.Name | ast.Attribute, home: Scope) -> tuple[list[Piece], bool]:
    """Statements of a scope that ask the bound name for `step`; whether the guard is handed on."""
    stepping: list[Piece] = []
    is_handed_on = False
    for scope in source.scopes:
        if home not in scope.chain():
            continue
        for piece, parent, node in _pairs(scope):
            if not _is_same(node, bound) or not isinstance(getattr(node, "ctx", None), ast.Load):
                continue
            if isinstance(parent, ast.Attribute):
                if parent.attr == _STEP:
                    stepping.append(piece)
            elif not isinstance(parent, ast.withitem):
                is_handed_on = True
    return stepping, is_handed_on


def _pairs(scope: Scope) -> Iterator[tuple[Piece, ast.AST, ast.AST]]:
    """(statement, expression, part of it) of every expression directly in a scope."""
    for piece in scope.pieces:
        for node in piece.nodes():
            for part in ast.iter_child_nodes(node):
                yield piece, node, part


def _is_in_branch(piece: Piece, watching: Piece, bound: ast.Name | ast.Attribute) -> bool:
    """Whether a statement may never run although `watch` did: a flag decides.

    Being the main program, or having a guard at all, is none; nor is what decides on both.
    """
    for around in piece.parents:
        if around in watching.parents:
            continue
        if isinstance(around, ast.Match) or _is_handled(piece, around):
            return True
        if isinstance(around, ast.If):
            parts = list(ast.walk(around.test))
            if not any(_is_same(part, bound) or _is_dunder_name(part) for part in parts):
                return True
    return False


def _is_handled(piece: Piece, around: ast.stmt) -> bool:
    """Whether a statement stands in an `except` of a `try` around it."""
    handlers = around.handlers if isinstance(around, ast.Try) else ()
    return any(piece.node in ast.walk(handler) for handler in handlers)


def _is_dunder_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "__name__"


def _asks_for_steps(source: Source) -> bool:
    """Whether anything at all in a file is asked for `step`."""
    nodes = (node for scope in source.scopes for piece in scope.pieces for node in piece.nodes())
    return any(isinstance(node, ast.Attribute) and node.attr == _STEP for node in nodes)


def _is_same(node: ast.AST, bound: ast.Name | ast.Attribute) -> bool:
    """Whether an expression names what was bound; attributes by their own name."""
    if isinstance(bound, ast.Name):
        return isinstance(node, ast.Name) and node.id == bound.id
    return isinstance(node, ast.Attribute) and node.attr == bound.attr
