"""From survivors to the holder a user knows, and the statement that makes it grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memguard import _torch
from memguard.explain import edges, graph, naming, paths
from memguard.explain.advice import Advice, advise
from memguard.explain.frames import Frames, is_user_file
from memguard.explain.places import Place, Spot, Statement
from memguard.explain.search import Search, is_user_module
from memguard.explain.source import find_statement

# Survivors sampled for the search: a pass over the heap costs 24 ms for one target and 56 ms for
# fifty (a million objects), so some from both ends are enough to see what they have in common.
OLDEST, NEWEST, PER_BIRTH = 3, 6, 6

# An object is the accumulation point when this share of the sampled births hangs on it.
COVERAGE = 0.6

MAX_HOLDERS = 3
MAX_YOUNG = 32

# Statements that feed a variable's old value into its new one.
_CHAINING = {"accumulate": 4, "carry": 4, "item": 2, "register": 2, "append": 2, "extend": 2}


@dataclass(frozen=True, slots=True)
class Located:
    """One accumulation point, explained; text and numbers only.

    Attributes:
        survivors: steps whose survivors hang on it, estimated from the sample.
        limit: entries its container can have at most (`deque(maxlen)`, `lru_cache`).
    """

    place: Place
    statement: Statement | None
    advice: Advice
    chain: tuple[str, ...]
    type: str
    survivors: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an explanation found.

    Attributes:
        located: accumulation points, the most telling first.
        rooted: whether anything outside a cycle was seen to hold the survivors.
        weight: one retained step's graph.
        cycle: the reference cycle that may hold them, when there is no root.
        complete: False when a budget ended the search.
        stack: the user's frames when the step ended, innermost first.
    """

    located: tuple[Located, ...] = ()
    rooted: bool = False
    weight: graph.Weight = graph.Weight()
    cycle: Located | None = None
    complete: bool = True
    stack: tuple[Spot, ...] = ()


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


def explain(question: Question) -> Explanation:
    """Name who holds the survivors; keeps nothing of what it looked at."""
    with Frames() as frames:
        stack = frames.stack()
        tell = _explain_graph if question.kind == "graph" else _explain_tensors
        return replace(tell(question, frames, stack), stack=tuple(stack))


