"""The accumulation point: what many survivors have in common, named and explained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memguard import _kinds
from memguard.explain import edges, graph, naming, paths, placing
from memguard.explain.advice import Advice, advise
from memguard.explain.places import Place, Spot, Statement
from memguard.explain.search import Search
from memguard.explain.source import find_statement

# An object is the accumulation point when this share of the sampled births hangs on it.
COVERAGE = 0.6

MAX_HOLDERS = 3


@dataclass(frozen=True, slots=True)
class Located:
    """One accumulation point, explained; text and numbers only.

    Attributes:
        survivors: steps whose survivors hang on it, estimated from the sample.
        thread: name of the thread whose running function holds it; None for other roots.
        modules: Python modules of the classes and functions on the chain.
        limit: entries its container can have at most (`deque(maxlen)`, `lru_cache`).
    """

    place: Place
    statement: Statement | None
    advice: Advice
    chain: tuple[str, ...]
    type: str
    survivors: int
    limit: int | None = None
    thread: str | None = None
    modules: tuple[str, ...] = ()


@dataclass(slots=True)
class Question:
    """What is to be explained.

    Attributes:
        kind: `graph` or `tensor`.
        now: steps ended.
        births: steps whose survivors are under suspicion.
        step_of: dates an autograd node by its number.
        window: steps a graph may outlive its own.
        evaluation: whether the loop runs the model without going backward.
        own_storages: storages of parameters and buffers, which no graph is charged for.
        survivors: for `tensor`: the surviving tensors by birth; emptied when done.
    """

    kind: str
    now: int
    births: Sequence[int]
    step_of: Callable[[int], int]
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
    need = max(2, math.ceil(COVERAGE * len(set(born))))
    children = paths.children_of(search)
    remaining = (1 << len(targets)) - 1
    found: list[Located] = []
    while len(found) < MAX_HOLDERS:
        key = _densest(search, born, remaining, need)
        if key is None:
            break
        mask = search.below[key] & remaining
        remaining &= ~mask
        below = _target_below(search, key, mask, targets, children)
        path = [*paths.path_to_root(search, key), *below]
        located = locate(question, search, path, len(below), stack, weight)
        if located is not None and not is_known(located, found):
            found.append(located)
    return found


def _densest(search: Search, born: list[int], remaining: int, need: int) -> int | None:
    """The object nearest to the survivors on which nearly all their births hang."""
    coverage: dict[int, int] = {}
    for key, mask in search.below.items():
        item = search.objects.get(key)
        if item is None or search.level[key] == 0 or search.root_module(item) is not None:
            continue
        if edges.isinstance_exact(item, type):
            continue
        births = {birth for bit, birth in enumerate(born) if (mask & remaining) >> bit & 1}
        if len(births) >= need:
            coverage[key] = len(births)
    if not coverage:
        return None
    enough = max(coverage.values()) * 0.8
    dense = [key for key, births in coverage.items() if births >= enough]
    ranks = {key: (search.level[key], type(search.objects[key]).__name__) for key in dense}
    first = min(ranks.values())
    alike = [key for key in dense if ranks[key] == first]
    # Two lists that grow alike: the name decides, so that one bug is always told the same way.
    return alike[0] if len(alike) == 1 else min(alike, key=lambda key: _spelled(search, key))


def _spelled(search: Search, key: int) -> tuple[bool, int, str]:
    """The object as its chain spells it, the user's own and shorter ones first."""
    path = paths.path_to_root(search, key)
    steps = naming.readable(path, search)
    text = "".join(step.edge.text for step in steps)
    return not search.is_user_root(path[0]), len(steps), text


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
    statement = find_statement(place, stack, question.evaluation)
    after_backward = None if question.kind != "graph" else weight.saved_bytes == 0
    advice = advise(
        question.kind,
        place,
        statement,
        evaluation=question.evaluation,
        after_backward=after_backward,
    )
    return Located(
        place,
        statement,
        advice,
        naming.chain_text(steps, search),
        type(point).__name__,
        len(question.births),
        edges.size_limit(point),
        naming.thread_of(steps[0], search),
        naming.modules_of(steps, search),
    )


def _top_of_links(steps: Sequence[naming.Step], position: int) -> int:
    """From one link of a linked list up to the variable that holds the list."""
    value = steps[position].value
    if edges.is_container(value) or _kinds.is_tensor_type(type(value)):
        return position
    while position > 0 and type(steps[position - 1].value) is type(value):
        position -= 1
    return position


def is_known(located: Located, others: Sequence[Located]) -> bool:
    return any(_identity(located.place) == _identity(other.place) for other in others)


def _identity(place: Place) -> tuple[str | None, ...]:
    return place.kind, place.name, place.owner, place.function, place.module
