"""Statements that empty, shorten or bound a holder, and how much they leave in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memguard.explain.expressions import is_detached, starts_over
from memguard.explain.integers import Integers
from memguard.explain.subject import ANY, Keys, View, key_of
from memguard.explain.syntax import Piece, bindings, dotted, same, words
from memguard.explain.verbs import Growth, self_fed

_EMPTYING = words("clear pop popleft popitem remove discard detach_ difference_update drain flush")
_TAKING_ONE = words("pop popleft popitem remove discard")
_QUEUES = words("Queue SimpleQueue LifoQueue PriorityQueue JoinableQueue")
_POPPING_FUNCTIONS = words("heappop heapreplace heappushpop")
_LESS, _MORE = (ast.Lt, ast.LtE, ast.NotEq), (ast.Gt, ast.GtE, ast.Eq)


@dataclass(frozen=True, slots=True)
class Emptying:
    """One way in which a statement empties or shortens the holder.

    Attributes:
        keys: what of the holder it empties.
        calls: calls that handed the holder over to the statement's function, outermost first.
        size: the expression that says how many entries stay, or how often it happens.
        single: whether it takes out one entry, and no more.
    """

    piece: Piece
    keys: Keys = ()
    calls: tuple[Piece, ...] = ()
    size: ast.expr | None = None
    single: bool = False

    @property
    def steps(self) -> tuple[Piece, ...]:
        """The calls that hand the holder over, outermost first, then the statement itself."""
        return (*self.calls, self.piece)


def emptyings(view: View, piece: Piece) -> Iterator[Emptying]:
    """The ways in which one statement empties the holder, itself and without calls."""
    node = piece.node
    if isinstance(node, ast.Delete):
        for target in node.targets:
            yield from _deleted(view, piece, target)
    for binding in (node, *(n for n in piece.nodes() if isinstance(n, ast.NamedExpr))):
        for target, value, whole in bindings(binding):
            if not isinstance(binding, (ast.For, ast.AsyncFor)):
                yield from _replaced(view, piece, target, value if whole else None)
    for call in piece.calls():
        yield from _called(view, piece, call)


def _deleted(view: View, piece: Piece, target: ast.expr) -> Iterator[Emptying]:
    if view.is_holder(target):
        yield Emptying(piece, view.prefix, view.calls)
    elif isinstance(target, (ast.Subscript, ast.Attribute)):
        keys = view.reached(target.value)
        if keys is not None:
            size = _kept_by(target) if isinstance(target, ast.Subscript) else None
            one = isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Slice)
            yield Emptying(piece, keys, view.calls, size, one)


def _kept_by(removed: ast.Subscript) -> ast.expr | None:
    """`N` in `del x[:-N]` and in `del x[N:]`."""
    cut = removed.slice
    if not isinstance(cut, ast.Slice):
        return None
    if isinstance(cut.upper, ast.UnaryOp) and cut.lower is None:
        return cut.upper.operand
    return cut.lower if cut.upper is None and not isinstance(cut.lower, ast.UnaryOp) else None


def _kept_of(value: ast.expr) -> ast.expr | None:
    """`N` in `x[-N:]` and in `x[:N]`."""
    cut = value.slice if isinstance(value, ast.Subscript) else None
    if not isinstance(cut, ast.Slice):
        return None
    if isinstance(cut.lower, ast.UnaryOp) and cut.upper is None:
        return cut.lower.operand
    return cut.upper if cut.lower is None and not isinstance(cut.upper, ast.UnaryOp) else None


def _replaced(
    view: View, piece: Piece, target: ast.expr, value: ast.expr | None
) -> Iterator[Emptying]:
    if _only_begins(view, piece):
        return
    if view.is_holder(target):
        if value is not None and _lets_go(view, piece, value):
            yield Emptying(piece, view.prefix, view.calls, _size_in(value))
        return
    if not isinstance(target, ast.Subscript):
        return
    keys = view.reached(target.value)
    if keys is None:
        return
    if isinstance(target.slice, ast.Slice):
        if value is not None and (starts_over(value) or view.mentions(value)):
            yield Emptying(piece, keys, view.calls, _size_in(value))
        return
    keys = (*keys, key_of(target.slice))
    ring = None if view.subject.is_tensor else _ring_size(target.slice, piece)
    if ring is not None:
        yield Emptying(piece, (*keys[:-1], ANY), view.calls, ring)
    elif value is not None and _entry_let_go(target, value, view, piece):
        yield Emptying(piece, keys, view.calls, _size_in(value))


def _only_begins(view: View, piece: Piece) -> bool:
    """Whether a statement gives the holder, or an entry of it, its first value and no other."""
    for parent in piece.parents:
        if isinstance(parent, ast.If) and piece.line <= parent.body[-1].lineno:
            for test in _conjuncts(parent.test, ast.And):
                if _is_missing(view, test):
                    return True
    return False


def _is_missing(view: View, test: ast.expr) -> bool:
    """`k not in x`, `x is None`, `x[k] is None` and `not x`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return view.reached(test.operand) is not None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    if isinstance(test.ops[0], ast.NotIn):
        return view.reached(test.comparators[0]) is not None
    nothing = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
    return isinstance(test.ops[0], ast.Is) and nothing and view.reached(test.left) is not None


def _entry_let_go(target: ast.Subscript, value: ast.expr, view: View, piece: Piece) -> bool:
    """`x[k] = []`, `x[k] = x[k].detach()` and `x[k] = x[k][-n:]`, but not `x[k] = 0.5`."""
    if isinstance(value, (ast.List, ast.Dict, ast.Set)) and starts_over(value):
        return True
    again = any(isinstance(n, ast.Subscript) and same(target, n) for n in ast.walk(value))
    return again and (is_detached(value, piece.scope, view.program) or _kept_of(value) is not None)


