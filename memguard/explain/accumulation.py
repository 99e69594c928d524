"""The accumulation point: what many survivors have in common, named and explained."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memguard import _kinds, _torch
from memguard.explain import between, capacity, graph, naming, paths, placing, reading
from memguard.explain.advice import Advice, advise
from memguard.explain.places import Place, Spot, Statement
from memguard.explain.reading import class_name, is_tensor
from memguard.explain.search import Search
from memguard.explain.source import find_statement
from memguard.explain.turns import above_turns

# An object is the accumulation point when this share of the sampled births hangs on it.
COVERAGE = 0.6

# Survivors may be shared out among several holders: each of those has at least this share.
SHARE = 0.2

# Those that suppressions leave out must leave room for the others.
MAX_HOLDERS = 8

# Of objects that have the survivors alike, so many are followed up, one pass over the heap each.
_MOST_ALIKE = 4

# Levels above the survivors, one pass over the heap each, in which what gathers is looked for where
# all that is known is made anew each step from it.
_MOST_DEEPER = 4

# Verbs of statements that put in more and more.
_GATHERING = frozenset(("append", "extend", "item", "attribute", "build", "register"))

# Ways from a holder to a survivor that is itself what was put in.
_DIRECT = re.compile(r"|\[[^\[\]]*\]|\{\.\.\.\}")


@dataclass(frozen=True, slots=True)
class Located:
    """One accumulation point, explained; text and numbers only.

    Attributes:
        share: how many of the survivors hang on it, as a share, estimated from the sample; of two
            holders of the same survivors each has all.
        thread: identity of the thread whose running function holds it; None for other roots.
        limit: entries its container can have at most (`deque(maxlen)`, `lru_cache`).
        modules: Python modules of the classes and functions on the chain.
        finite: whether it has an entry for each of a limited number of things.
    """

    place: Place
    statement: Statement | None
    advice: Advice
    chain: tuple[str, ...]
    type: str
    share: float = 1.0
    limit: int | None = None
    thread: int | None = None
    modules: tuple[str, ...] = ()
    finite: bool = False


@dataclass(slots=True)
class Question:
    """What is to be explained.

    Attributes:
        kind: `graph` or `tensor`.
        now: steps ended.
        births: steps whose survivors are under suspicion.
        step_of: dates an autograd node; None when it cannot be told.
        window: steps a graph may outlive its own.
        evaluation: whether the loop runs the model without going backward.
        own_storages: storages of parameters and buffers, which no graph is charged for.
        survivors: for `tensor`: the surviving tensors by birth; emptied when done.
    """

    kind: str
    now: int
    births: Sequence[int]
    step_of: Callable[[Any], int | None]
    window: int
    evaluation: bool = False
    own_storages: frozenset[int] = frozenset()
    survivors: dict[int, list[Any]] = field(default_factory=dict)


def accumulation_points(
    question: Question,
    search: Search,
    targets: list[Any],
    born: list[int],
    stack: list[Spot],
    weight: graph.Weight,
) -> list[Located]:
    total = len(set(born))
    need, least = (max(2, math.ceil(share * total)) for share in (COVERAGE, SHARE))
    children = paths.children_of(search)
    remaining = (1 << len(targets)) - 1
    found: list[Located] = []
    chosen: list[int] = []

    def at(key: int, mask: int) -> Located | None:
        below = _target_below(search, key, mask, targets, children)
        path = [*paths.best_path(search, key), *below]
        located = locate(question, search, path, len(below), stack, weight)
        if located is None or is_known(located, found):
            return None
        return replace(located, share=len(_births(search.below[key], born)) / total)

    def add_gathering() -> None:
        for key in _beside(search, chosen[0], born, children):
            located = at(key, search.below[key])
            if located is not None and _gathers(located):
                found.append(located)

    while len(found) < MAX_HOLDERS:
        key = _densest(search, born, remaining, need)
        if key is None:
            if need <= least:
                break
            need = least
            continue
        key = _inside(search, key, born, remaining, least, children)
        mask = search.below[key] & remaining
        remaining &= ~mask
        chosen.append(key)
        located = at(key, mask)
        found += [located] if located is not None else []
    if len(chosen) == 1 and found:
        add_gathering()
        deeper = 0
        while len(found) == 1 and _is_made_anew(found[0]) and deeper < _MOST_DEEPER:
            # What it was drawn from may be further away from the user's variables.
            if not search.deepen(*map(id, targets)):
                break
            deeper += 1
            children = paths.children_of(search)
            add_gathering()
        found = _without_samples(found)
    return found or _one_by_one(question, search, targets, stack, weight)


def _without_samples(found: list[Located]) -> list[Located]:
    """Without what is made anew each step from a holder that gathers: a batch out of a memory.

    It keeps the same survivors, but only until the next one is drawn.
    """
    return found[1:] if len(found) > 1 and _is_made_anew(found[0]) else found


def _gathers(located: Located) -> bool:
    return located.statement is not None and located.statement.verb in _GATHERING


def _is_made_anew(located: Located) -> bool:
    return located.statement is not None and located.statement.verb == "assign"


def _beside(
    search: Search, chosen: int, born: list[int], children: dict[int, list[int]]
) -> list[int]:
    """Other containers of the user's on which the same survivors hang, the nearest first.

    As long as one of them is left the survivors are.
    """
    related = _closure(chosen, search.parents) | _closure(chosen, children)
    wanted = len(_births(search.below[chosen], born))
    apart: list[int] = []
    for key in sorted(search.below, key=lambda key: search.level.get(key, 0)):
        item = search.objects.get(key)
        if key in related or search.level[key] == 0 or not capacity.is_container(item):
            continue
        if len(_births(search.below[key], born)) < wanted or search.root_module(item) is not None:
            continue
        if search.is_user_root(paths.path_to_root(search, key)[0]):
            apart.append(key)
            related |= _closure(key, search.parents) | _closure(key, children)
    apart = apart[: MAX_HOLDERS - 1]
    return sorted(apart, key=lambda key: (search.level[key], _spelled(search, key)))


def _closure(start: int, following: dict[int, list[int]]) -> set[int]:
    """What is reached from an object one way, roots of everybody's left out by the search."""
    found, pending = {start}, [start]
    while pending:
        new = [key for key in following.get(pending.pop(), ()) if key not in found]
        found.update(new)
        pending += new
    return found


