"""Weak marks on objects, gathered by the step of their birth: who died, who is still alive.

A mark is a weak reference whose death notice is `set.discard`, a C function: no Python code of
ours runs when an object of the user dies, whatever thread or collection it dies in.
"""

from __future__ import annotations

import weakref
from typing import Any


class Mark(weakref.ref):  # type: ignore[type-arg]
    """A weak reference compared by its own identity, never by its referent's `__eq__`.

    It has no constructor of its own, which would double the price of making one.
    """

    __slots__ = ("_label",)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    _label: str

    @property
    def label(self) -> str:
        """What the mark was labelled with; empty for most."""
        return getattr(self, "_label", "")

    @label.setter
    def label(self, text: str) -> None:
        self._label = text


# What watching itself may cost in memory: some 100 bytes a mark, so 3 MB when both are reached.
MAX_STEPS = 512
MAX_MARKS = 64


class Cohorts:
    """The marks of each step; a step is alive while one of its marks is.

    Their number is bounded: a step has `MAX_MARKS` marks at most, and of more than `max_steps`
    steps with survivors every second one of the older half is forgotten.
    """

    __slots__ = (
        "_latest",
        "_marks",
        "_max_steps",
        "_stands_for",
        "_surveyed",
        "_unmarked",
        "window",
    )

    def __init__(self, window: int, max_steps: int = MAX_STEPS) -> None:
        self.window = window
        self._max_steps = max_steps
        self._marks: dict[int, set[Mark]] = {}
        self._unmarked: dict[int, int] = {}
        self._surveyed: int | None = None
        self._stands_for: dict[int, int] = {}
        self._latest: dict[int, int] = {}

    def admits(self, step: int) -> bool:
        """Whether one more object of `step` would be marked; a refusal is counted."""
        cohort = self._marks.get(step)
        if cohort is None or len(cohort) < MAX_MARKS:
            return True
        self._unmarked[step] = self._unmarked.get(step, 0) + 1
        return False

    def scale(self, step: int) -> float:
        """How many objects of `step` each of its marks stands for."""
        marked = len(self._marks.get(step, ()))
        return 1.0 + self._unmarked.get(step, 0) / marked if marked else 1.0

    def add(self, step: int, target: Any, label: str = "", latest: int | None = None) -> Mark:
        """Mark `target`, born in `step`, for as long as it lives.

        Where `step` is an estimate, `latest` is the last step it may have been born in: what dies
        is then told to have been no older than is certain.
        """
        if latest is not None and latest != step:
            self._latest[step] = max(latest, self._latest.get(step, latest))
        cohort = self._marks.get(step)
        if cohort is None:
            cohort = self._marks[step] = set()
        mark = Mark(target, cohort.discard)
        if label:
            mark.label = label
        cohort.add(mark)
        return mark

    def births(self) -> list[int]:
        """Steps that have survivors, oldest first."""
        return sorted(step for step, cohort in self._marks.items() if cohort)

    def _thin_out(self) -> None:
        kept = 0
        for position, step in enumerate(sorted(self._marks)[: self._max_steps // 2]):
            if position % 2 == 0:
                kept = step
                continue
            self._stands_for[kept] = self.stands_for(kept) + self.stands_for(step)
            self._drop(step)

    def _drop(self, step: int) -> None:
        del self._marks[step]
        self._unmarked.pop(step, None)
        self._stands_for.pop(step, None)
        self._latest.pop(step, None)

    def stands_for(self, step: int) -> int:
        """How many steps with survivors this one stands for, itself and those forgotten."""
        return self._stands_for.get(step, 1)

    def survey(self, now: int) -> tuple[list[int], list[int]]:
        """(steps that have survivors, ages of those that died since the last survey).

        Steps of which nothing is left are dropped; only ages beyond the window are told. What died
        between two surveys is taken to have died soon after the first, the least that is certain.
        """
        since = now if self._surveyed is None else min(now, self._surveyed + 1)
        self._surveyed = now
        births: list[int] = []
        deaths: list[int] = []
        marks = self._marks
        # Of a copy: another thread's collection may add a step meanwhile.
        for step in list(marks):
            if marks[step]:
                births.append(step)
            elif step < now:
                age = since - self._latest.get(step, step)
                self._drop(step)
                if age > self.window:
                    deaths.append(age)
        if len(marks) > self._max_steps:
            self._thin_out()
        births.sort()  # what is met at a look may be older than what was marked at once
        return births, deaths

    def living(self, step: int) -> list[Any]:
        """The objects of `step` still alive; hold them no longer than needed."""
        # A copy first: an object may die, and its mark go, while we look.
        alive = (mark() for mark in list(self._marks.get(step, ())))
        return [target for target in alive if target is not None]

    def labels(self, step: int) -> list[str]:
        """Labels of the marks of `step` still alive."""
        return [mark.label for mark in list(self._marks.get(step, ()))]

    def __len__(self) -> int:
        return sum(map(len, self._marks.values()))

    def clear(self) -> None:
        """Forget all marks."""
        self._marks.clear()
        self._unmarked.clear()
        self._stands_for.clear()
        self._latest.clear()
