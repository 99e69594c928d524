"""Walks of autograd graphs: which live tensors reach past steps, and what a step's graph weighs."""

from __future__ import annotations

import gc
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memguard import _computing, _storage, _torch
from memguard._heap import family, objects_of

# Nodes ever touched by one explanation. A touched node is freed recursively; see
# sensors.touched. A chain as deep as this is still freed safely on an 8 MB stack.
MAX_NODES = 1000


def live_tensors() -> list[Any]:
    """Every tensor the collector knows (one heap pass, about 60 ms for a million objects)."""
    return objects_of(family(_torch.Tensor))


def attached_tensors() -> list[Any]:
    """Every live tensor that hangs on a graph, those of a compiler's own left out."""
    with _torch.without_overrides():
        attached = [tensor for tensor in live_tensors() if _torch.is_attached(tensor)]
    return [tensor for tensor in attached if not _torch.is_stand_in(tensor)]


@dataclass(slots=True)
class Carriers:
    """Live attached tensors that keep graphs of past steps.

    Attributes:
        old: tensors whose own node was made in a past step, by that step.
        young: tensors of the present whose graph reaches into past steps.
        crossings: names of the past nodes at which those graphs enter past steps.
        looked: nodes that were touched.
    """

    old: dict[int, list[Any]] = field(default_factory=dict)
    young: list[Any] = field(default_factory=list)
    crossings: set[str] = field(default_factory=set)
    looked: int = 0


def carriers(
    tensors: Iterable[Any], step_of: Callable[[Any], int | None], newest_old: int
) -> Carriers:
    """Sort live attached tensors by how they keep graphs older than step `newest_old`.

    Args:
        tensors: live attached tensors.
        step_of: dates a node; None when it cannot be told.
        newest_old: nodes of this step and before are of the past.
    """
    found = Carriers()
    reaches: dict[Any, bool] = {}
    budget = [MAX_NODES]
    for tensor in tensors:
        node = _node_of(tensor)
        if node is None:
            continue
        found.looked += 1
        step = step_of(node)
        if step is not None and step <= newest_old:
            found.old.setdefault(step, []).append(tensor)
        elif _reaches_past(node, step_of, newest_old, reaches, found.crossings, budget):
            found.young.append(tensor)
    reaches.clear()
    found.looked += MAX_NODES - budget[0]
    return found


def kept_nodes(step_of: Callable[[Any], int | None], newest_old: int) -> dict[int, list[Any]]:
    """Nodes of past steps to which a Python object refers, by step; a graph refers from C++."""
    nodes = objects_of(_torch.node_classes())
    del nodes[: -MAX_NODES or None]
    held = _referred_to(nodes)
    found: dict[int, list[Any]] = {}
    for node in nodes:
        step = step_of(node) if id(node) in held else None
        if step is not None and step <= newest_old:
            found.setdefault(step, []).append(node)
    nodes.clear()
    return found


def _referred_to(items: list[Any]) -> set[int]:
    """Identities of those to which another object than the list itself refers."""
    arguments = tuple(items)
    held: set[int] = set()
    for referrer in gc.get_referrers(*arguments) if arguments else ():
        if referrer is not items and referrer is not arguments:
            held.update(map(id, gc.get_referents(referrer)))
    return held


def _node_of(tensor: Any) -> Any:
    with _torch.without_overrides():
        return _torch.node_of(tensor)


def _reaches_past(
    root: Any,
    step_of: Callable[[Any], int | None],
    newest_old: int,
    reaches: dict[Any, bool],
    crossings: set[str],
    budget: list[int],
) -> bool:
    """Whether the graph behind `root` enters a past step; walks only nodes of the present."""
    if root in reaches:
        return reaches[root]
    # The oldest first: they are nearest to the past, and whether the walk gets there before the
    # budget ends shall not hang on the order in which a graph names its branches.
    pending, seen = [(0, 0, root)], {root}
    found = False
    while pending and budget[0] > 0:
        node = heapq.heappop(pending)[2]
        budget[0] -= 1
        for following in _torch.next_nodes(node):
            if following in seen:
                continue
            seen.add(following)
            if following in reaches:
                found = found or reaches[following]
                continue
            step = step_of(following)
            if step is None:
                continue
            if step <= newest_old:
                found = True
                crossings.add(str(following.name()))
            else:
                number = _torch.node_sequence(following) or 0
                heapq.heappush(pending, (number, len(seen), following))
    pending.clear()
    reaches[root] = found
    return found


@dataclass(frozen=True, slots=True)
class Weight:
    """What one step's retained graph weighs.

    Attributes:
        nodes: autograd nodes.
        saved_bytes: activations still saved for a backward, each storage once, parameters left out.
        complete: False when the walk was cut.
        looked: nodes that were touched on the way.
    """

    nodes: int = 0
    saved_bytes: int = 0
    complete: bool = True
    looked: int = 0


def weigh_each(
    roots: Sequence[tuple[int, Sequence[Any]]],
    step_of: Callable[[Any], int | None],
    ignored_storages: Iterable[int] = (),
) -> list[Weight]:
    """What each step keeps behind its roots, without the storages that another keeps as well.

    Batches cut from one data set save one and the same storage, which no step adds.
    """
    saved = [_saved(nodes, step_of, step, ignored_storages) for step, nodes in roots]
    times = Counter(key for _, storages, _, _ in saved for key in storages)
    return [
        Weight(
            nodes,
            sum(size for key, size in storages.items() if times[key] == 1),
            complete,
            looked,
        )
        for nodes, storages, complete, looked in saved
    ]


def _saved(
    roots: Sequence[Any],
    step_of: Callable[[Any], int | None],
    step: int,
    ignored_storages: Iterable[int],
    budget: int = MAX_NODES,
) -> tuple[int, dict[int, int], bool, int]:
    """(nodes of `step` behind `roots`, bytes saved by storage, whether all, nodes looked at)."""
    pending = [node for node in roots if node is not None]
    seen = set(pending)
    storages: dict[int, int] = {}
    ignored = set(ignored_storages)
    is_readable = not _computing.others()
    nodes = looked = 0
    while pending and looked < budget:
        node = pending.pop()
        looked += 1
        made = step_of(node)
        if made is not None and made < step:
            continue
        if made == step:
            nodes += 1
            if is_readable:
                _weigh_saved(node, storages, ignored)
        for following in _torch.next_nodes(node):
            if following not in seen:
                seen.add(following)
                pending.append(following)
    return nodes, storages, not pending, looked


def _weigh_saved(node: Any, storages: dict[int, int], ignored: set[int]) -> None:
    for tensor in _torch.saved_tensors(node):
        if tensor.is_leaf and tensor.requires_grad:
            continue
        key, size = _storage.storage_of(tensor)
        if key not in ignored:
            storages[key] = size
