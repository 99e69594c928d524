"""Whether a loop has yet to do what frees the graphs: go backward, or step the optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memguard.explain.calls import MAX_DEPTH, called, callees, reach
from memguard.explain.expressions import starts_over
from memguard.explain.loops import Region
from memguard.explain.program import Program
from memguard.explain.syntax import LOOPS, Piece, Scope, bindings, dotted, words
from memguard.explain.text import code_of

# Names that say of a condition that it holds now and then.
_NOW_AND_THEN = words("should sync accumulate accumulation accum boundary due every full period")
_LONGEST = 60
_MOST_SEEN = 200

# A call that frees graphs, and the statements from the region's own down to its own.
Freeing = tuple[ast.Call, tuple[Piece, ...]]


def pending_of(region: Region, route: Sequence[Piece], outer: Sequence[Region]) -> str | None:
    """What the running loop will still do that frees graphs, in words; None when it is nothing.

    Args:
        region: the running loop.
        route: statements from its body down to the one that makes the holder grow.
        outer: loops around it that may still do it, innermost first; empty when what they do
            cannot concern the holder.
    """
    found = list(_freeing(region.program, region.pieces))
    inner = _inner_loop(region, route)
    for call, path in found:
        if any(_now_and_then(region, piece, call) for piece in path):
            return _worded(call, path[-1])
        if inner is not None and not path[0].inside(inner) and path[0].line > route[0].line:
            return _worded(call, path[-1])
    if not found:
        for call, path in _afterwards(region, outer):
            return _worded(call, path[-1])
    return None


def pending_after(program: Program, piece: Piece) -> str | None:
    """What comes after a statement in its function and frees graphs; None if it does so itself."""
    if next(_freeing(program, [piece]), None) is not None:
        return None
    after = [other for other in piece.scope.pieces if other.line > piece.last]
    found = next(_freeing(program, after), None)
    return None if found is None else _worded(found[0], found[1][-1])


def frees(region: Region) -> bool:
    """Whether the region goes backward or steps an optimizer at all."""
    return next(_freeing(region.program, region.pieces), None) is not None


def _worded(call: ast.Call, piece: Piece) -> str:
    text = code_of(piece.scope.source, call)
    if len(text) > _LONGEST:
        text = f"{code_of(piece.scope.source, call.func)}(...)"
    return f"{text} at line {call.lineno}"


def _freeing(program: Program, pieces: Sequence[Piece]) -> Iterator[Freeing]:
    yield from _freeing_in(program, pieces, (), set())


def _freeing_in(
    program: Program, pieces: Sequence[Piece], above: tuple[Piece, ...], seen: set[Scope]
) -> Iterator[Freeing]:
    for piece in pieces:
        path = (*above, piece)
        yield from ((call, path) for call in piece.calls() if _is_freeing(call))
        if len(above) < MAX_DEPTH:
            for scope, _ in callees(program, piece):
                if scope not in seen and len(seen) < _MOST_SEEN:
                    seen.add(scope)
                    yield from _freeing_in(program, scope.pieces, path, seen)


def _is_freeing(call: ast.Call) -> bool:
    func = call.func
    if not isinstance(func, ast.Attribute):
        return False
    base = dotted(func.value)
    if func.attr in ("backward", "manual_backward"):
        return not (isinstance(func.value, ast.Call) and dotted(func.value.func) == "super")
    if func.attr == "grad":
        return base.endswith("autograd")
    stepped = (base, *(dotted(arg) for arg in call.args[:1]))
    return func.attr == "step" and any("opt" in name.lower() for name in stepped)


def _inner_loop(region: Region, route: Sequence[Piece]) -> ast.stmt | None:
    """The loop inside the region in which the holder grows several times a turn."""
    for piece in route:
        loops = [p for p in region.inner_parents(piece) if isinstance(p, LOOPS)]
        if loops:
            return loops[0]
    return None


def _now_and_then(region: Region, piece: Piece, call: ast.Call) -> bool:
    """Whether a condition lets the statement run only every few turns."""
    conditions = [p for p in region.inner_parents(piece) if isinstance(p, ast.If)]
    for condition in conditions:
        if not _in_both_branches(condition, call) and _is_periodic(condition, piece.scope, call):
            return True
    return any(
        isinstance(other.node, ast.If)
        and isinstance(other.node.body[-1], ast.Continue)
        and other.line < piece.line
        and other.parents == piece.parents[: len(other.parents)]
        and (region.loop is None or other.inside(region.loop) or piece.scope is not region.scope)
        and _has_modulo(other.node.test)
        for other in piece.scope.pieces
    )


def _in_both_branches(parent: ast.If, call: ast.Call) -> bool:
    """`if scaler: scaled.backward() else: loss.backward()` runs on every turn."""
    kind = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return bool(parent.orelse) and all(
        any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == kind
            for statement in branch
            for node in ast.walk(statement)
        )
        for branch in (parent.body, parent.orelse)
    )


def _has_modulo(test: ast.expr) -> bool:
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(test))


def _is_periodic(condition: ast.If, scope: Scope, call: ast.Call) -> bool:
    test = condition.test
    if _has_modulo(test):
        return True
    names = {dotted(node) for node in ast.walk(test)} - {""}
    said = {word for name in names for word in name.replace(".", "_").lower().split("_")}
    if said & _NOW_AND_THEN:
        return True
    if any(_begins_again(condition, name) for name in names):
        return True
    if any(isinstance(node, ast.Call) for node in ast.walk(test)):
        return False
    # `if done:` where the loop finds out each turn whether it is done.
    own = {dotted(node) for node in ast.walk(call)}
    plain = isinstance(test, (ast.Name, ast.UnaryOp, ast.BoolOp))
    return plain and any(_set_in_loop(name, scope) for name in names - own if "." not in name)


def _begins_again(parent: ast.If, name: str) -> bool:
    """Whether the branch empties or resets what its condition looked at."""
    for node in ast.walk(parent):
        if any(dotted(t) == name and starts_over(v) for t, v, _ in bindings(node)):
            return True
        if isinstance(node, ast.Delete):
            gone = [t.value if isinstance(t, ast.Subscript) else t for t in node.targets]
            if name in map(dotted, gone):
                return True
        if isinstance(node, ast.Call) and dotted(node.func) == f"{name}.clear":
            return True
    return False


def _set_in_loop(name: str, scope: Scope) -> bool:
    return any(
        dotted(target) == name
        for piece in scope.pieces
        if piece.loops and not isinstance(piece.node, (ast.For, ast.AsyncFor))
        for target, _, _ in bindings(piece.node)
    )


def _afterwards(region: Region, outer: Sequence[Region]) -> Iterator[Freeing]:
    """What comes after the loop: in the same function, and in the loops around it."""
    if region.loop is not None:
        end = region.loop.end_lineno or region.loop.lineno
        after = [piece for piece in region.scope.pieces if piece.line > end]
        yield from _freeing(region.program, after)
    for around in outer:
        if around.scope is not region.scope:
            yield from _beside(region, around)
            after = [piece for piece in around.pieces if piece.line > around.line]
            yield from _freeing(region.program, after)


def _beside(region: Region, around: Region) -> Iterator[Freeing]:
    """What the statements of the line being executed will do with what the loop returns.

    As in `learn(rollout())`; the call that leads to the loop itself is none of them.
    """
    program = region.program
    for piece in around.pieces:
        if not piece.line <= around.line <= piece.last or hasattr(piece.node, "body"):
            continue
        for call in piece.calls():
            if _is_freeing(call):
                yield call, (piece,)
                continue
            for scope in called(program, call, piece.scope):
                if scope is not region.scope and region.scope not in reach(program, scope.pieces):
                    yield from _freeing_in(program, scope.pieces, (piece,), {scope})