def _one_by_one(
    question: Question,
    search: Search,
    targets: list[Any],
    stack: list[Spot],
    weight: graph.Weight,
) -> list[Located]:
    """Survivors that have nothing in common: the newest are named each by what holds it."""
    found: list[Located] = []
    for target in reversed(targets):
        path = paths.best_path(search, id(target)) if len(found) < MAX_HOLDERS else []
        if path and search.is_user_root(path[0]):
            located = locate(question, search, path, 0, stack, weight)
            found += [located] if located is not None and not is_known(located, found) else []
    return found


def _densest(search: Search, born: list[int], remaining: int, need: int) -> int | None:
    """The object nearest to the survivors on which nearly all their births hang."""
    coverage: dict[int, int] = {}
    for key, mask in search.below.items():
        item = search.objects.get(key)
        if item is None or search.level[key] == 0 or search.root_module(item) is not None:
            continue
        if reading.isinstance_exact(item, type):
            continue
        births = _births(mask & remaining, born)
        if len(births) >= need:
            coverage[key] = len(births)
    if not coverage:
        return None
    enough = max(coverage.values()) * 0.8
    dense = [key for key, births in coverage.items() if births >= enough]
    ranks = {key: (search.level[key], class_name(type(search.objects[key]))) for key in dense}
    first = min(ranks.values())
    alike = [key for key in dense if ranks[key] == first]
    if len(alike) == 1:
        return alike[0]
    for key in alike[:_MOST_ALIKE]:
        # The search may have ended before it met their own roots, as survivors had others.
        if not search.is_user_root(paths.path_to_root(search, key)[0]):
            search.deepen(key)
    # Two lists that grow alike: the name decides, so that one bug is always told the same way.
    return min(alike, key=lambda key: _spelled(search, key))


def _spelled(search: Search, key: int) -> tuple[bool, int, str]:
    """The object as its chain spells it, the user's own and shorter ones first."""
    path = paths.path_to_root(search, key)
    steps = naming.readable(path, search)
    text = "".join(step.edge.text for step in steps)
    return not search.is_user_root(path[0]), len(steps), text


