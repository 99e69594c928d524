"""What callers hand over: tensors, plain numbers or both; and in which thread."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from memguard.explain.calls import handed
from memguard.explain.definitions import bind
from memguard.explain.loops import Region
from memguard.explain.program import Program
from memguard.explain.syntax import Piece, Scope, dotted, words

_HOPS = 4
_MOST_SITES = 12
_NUMBERS = words("item tolist float int len round perf_counter time")
_VIEWS = words("items values")
# Calls that run a function in another thread, and which of their arguments it is.
_POOLS = {"submit": 0, "run_in_executor": 1, "to_thread": 0, "apply_async": 0}
_MAPPING = words("map imap imap_unordered")


def may_be_number(program: Program, piece: Piece, value: ast.expr | None) -> bool:
    """Whether a value may be a plain number as well, by what callers of its function hand over.

    Each of its variables has to be one that some caller gives a number, or a loop over a dict whose
    values nobody knows.
    """
    leaves = list(_leaves(value)) if value is not None else []
    known = [leaf for leaf in leaves if not isinstance(leaf, ast.Constant)]
    return bool(known) and all(
        isinstance(leaf, ast.Name) and _may_be(program, piece.scope, leaf, _HOPS) for leaf in known
    )


def _leaves(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.BinOp):
        yield from _leaves(value.left)
        yield from _leaves(value.right)
    else:
        yield value


def _may_be(program: Program, scope: Scope, value: ast.expr, hops: int) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float))
    if isinstance(value, ast.Call):
        func = value.func
        return (func.attr if isinstance(func, ast.Attribute) else dotted(func)) in _NUMBERS
    if isinstance(value, ast.BinOp):
        return all(_may_be(program, scope, leaf, hops) for leaf in _leaves(value))
    if isinstance(value, ast.IfExp):
        return any(_may_be(program, scope, part, hops) for part in (value.body, value.orelse))
    if not isinstance(value, ast.Name) or hops == 0:
        return False
    home = next((around for around in scope.chain() if value.id in around.bound()), None)
    if home is None:
        return False
    if value.id in home.parameters():
        given = _given(program, home, value.id)
        return any(_may_be(program, where, one, hops - 1) for one, where in given)
    iterated = _iterated(home, value.id)
    if iterated is not None:
        return _has_numbers(program, home, iterated, hops - 1)
    return False


def _given(program: Program, function: Scope, name: str) -> Iterator[tuple[ast.expr, Scope]]:
    """What callers give a parameter, and the scope that it stands in."""
    for call, piece in itertools.islice(program.sites(function), _MOST_SITES):
        for parameter, value in bind(call, function):
            if parameter == name:
                yield value, piece.scope


def _iterated(scope: Scope, name: str) -> ast.expr | None:
    """`kw` where the variable is the value of a loop over `kw.items()` or `kw.values()`."""
    for piece in scope.pieces:
        loop = piece.node
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
            continue
        last = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
        func = loop.iter.func
        if dotted(last) == name and isinstance(func, ast.Attribute) and func.attr in _VIEWS:
            return func.value
    return None


def _has_numbers(program: Program, scope: Scope, value: ast.expr, hops: int) -> bool:
    """Whether a dict may have numbers in it; one that nobody knows may."""
    if isinstance(value, ast.Dict):
        return any(_may_be(program, scope, part, hops) for part in value.values)
    if not isinstance(value, ast.Name) or hops <= 0:
        return True
    home = next((around for around in scope.chain() if value.id in around.bound()), None)
    spec = home.arguments if home is not None else None
    if home is None or spec is None:
        return True
    if spec.kwarg is not None and spec.kwarg.arg == value.id:
        given = list(_given(program, home, value.id))
        found = [_may_be(program, where, one, hops) for one, where in given]
        return any(found) or not found
    if value.id in home.parameters():
        handed_over = _given(program, home, value.id)
        return any(_has_numbers(program, where, one, hops - 1) for one, where in handed_over)
    values = [made for made, whole in program.assigned(value.id, home) if whole]
    return any(_has_numbers(program, home, made, hops - 1) for made in values) or not values


def threaded(program: Program, regions: Sequence[Region]) -> str | None:
    """The function that the running loop hands to other threads: `pool.submit(evaluate, x)`."""
    for region in regions:
        pieces = [*region.pieces, *(p for scope in region.reach for p in scope.pieces)]
        for piece in pieces:
            for call in piece.calls():
                given = _run_elsewhere(call)
                if given is not None and handed(program, given, piece.scope):
                    return ast.unparse(given)
    return None


def _run_elsewhere(call: ast.Call) -> ast.expr | None:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else dotted(func)
    if name == "Thread":
        return next((k.value for k in call.keywords if k.arg == "target"), None)
    at = _POOLS.get(name)
    if at is None and name in _MAPPING and isinstance(func, ast.Attribute):
        at = 0
    return call.args[at] if at is not None and len(call.args) > at else None
