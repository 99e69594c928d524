"""What C++ holds without any Python reference: told by the API that likeliest put it there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from memguard import _kinds
from memguard.explain.loops import Region
from memguard.explain.places import Place
from memguard.explain.program import Program
from memguard.explain.special import calling_back
from memguard.explain.syntax import Piece, dotted, words
from memguard.explain.verbs import Growth

AUTOCAST = "the cache of torch.autocast"
TORCHSCRIPT = "TorchScript's compilation unit"

AT_EXIT = "atexit, till the process ends"

_COMPILING = words("trace trace_module script freeze script_if_tracing")


def place_of(targets: Sequence[Any], program: Program, regions: Sequence[Region]) -> Place | None:
    """What may hold tensors out of Python's sight, by what they are and what the loop does.

    Nothing is named that the program does not use.
    """
    # A test may leave modules and optimizers as well.
    tensors = [target for target in targets if _kinds.is_tensor_type(type(target))]
    with _kinds.without_overrides():
        casts = any(tensor.requires_grad and tensor.is_leaf for tensor in tensors)
        constants = any(not tensor.requires_grad for tensor in tensors)
    if casts and _kinds.caches_casts() and _autocasts(program, regions):
        return Place("native", AUTOCAST, AUTOCAST, "C++")
    if constants and _compiles(program, regions):
        return Place("native", TORCHSCRIPT, TORCHSCRIPT, "C++")
    if _registers(program, regions):
        return Place("native", AT_EXIT, "atexit", "C++")
    return None


def growth(program: Program, place: Place, regions: Sequence[Region]) -> Growth | None:
    """The statement of the user's through which C++ comes to hold what it holds."""
    finders = {AUTOCAST: _autocasts, TORCHSCRIPT: _compiles, AT_EXIT: _registers}
    found = finders[place.name](program, regions)
    return found[0] if found else None


def _autocasts(program: Program, regions: Sequence[Region]) -> list[Growth]:
    """`with torch.autocast(...)` around a running loop: its cache lasts until the block ends."""
    found: list[Growth] = []
    for region in regions:
        for parent in _around(region):
            items = parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else []
            calls = [item.context_expr for item in items]
            if any("autocast" in _called(call) for call in calls):
                pieces = (piece for piece in region.scope.pieces if piece.node is parent)
                found += [Growth(piece, "call", None) for piece in pieces]
    return found


def _around(region: Region) -> tuple[ast.stmt, ...]:
    loop = next((piece for piece in region.scope.pieces if piece.node is region.loop), None)
    return () if loop is None else loop.parents


def _compiles(program: Program, regions: Sequence[Region]) -> list[Growth]:
    """`torch.jit.trace(...)` in a running loop, or in a function that it calls."""
    for region in regions:
        pieces: list[Piece] = [*region.pieces]
        pieces += [piece for scope in region.reach for piece in scope.pieces]
        found = [piece for piece in pieces if any(map(_is_compiling, piece.calls()))]
        if found:
            return [Growth(piece, "call", None) for piece in found]
    return []


def _registers(program: Program, regions: Sequence[Region]) -> list[Growth]:
    """`atexit.register(fn, loss)` in a running loop, or in a function that it calls."""
    found = calling_back(program, "atexit.register", 1)
    return [g for g in found if any(region.route(g.steps) for region in regions)]


def _is_compiling(call: ast.Call) -> bool:
    base, _, name = dotted(call.func).rpartition(".")
    return name in _COMPILING and base.rpartition(".")[2] == "jit"


def _called(expression: ast.expr) -> str:
    return dotted(expression.func) if isinstance(expression, ast.Call) else ""
