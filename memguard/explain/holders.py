"""Every reference that keeps one object alive, each with the chain that leads to it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memguard.explain import naming, paths, placing
from memguard.explain.edges import Edge
from memguard.explain.frames import Frames
from memguard.explain.naming import Step
from memguard.explain.places import Place, Spot, Statement
from memguard.explain.reading import class_name, class_qualname, entries
from memguard.explain.search import Search
from memguard.explain.source import find_statement
from memguard.explain.through_torch import carriers_of, live_tensors, may_be_hidden
from memguard.explain.unseen import references
from memguard.explain.unusual import is_session_variable

# Direct referrers that are followed up; of more it is only said how many there are.
MAX_DIRECT = 32
# Direct referrers that are looked at one by one, to choose those.
MAX_REFERRERS = 4_000
# Objects of one level that are followed: a heap pass compares every reference with each of them.
MAX_WIDTH = 32
# Objects looked at below the object itself, to tell its own parts from its holders.
MAX_BELOW = 20_000


_ATTRIBUTES = ("attribute", "buffer", "grad", "base")

# Verbs of the statements that give a name its value, by kind of place.
_BINDING = frozenset(("assign", "accumulate", "carry", "define"))
_SETTING = {kind: frozenset(("attribute", "define")) for kind in ("attribute", "class", "buffer")}
_SETTING |= {kind: _BINDING | {"register", "attribute"} for kind in ("hook", "cache", "ctx")}


@dataclass(frozen=True, slots=True)
class Holding:
    """One reference that keeps the object alive; text and numbers only.

    Attributes:
        chain: from a root down to the object, one reference a line.
        place: the variable a user knows it by; None when nothing on the chain has a name.
        statement: the user's statement that puts it there, when the source tells.
        type: type of what holds it.
        expression: the object as a user reaches it, where it is an attribute: `net.lin.weight`.
        owner: class whose attribute the object is; empty where it is none.
        direct: whether a running function's variable, or one of the script or cell that asks, is
            the object itself.
        rooted: whether the chain begins at something that lives by itself.
        cycle: whether it is one of the object's own parts that refers back.
    """

    chain: tuple[str, ...]
    place: Place | None = None
    statement: Statement | None = None
    type: str = ""
    expression: str = ""
    owner: str = ""
    direct: bool = False
    rooted: bool = True
    cycle: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """One object and what keeps it alive; text and numbers only.

    Attributes:
        type: the object as a chain shows it: `Tensor float32 [16, 96]`, `Trainer`.
        holdings: the references found, those of the user's own variables first.
        others: references that were found and not followed.
        complete: False when a budget ended the search before every chain had its root.
        hidden: whether C++ may hold it where nobody can look.
    """

    type: str
    holdings: tuple[Holding, ...] = ()
    others: int = 0
    complete: bool = True
    hidden: bool = False


@dataclass(slots=True)
class _Line:
    """A chain that was found, not yet put into words."""

    steps: list[Step]
    search: Search
    rank: tuple[bool | int | str, ...]
    direct: bool = False
    asking: bool = False
    rooted: bool = True
    cycle: bool = False


class _Upward(Search):
    """A search that follows each target only until it has a root of the user's."""

    def _expand(self, frontier: list[Any], level: int) -> list[Any]:
        settled = self._rooted(self.is_owned_root)
        still = [item for item in frontier if self.below.get(id(item), 0) & ~settled]
        if len(still) > MAX_WIDTH:
            self.complete = False
            del still[MAX_WIDTH:]
        self._own |= {id(frontier), id(still)}
        following = super()._expand(still, level)
        still.clear()
        return following

    def direct(self, target: Any) -> tuple[list[Any], int]:
        """The objects that refer to `target`, and how many more there are.

        Roots are always among them, however large the crowd that they stand in.
        """
        self._own.add(id(target))
        # Up to Python 3.10 running frames are referrers; their variables are told as such.
        self._own |= {id(view.frame) for view in self.frames.views}
        found = gc.get_referrers(target)
        roots = self._modules.keys() | self.frames.identities()
        first = [item for item in found if id(item) in roots or type(item) is type]
        kept: list[Any] = []
        self._own |= {id(found), id(first), id(kept)}
        looked: set[int] = set()
        for item in (*first, *found[:MAX_REFERRERS]):
            if id(item) in looked:
                continue
            looked.add(id(item))
            if id(item) not in self._own and not self._is_ours(item):
                kept.append(item)
        others = len(found) - len(looked)
        found.clear()
        first.clear()
        return kept, others


