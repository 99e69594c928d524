"""Habits of a loop, read off its source: what it does at every step that it need not do.

Only what the text shows beyond doubt counts: a call under an `if`, or in an inner loop, does not.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from memguard.explain.calls import Reached, called, callees
from memguard.explain.loops import Region, running_regions
from memguard.explain.places import Spot, Statement
from memguard.explain.program import Program
from memguard.explain.syntax import Piece, Scope, dotted
from memguard.explain.text import code_of, context_of

# Without one of the first two words no file is parsed for their sake.
RETAIN, EMPTY, _STEP = "retain_graph", "empty_cache", "step"

# Characters of the stack's files in all that are parsed to look for a habit: a microsecond each.
MOST_READ = 50_000

_BACKWARDS = frozenset(("backward", "grad", "gradient", "vjp", "jacobian", "hessian"))

# What may stand around a statement that runs each time all the same; and what skips the rest.
_ALWAYS = (ast.With, ast.AsyncWith)
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DEVICE_WORDS = frozenset(("is_available", "cuda", "use_cuda", "device", "gpu", "use_gpu"))


@dataclass(frozen=True, slots=True)
class Step:
    """The statement in which an optimizer steps.

    Attributes:
        optimizer: as the user wrote it; None when the statement does not show it.
    """

    statement: Statement
    optimizer: str | None


def is_worth_reading(stack: Iterable[Spot], words: Sequence[str]) -> bool:
    """Whether one of the words stands in the stack's files, and these are soon parsed.

    All of the files count: without one of them, the loop that is running would be mistaken.
    """
    texts = [linecache.getlines(file) for file in {spot.file for spot in stack}]
    if sum(len(line) for lines in texts for line in lines) > MOST_READ:
        return False
    return any(word in line for lines in texts for line in lines for word in words)


class Habits:
    """The loop that the stack stands in, asked for its habits.

    Args:
        stack: the user's frames when a step ended, innermost first.
    """

    def __init__(self, stack: Sequence[Spot]) -> None:
        self._stack = stack
        self._program = Program([spot.file for spot in stack])
        regions = running_regions(self._program, stack)
        innermost = next((region for region in regions if region.loop is not None), None)
        self._loop = None if innermost is None or _in_comprehension(innermost) else innermost

    def retaining(self) -> Statement | None:
        """The loop's only backward, when it retains its graph at every step, once."""
        if not self._mentions(RETAIN):
            return None
        found = [
            (piece, call, always, reached)
            for piece, always, reached in self._pieces()
            for call in piece.calls()
            if _name(call) in _BACKWARDS
        ]
        if len(found) != 1:
            return None
        piece, call, always, reached = found[0]
        once = always and self._is_reached_once(reached)
        return statement_of(piece) if once and _retains(call) else None

    def emptying(self) -> Statement | None:
        """The statement that empties the allocator's cache at every step."""
        if not self._mentions(EMPTY):
            return None
        for piece, always, _ in self._pieces():
            if always and any(_name(call) == EMPTY for call in piece.calls()):
                return statement_of(piece)
        return None

    def disabling(self) -> Statement | None:
        """The statement that switches automatic collection off, where one of the files has it."""
        for source in self._program.sources:
            for word in ("disable", "set_threshold"):
                for piece in self._program.naming(source, word):
                    if any(dotted(call.func) == f"gc.{word}" for call in piece.calls()):
                        return statement_of(piece)
        return None

    def collects(self) -> bool:
        """Whether a statement of the files collects, wherever it stands."""
        return any(
            dotted(call.func) in ("gc.collect", "collect")
            for source in self._program.sources
            for piece in self._program.naming(source, "collect")
            for call in piece.calls()
        )

    def clears_past_autograd(self) -> bool:
        """Whether the files write to gradients in ways of which autograd is not told."""
        texts = (source.text for source in self._program.sources)
        return any("grad.data" in text or "data.zero_" in text for text in texts)

    def _mentions(self, word: str) -> bool:
        return any(source.text.find(word) >= 0 for source in self._program.sources)

    def _pieces(self) -> Iterator[tuple[Piece, bool, Reached | None]]:
        """Statements that the loop runs, whether at every step, and how each is reached."""
        loop = self._loop
        if loop is None:
            return
        for piece in loop.pieces:
            if piece.node is not loop.loop:
                yield piece, self._always(piece), None
        for reached in loop.reach.values():
            via = all(self._always(piece) for piece in reached.path())
            for piece in reached.scope.pieces:
                yield piece, via and self._always(piece), reached

    def _always(self, piece: Piece) -> bool:
        """Whether each call of a statement is made whenever its loop, or function, goes round."""
        loop = self._loop
        own = loop is not None and piece.scope is loop.scope and piece in loop.pieces
        parents = loop.inner_parents(piece) if loop is not None and own else piece.parents
        others = loop.pieces if loop is not None and own else piece.scope.pieces
        return (
            _is_straight(piece)
            and all(_runs_through(parent, piece) for parent in parents)
            and not any(_leaves(other, piece) for other in others)
        )

    def _is_reached_once(self, reached: Reached | None) -> bool:
        """Whether one call alone leads to a function; False where the text does not say."""
        running = [piece for piece, _, _ in self._pieces()]
        while reached is not None:
            scope = reached.scope
            ways = [p for p in running for one, _ in callees(self._program, p) if one is scope]
            calls = [c for p in running for c in p.calls() if self._may_run(c, p, scope)]
            if len(ways) != 1 or len(calls) != 1:
                return False
            if called(self._program, calls[0], ways[0].scope) != [scope]:
                return False
            reached = reached.before
        return True

    def _may_run(self, call: ast.Call, piece: Piece, scope: Scope) -> bool:
        return scope in called(self._program, call, piece.scope)


