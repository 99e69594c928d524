"""From survivors to the holder a user knows, and the statement that makes it grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from memguard import _torch
from memguard.explain import graph, native, paths
from memguard.explain.accumulation import (
    MAX_HOLDERS,
    Located,
    Question,
    accumulation_points,
    is_known,
    locate,
    told,
)
from memguard.explain.cycles import find_cycle
from memguard.explain.frames import Frames
from memguard.explain.iterating import with_generators
from memguard.explain.loops import running_regions
from memguard.explain.places import Spot
from memguard.explain.program import Program
from memguard.explain.search import Search

# Survivors sampled for the search: a pass over the heap costs 24 ms for one target and 56 ms for
# fifty (a million objects), so some from both ends are enough to see what they have in common.
OLDEST, NEWEST, PER_BIRTH = 3, 6, 6

MAX_YOUNG = 32

# What a statement that feeds old into new weighs against circumstances, which add up to 3.
CHAINED = 4

# Statements that feed a variable's old value into its new one.
_CHAINING = {
    "accumulate": 2,
    "carry": 2,
    "build": 2,
    "item": 1,
    "register": 1,
    "append": 1,
    "extend": 1,
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an explanation found.

    Attributes:
        located: accumulation points, the most telling first.
        rooted: whether anything outside a cycle was seen to hold the survivors.
        weight: one retained step's graph.
        cycle: the reference cycle that may hold them, when there is no root.
        native: what C++ likely holds them for, when there is neither.
        complete: False when a budget ended the search.
        growing: False when the survivors all hang on objects of the past that nothing adds to.
        stack: the user's frames when the step ended, innermost first.
        looked: nodes of graphs that were touched.
    """

    located: tuple[Located, ...] = ()
    rooted: bool = False
    weight: graph.Weight = graph.Weight()
    cycle: Located | None = None
    native: Located | None = None
    complete: bool = True
    growing: bool = True
    stack: tuple[Spot, ...] = ()
    looked: int = 0


def explain(question: Question) -> Explanation:
    """Name who holds the survivors; keeps nothing of what it looked at."""
    with Frames() as frames:
        stack = frames.stack()
        tell = _explain_graph if question.kind == "graph" else _explain_tensors
        return replace(tell(question, frames, stack), stack=tuple(stack))


def explain_survivors(question: Question, stack: Sequence[Spot] = ()) -> Explanation:
    """Name who holds `question.survivors`, of whatever kind; for code that has ended.

    Args:
        question: what survives, by birth; emptied when done.
        stack: where that code stands in the source, since it is on no thread's stack any more.
    """
    with Frames() as frames, _torch.without_overrides():
        spots = [*stack, *(frames.stack() if not stack else ())]
        result = _from_survivors(question, question.survivors, frames, spots, graph.Weight())
        question.survivors.clear()
        return replace(result, stack=tuple(spots))


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
        result = replace(result, growing=False)
    elif not result.located:
        result = _from_nodes(question, frames, stack) or result
    carriers.old.clear()
    carriers.young.clear()
    return replace(result, looked=carriers.looked + result.weight.looked)


def _from_nodes(question: Question, frames: Frames, stack: list[Spot]) -> Explanation | None:
    """Graphs that no tensor leads to: nodes or contexts of theirs may be kept as they are."""
    newest_old = question.now - question.window - 1
    kept = graph.kept_nodes(question.step_of, newest_old)
    if not kept:
        return None
    steps = sorted(kept)[-2:]
    roots = [(step, kept[step]) for step in steps]
    weights = graph.weigh_each(roots, question.step_of, question.own_storages)
    weight = _heaviest(weights)
    found = _from_survivors(question, kept, frames, stack, weight)
    roots.clear()
    kept.clear()
    return found if found.rooted and found.located else None


