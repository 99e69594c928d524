"""The census: live tensors by the step of their birth, at a cost the heap's size does not change.

Tensors begin in the collector's youngest generation. One look at it when a step ends, and one
when the collector is about to move it on, see every tensor once (a full pass over the heap costs
55 ms for a million objects; this costs some ten microseconds).
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from memguard import _torch
from memguard._heap import family, is_collection_near, newest
from memguard.parts import is_the_users
from memguard.sensors.marks import Cohorts

# With automatic collection off the youngest generation is all that was made since; beyond this
# many objects it is looked at only as often as the budget allows (about 60 ns an object).
NANOSECONDS_PER_OBJECT = 60

# Attached tensors remembered until the next step's end; a loop that has ended must not gather them.
MAX_FRESH = 256

# Looks after which subclasses of Tensor that were defined meanwhile are asked for.
REFRESH_TYPES = 16


class _EndOfLook:
    """Marks in the collector's order of birth where the last look ended."""

    __slots__ = ("__dict__",)


class Census:
    """Marks new tensors, attached and plain apart.

    Attributes:
        plain: cohorts of tensors without graph.
        collected_at: step in which the oldest generation was last collected; -1 for never.
    """

    __slots__ = (
        "_collecting",
        "_end_of_look",
        "_failure",
        "_fresh",
        "_installed",
        "_looks",
        "_may_look",
        "_pass_over",
        "_put_off",
        "_step",
        "_types",
        "collected_at",
        "plain",
    )

    def __init__(self, window: int, may_look: Callable[[], bool]) -> None:
        self.plain = Cohorts(window)
        self.collected_at = -1
        self._may_look = may_look
        self._end_of_look = _EndOfLook()
        self._collecting = False
        self._fresh: deque[weakref.ref[Any]] = deque(maxlen=MAX_FRESH)
        self._step = 0
        self._installed = False
        # Whether the next look must pass over what it meets: the last that should was put off.
        self._pass_over = False
        self._put_off = False
        self._looks = 0
        self._failure: Exception | None = None
        self._types: frozenset[int] = frozenset()

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
        self._fresh.clear()
        self.plain.clear()

    def expected_cost(self) -> float:
        """Seconds a look would take now."""
        return gc.get_count()[0] * NANOSECONDS_PER_OBJECT * 1e-9

    def look(self, step: int, judged: bool = True) -> bool:
        """Mark the tensors that are new in the youngest generation as born in `step`.

        With `judged` False they are passed over, so that they never count as survivors. Returns
        whether all were met; otherwise a collection is near, which meets them.

        Raises:
            Exception: what a look within a collection failed with, where nothing may be raised.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._pass_over = self._pass_over or not judged
        # Nothing is lost by waiting: the collection's own start is a look, in which no other can
        # begin. Small steps may be near one for long, and what waits is dated late: only once.
        if not self._collecting and not self._put_off and is_collection_near():
            self._put_off = True
            return False
        self._put_off = False
        self._looks += 1
        looks = self._looks
        if looks % REFRESH_TYPES == 1:
            self._types = family(_torch.Tensor)
        # A collection that begins meanwhile looks for us, and so at our step.
        coming, self._step = self._step, step
        found = newest(self._types, self._end_of_look)
        # The youngest object now. Once a collection has moved it on it is not met any more, and
        # all that is young then is new.
        end = _EndOfLook()
        self._step = coming
        if self._looks != looks:  # a collection began meanwhile, and its start was a look
            return True
        self._end_of_look = end
        passed_over, self._pass_over = self._pass_over, False
        if not passed_over:
            self._meet(found, step)
        return True

    def _meet(self, tensors: list[Any], step: int) -> None:
        plain = self.plain
        with _torch.without_overrides():
            for tensor in tensors:
                if _torch.is_attached(tensor):
                    self._fresh.append(weakref.ref(tensor))
                elif plain.admits(step):
                    plain.add(step, tensor)

    def take_fresh(self) -> list[Any]:
        """The attached tensors met since the last call that are still alive."""
        alive = [reference() for reference in self._fresh]
        self._fresh.clear()
        return [tensor for tensor in alive if tensor is not None]

    def begin(self, step: int) -> None:
        """Tensors met by the collector from now on are born in `step`."""
        self._step = step

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        # Exceptions in a collector callback are printed to the user's stderr; none may leave.
        try:
            if phase == "start":
                self._collecting = True
                if self._may_look():
                    self.look(self._step)
            else:
                self._collecting = False
                if info.get("generation", 0) == 2:
                    self.collected_at = self._step
        except Exception as error:
            self._may_look = _never
            # Raised by the next look; the traceback would keep frames of the user's until then.
            self._failure = error if is_the_users(error) else error.with_traceback(None)


def _never() -> bool:
    return False