def holders_of(
    target: Any, frames: Frames, stack: Sequence[Spot], own: Iterable[object] = ()
) -> Held:
    """Who keeps `target` alive; keeps nothing of what it looked at.

    Args:
        target: any object.
        frames: the frames of all threads.
        stack: the user's frames of this thread, innermost first.
        own: containers of the caller's that refer to `target` for the sake of asking.

    Costs a pass over the heap for each reference of the longest chain, about 30 ms for a million
    objects.
    """
    search = _Upward(frames, own)
    hidden = may_be_hidden(target)
    direct, others = search.direct(target)
    tensors = live_tensors() if hidden else []
    direct += _unseen_holders(target, search, direct, tensors)
    others += max(0, len(direct) - MAX_DIRECT)
    direct.sort(key=lambda item: not search.is_root(item))
    del direct[MAX_DIRECT:]
    carriers, complete = carriers_of([target], tensors) if hidden else ([], True)
    search.complete = search.complete and complete
    tensors.clear()
    starts = list({id(item): item for item in (*direct, *(c.tensor for c in carriers))}.values())
    search.run(starts)
    searches: list[Search] = [search]
    try:
        lines = _locals(target, search)
        parts = _own_parts(target, search, direct)
        if paths.refers_to_itself(target):
            lines.append(_cycle([target, target], search))
        for holder in direct:
            lines.append(_line(search, holder, target, parts) or _through(searches, holder, target))
        for carrier in carriers:
            steps = naming.readable(paths.path_to_root(search, id(carrier.tensor)), search)
            steps.append(Step(carrier.edge, carrier.tensor, target))
            lines.append(_ranked(steps, search))
        lines.sort(key=lambda line: line.rank)
        holdings = [_told(line, stack) for line in lines]
        return Held(
            naming.type_text(target), tuple(_once(holdings)), others, search.complete, hidden
        )
    finally:
        for one in searches:
            one.release()
        for found in (direct, starts, carriers, lines):
            found.clear()


def _unseen_holders(target: Any, search: Search, seen: list[Any], tensors: list[Any]) -> list[Any]:
    """What refers to the object out of the collector's sight, other than by a graph."""
    probe = Search(search.frames)
    probe.objects[id(target)] = target
    pairs = references(probe, tensors)
    found = {id(holder): holder for holder, _ in pairs}
    for item in (target, *seen):
        found.pop(id(item), None)
    pairs.clear()
    probe.release()
    return list(found.values())


def _locals(target: Any, search: Search) -> list[_Line]:
    """The variables of running functions that are the object itself."""
    lines = []
    for index, name in search.frames.holding(target):
        steps = [Step(Edge("local", name, name), index, target)]
        line = _ranked(steps, search)
        line.direct = True
        lines.append(line)
    return lines


def _own_parts(target: Any, search: Search, direct: list[Any]) -> dict[int, list[Any]]:
    """By identity of the object's referrers that nobody else holds, the way down to each."""
    rooted = search.has_root()
    wanted = {id(item) for item in direct if not search.below.get(id(item), 0) & rooted}
    came_from: dict[int, tuple[Any, int]] = {id(target): (target, 0)}
    frontier, looked = [target], 0
    found: dict[int, list[Any]] = {}
    while frontier and len(found) < len(wanted):
        following: list[Any] = []
        for item in frontier:
            below = gc.get_referents(item)
            # Those that are looked for are met in any crowd; of the others some must do.
            met = [child for child in below if id(child) in wanted]
            del below[max(0, MAX_BELOW - looked) :]
            looked += len(below)
            for child in (*met, *below):
                if id(child) in came_from or search.is_root(child) or not gc.is_tracked(child):
                    continue
                came_from[id(child)] = child, id(item)
                following.append(child)
                if id(child) in wanted:
                    found[id(child)] = _way(came_from, id(child))
        frontier = following
    came_from.clear()
    frontier.clear()
    return found


def _way(came_from: dict[int, tuple[Any, int]], at: int) -> list[Any]:
    way: list[Any] = []
    while at:
        item, at = came_from[at]
        way.append(item)
    return way[::-1]


def _line(search: Search, holder: Any, target: Any, parts: dict[int, list[Any]]) -> _Line | None:
    """The chain through one direct referrer; None when it has no root that Python shows."""
    if id(holder) in parts:
        return _cycle([*parts[id(holder)], target], search)
    path = paths.path_to_root(search, id(holder))
    line = _ranked(naming.readable([*path, target], search), search)
    line.rooted = bool(search.below.get(id(holder), 0) & search.has_root())
    return line if line.rooted or not may_be_hidden(path[0]) else None


def _cycle(way: list[Any], search: Search) -> _Line:
    """The way from the object back to itself."""
    steps = naming.readable(way, search)
    steps[0] = Step(Edge("itself", "itself"), None, way[0])
    return _Line(steps, search, (3, False, *_spelled(steps)), rooted=False, cycle=True)


def _through(searches: list[Search], holder: Any, target: Any) -> _Line:
    """The chain through a referrer that hangs on a node or tensor which only C++ refers to."""
    first = searches[0]
    path = paths.path_to_root(first, id(holder))
    tensors = live_tensors()
    carriers, complete = carriers_of([path[0]], tensors)
    first.complete = first.complete and complete
    del carriers[1:]
    tensors.clear()
    steps = naming.readable([*path, target], first)
    search = _Upward(first.frames, [carriers])
    searches.append(search)
    above: list[Step] = []
    if carriers:
        tensor = carriers[0].tensor
        search.run([tensor])
        above = naming.readable(paths.path_to_root(search, id(tensor)), search)
        above.append(Step(carriers[0].edge, tensor, path[0]))
        steps = [*above, *steps[1:]]
    carriers.clear()
    line = _ranked(steps, search if above else first)
    line.rooted = bool(above)
    return line