def _lets_go(view: View, piece: Piece, value: ast.expr) -> bool:
    if starts_over(value) or is_detached(value, piece.scope, view.program):
        return True
    if not view.mentions(value):
        # Another object takes the name; what was gathered goes.
        return not isinstance(value, (ast.Name, ast.Attribute, ast.Subscript))
    shortened = isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice)
    if shortened or isinstance(value, (ast.ListComp, ast.SetComp, ast.DictComp)):
        return self_fed(view, value, piece) is None
    name = dotted(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
    return name == "deque" and _size_in(value) is not None


def _size_in(value: ast.expr) -> ast.expr | None:
    if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] == "deque":
        sizes = [keyword.value for keyword in value.keywords if keyword.arg == "maxlen"]
        sizes = sizes or value.args[1:2]
        return sizes[0] if sizes else None
    if isinstance(value, ast.Call) and len(value.args) == 1:
        return _kept_of(value.args[0])
    return _kept_of(value)


def _ring_size(index: ast.expr, piece: Piece) -> ast.expr | None:
    """`n` in `x[i % n]`, also where `i` itself is advanced by `i = (i + 1) % n`."""
    if isinstance(index, ast.BinOp) and isinstance(index.op, ast.Mod):
        return index.right
    if not isinstance(index, (ast.Name, ast.Attribute)):
        return None
    for other in piece.scope.pieces:
        node = other.node
        wraps = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mod)
        if wraps and isinstance(node, ast.AugAssign) and same(node.target, index):
            return node.value
        for target, value, _ in bindings(node):
            around = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod)
            if around and isinstance(value, ast.BinOp) and dotted(target) == dotted(index):
                return value.right
    return None


def _called(view: View, piece: Piece, call: ast.Call) -> Iterator[Emptying]:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else dotted(func)
    if name in _POPPING_FUNCTIONS and call.args:
        keys = view.reached(call.args[0])
        if keys is not None:
            yield Emptying(piece, keys, view.calls, single=True)
        return
    if not isinstance(func, ast.Attribute):
        return
    queue = name in ("get", "get_nowait") and view.subject.container in _QUEUES
    if name in _EMPTYING or queue:
        keys = view.reached(func.value)
        if keys is not None:
            yield Emptying(piece, keys, view.calls, single=queue or name in _TAKING_ONE)
    elif name == "reset" and view.is_holder(func.value):
        yield Emptying(piece, view.prefix, view.calls)


def guarding_size(growth: Growth) -> ast.expr | None:
    """`N` in `if len(x) < N: x.append(v)`: growth that stops by itself."""
    for parent in reversed(growth.piece.parents):
        if not isinstance(parent, (ast.If, ast.While)):
            continue
        in_else = bool(parent.orelse) and growth.piece.line >= parent.orelse[0].lineno
        for test in _conjuncts(parent.test, ast.Or if in_else else ast.And):
            size = _length_limit(test, _MORE if in_else else _LESS)
            if size is not None:
                return size
    return None


def _conjuncts(test: ast.expr, kind: type[ast.boolop]) -> Sequence[ast.expr]:
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, kind) else [test]


def _length_limit(test: ast.expr, wanted: tuple[type[ast.cmpop], ...]) -> ast.expr | None:
    """`N` where the test compares a length with it in the wanted sense."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, op, right = test.left, test.ops[0], test.comparators[0]
    if _is_length(left) and isinstance(op, wanted):
        return right
    mirrored = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
    if _is_length(right) and mirrored.get(type(op), type(op)) in wanted:
        return left
    return None


def _is_length(expr: ast.expr) -> bool:
    if not isinstance(expr, ast.Call):
        return False
    if isinstance(expr.func, ast.Attribute):
        return expr.func.attr in ("qsize", "__len__", "size")
    return dotted(expr.func) == "len"


def bound_of(
    size: ast.expr | None,
    pieces: Sequence[Piece],
    within: ast.stmt | None,
    integers: Integers,
) -> tuple[int | None, bool]:
    """(entries or steps after which a release takes effect, whether they are entries).

    The number is None where the source does not say it.

    Args:
        size: the number as the releasing statement itself has it.
        pieces: statements from the loop's body down to the releasing one.
        within: the loop; conditions around it do not count.
        integers: reads an expression's value.
    """
    if size is not None:
        return integers.value(size, pieces[-1].scope), True
    for piece in reversed(pieces):
        parents = piece.parents
        if within is not None and piece.inside(within):
            parents = parents[[p is within for p in parents].index(True) + 1 :]
        for parent in reversed(parents):
            if isinstance(parent, (ast.If, ast.While)):
                for test in ast.walk(parent.test):
                    limit = _condition_limit(test, parent) if isinstance(test, ast.expr) else None
                    known = integers.value(limit, piece.scope) if limit is not None else None
                    if known is not None and known > 0:
                        of_entries = isinstance(test, ast.expr) and limit is _length_limit(
                            test, _MORE
                        )
                        return known, of_entries
    return None, False


def _condition_limit(test: ast.expr, parent: ast.If | ast.While) -> ast.expr | None:
    """`N` in `len(x) > N`, in `step % N == 0`, and in `count >= N` where the count starts over."""
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod):
        return test.right
    limit = _length_limit(test, _MORE)
    if limit is not None or not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return limit
    counted = dotted(test.left)
    if counted and isinstance(test.ops[0], _MORE) and _starts_over_in(parent, counted):
        return test.comparators[0]
    return None


def _starts_over_in(parent: ast.If | ast.While, name: str) -> bool:
    return any(
        dotted(target) == name and starts_over(value)
        for node in ast.walk(parent)
        for target, value, _ in bindings(node)
    )
