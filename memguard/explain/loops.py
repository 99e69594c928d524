"""What runs again and again: the loops that are running, and everything their bodies call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from memguard.explain.calls import Reached, reach
from memguard.explain.places import Spot
from memguard.explain.program import Program
from memguard.explain.syntax import LOOPS, Piece, Scope


@dataclass(eq=False, slots=True)
class Region:
    """Statements that run again and again, with the functions they run.

    Attributes:
        loop: the loop they are the body of; None for a function that a library calls each step.
        line: line of the scope being executed.
    """

    program: Program
    scope: Scope
    loop: ast.stmt | None
    pieces: tuple[Piece, ...]
    line: int
    _reach: dict[Scope, Reached] | None = None

    @property
    def reach(self) -> dict[Scope, Reached]:
        """Functions the statements run, through calls by name."""
        if self._reach is None:
            self._reach = reach(self.program, self.pieces)
        return self._reach

    def route(self, steps: Sequence[Piece]) -> tuple[Piece, ...] | None:
        """The statements from the region's own down to the last step; None if it does not run it.

        Args:
            steps: calls that hand the holder over, outermost first, then the statement itself.
        """
        for position, piece in enumerate(steps):
            if piece.scope is self.scope and any(piece is own for own in self.pieces):
                return tuple(steps[position:])
        reached = self.reach.get(steps[0].scope)
        return None if reached is None else (*reached.path(), *steps)

    def inner_parents(self, piece: Piece) -> tuple[ast.stmt, ...]:
        """Compound statements around a piece, those around the loop left out."""
        if self.loop is None or not piece.inside(self.loop):
            return piece.parents
        position = [parent is self.loop for parent in piece.parents].index(True)
        return piece.parents[position + 1 :]


def running_regions(program: Program, stack: Iterable[Spot]) -> list[Region]:
    """The loops the stack stands in, innermost first."""
    found: list[Region] = []
    for spot in stack:
        scope = program.find(spot.file, spot.function, spot.first_line)
        if scope is None:
            continue
        loops = _around(scope, spot.line)
        found += (_loop_region(program, scope, loop, spot.line) for loop in loops)
        if spot.repeated:
            found.append(Region(program, scope, None, tuple(scope.pieces), spot.line))
    return found


def own_region(program: Program, piece: Piece) -> Region | None:
    """The innermost loop around a statement, or the function it stands in."""
    if piece.loops:
        return _loop_region(program, piece.scope, piece.loops[-1], piece.line)
    if not piece.scope.is_function:
        return None
    return Region(program, piece.scope, None, tuple(piece.scope.pieces), piece.line)


def _loop_region(program: Program, scope: Scope, loop: ast.stmt, line: int) -> Region:
    pieces = tuple(piece for piece in scope.pieces if piece.node is loop or piece.inside(loop))
    return Region(program, scope, loop, pieces, line)


def _around(scope: Scope, line: int) -> Iterator[ast.stmt]:
    """Loops of the scope in whose text the line is, innermost first."""
    for piece in reversed(scope.pieces):
        if isinstance(piece.node, LOOPS) and piece.line <= line <= (piece.node.end_lineno or 0):
            yield piece.node