def _explain_graph(question: Question, frames: Frames, stack: list[Spot]) -> Explanation:
    newest_old = question.now - question.window - 1
    tensors = graph.attached_tensors()
    carriers = graph.carriers(tensors, question.step_of, newest_old)
    tensors.clear()
    weight = _weigh(question, carriers)
    result = Explanation(weight=weight)
    if len(carriers.old) >= max(2, len(question.births) // 2):
        result = _from_survivors(question, carriers.old, frames, stack, weight)
    if carriers.young and not result.located:
        result = _from_carried(question, carriers, frames, stack, weight)
    elif not result.located and carriers.old:
        result = _from_survivors(question, carriers.old, frames, stack, weight)
    carriers.old.clear()
    carriers.young.clear()
    return result


def _weigh(question: Question, carriers: graph.Carriers) -> graph.Weight:
    """The heaviest of the newest retained steps stands for all."""
    old = [step for step in carriers.old if step in set(question.births)] or list(carriers.old)
    if old:
        weights = []
        for step in sorted(old)[-3:]:
            nodes = [_torch.grad_fn(tensor) for tensor in carriers.old[step]]
            weights.append(graph.weigh(nodes, question.step_of, step, question.own_storages))
        return max(weights, key=lambda weight: (weight.saved_bytes, weight.nodes))
    nodes = [_torch.grad_fn(tensor) for tensor in carriers.young]
    step = question.now - question.window - 1
    return graph.weigh(nodes, question.step_of, step, question.own_storages)


def _explain_tensors(question: Question, frames: Frames, stack: list[Spot]) -> Explanation:
    result = _from_survivors(question, question.survivors, frames, stack, graph.Weight())
    question.survivors.clear()
    return result


def sample(
    survivors: dict[int, list[Any]], own: set[int] | None = None
) -> tuple[list[Any], list[int]]:
    """(targets, birth of each): some survivors of the oldest and of the newest births."""
    births = sorted(survivors)
    chosen = births if len(births) <= OLDEST + NEWEST else births[:OLDEST] + births[-NEWEST:]
    targets: list[Any] = []
    born: list[int] = []
    for birth in chosen:
        for tensor in survivors[birth][:PER_BIRTH]:
            targets.append(tensor)
            born.append(birth)
    return targets, born


def _from_survivors(
    question: Question,
    survivors: dict[int, list[Any]],
    frames: Frames,
    stack: list[Spot],
    weight: graph.Weight,
) -> Explanation:
    """Survivors that are themselves Python objects: find the container they share."""
    targets, born = sample(survivors)
    search = Search(frames, [survivors, *survivors.values()])
    search.run(targets)
    try:
        rooted = search.has_root()
        located = _accumulation_points(question, search, targets, born, stack, weight)
        cycle = None
        if not rooted:
            cycle = _cycle(question, search, targets, stack, weight)
        return Explanation(tuple(located), bool(rooted), weight, cycle, search.complete)
    finally:
        search.release()
        targets.clear()


def _accumulation_points(
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
        located = _locate(question, search, path, len(below), stack, weight)
        if located is not None and not _known(located, found):
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
    return min(dense, key=lambda key: (search.level[key], type(search.objects[key]).__name__))


def _target_below(
    search: Search, key: int, mask: int, targets: list[Any], children: dict[int, list[int]]
) -> list[Any]:
    wanted = {id(target) for bit, target in enumerate(targets) if mask >> bit & 1}
    return paths.path_down(search, key, wanted.__contains__, children)


def _locate(
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
    place = naming.place_of(steps, position, search)
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
    )


def _top_of_links(steps: Sequence[naming.Step], position: int) -> int:
    """From one link of a linked list up to the variable that holds the list."""
    value = steps[position].value
    if edges.is_container(value) or _torch.is_tensor_type(type(value)):
        return position
    while position > 0 and type(steps[position - 1].value) is type(value):
        position -= 1
    return position


def _known(located: Located, others: Sequence[Located]) -> bool:
    return any(_identity(located.place) == _identity(other.place) for other in others)


def _identity(place: Place) -> tuple[str | None, ...]:
    return place.kind, place.name, place.owner, place.function, place.module


def _from_carried(
    question: Question,
    carriers: graph.Carriers,
    frames: Frames,
    stack: list[Spot],
    weight: graph.Weight,
) -> Explanation:
    """Tensors of the present that carry the past: the one whose old value feeds the new is to blame."""
    young = sorted(carriers.young, key=lambda tensor: not _held_by_user(frames, tensor))
    targets = young[:MAX_YOUNG]
    search = Search(frames, [carriers.young, young, targets])
    search.run(targets)
    try:
        scored: list[tuple[int, Located]] = []
        for target in targets:
            path = paths.path_to_root(search, id(target))
            located = _locate(question, search, path, 0, stack, weight)
            if located is None or _known(located, [other for _, other in scored]):
                continue
            scored.append((_blame(located, target, carriers.crossings), located))
        best = max((score for score, _ in scored), default=0)
        chosen = [located for score, located in scored if score == best][:MAX_HOLDERS]
        rooted = bool(search.has_root())
        return Explanation(tuple(chosen), rooted, weight, None, search.complete)
    finally:
        search.release()
        targets.clear()
        young.clear()


def _held_by_user(frames: Frames, tensor: Any) -> bool:
    return any(frames.views[index].user for index, _ in frames.holding(tensor))


def _blame(located: Located, tensor: Any, crossings: set[str]) -> int:
    verb = located.statement.verb if located.statement is not None else ""
    score = _CHAINING.get(verb, 0)
    with _torch.without_overrides():
        node = _torch.grad_fn(tensor)
    if node is not None and str(node.name()) in crossings:
        score += 2
    if located.place.kind in ("attribute", "buffer", "class", "global"):
        score += 1
    return score


def _cycle(
    question: Question,
    search: Search,
    targets: list[Any],
    stack: list[Spot],
    weight: graph.Weight,
) -> Located | None:
    """Without a root: the attribute that closes the cycle, or the ctx that keeps the tensor."""
    children = paths.children_of(search)
    loop = paths.cycle_through(search, children)
    if loop:
        objects = [search.objects[key] for key in loop]
        located = _cycle_place(question, search, [*objects, objects[0]], stack, weight)
        if located is not None:
            return located
    for target in targets:
        path = paths.path_to_root(search, id(target))
        located = _locate(question, search, path, 0, stack, weight)
        if located is not None:
            return located
    return None


def _cycle_place(
    question: Question,
    search: Search,
    path: list[Any],
    stack: list[Spot],
    weight: graph.Weight,
) -> Located | None:
    steps = naming.readable(path, search)
    best: tuple[bool, naming.Step] | None = None
    for step in steps:
        if step.edge.kind in ("attribute", "closure") and step.edge.name and step.owner is not None:
            user = _is_user_owner(step.owner)
            if best is None or (user and not best[0]):
                best = (user, step)
    if best is None:
        return None
    owner, name = best[1].owner, best[1].edge.name
    cls = type(owner)
    place = Place(
        "cycle",
        name,
        f"{cls.__name__}.{name}",
        type(best[1].value).__name__,
        file=naming.class_file(cls),
        owner=cls.__qualname__,
        module=cls.__module__,
    )
    statement = find_statement(place, stack, question.evaluation)
    advice = advise("cycle", place, statement, evaluation=False, after_backward=None)
    chain = ("no root: a reference cycle", *_loop_text(steps))
    return Located(place, statement, advice, chain, cls.__name__, len(question.births))


def _loop_text(steps: Sequence[naming.Step]) -> list[str]:
    lines = [naming.type_text(steps[0].value)]
    lines += [f"{s.edge.text.strip()}: {naming.type_text(s.value)}" for s in steps[1:]]
    return lines


def _is_user_owner(owner: Any) -> bool:
    cls = type(owner)
    if is_user_module(cls.__module__, None):
        return True
    file = naming.class_file(cls)
    return file is not None and is_user_file(file)
