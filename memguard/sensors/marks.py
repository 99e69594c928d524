"""Weak marks on objects, gathered by the step of their birth: who died, who is still alive.

A mark is a weak reference whose death notice is `set.discard`, a C function: no Python code of
ours runs when an object of the user dies, whatever thread or collection it dies in.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any


class Mark(weakref.ref):  # type: ignore[type-arg]
    """A weak reference compared by its own identity, never by its referent's `__eq__`."""

    __slots__ = ("label",)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    label: str

    def __new__(cls, target: Any, forget: Callable[[Any], None], label: str = "") -> Mark:
        """Mark `target`; `forget(mark)` is called when it dies."""
        mark = super().__new__(cls, target, forget)
        mark.label = label
        return mark

    def __init__(self, target: Any, forget: Callable[[Any], None], label: str = "") -> None:
        super().__init__(target, forget)


class Cohorts:
    """The marks of each step; a step is alive while one of its marks is."""

    __slots__ = ("_marks", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self._marks: dict[int, set[Mark]] = {}

    def add(self, step: int, target: Any, label: str = "") -> Mark:
        """Mark `target`, born in `step`, for as long as it lives."""
        cohort = self._marks.get(step)
        if cohort is None:
            cohort = self._marks[step] = set()
        mark = Mark(target, cohort.discard, label)
        cohort.add(mark)
        return mark

    def births(self) -> list[int]:
        """Steps that have survivors, oldest first."""
        return [step for step, cohort in self._marks.items() if cohort]

    def reap(self, now: int) -> list[int]:
        """Drop the steps of which nothing is left; the ages of those older than the window."""
        gone = [step for step, cohort in self._marks.items() if not cohort and step < now]
        for step in gone:
            del self._marks[step]
        return [now - step for step in gone if now - step > self.window]

    def survey(self, now: int) -> tuple[list[int], list[int]]:
        """(steps that have survivors, ages of those that died since the last survey)."""
        deaths = self.reap(now)
        return self.births(), deaths

    def living(self, step: int) -> list[Any]:
        """The objects of `step` still alive; hold them no longer than needed."""
        # A copy first: an object may die, and its mark go, while we look.
        alive = (mark() for mark in list(self._marks.get(step, ())))
        return [target for target in alive if target is not None]

    def labels(self, step: int) -> list[str]:
        """Labels of the marks of `step` still alive."""
        return [mark.label for mark in list(self._marks.get(step, ()))]

    def counts(self) -> Iterator[tuple[int, int]]:
        """(step, marks alive) for each step with survivors, oldest first."""
        return ((step, len(cohort)) for step, cohort in list(self._marks.items()) if cohort)

    def __len__(self) -> int:
        return sum(map(len, self._marks.values()))

    def clear(self) -> None:
        """Forget all marks."""
        self._marks.clear()
