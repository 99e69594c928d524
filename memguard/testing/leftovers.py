"""What a run left behind, weighed and explained: who holds it, in which line, and the fix."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from memguard import _kinds
from memguard.alive import why_alive
from memguard.explain.accumulation import Located, Question
from memguard.explain.explain import Explanation, explain_survivors
from memguard.explain.fingerprint import fingerprint
from memguard.explain.graph import MAX_NODES, weigh_each
from memguard.explain.places import Spot
from memguard.explain.wording import holder_of
from memguard.records import Amount, Finding, Growth, Holder
from memguard.report.tests import summary
from memguard.sensors.contents import modules_of, stepped_by, tensors_of
from memguard.testing.familiar import familiar

# Survivors that are weighed; a test leaves few, and the rest adds nothing to the explanation.
MOST_WEIGHED = 2000


class _Sorted:
    """Survivors by what they are; only those that nothing else among them keeps."""

    def __init__(self, survivors: Iterable[Any]) -> None:
        self.graphs: list[Any] = []
        self.tensors: list[Any] = []
        self.modules: list[Any] = []
        self.optimizers: list[Any] = []
        tensors, nodes = [], []
        for item in survivors:
            if _kinds.is_module(item):
                self.modules.append(item)
            elif _kinds.is_optimizer(item):
                self.optimizers.append(item)
            elif _kinds.is_node(item):
                nodes.append(item)
            else:
                tensors.append(item)
        inner = {id(part) for one in (*self.modules, *self.optimizers) for part in _inside(one)}
        self.modules = [module for module in self.modules if id(module) not in inner]
        tensors = [tensor for tensor in tensors if id(tensor) not in inner]
        with _kinds.without_overrides():
            attached = [tensor for tensor in tensors if _kinds.is_attached(tensor)]
            known = {id(tensor) for tensor in attached}
            self.tensors = [tensor for tensor in tensors if id(tensor) not in known]
            self.graphs = _roots([*attached, *nodes])

    def targets(self) -> list[Any]:
        """What is to be explained, the heaviest kind first."""
        whole = [*self.optimizers, *self.modules]
        return whole or self.graphs or self.tensors

    def alike(self, others: _Sorted) -> list[Any]:
        """What is of the kind of the others' targets."""
        if others.optimizers or others.modules:
            return [*self.optimizers, *self.modules]
        return self.graphs if others.graphs else self.tensors

    def release(self) -> None:
        """Let go of everything."""
        for part in (self.graphs, self.tensors, self.modules, self.optimizers):
            part.clear()


def _inside(item: Any) -> Iterator[Any]:
    """What a module has inside, modules and tensors; what an optimizer steps and keeps."""
    if _kinds.is_module(item):
        yield from itertools.islice(modules_of(item), 1, None)
    else:
        yield from stepped_by(item)
    yield from tensors_of(item)


def _node_of(item: Any) -> Any:
    """The node that a tensor hangs on, or the node itself."""
    return item if _kinds.is_node(item) else _kinds.torch_door().node_of(item)


def _roots(attached: list[Any]) -> list[Any]:
    """The attached tensors and nodes on which no other of them hangs, newest first."""
    door = _kinds.torch_door()
    nodes = [(item, _node_of(item)) for item in attached[:MOST_WEIGHED]]
    nodes.sort(key=lambda pair: -(door.node_sequence(pair[1]) or 0) if pair[1] is not None else 0)
    seen: set[Any] = set()
    found: list[Any] = []
    for tensor, root in nodes:
        if root is None or root in seen:
            continue
        found.append(tensor)
        pending = [root]
        while pending and len(seen) < MAX_NODES:
            node = pending.pop()
            seen.add(node)
            pending += [one for one in door.next_nodes(node) if one not in seen]
    nodes.clear()
    seen.clear()
    return found


def leftover(
    survivors: list[Any], earlier: list[Any], name: str, stack: Sequence[Spot]
) -> tuple[Finding, int | None]:
    """(what was left behind, as a finding; most entries its holder ever keeps, where it says).

    Args:
        survivors: what the last run left; emptied when done.
        earlier: what the runs before left: it shows what they have in common; emptied, too.
        name: what left it: a test's or function's name.
        stack: where that stands in the source.

    Costs a pass over the heap for each link of the chain.
    """
    found, before = _Sorted(survivors), _Sorted(earlier)
    survivors.clear()
    earlier.clear()
    counts = tuple(map(len, (found.graphs, found.tensors, found.modules, found.optimizers)))
    whole = bool(found.modules or found.optimizers)
    kind = "graph" if found.graphs and not whole else "tensor"
    nodes, saved, size, inside = _weigh(found)
    targets = found.targets()
    total = inside if whole else len(targets)
    first = targets[0] if targets else None
    targets = [*targets, *before.alike(found)]
    # Each by itself, as each is one that should not be: those before the last run are the older.
    births = {number: [target] for number, target in enumerate(reversed(targets))}
    found.release()
    before.release()
    targets.clear()
    question = Question(kind, len(births), list(births), lambda number: 0, 0, survivors=births)
    explanation = explain_survivors(question, stack)
    located = explanation.located or tuple(filter(None, (explanation.cycle, explanation.native)))
    holders = tuple(_holder(one, total, size, explanation) for one in located)
    if not holders and first is not None:
        holders = tuple(
            familiar(replace(one, survivors=total, bytes=size)) for one in why_alive(first).holders
        )
    del first
    amount = Amount(total, nodes, size)
    finding = Finding(
        "graph" if kind == "graph" else "tensor",
        "leak",
        summary(name, *counts, size=size),
        fingerprint(kind, located),
        0,
        0,
        growth=Growth(amount, amount),
        holders=holders[:3],
        advice=located[0].advice.advice if located else "",
        saved_bytes=saved if kind == "graph" else 0,
        unnamed="" if holders else "Nothing in Python that could be found refers to it.",
    )
    return finding, located[0].limit if located else None


def _weigh(found: _Sorted) -> tuple[int, int, int, int]:
    """(autograd nodes, bytes they saved, bytes of everything, tensors in modules), each once."""
    with _kinds.without_overrides():
        nodes = [_node_of(item) for item in found.graphs]
        (weight,) = weigh_each([(0, nodes)], lambda number: 0)
        storages: dict[int, int] = {}
        inner = [part for one in (*found.modules, *found.optimizers) for part in _inside(one)]
        for tensor in [*found.graphs, *found.tensors, *inner]:
            if _kinds.is_tensor_type(type(tensor)):
                key, size = _kinds.storage_of(tensor)
                storages[key] = size
        inside = len(storages) - len(found.graphs) - len(found.tensors)
        inner.clear()
    size = max(weight.saved_bytes, sum(storages.values()))
    return weight.nodes, weight.saved_bytes, size, max(1, inside)


def _holder(located: Located, survivors: int, size: int, explanation: Explanation) -> Holder:
    advice = located.advice
    alone = len(explanation.located) <= 1
    share = survivors if alone else max(1, round(survivors * located.share))
    holder = replace(
        holder_of(located.place, located.statement, located.type, located.chain),
        survivors=share,
        bytes=size,
        why=advice.why,
        fix=advice.fix,
        alternative=advice.alternative,
        bound=located.limit,
        modules=located.modules,
    )
    return familiar(holder, located.thread)
