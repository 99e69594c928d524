"""Runs of the same code, and what each of them leaves alive."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

from memguard import _kinds
from memguard.judge.repeats import grows
from memguard.sensors.births import Births, alive
from memguard.sensors.marks import Mark

# Seconds to wait for threads to let go before survivors are believed; where there are none, the
# first.
PATIENCE = (0.001, 0.01, 0.05)

# Graphs of one run that are watched node by node; a touched node is freed recursively.
MOST_CANARIES = 16


class _Run:
    """What one run made and left: marks of objects, and canaries in nodes and graphs.

    A graph may outlive every tensor that was made with it, inside a sum that is made anew each
    time or in a list of nodes, and a tensor from before may have been given a graph; canaries see
    all three.
    """

    __slots__ = ("canaries", "carriers", "marked", "marks", "nodes")

    def __init__(self) -> None:
        self.marks: set[Mark] = set()
        self.canaries: set[Mark] = set()
        self.carriers: set[Mark] = set()
        self.nodes: set[Mark] = set()
        self.marked = False

    def left(self) -> int:
        """How much of it is alive."""
        # A tensor that outlives the run may be given another graph; then only canaries tell.
        carriers = 0 if self.marked else len(self.carriers)
        return len(self.marks) + len(self.nodes) + len(self.canaries) + carriers


class Runs:
    """Runs of one test or function, one after the other.

    Args:
        births: the sensor; it is to be installed already.
    """

    __slots__ = ("_births", "_runs")

    def __init__(self, births: Births) -> None:
        self._births = births
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def begin(self) -> None:
        """A run begins."""
        self._runs.append(_Run())
        self._births.begin()

    def end(self) -> bool:
        """The run has ended; whether anything it made is alive.

        Collects garbage only if there are survivors: what is young, and everything once if there
        are survivors still; of later runs only what is young, see `grow`.
        """
        run = self._runs[-1]
        run.marks = self._births.end()
        run.nodes = self._births.nodes()
        run.carriers = self._given_graphs()
        if not run.left():
            return False
        # What a test leaves in cycles is young; the whole heap is seldom worth a look.
        gc.collect(1)
        if not run.left():
            return False
        if len(self._runs) == 1:
            gc.collect()
        self._forgive(run)
        self._wait(run)
        self._mark_graphs(run)
        return bool(run.left())

    def _wait(self, run: _Run) -> None:
        for seconds in PATIENCE if threading.active_count() > 1 else PATIENCE[:1]:
            if run.left():
                time.sleep(seconds)

    def abandon(self) -> None:
        """The run is not to be judged."""
        self._births.end()

    def grow(self, window: int = 0) -> bool:
        """Whether each run left something that is still alive, the last `window` aside.

        Collects everything once more where it would say so of several runs, to make sure.
        """
        found = grows([run.left() for run in self._runs], window)
        if found and len(self._runs) > 1:
            gc.collect()
            found = grows([run.left() for run in self._runs], window)
        return found

    def may_grow(self, window: int = 0) -> bool:
        """Whether no run that counts has been seen to leave nothing; what died stays dead."""
        return all(run.left() for run in self._runs[: len(self._runs) - window])

    def survivors(self) -> list[Any]:
        """What the last run left; hold it no longer than needed."""
        return self._alive(self._runs[-1:])

    def earlier(self) -> list[Any]:
        """What the runs before the last left, and the last did not."""
        last = {id(item) for item in self._alive(self._runs[-1:])}
        return [item for item in self._alive(self._runs[:-1]) if id(item) not in last]

    def _alive(self, runs: list[_Run]) -> list[Any]:
        found = [item for run in runs for item in (*alive(run.marks), *alive(run.carriers))]
        found += self._births.nodes_of(mark for run in runs for mark in list(run.nodes))
        return list({id(item): item for item in found}.values())

    def _given_graphs(self) -> set[Mark]:
        """Tensors from before the run that hang on a graph which it made."""
        found: set[Mark] = set()
        door = _kinds.torch_door()
        if door is None or not self._births.may_have_nodes():
            return found
        with _kinds.without_overrides():
            for tensor in self._births.carriers():
                if door.is_attached(tensor) and self._is_new(door, door.node_of(tensor)):
                    found.add(Mark(tensor, found.discard))
        return found

    def _is_new(self, door: Any, node: Any) -> bool:
        """Whether the run has made the node; each thread numbers its own, so that this may err."""
        number = door.node_sequence(node) if node is not None else None
        made_since = number is not None and number >= self._births.since
        return made_since and not self._births.has_canary(node)

    def _forgive(self, run: _Run) -> None:
        """Gradients of what is older belong to it."""
        door = _kinds.torch_door()
        if door is None or not run.marks:
            return
        with _kinds.without_overrides():
            elders = (e for e in self._births.elders() if door.is_tensor_type(type(e)))
            theirs = {id(door.gradient_of(elder)) for elder in elders}
        for mark in list(run.marks):
            if id(mark()) in theirs:
                run.marks.discard(mark)

    def _mark_graphs(self, run: _Run) -> None:
        door = _kinds.torch_door()
        if door is None:
            return
        run.marked = True
        with _kinds.without_overrides():
            for tensor in [*alive(run.carriers), *alive(run.marks)]:
                if len(run.canaries) >= MOST_CANARIES:
                    return
                if door.is_tensor_type(type(tensor)) and door.is_attached(tensor):
                    node = door.node_of(tensor)
                    if node is not None:
                        canary = self._births.canary_of(node)
                        run.canaries.add(Mark(canary, run.canaries.discard))
