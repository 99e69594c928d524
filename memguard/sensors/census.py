"""The census: live tensors by the step of their birth, at a cost the heap's size does not change.

Tensors begin in the collector's youngest generation. One look at it when a step ends, and one
when the collector is about to move it on, see every tensor once (a full pass over the heap costs
55 ms for a million objects; this costs some ten microseconds).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from memguard import _torch
from memguard.sensors.marks import Cohorts, Mark

# With automatic collection off the youngest generation is all that was made since; beyond this
# many objects it is looked at only as often as the budget allows (about 25 ns an object).
NANOSECONDS_PER_OBJECT = 25


class Census:
    """Marks new tensors, attached and plain apart.

    Attributes:
        plain: cohorts of tensors without graph.
        collected_at: step in which the oldest generation was last collected; -1 for never.
    """

    __slots__ = (
        "_fresh",
        "_installed",
        "_known",
        "_looking",
        "_may_look",
        "_moved_on",
        "_step",
        "collected_at",
        "plain",
    )

    def __init__(self, window: int, may_look: Callable[[], bool]) -> None:
        self.plain = Cohorts(window)
        self.collected_at = -1
        self._may_look = may_look
        self._known: dict[int, Mark] = {}
        self._fresh: list[Mark] = []
        self._step = 0
        self._installed = False
        self._looking = False
        self._moved_on = False

    def install(self) -> None:
        """Start listening to the collector, and take what exists now as given."""
        self.look(0, judged=False)
        gc.callbacks.append(self._on_collection)
        self._installed = True

    def remove(self) -> None:
        """Stop listening and forget everything."""
        if self._installed:
            gc.callbacks.remove(self._on_collection)
            self._installed = False
        self._known.clear()
        self._fresh.clear()
        self.plain.clear()

    def expected_cost(self) -> float:
        """Seconds a look would take now."""
        return gc.get_count()[0] * NANOSECONDS_PER_OBJECT * 1e-9

    def look(self, step: int, judged: bool = True) -> None:
        """Mark the tensors that are new in the youngest generation as born in `step`.

        With `judged` False they are only known, so that they never count as survivors.
        """
        known = self._known
        is_tensor_type = _torch.is_tensor_type
        # Our own lists may set off a collection, which must not look again in the midst of this.
        self._looking = True
        try:
            young = [item for item in gc.get_objects(generation=0) if is_tensor_type(type(item))]
            for tensor in young:
                mark = known.get(id(tensor))
                if mark is None or mark() is not tensor:
                    self._meet(tensor, step, judged)
        finally:
            self._looking = False
        if self._moved_on:
            self._forget_known()
        elif len(known) > 4096 and len(known) > 4 * len(young):
            self._known = {key: mark for key, mark in known.items() if mark() is not None}

    def _forget_known(self) -> None:
        """What was young has been moved on, so no look meets it again."""
        self._known.clear()
        self._moved_on = False

    def _meet(self, tensor: Any, step: int, judged: bool) -> None:
        with _torch.without_overrides():
            attached = _torch.is_attached(tensor)
        if not judged:
            mark = Mark(tensor, _ignore)
        elif attached:
            mark = Mark(tensor, _ignore)
            self._fresh.append(mark)
        elif self.plain.admits(step):
            mark = self.plain.add(step, tensor)
        else:
            mark = Mark(tensor, _ignore)
        self._known[id(tensor)] = mark

    def take_fresh(self) -> list[Any]:
        """The attached tensors met since the last call that are still alive."""
        marks, self._fresh = self._fresh, []
        alive = (mark() for mark in marks)
        return [tensor for tensor in alive if tensor is not None]

    def begin(self, step: int) -> None:
        """Tensors met by the collector from now on are born in `step`."""
        self._step = step

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        # Exceptions in a collector callback are printed to the user's stderr; none may leave.
        try:
            if phase == "start":
                if not self._looking and self._may_look():
                    self.look(self._step)
            else:
                self._moved_on = True
                if not self._looking:
                    self._forget_known()
                if info.get("generation", 0) == 2:
                    self.collected_at = self._step
        except Exception:
            self._may_look = _never


def _ignore(mark: Mark) -> None:
    """Death notice of a tensor nobody counts."""


def _never() -> bool:
    return False
