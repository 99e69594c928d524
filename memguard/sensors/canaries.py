"""Canaries: one weakly watched object in an autograd node tells when the node dies.

A node owns its `metadata` dict, so an object put there lives exactly as long as the node, and a
node lives as long as anything downstream of it. One canary a step, on what the root module
returned, therefore tells whether the step's graph was let go.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from memguard import _computing, _torch
from memguard.sensors import touched
from memguard.sensors.marks import Cohorts

# A node that was ever touched from Python is freed recursively, see `touched`. So no more than this
# many canaries are ever alive together; looks into graphs that are alive draw on what is left.
MAX_TOUCHED = 1000

# Threads that are remembered; of a server that has one for each request these stand for all.
MAX_CALLERS = 256

# A step needs few: the rest is left for the steps to come.
MAX_A_STEP = 16

# Outputs are looked through this deep for tensors, and no wider than this.
MAX_DEPTH = 4
MAX_OUTPUTS = 64


class Canary:
    """What is put into a node's metadata.

    Attributes:
        owner: stands for the guard that put it there; each has its own count of steps.
        step: the step that the node was made in.
    """

    __slots__ = ("__weakref__", "owner", "step")

    def __init__(self, owner: object, step: int) -> None:
        self.owner = owner
        self.step = step


class Canaries:
    """Places canaries and counts, step by step, whose nodes are still alive.

    Attributes:
        full: whether no more nodes may be touched before some have died.
        callers: threads in which a model was called, as far as they were looked at.
    """

    __slots__ = (
        "__weakref__",
        "_in_latest",
        "_latest",
        "_looked",
        "_room",
        "_token",
        "callers",
        "cohorts",
        "full",
    )

    def __init__(self, window: int) -> None:
        # No step is ever forgotten: the number of canaries is bounded, and must be known.
        self.cohorts = Cohorts(window, MAX_TOUCHED)
        self.full = False
        self.callers: set[int] = set()
        self._room = MAX_TOUCHED
        self._token = object()
        self._latest, self._in_latest = -1, 0
        self._looked: dict[int, int] = {}
        touched.join(self)

    @property
    def touched(self) -> int:
        """Nodes that were touched and are alive, as far as is known."""
        return len(self.cohorts) + sum(list(self._looked.values()))

    def place(
        self, step: int, tensors: Iterable[Any], label: str = "", latest: int | None = None
    ) -> None:
        """Put a canary of `step` into the node of each attached tensor that has none yet.

        `latest` is as in `Cohorts.add`.
        """
        for tensor in tensors:
            if self.full:
                return
            node = _torch.node_of(tensor)
            if node is not None:
                self._place(step, node, label, latest)

    def _place(self, step: int, node: Any, label: str, latest: int | None) -> None:
        metadata = _torch.node_metadata(node)
        # Two modules may return the same node; the first canary keeps its label.
        if Canary in metadata or not (label or self._admits(step)):
            return
        canary = metadata[Canary] = Canary(self._token, step)
        self.cohorts.add(step, canary, label, latest)
        self._room -= 1
        if self._room <= 0:
            self._weigh()

    def note_caller(self) -> None:
        """A model was called in this thread."""
        _computing.note()
        if len(self.callers) < MAX_CALLERS:
            self.callers.add(threading.get_ident())

    def step_of(self, node: Any) -> int | None:
        """The step of a node that has a canary of this guard's; None for other nodes."""
        canary = _torch.node_metadata(node).get(Canary)
        return canary.step if canary is not None and canary.owner is self._token else None

    def _admits(self, step: int) -> bool:
        """Whether the step may have one more canary beside those of an audit."""
        if step != self._latest:
            self._latest, self._in_latest = step, 0
        self._in_latest += 1
        return self._in_latest <= MAX_A_STEP

    def looked(self, step: int, nodes: int) -> None:
        """Count `nodes` that a look has touched, for as long as something of `step` is alive."""
        self._looked[step] = self._looked.get(step, 0) + nodes
        self._weigh()

    def _weigh(self) -> None:
        self._room = MAX_TOUCHED - len(self.cohorts)
        self.full = self._room <= 0 or not touched.room()

    def survey(self, step: int) -> tuple[list[int], list[int]]:
        """(steps whose graphs are alive, ages of those that died since the last survey)."""
        births, deaths = self.cohorts.survey(step)
        if self._looked:
            alive = set(births)
            self._looked = {born: n for born, n in self._looked.items() if born in alive}
        # Counted down at each canary, and counted anew only when there might be no room left.
        if self.full or self._room < MAX_TOUCHED // 2:
            self._weigh()
        return births, deaths

    def deepest(self, step: int) -> str | None:
        """Path of the module called last among those whose output of `step` is alive."""
        labels = [label for label in self.cohorts.labels(step) if label]
        return max(labels, key=_call_order, default=None)

    def clear(self) -> None:
        """Forget every canary; those in living nodes stay there, inert."""
        self.cohorts.clear()
        self._looked.clear()


def _call_order(label: str) -> int:
    return int(label.partition(":")[0])


def attached_outputs(output: Any) -> Iterator[Any]:
    """The attached tensors in what a module returned, containers looked through."""
    if _torch.is_tensor_type(type(output)):
        if _torch.is_attached(output):
            yield output
        return
    yield from _nested(output, 0, [MAX_OUTPUTS])


def _nested(value: Any, depth: int, budget: list[int]) -> Iterator[Any]:
    kind = type(value)
    if _torch.is_tensor_type(kind):
        if _torch.is_attached(value):
            yield value
        return
    if depth >= MAX_DEPTH:
        return
    for item in _items(value, kind):
        budget[0] -= 1
        if budget[0] < 0:
            return
        yield from _nested(item, depth + 1, budget)


def _items(value: Any, kind: type) -> Iterable[Any]:
    """Items of the containers models return: only real ones, so that no foreign code runs."""
    lineage = type.__dict__["__mro__"].__get__(kind)
    if kind is list:
        return list(value[:MAX_OUTPUTS])
    if tuple in lineage:
        return tuple.__iter__(value)
    if dict in lineage:  # also OrderedDict and the ModelOutput of transformers
        return list(dict.values(value))
    if dataclasses.is_dataclass(kind) or kind.__module__ == "torch.distributions":
        return list(getattr(value, "__dict__", {}).values())
    if kind.__module__.startswith("torch.distributions."):
        return list(vars(value).values())
    return ()