def _inside(
    search: Search,
    key: int,
    born: list[int],
    remaining: int,
    least: int,
    children: dict[int, list[int]],
) -> int:
    """From an object whose attributes share the survivors out to the attribute with the most."""
    item = search.objects[key]
    values = reading.own_dict(item)
    owner: Any = item
    if capacity.is_container(item):
        owners = (search.objects[parent] for parent in search.parents.get(key, ()))
        owner = next((other for other in owners if reading.own_dict(other) is item), None)
    elif values is None and not reading.slots(item):
        return key
    if owner is None:
        return key
    below = [*children.get(key, ()), *children.get(id(values), ())]
    shares: list[tuple[int, str, int]] = []
    for child in below:
        value = search.objects[child]
        if capacity.is_container(value) and value is not reading.own_dict(owner):
            covered = len(_births(search.below.get(child, 0) & remaining, born))
            name = next((n for n, v in reading.attributes(owner) if v is value), "")
            shares += [(-covered, name, child)] if covered >= least and name else []
    return min(shares)[2] if shares else key


def _births(mask: int, born: list[int]) -> set[int]:
    return {birth for bit, birth in enumerate(born) if mask >> bit & 1}


def _target_below(
    search: Search, key: int, mask: int, targets: list[Any], children: dict[int, list[int]]
) -> list[Any]:
    wanted = {id(target) for bit, target in enumerate(targets) if mask >> bit & 1}
    return paths.path_down(search, key, wanted.__contains__, children)


def locate(
    question: Question,
    search: Search,
    path: list[Any],
    below: int,
    stack: list[Spot],
    weight: graph.Weight,
) -> Located | None:
    """The accumulation point is the object `below` places above the end of the path."""
    path = above_turns(path, search)
    point = path[len(path) - 1 - below]
    steps = naming.readable(path, search)
    position = max((i for i, step in enumerate(steps) if step.value is point), default=None)
    if position is None:
        # Folded away (an instance's dict): the object it belongs to stands for it.
        owners = [i for i, step in enumerate(steps) if step.owner is not None]
        position = owners[0] if owners else 0
    position = _top_of_links(steps, position)
    place = placing.place_of(steps, position, search)
    if place is None:
        return None
    # Of a container within the one that is named nobody could say which bounds are its own.
    named = steps[position].edge.name == place.name
    length = capacity.length(point) if named else None
    place = replace(
        place, length=length, mixed=between.is_mixed(path), recurs=capacity.recurs(point)
    )
    inside = path[len(path) - below :]
    place = replace(place, partial=any(map(between.is_small_part, inside)))
    place = replace(place, function_inside=between.function_inside(inside))
    if not is_tensor(path[-1]) and _torch.is_node(path[-1]):
        place = replace(place, survivor="ctx" if _kinds.is_context(path[-1]) else "node")
    chain = naming.chain_text(steps, search)
    single = _torch.is_number(path[-1]) if _DIRECT.fullmatch(place.path) else None
    located = told(question, place, chain, class_name(type(point)), stack, weight, single)
    owners = path[: len(path) - 1 - below][-2:]
    limit, thread = capacity.size_limit(point, owners), naming.thread_of(steps[0], search)
    modules = naming.modules_of(steps, search)
    return replace(located, limit=limit, thread=thread, modules=modules)


def told(
    question: Question,
    place: Place,
    chain: tuple[str, ...],
    kind: str,
    stack: list[Spot],
    weight: graph.Weight,
    single: bool | None = None,
) -> Located:
    """A place with the statement that makes it grow and what to do about it.

    `single` says whether what is put in is one number, where the survivor itself tells.
    """
    plain = question.kind != "graph"
    statement = find_statement(place, stack, question.evaluation, plain=plain)
    if statement is not None and statement.holder is not None:
        place = replace(place, name=statement.holder, expression=statement.holder, container="dict")
    if statement is not None and statement.single is None:
        statement = replace(statement, single=single)
    after_backward = None if question.kind != "graph" else weight.saved_bytes == 0
    advice = advise(
        question.kind,
        place,
        statement,
        evaluation=question.evaluation,
        after_backward=after_backward,
    )
    return Located(place, statement, advice, chain, kind)


def _top_of_links(steps: Sequence[naming.Step], position: int) -> int:
    """From one link of a linked list up to the variable that holds the list."""
    value = steps[position].value
    if capacity.is_container(value) or is_tensor(value):
        return position
    while position > 0 and type(steps[position - 1].value) is type(value):
        position -= 1
    return position


def is_known(located: Located, others: Sequence[Located]) -> bool:
    return any(_identity(located.place) == _identity(other.place) for other in others)


def _identity(place: Place) -> tuple[str | None, ...]:
    return place.kind, place.name, place.owner, place.function, place.module