def _ranked(steps: list[Step], search: Search) -> _Line:
    """The chain with its place in the order of telling.

    The user's variables that hold it through something come first, then running functions' and
    scripts' variables that are the object itself, as the one asking knows of those; then what
    libraries hold. What a graph holds comes after what a variable holds. With equal claims the
    shorter chain, then the words decide.
    """
    root = steps[0]
    if root.edge.kind == "local":
        user = search.frames.views[int(root.owner)].user
    elif root.edge.kind == "global":
        user = any(
            search.root_module(item) == root.owner and search.is_user_root(item)
            for item in list(search.objects.values())
        )
    else:
        user = root.edge.kind == "type" and search.is_user_root(root.value)
    group = 2 if not user else 1 if len(steps) == 1 and _is_at_hand(root, search) else 0
    through_graph = steps[-1].edge.kind == "graph"
    asking = group == 1 and _is_asking(root, search)
    return _Line(steps, search, (group, through_graph, *_spelled(steps)), asking=asking)


def _is_asking(root: Step, search: Search) -> bool:
    """Whether the root is a variable of the script or cell whose own line asks, no function's."""
    ident = threading.get_ident()
    mine = (view for view in search.frames.views if view.ident == ident and view.user)
    asker = next(mine, None)
    if root.edge.kind != "global" or asker is None or not asker.is_module_level:
        return False
    return bool(search.root_module(asker.frame.f_globals) == root.owner)


def _is_at_hand(root: Step, search: Search) -> bool:
    """Whether the root is a variable of a function, or of a script or cell, that is running."""
    if root.edge.kind == "local":
        return True
    running = (view.frame.f_globals for view in search.frames.views if view.is_module_level)
    return any(search.root_module(variables) == root.owner for variables in running)


def _spelled(steps: Sequence[Step]) -> tuple[int, str]:
    return len(steps), "".join(step.edge.text for step in steps)


def _told(line: _Line, stack: Sequence[Spot]) -> Holding:
    steps, search = line.steps, line.search
    chain = naming.chain_text(steps, search)
    if line.cycle:
        chain = (f"itself: {naming.type_text(steps[0].value)}", *chain[1:])
    # The container is what a user wrote a statement about; a plain variable is its own.
    position = len(steps) - 1
    if position > 0 and steps[-1].edge.kind in ("item", "key", "graph", "internal"):
        position -= 1
    # What lies beyond the tensor is not Python that a user would write.
    known = steps[:-1] if steps[-1].edge.kind == "graph" else steps
    place = None if line.cycle else placing.place_of(known, position, search)
    statement = None
    session = place is not None and place.kind == "global" and is_session_variable(place.name)
    if place is not None and session:
        # Each cell that shows something puts it there: no statement, the number says which cell.
        place = replace(place, expression=_numbered(place.name, steps[-1]))
    elif place is not None and not line.direct:
        statement = _statement(place, stack)
    if place is not None and statement is not None and position == len(steps) - 1:
        # The object itself under a name: what sets the name is meant, not what the object gathers.
        statement = statement if statement.verb in _SETTING.get(place.kind, _BINDING) else None
    kind = class_name(type(steps[position].value))
    last = steps[-1]
    is_attribute = last.edge.kind in _ATTRIBUTES and last.edge.name
    owner = class_qualname(type(last.owner)) if is_attribute else ""
    spelled = _expression(steps) if owner else ""
    direct = line.direct or line.asking
    return Holding(chain, place, statement, kind, spelled, owner, direct, line.rooted, line.cycle)


def _numbered(name: str, last: Step) -> str:
    """`Out[5]` where the object is an entry of the session's results."""
    values = last.owner if type(last.owner) is dict else None
    key = next((key for key, value in entries(values) if value is last.value), None)
    return f"{name}[{key}]" if type(key) is int else name


def _expression(steps: Sequence[Step]) -> str:
    """The object as a user reaches it, `net.lin.weight`; empty where no expression does."""
    if steps[0].edge.kind not in ("local", "global"):
        return ""
    reachable = all(step.edge.kind in (*_ATTRIBUTES, "item", "key") for step in steps[1:])
    return "".join(step.edge.text for step in steps) if reachable else ""


def _statement(place: Place, stack: Sequence[Spot]) -> Statement | None:
    try:
        return find_statement(place, stack)
    except Exception:  # source text may be anything; the chain is told all the same
        return None


def _once(holdings: Iterable[Holding]) -> Iterable[Holding]:
    """Each chain once: a list that has the object twice is one reference to cut."""
    once: dict[tuple[str, ...], Holding] = {}
    for holding in holdings:
        once.setdefault(holding.chain, holding)
    return once.values()
