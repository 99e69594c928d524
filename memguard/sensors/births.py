"""Births: the tensors, nodes, modules and optimizers made since some moment, each held weakly.

For a short stretch of a program, such as one test, where everything that is made counts; `census`
is for loops that never end, and thins out. Like it, this looks at the collector's youngest
generation only, so a heap of a million objects costs no more than an empty one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from typing import Any, cast

from memguard import _kinds
from memguard._heap import family, is_collection_near, newest, objects_of
from memguard.parts import is_the_users
from memguard.sensors.marks import Mark

# Objects from before that are remembered, and the tensors among them (parameters left out) that are
# asked whether they have been given a new graph in place, at 0.2 µs each.
MOST_ELDERS = 20_000
MOST_CARRIERS = 1000

# Autograd nodes in Python's hands that are watched between `begin` and `end`.
MOST_NODES = 256

# Nanoseconds of processor in other threads that are taken for work; starting one takes more.
BUSY = 20_000


class _EndOfLook:
    """Marks in the collector's order of birth where the last look ended, or counting began."""

    __slots__ = ("__dict__",)


class Canary:
    """What is put into a node's metadata: it lives as long as the node, which takes no mark."""

    __slots__ = ("__weakref__",)


class Births:
    """Marks what is born between `begin` and `end`, and remembers what was there before.

    Torch is asked only once the program has loaded it; until then nothing is born.

    Attributes:
        since: number of the first autograd node, in this thread, that counts as born.
    """

    __slots__ = (
        "_begun",
        "_carriers",
        "_classes",
        "_collecting",
        "_elders",
        "_elsewhere",
        "_end_of_look",
        "_failure",
        "_installed",
        "_key",
        "_looks",
        "_marks",
        "_metaclasses",
        "_node_classes",
        "_nodes",
        "_open",
        "_paused",
        "_surveyed",
        "since",
    )

    def __init__(self) -> None:
        self._classes: frozenset[int] = frozenset()
        self._carriers: dict[Mark, None] = {}
        self._elders: set[Mark] = set()
        self._begun = self._end_of_look = _EndOfLook()
        self._marks: set[Mark] = set()
        self._nodes: set[Mark] = set()
        self._key = object()  # two sensors may be at work, each with its own canaries
        self.since = 0
        self._elsewhere = 0
        self._open = False
        self._paused = 0
        self._metaclasses: frozenset[int] = frozenset()
        self._node_classes: frozenset[int] = frozenset()
        self._installed = self._collecting = self._surveyed = False
        self._looks = 0
        self._failure: Exception | None = None

    def install(self) -> None:
        """Start listening to the collector; what exists now is older than any birth."""
        self._refresh()
        self._end_of_look = _EndOfLook()
        gc.callbacks.append(self._on_collection)
        self._installed = True

    def remove(self) -> None:
        """Stop listening and forget everything."""
        if self._installed:
            gc.callbacks.remove(self._on_collection)
            self._installed = False
        self._marks = set()
        self._nodes = set()
        self._elders.clear()
        self._carriers.clear()

    def begin(self) -> None:
        """What is born from now on counts; looked at no sooner than at the next look."""
        self._begun = _EndOfLook()
        for item in alive(self._marks):  # what the last stretch left is older than this one
            self._add_elder(item)
        self._marks = set()
        self._nodes = set()
        self.since = _next_number()
        self._elsewhere = _time_elsewhere()
        self._paused = 0
        self._open = True

    def end(self) -> set[Mark]:
        """What was born since `begin` and is still alive; what comes later does not count.

        The set shrinks by itself as they die.
        """
        self._look()
        self._open = False
        return self._marks

    def nodes(self) -> set[Mark]:
        """Canaries in the nodes made between `begin` and `end` that Python code had in hand.

        Nodes that only tensors hang on are not among them. The set shrinks by itself as they die.
        """
        nodes, self._nodes = self._nodes, set()
        return nodes

    def nodes_of(self, canaries: Iterable[Mark]) -> list[Any]:
        """The nodes that these canaries sit in, as far as Python code still has them in hand.

        Costs one pass over the heap (60 ms for a million objects).
        """
        wanted = set(map(id, alive(canaries)))
        held = objects_of(self._node_classes) if wanted else []
        return [node for node in held if id(_metadata(node).get(self._key)) in wanted]

    def pause(self) -> None:
        """What is born until `resume` is somebody else's; may be nested."""
        if self._open and not self._paused:
            self._look()
        self._paused += 1

    def resume(self) -> None:
        """The end of the innermost `pause`."""
        if self._open and self._paused == 1:
            self._look()
            self.since = _next_number()
        self._paused = max(0, self._paused - 1)

    def canary_of(self, node: Any) -> Canary:
        """The canary in a node, which is put there where it has none."""
        return cast("Canary", _metadata(node).setdefault(self._key, Canary()))

    def may_have_nodes(self) -> bool:
        """Whether an autograd node that counts may have been made, by this thread or another."""
        return _next_number() != self.since or _time_elsewhere() - self._elsewhere > BUSY

    def has_canary(self, node: Any) -> bool:
        """Whether `canary_of` was asked of this node before, by an earlier run or test."""
        return self._key in _metadata(node)

    def elders(self) -> list[Any]:
        """Objects that count for no birth and are still alive.

        Costs one pass over the heap (60 ms for a million objects) when first asked.
        """
        self._survey()
        return alive(self._elders)

    def carriers(self) -> list[Any]:
        """Tensors among the elders that may be given a graph in place; costs as `elders`."""
        self._survey()
        return alive(self._carriers)

    def _survey(self) -> None:
        """Get to know what was there before anybody asked, once: many a suite never does."""
        if self._surveyed or not self._classes:
            return
        born = set(map(id, alive(self._marks)))
        self._surveyed = True
        others = self._metaclasses | self._node_classes | {id(_EndOfLook)}
        for item in objects_of(self._classes - others):
            if id(item) not in born:
                self._add_elder(item)

    def _refresh(self) -> None:
        """The classes to look for; asking takes half a millisecond, as torch alone has hundreds."""
        door = _kinds.torch_door()
        if door is not None:
            self._metaclasses = family(type)
            self._node_classes = door.node_classes()
            kinds = family(door.Tensor, door.Module, door.Optimizer, _EndOfLook)
            # What torch.compile traces with has no data, and its caches are torch's own.
            kinds -= door.stand_in_classes()
            self._classes = kinds | self._metaclasses | self._node_classes

    def _look(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        looks = self._looks
        # A collection that is near need not be waited for: an own one of the youngest is what
        # Python was about to do, and its start is a look.
        if not self._collecting and is_collection_near():
            gc.collect(0)
        if self._looks == looks:  # nor is one begun where another thread is at one
            self._meet()

    def _meet(self) -> None:
        if not self._classes:
            self._refresh()
            if not self._classes:
                return
        looks = self._looks
        found = newest(self._classes, self._end_of_look)
        # A class is an object like any other: a new one may be a kind of module.
        if any(id(type(item)) in self._metaclasses for item in found):
            found.clear()
            self._refresh()
            found = newest(self._classes, self._end_of_look)
        end = _EndOfLook()
        if self._looks != looks:  # a collection began meanwhile, and its start has met everything
            found.clear()
            return
        self._end_of_look = end
        counts = self._open and not self._paused
        for item in found:
            if item is self._begun:
                counts = False
            elif id(type(item)) not in self._metaclasses and type(item) is not _EndOfLook:
                self._note(item, counts)
        found.clear()
        self._looks += 1  # not sooner: another thread's look would take ours for done

    def _note(self, item: Any, counts: bool) -> None:
        if id(type(item)) in self._node_classes:
            if counts:
                self._mark_node(item)
        elif counts:
            self._marks.add(Mark(item, self._marks.discard))
        else:
            self._add_elder(item)

    def _mark_node(self, node: Any) -> None:
        # A node of before, looked at now, is none of these; nor is one met at an earlier look.
        metadata = _metadata(node)
        number = _number(node)
        if number is None or number < self.since or self._key in metadata:
            return
        if len(self._nodes) < MOST_NODES:
            canary = metadata[self._key] = Canary()
            self._nodes.add(Mark(canary, self._nodes.discard))

    def _add_elder(self, item: Any) -> None:
        # Those of before the survey are met there.
        if not self._surveyed:
            return
        if len(self._elders) < MOST_ELDERS:
            self._elders.add(Mark(item, self._elders.discard))
        plain = _kinds.is_tensor_type(type(item)) and not _kinds.is_parameter(item)
        if plain:
            if len(self._carriers) >= MOST_CARRIERS:  # the oldest are the least likely to change
                self._carriers.pop(next(iter(self._carriers)), None)
            self._carriers[Mark(item, self._carriers.pop)] = None

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        # Exceptions in a collector callback are printed to the user's stderr; none may leave.
        try:
            if phase != "start":
                self._collecting = False
            else:
                self._collecting = True
                self._meet()
        except Exception as error:
            # Raised by the next look; the traceback would keep frames of the user's until then.
            self._failure = error if is_the_users(error) else error.with_traceback(None)


def alive(marks: Iterable[Mark]) -> list[Any]:
    """The objects still alive; hold them no longer than needed."""
    found = [mark() for mark in list(marks)]
    return [item for item in found if item is not None]


def _next_number() -> int:
    door = _kinds.torch_door()
    return door.sequence_number() if door is not None else 0


def _time_elsewhere() -> int:
    """Nanoseconds of processor that other threads have had: each numbers its nodes by itself."""
    return time.process_time_ns() - time.thread_time_ns()


def _number(node: Any) -> int | None:
    try:
        return cast("int | None", _kinds.torch_door().node_sequence(node))
    except RuntimeError:  # the ctx of a custom function that has no node
        return None


def _metadata(node: Any) -> dict[Any, Any]:
    try:
        return cast("dict[Any, Any]", _kinds.torch_door().node_metadata(node))
    except RuntimeError:
        return {}
