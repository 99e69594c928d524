"""Which of several statements is the one, what bounds it, and what may still free its graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memguard.explain.candidates import Candidates
from memguard.explain.expressions import is_detached
from memguard.explain.integers import Integers
from memguard.explain.loops import Region, own_region
from memguard.explain.pending import frees, pending_of
from memguard.explain.places import Place, Release
from memguard.explain.program import Program
from memguard.explain.releases import Emptying, bound_of, guarding_size
from memguard.explain.subject import ANY, Keys, fits
from memguard.explain.syntax import LOOPS, Piece, Scope, bindings, dotted, exclusive
from memguard.explain.text import code_of
from memguard.explain.verbs import Growth

_PATH = re.compile(r"\.(\w+)|\['([^']*)'\]|([\[{])")
_EVALUATING = re.compile(r"eval|valid|test|infer|predict", re.IGNORECASE)
_NEUTRAL = frozenset(("", "self", "cls", "super"))
# A loop of so few turns empties nothing between them, yet what it gathers stays as small.
_FEW_TURNS = 16


@dataclass(frozen=True, slots=True)
class Chooser:
    """Judges candidates by where the program is running.

    Attributes:
        regions: the running loops, innermost first.
        home: the scope whose variable the holder is, if it is one.
    """

    program: Program
    place: Place
    regions: Sequence[Region]
    home: Scope | None
    evaluation: bool

    def best(self, growths: Sequence[Growth], emptyings: Sequence[Emptying] = ()) -> Growth | None:
        """The likeliest statement; the same for the same source, always.

        Args:
            growths: those to choose from.
            emptyings: what frees room in the holder, perhaps by the same statements.
        """
        ranked = sorted(growths, key=self._rank)
        fitting = (one for one in ranked if one.weak or not self._is_outgrown(one, emptyings))
        return next(fitting, ranked[0] if ranked else None)

    def _is_outgrown(self, growth: Growth, emptyings: Sequence[Emptying]) -> bool:
        """Whether the holder has more entries than the statement by itself would let it have."""
        integers = Integers(self.program, self.place.numbers, self.home)
        sizes = [each.size for each in emptyings if each.piece is growth.piece]
        known = (integers.value(size, growth.piece.scope) for size in sizes if size is not None)
        return any(size is not None and self._is_beyond(size) for size in known)

    def _rank(self, growth: Growth) -> tuple[int | bool, ...]:
        piece, scope = growth.piece, growth.piece.scope
        return (
            growth.weak,
            growth.weak and growth.verb != "call",
            self._function_misfit(growth),
            self._is_other_class(growth),
            self._is_number(growth),
            growth.verb == "item" and self.place.container in ("list", "deque"),
            self.depth_of(growth),
            _misfit(growth.keys, path_keys(self.place.path)),
            scope.name == "__init__",
            self.evaluation != bool(_EVALUATING.search(scope.name)),
            not piece.loops,
            growth.value is not None and is_detached(growth.value, scope, self.program),
            any(_switches_grad_off(parent) for parent in piece.parents),
            sum(isinstance(parent, ast.If) for parent in piece.parents),
            scope.source.file != self.place.file,
            piece.line,
        )

    def _function_misfit(self, growth: Growth) -> int:
        """0 where the function is put in that keeps the survivors, 2 where it surely is not."""
        if self.place.function_inside is None or growth.value is None:
            return 1
        scope = growth.piece.scope
        is_it = self.place.is_function_inside(
            growth.value, lambda name: self.program.lookup(name, scope)
        )
        return 1 if is_it is None else 2 * (not is_it)

    def _is_other_class(self, growth: Growth) -> bool:
        """Whether an object of another class is put in than the one that keeps the survivors."""
        value, entry = growth.value, self.place.layers[len(growth.keys) :][:1]
        if value is None or not entry or growth.verb not in ("append", "item"):
            return False
        func = value.func if isinstance(value, ast.Call) else None
        if isinstance(func, ast.Attribute) and func.attr == "__new__":
            value = func.value
        classes = self.program.types(value, growth.piece.scope).classes
        names = {cls.name for cls in self.program.family(classes)}
        return bool(names) and entry[0] not in names

    def _is_number(self, growth: Growth) -> bool:
        value = growth.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            return value.func.attr in ("item", "tolist")
        number = isinstance(value, ast.Call) and dotted(value.func) in ("float", "int", "str")
        return number or isinstance(value, (ast.Constant, ast.JoinedStr))

    def depth_of(self, growth: Growth) -> int:
        """How far out the innermost running loop is that runs the statement."""
        for depth, region in enumerate(self.regions):
            if region.route(growth.steps) is not None:
                return depth
        return len(self.regions)

    def release(self, growth: Growth, candidates: Candidates) -> Release | None:
        """The statement that bounds the holder in the loop that makes it grow."""
        integers = Integers(self.program, self.place.numbers, self.home)
        guard = guarding_size(growth)
        if guard is not None and not self.place.container.endswith("Tensor"):
            size = integers.value(guard, growth.piece.scope)
            if size is None or not self._is_beyond(size + 1):
                return _release(growth.piece, size)
        if growth.verb == "item" and isinstance(growth.piece.node, ast.Assign):
            if self.place.container == "list":
                return self._overwritten(growth, candidates, integers)
            if self.place.recurs:
                return _release(growth.piece, None)
        depth = self.depth_of(growth)
        for region in self._regions_of(growth, depth):
            found = self._release_in(region, growth, candidates, integers)
            if found is not None:
                return found
        if depth + 1 < len(self.regions):
            turns = _few_turns(self.regions[depth], integers)
            outer = self.regions[depth + 1]
            found = self._release_in(outer, growth, candidates, integers) if turns else None
            if found is not None:
                return Release(found.file, found.line, found.code, turns)
        made = self._made_with_limit(candidates, integers)
        return made or self._release_around(depth, growth, candidates, integers)

    def _overwritten(
        self, growth: Growth, candidates: Candidates, integers: Integers
    ) -> Release | None:
        """What bounds a list whose entries are set: no list gets longer by that.

        But it may beside that, as `if len(x) < N: x.append(None)` makes room for the next entry.
        """
        longer = [
            other
            for other in candidates.growths
            if other.verb in ("append", "extend") and not other.weak
            if self.depth_of(other) < len(self.regions) and fits(other.keys, growth.keys)
        ]
        if not longer:
            return _release(growth.piece, self.place.length)
        guards = [(other, guarding_size(other)) for other in longer]
        sizes = [integers.value(n, one.piece.scope) if n else None for one, n in guards]
        if any(guard is None for _, guard in guards):
            return None
        known = [size for size in sizes if size is not None]
        return _release(longer[0].piece, max(known) if len(known) == len(sizes) else None)

    def _release_around(
        self, depth: int, growth: Growth, candidates: Candidates, integers: Integers
    ) -> Release | None:
        """A statement that empties the holder each time that an outer loop comes round."""
        for region in self.regions[depth + 1 :]:
            found = self._release_in(region, growth, candidates, integers)
            if found is not None and region.loop is not None:
                return replace(found, bound=None, outer=True)
        return None

    def _regions_of(self, growth: Growth, depth: int) -> list[Region]:
        if depth < len(self.regions):
            return [self.regions[depth]]
        # Nothing running calls it by name: a hook, a callback, a method that a library calls.
        own = own_region(self.program, growth.piece)
        found = [own] if own is not None else []
        working = [region for region in self.regions if frees(region)] or list(self.regions)
        return found if growth.piece.loops else [*found, *working[:1]]

    def _release_in(
        self, region: Region, growth: Growth, candidates: Candidates, integers: Integers
    ) -> Release | None:
        found: list[Release] = []
        for emptying in candidates.emptyings:
            piece = emptying.piece
            route = region.route(emptying.steps)
            if route is None or piece.scope.name == "__init__":
                continue
            if self.place.kind == "state" and ".param_groups" in emptying.keys:
                continue  # what leaves the groups leaves its state behind
            if not fits(emptying.keys, growth.keys) or self._other_object(region, growth, emptying):
                continue
            ring = piece is growth.piece and emptying.size is None and growth.verb != "item"
            if ring or (emptying.single and self._outpaced(region, emptying, candidates)):
                continue
            bound, of_entries = bound_of(emptying.size, route, region.loop, integers)
            # A ring that is written beside it has no more entries than it is long.
            exactly = any(other.piece is piece for other in candidates.growths)
            own = not emptying.keys or (exactly and len(emptying.keys) == 1)
            of_entries = of_entries and own
            most = bound if bound is None or exactly else 2 * bound
            if most is None or not (of_entries and self._is_beyond(most)):
                # Between two releases there may be a few more; what is not so is not claimed.
                known = (
                    None if bound is not None and of_entries and self._is_beyond(bound) else bound
                )
                found.append(_release(piece, known))
        found.sort(key=lambda release: release.bound is None)
        return found[0] if found else None

    def _is_beyond(self, bound: int) -> bool:
        """Whether there are more entries in the holder now than a bound allows."""
        return self.place.length is not None and self.place.length > bound

    def _outpaced(self, region: Region, emptying: Emptying, candidates: Candidates) -> bool:
        """Whether more goes in each turn than statements take out that take out one entry each."""
        if self._loops_within(region, emptying.steps):
            return False
        taken = {
            other.piece
            for other in candidates.emptyings
            if region.route(other.steps) is not None and fits(other.keys, emptying.keys)
        }
        put: list[Piece] = []
        count = 0
        for growth in candidates.growths:
            adds = growth.verb in ("append", "extend") and not growth.weak
            if guarding_size(growth) is not None:
                continue
            if not adds or region.route(growth.steps) is None or growth.piece in put:
                continue
            # Of `if ...: x.append(a)` and `else: x.append(b)` each turn runs one.
            if not any(exclusive(growth.piece, other) for other in put):
                count += 2 if self._puts_several(region, growth) else 1
                put.append(growth.piece)
        return count > len(taken)

    def _puts_several(self, region: Region, growth: Growth) -> bool:
        """Whether a statement puts in several entries each turn."""
        if self._loops_within(region, growth.steps):
            return True
        node = growth.piece.node
        value = node.value if isinstance(node, ast.AugAssign) else growth.value
        if growth.verb != "extend" or isinstance(node, ast.Assign):
            return False
        return not isinstance(value, (ast.List, ast.Tuple)) or len(value.elts) > 1

    def _loops_within(self, region: Region, steps: Sequence[Piece]) -> bool:
        route = region.route(steps) or ()
        return any(isinstance(p, LOOPS) for piece in route for p in region.inner_parents(piece))

    def _other_object(self, region: Region, growth: Growth, emptying: Emptying) -> bool:
        """Whether growth and emptying are methods called on different objects of one class."""
        grown = region.reach.get(growth.piece.scope)
        emptied = region.reach.get(emptying.piece.scope)
        if grown is None or emptied is None or growth.piece.scope is emptying.piece.scope:
            return False
        if growth.calls or growth.piece.scope.owner is not emptying.piece.scope.owner:
            return False
        growing = {name.rpartition(".")[2] for name in grown.receivers}
        emptying_names = {name.rpartition(".")[2] for name in emptied.receivers}
        if growing & _NEUTRAL or emptying_names & _NEUTRAL:
            return False
        own = self.place.expression.rpartition(".")[0].rpartition(".")[2]
        wanted = {own} if own in growing else growing
        return not wanted & emptying_names

    def _made_with_limit(self, candidates: Candidates, integers: Integers) -> Release | None:
        """`deque(maxlen=n)` bounds itself wherever it was made."""
        if self.place.container != "deque":
            return None
        for piece, value in candidates.made:
            if isinstance(value, ast.Call) and dotted(value.func).endswith("deque"):
                limits = [keyword.value for keyword in value.keywords if keyword.arg == "maxlen"]
                limits = limits or value.args[1:2]
                endless = isinstance(limits[0], ast.Constant) if limits else True
                size = integers.value(limits[0], piece.scope) if limits else None
                if size is not None or not endless:
                    return _release(piece, size)
        return None

    def pending(self, growth: Growth) -> str | None:
        """What the running loop will still do that frees graphs, in words."""
        depth = self.depth_of(growth)
        if depth == len(self.regions):
            return None
        region = self.regions[depth]
        route = region.route(growth.steps)
        outer = self.regions[depth + 1 :] if self._outlives(region) else ()
        return None if route is None else pending_of(region, route, outer)

    def _outlives(self, region: Region) -> bool:
        """Whether the holder is still there when the loop's function returns."""
        if self.place.kind != "local" or self.home is not region.scope:
            return True
        returned = [p.node.value for p in self.home.pieces if isinstance(p.node, ast.Return)]
        carriers = self._carriers()
        return any(
            _names(part, carriers) and not is_detached(part, self.home, self.program)
            for value in returned
            if value is not None
            for part in (value.elts if isinstance(value, ast.Tuple) else [value])
        )

    def _carriers(self) -> set[str]:
        """The holder, and the variables of its function that get a graph from it: a cost of it."""
        assert self.home is not None
        found: set[str] = set()
        more = {self.place.name}
        while not more <= found:
            found |= more
            more = {
                target.id
                for piece in self.home.pieces
                for target, value in _given(piece.node)
                if isinstance(target, ast.Name)
                and _names(value, found)
                and not is_detached(value, self.home, self.program)
            }
        return found


