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

# Graphs sampled of one module, and modules of which they are.
MAX_SAMPLES = 6
MAX_MODULES = 4

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
        nodes: how many of its nodes were hooked.
    """

    __slots__ = ("_alive", "_handles", "nodes", "used")

    def __init__(self, roots: list[Any]) -> None:
        self.used = False
        ear = _Ear(self)
        self._alive: weakref.ref[Any] = weakref.ref(ear)
        self._handles: list[Any] = []
        seen = set(roots)
        pending = list(roots)
        self.nodes = 0
        budget = min(MAX_NODES, touched.room())
        while pending and self.nodes < budget:
            node = pending.pop()
            if _torch.node_sequence(node) is None:
                continue  # it adds up a parameter's gradient, and is shared by all its graphs
            self.nodes += 1
            self._handles.append(node.register_prehook(ear))
            for following in _torch.next_nodes(node):
                if following not in seen:
                    seen.add(following)
                    pending.append(following)
        touched.note(ear, self.nodes)

    @property
    def wasted(self) -> bool:
        """Whether the graph is gone and no backward ever reached it."""
        return not self.used and self._alive() is None

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class UnusedGraphs:
    """Samples forwards in evaluation mode, module by module; holds none of them."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        # By module: its samples, or None once a backward has used one of them.
        self._samples: dict[int, list[Sample] | None] = {}

    def wants(self, module: Any) -> bool:
        """Whether a forward of the module is worth a sample."""
        key = id(module)
        if key not in self._samples:
            return len(self._samples) < MAX_MODULES
        samples = self._samples[key]
        return samples is not None and len(samples) < MAX_SAMPLES

    def forward(self, module: Any, outputs: Iterable[Any]) -> list[Any]:
        """Sample the graph behind these outputs; returns the nodes they hang on."""
        nodes = [_torch.node_of(tensor) for tensor in itertools.islice(outputs, MAX_OUTPUTS)]
        roots = list(dict.fromkeys(node for node in nodes if node is not None))
        samples = self._samples.setdefault(id(module), [])
        if roots and samples is not None:
            samples.append(Sample(roots))
        return roots

    def wasted(self, module: Any) -> int:
        """Graphs of the module that died unused; 0 once any of them was used."""
        samples = self._samples.get(id(module))
        if not samples:
            return 0
        if any(sample.used for sample in samples):
            self.leave(module)
            return 0
        return sum(sample.wasted for sample in samples)

    def leave(self, module: Any) -> None:
        """Ask no more of the module."""
        for sample in self._samples.get(id(module)) or ():
            sample.remove()
        self._samples[id(module)] = None

    def remove(self) -> None:
        """Take all hooks out; harmless when done twice."""
        for key in list(self._samples):
            for sample in self._samples[key] or ():
                sample.remove()
            self._samples[key] = None
