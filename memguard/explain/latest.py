"""The statement that gave a variable its value last, going by where its code stands now."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from memguard.explain.places import Spot
from memguard.explain.syntax import Piece, Scope, Source, bindings, read_source
from memguard.explain.text import code_of, context_of
from memguard.records import CodeLine, Holder


def last_given(holder: Holder, stack: Sequence[Spot]) -> Holder:
    """The holder with the statement that put into it what it has now, where it is a variable.

    One statement may be as likely to make a variable grow as another; of one object only the
    assignment that ran last matters. Where the text does not show which that was, nothing changes.

    Args:
        holder: as `why_alive` found it.
        stack: the user's frames, innermost first; empty when the program is over.
    """
    try:
        return _located(holder, stack)
    except RecursionError:
        return holder  # an expression nested deeper than anyone writes


def _located(holder: Holder, stack: Sequence[Spot]) -> Holder:
    kind = next((k for k in ("local", "global") if holder.where.startswith(f"{k} of ")), None)
    is_object = kind is not None and holder.chain[-1].startswith(f"{kind} {holder.name}: ")
    source = read_source(holder.file) if is_object else None
    if source is None:
        return holder
    function = holder.where.removeprefix("local of ") if kind == "local" else "<module>"
    spots = (s for s in stack if (s.file, s.function) == (source.file, function))
    spot = next(spots, None)
    if kind == "global" and _is_set_elsewhere(source, holder.name):
        return holder
    if spot is not None:
        scope = source.scope_at(spot.line) if kind == "local" else source.module
        piece = _last(scope, holder.name, spot.line)
    else:
        # A module that is not running has run to its end.
        over = source.module if kind == "global" else None
        piece = _last(over, holder.name, over.last + 1) if over is not None else None
    return holder if piece is None else _with_statement(holder, piece, source)


def _is_set_elsewhere(source: Source, name: str) -> bool:
    """Whether a function sets a module's variable."""
    return any(isinstance(piece.node, ast.Global) for piece in source.pieces_naming(name))


def _last(scope: Scope, name: str, line: int) -> Piece | None:
    """The statement that ran last of those that give the variable a value."""
    giving = [piece for piece in scope.pieces if _gives(piece, name)]
    for block in scope.pieces:
        if isinstance(block.node, (ast.With, ast.AsyncWith)) and block.top <= line <= block.last:
            # It stands there again when the block has ended.
            inside = [piece for piece in giving if piece.inside(block.node)]
            if inside:
                return inside[-1]
    around = [p.node for p in scope.pieces if p.top <= line <= (p.node.end_lineno or 0)]
    for loop in reversed(around):
        # In a loop those further down ran in the turn before.
        own = [piece for piece in giving if piece.node is loop or piece.inside(loop)]
        above = [piece for piece in own if piece.line <= line]
        if above or (own and isinstance(loop, (ast.For, ast.AsyncFor, ast.While))):
            return (above or own)[-1]
    above = [piece for piece in giving if piece.line <= line]
    return above[-1] if above else None


def _gives(piece: Piece, name: str) -> bool:
    node = piece.node
    targets: list[ast.expr] = [node.target] if isinstance(node, ast.AugAssign) else []
    for binding in (node, *(n for n in piece.nodes() if isinstance(n, ast.NamedExpr))):
        targets += [target for target, _, _ in bindings(binding)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _with_statement(holder: Holder, piece: Piece, source: Source) -> Holder:
    context = context_of(source.lines, piece.line, piece.last)
    return replace(
        holder,
        line=piece.line,
        code=code_of(source, piece.node),
        context=tuple(CodeLine(line, text) for line, text in context),
        # A line that was rewritten for another statement is none for this one.
        fix=holder.fix if holder.line in (None, piece.line) else None,
    )
