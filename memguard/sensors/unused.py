"""Graphs that nobody goes backward through, seen in a few forwards in evaluation mode.

Hooks in the nodes of such a graph tell whether a backward reached any of them. They die with the
nodes, so a graph that died with none of them called was built for nothing.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

from memguard import _torch
from memguard.sensors import touched

# Graphs sampled of one module, and living modules of which they are.
MAX_SAMPLES = 6
MAX_MODULES = 4

# Forwards without a graph after which a module is left alone.
MAX_GRAPHLESS = 4

# Nodes of one graph that are hooked: one microsecond each.
MAX_NODES = 400

# Outputs of one forward that are followed.
MAX_OUTPUTS = 16


class _Ear:
    """The hook in the nodes of one graph: it hears of a backward, and dies with them."""

    __slots__ = ("__weakref__", "_sample")

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def __call__(self, gradients: Any) -> None:
        self._sample.used = True


class Sample:
    """One forward's graph.

    Attributes:
        used: whether a backward reached it.
        cut: whether it has more nodes than were hooked: a backward may go through those.
        leaves: what its backward would give gradients, by identity.
    """

    __slots__ = ("_alive", "_handles", "cut", "leaves", "used")

    def __init__(self, roots: list[Any]) -> None:
        self.used = False
        self.leaves: set[int] = set()
        ear = _Ear(self)
        self._alive: weakref.ref[Any] = weakref.ref(ear)
        self._handles: list[Any] = []
        seen = set(roots)
        pending = list(roots)
        budget = min(MAX_NODES, touched.room())
        while pending and len(self._handles) < budget:
            node = pending.pop()
            if _torch.node_sequence(node) is None:
                # It adds up a parameter's gradient, and is shared by all its graphs.
                self.leaves.add(id(_torch.leaf_of(node)))
                continue
            self._handles.append(node.register_prehook(ear))
            for following in _torch.next_nodes(node):
                if following not in seen:
                    seen.add(following)
                    pending.append(following)
        touched.note(ear, len(self._handles))
        self.cut = bool(pending)

    @property
    def wasted(self) -> bool:
        """Whether the graph is gone, and no backward has ever reached it."""
        return not self.used and self._alive() is None

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class Sampled:
    """One module and the samples of its graphs.

    Attributes:
        module: held weakly.
        settled: whether no more is asked of it.
        weight: what its caller has found one of the graphs to weigh; None before.
    """

    __slots__ = ("_graphless", "_samples", "module", "settled", "weight")

    def __init__(self, module: Any) -> None:
        self.module: weakref.ref[Any] = weakref.ref(module)
        self.settled = False
        self.weight: Any = None
        self._samples: list[Sample] = []
        self._graphless = 0

    @property
    def is_wanting(self) -> bool:
        """Whether one more forward is worth a sample."""
        return not self.settled and len(self._samples) < MAX_SAMPLES

    def forward(self, outputs: Iterable[Any]) -> list[Any]:
        """Sample the graph behind these outputs; returns the nodes they hang on."""
        found = list(itertools.islice(outputs, MAX_OUTPUTS + 1))
        nodes = map(_torch.node_of, found)
        roots = list(dict.fromkeys(node for node in nodes if node is not None))
        if not roots:
            self._graphless += 1
            if self._graphless >= MAX_GRAPHLESS:
                self.leave()
            return []
        sample = Sample(roots)
        self._samples.append(sample)
        if sample.cut or len(found) > MAX_OUTPUTS or self._has_more(sample):
            self.leave()
            return []
        return roots

    def _has_more(self, sample: Sample) -> bool:
        """Whether the module has parts that the graph is without: others may go through those."""
        module = self.module()
        trained = (p for p in module.parameters() if p.requires_grad) if module is not None else ()
        return any(id(parameter) not in sample.leaves for parameter in trained)

    def wasted(self) -> int:
        """Graphs that died unused; 0 once any was used."""
        if any(sample.used for sample in self._samples):
            self.leave()
        return sum(sample.wasted for sample in self._samples)

    def leave(self) -> None:
        """Ask no more of the module."""
        for sample in self._samples:
            sample.remove()
        self._samples.clear()
        self.settled = True


class UnusedGraphs:
    """Samples forwards in evaluation mode, module by module; holds none of them."""

    __slots__ = ("_sampled",)

    def __init__(self) -> None:
        self._sampled: dict[int, Sampled] = {}

    def of(self, module: Any) -> Sampled | None:
        """What is known of a module that was just called; None where there are too many."""
        found = self._sampled.get(id(module))
        if found is not None and found.module() is module:
            return found
        if len(self._sampled) >= MAX_MODULES:
            living = {k: one for k, one in self._sampled.items() if one.module() is not None}
            self._sampled = living
        if found is None and len(self._sampled) >= MAX_MODULES:
            return None
        found = self._sampled[id(module)] = Sampled(module)
        return found

    def remove(self) -> None:
        """Take all hooks out; harmless when done twice."""
        for sampled in self._sampled.values():
            sampled.leave()