def stepping(stack: Sequence[Spot]) -> Step | None:
    """The user's statement in which an optimizer has just stepped."""
    for spot in stack[:1]:
        statement, node = _standing_at(spot)
        if statement is not None and node is not None:
            return Step(statement, _stepped(node))
    return None


def standing_at(spot: Spot) -> Statement | None:
    """The statement at which a frame stands."""
    return _standing_at(spot)[0]


def _standing_at(spot: Spot) -> tuple[Statement | None, ast.stmt | None]:
    program = Program([spot.file])
    scope = program.find(spot.file, spot.function, spot.first_line)
    if scope is None:
        return None, None
    around = [p for p in scope.pieces if p.top <= spot.line <= p.last]
    if not around:
        return None, None
    return statement_of(around[-1]), around[-1].node


def statement_of(piece: Piece) -> Statement:
    """A statement with its text and the lines around it."""
    source = piece.scope.source
    return Statement(
        source.file,
        piece.line,
        code_of(source, piece.node),
        "call",
        function=piece.scope.qualname if piece.scope.is_function else None,
        context=context_of(source.lines, piece.line, piece.last),
    )


def _stepped(node: ast.stmt) -> str | None:
    """`optimizer` of `optimizer.step()`, and of `scaler.step(optimizer)`."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or _name(call) != _STEP:
            continue
        given = dotted(call.args[0]) if call.args else ""
        receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        return (given if "opt" in given.lower() else receiver) or None
    return None


def _name(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else dotted(func)


def _retains(call: ast.Call) -> bool:
    return any(
        keyword.arg == RETAIN
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in call.keywords
    )


def _in_comprehension(region: Region) -> bool:
    """Whether the loop stands in a statement with a comprehension, which goes round by itself.

    From Python 3.12 on that has no frame of its own.
    """
    standing = [p for p in region.scope.pieces if p.top <= region.line <= p.last]
    return bool(standing) and any(
        isinstance(node, _COMPREHENSIONS) for node in standing[-1].nodes()
    )


def _is_straight(piece: Piece) -> bool:
    """Whether a statement, once begun, makes each of its calls once."""
    winding = (ast.IfExp, ast.BoolOp, ast.Lambda, *_COMPREHENSIONS)
    return not any(
        isinstance(node, winding) and any(isinstance(one, ast.Call) for one in ast.walk(node))
        for node in piece.nodes()
    )


def _runs_through(parent: ast.stmt, piece: Piece) -> bool:
    """Whether what stands in this compound statement, at that place, runs each time."""
    if _is_among(piece, parent, ("handlers", "orelse")):
        return False
    is_try = hasattr(parent, "finalbody")
    return is_try or isinstance(parent, _ALWAYS) or _asks_for_device(parent)


def _is_among(piece: Piece, parent: ast.stmt, parts: Sequence[str]) -> bool:
    inner = (one for part in parts for one in getattr(parent, part, ()))
    return any(one.lineno <= piece.line <= (one.end_lineno or one.lineno) for one in inner)


def _leaves(other: Piece, piece: Piece) -> bool:
    """Whether a statement before this one may end the turn first."""
    if not isinstance(other.node, _LEAVING) or other.line >= piece.line:
        return False
    inner = [loop for loop in other.loops if loop not in piece.loops]
    return not inner or isinstance(other.node, (ast.Return, ast.Raise))


def _asks_for_device(parent: ast.stmt) -> bool:
    if not isinstance(parent, ast.If):
        return False
    names = set()
    for node in ast.walk(parent.test):
        counts = isinstance(node, ast.Constant) and type(node.value) is int
        if counts or isinstance(node, ast.BinOp):
            return False  # every so many steps
        names.add(dotted(node).rpartition(".")[2].lower())
    return bool(names & _DEVICE_WORDS)