def _weigh(question: Question, carriers: graph.Carriers) -> graph.Weight:
    """The heaviest of the newest retained steps stands for all."""
    old = [step for step in carriers.old if step in set(question.births)] or list(carriers.old)
    steps = sorted(old)[-3:]
    roots = [(step, [_torch.node_of(tensor) for tensor in carriers.old[step]]) for step in steps]
    if not roots:
        nodes = [_torch.node_of(tensor) for tensor in carriers.young]
        step = question.now - question.window - 1
        roots = [(step, nodes), (step - 1, nodes)]
    weights = graph.weigh_each(roots, question.step_of, question.own_storages)
    return _heaviest(weights)


def _heaviest(weights: Sequence[graph.Weight]) -> graph.Weight:
    heaviest = max(weights, key=lambda weight: (weight.saved_bytes, weight.nodes))
    return replace(heaviest, looked=sum(weight.looked for weight in weights))


def _explain_tensors(question: Question, frames: Frames, stack: list[Spot]) -> Explanation:
    result = _from_survivors(question, question.survivors, frames, stack, graph.Weight())
    question.survivors.clear()
    return result


def sample(survivors: dict[int, list[Any]]) -> tuple[list[Any], list[int]]:
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
        stack = with_generators(stack, search)
        rooted = 2 * search.has_root().bit_count() >= len(targets)
        located = accumulation_points(question, search, targets, born, stack, weight)
        cycle = held = None
        if not rooted:
            cycle = find_cycle(question, search, targets, stack, weight)
            held = held_by_cpp(question, targets, stack, weight)
            if cycle is not None and cycle.place.kind == "ctx":
                located = [cycle]
        return Explanation(tuple(located), rooted, weight, cycle, held, search.complete)
    finally:
        search.release()
        targets.clear()


def _from_carried(
    question: Question,
    carriers: graph.Carriers,
    frames: Frames,
    stack: list[Spot],
    weight: graph.Weight,
) -> Explanation:
    """Tensors of the present that carry the past: whose old value feeds the new is to blame."""
    young = sorted(carriers.young, key=lambda tensor: not _held_by_user(frames, tensor))
    targets = young[:MAX_YOUNG]
    search = Search(frames, [carriers.young, young, targets])
    search.run(targets)
    try:
        stack = with_generators(stack, search)
        scored: list[tuple[int, Located]] = []
        for target in targets:
            path = paths.best_path(search, id(target))
            located = locate(question, search, path, 0, stack, weight)
            if located is None or is_known(located, [other for _, other in scored]):
                continue
            scored.append((_blame(located, target, carriers.crossings), located))
        best = max((score for score, _ in scored), default=0)
        chosen = [located for score, located in scored if score == best][:MAX_HOLDERS]
        rooted = bool(search.has_root())
        # Without a statement that feeds old into new, the chain may have ended growing.
        growing = best >= CHAINED
        held = held_by_cpp(question, targets, stack, weight) if not rooted else None
        complete = search.complete
        return Explanation(tuple(chosen), rooted, weight, None, held, complete, growing)
    finally:
        search.release()
        targets.clear()
        young.clear()


def held_by_cpp(
    question: Question, targets: list[Any], stack: list[Spot], weight: graph.Weight
) -> Located | None:
    """What C++ likely holds the survivors for; None when the program uses no such API."""
    program = Program([spot.file for spot in stack])
    place = native.place_of(targets, program, running_regions(program, stack))
    if place is None:
        return None
    chain = ("no root in Python", f"held by C++: {place.name}")
    return told(question, place, chain, "C++", stack, weight)


def _held_by_user(frames: Frames, tensor: Any) -> bool:
    return any(frames.views[index].user for index, _ in frames.holding(tensor))


def _blame(located: Located, tensor: Any, crossings: set[str]) -> int:
    verb = located.statement.verb if located.statement is not None else ""
    score = CHAINED * _CHAINING.get(verb, 0)
    with _torch.without_overrides():
        node = _torch.node_of(tensor)
    if node is not None and str(node.name()) in crossings:
        score += 2
    if located.place.kind in ("attribute", "buffer", "class", "global"):
        score += 1
    return score