def _switches_grad_off(parent: ast.stmt) -> bool:
    """`with torch.no_grad():` and its like, under which nothing gets a graph."""
    items = parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else []
    calls = [item.context_expr for item in items]
    names = [dotted(call.func if isinstance(call, ast.Call) else call) for call in calls]
    return any(name.rpartition(".")[2] in ("no_grad", "inference_mode") for name in names)


def _given(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a statement gives a value to, and the value."""
    if isinstance(node, ast.AugAssign):
        yield node.target, node.value
    yield from ((target, value) for target, value, _ in bindings(node))


def _names(value: ast.expr, names: set[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(value))


def _release(piece: Piece, bound: int | None) -> Release:
    source = piece.scope.source
    return Release(source.file, piece.line, code_of(source, piece.node), bound)


def _few_turns(region: Region, integers: Integers) -> int | None:
    loop = region.loop
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
        return None
    if dotted(loop.iter.func) != "range" or len(loop.iter.args) != 1:
        return None
    turns = integers.value(loop.iter.args[0], region.scope)
    return turns if turns is not None and 0 < turns <= _FEW_TURNS else None


def path_keys(path: str) -> Keys:
    """A place's path as keys: `['loss'][...]` becomes `'loss'` and `*`."""
    return tuple(
        f".{match[1]}" if match[1] else repr(match[2]) if match[3] is None else ANY
        for match in _PATH.finditer(path)
    )


def _misfit(keys: Keys, path: Keys) -> int:
    """0 where a written key agrees with the path, 1 where nothing is said, 2 where they differ."""
    if not fits(keys, path):
        return 2
    said = any(key == other != ANY for key, other in zip(keys, path, strict=False))
    return 0 if said else 1
