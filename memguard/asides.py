"""What is watched in a loop beside survivors: habits, expectations, and how near the end is.

The conductor of the small parts. Each rides on events that are heard and looks that are taken
anyway, and a failure of one is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memguard.cases import Cases
from memguard.clock.beats import Clock
from memguard.clock.sources import Sources
from memguard.expectations import Expectations
from memguard.figures import Seen
from memguard.lints import Lints
from memguard.parts import Parts
from memguard.records import Finding
from memguard.sensors.census import Census
from memguard.sensors.governor import Governor
from memguard.settings import Settings


def _nobody(now: int, seen: Seen) -> None:
    """Who is told of readings while nobody asks."""


class Asides:
    """The small parts of one loop.

    Args:
        settings: the settings in force.
        clock: says which step it is.
        sources: what is watched.
        census: knows when garbage was collected.
        parts: does the work, so that nothing of it is raised.
        cases: takes findings, and dates autograd nodes.
        governor: pays for what is asked of objects that were declared dead.

    Attributes:
        on_reading: is called when memory was read, with the steps ended and what was read.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        sources: Sources,
        census: Census,
        parts: Parts,
        cases: Cases,
        governor: Governor,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._cases = cases
        self._parts = parts
        self._lints = Lints(clock, sources, cases.add, cases.date)
        self._expectations = Expectations(
            settings.window, lambda: census.collected_at, cases.add, governor
        )
        self.on_reading: Callable[[int, Seen], None] = _nobody

    def expect_freed(self, obj: object, name: object) -> None:
        """`obj` must be gone some steps from now.

        Raises:
            UsageError: nothing can refer to it weakly.
        """
        self._expectations.expect(obj, name, self._clock.step)

    def stepped(self, optimizer: Any) -> bool:
        """An optimizer has stepped, and was heard; whether that ended a step."""
        self._parts.do("lints", self._lints.stepped, optimizer)
        return self._clock.optimizer(id(optimizer))

    def forward(self, module: Any, output: Any) -> None:
        """A root was called, and heard."""
        self._parts.do("lints", self._lints.forward, module, output)

    def look(self, now: int, fresh: Sequence[Any]) -> None:
        """A look is taken at the end of step `now`; `fresh` are attached tensors it has met."""
        self._parts.do("lints", self._lints.look, now, fresh)

    def end_look(self, now: int, seen: Seen | None) -> None:
        """The look is over, and holds nothing any more; `seen` is what memory was read to be."""
        self._parts.do("expectations", self._expectations.look, now)
        if seen is not None:
            self._parts.do("post-mortem", self.on_reading, now, seen)

    def take_explaining(self) -> float:
        """Seconds spent on explanations since the last call, those of the cases included."""
        cases, lints, expectations = self._cases, self._lints, self._expectations
        seconds = cases.explaining + lints.explaining + expectations.explaining
        cases.explaining = lints.explaining = expectations.explaining = 0.0
        return seconds

    def settle(self) -> list[Finding]:
        """The loop is over: ask for what was declared dead; returns what is to be told."""
        self._parts.do("expectations", self._expectations.settle, self._clock.step)
        told, self._cases.to_tell = self._cases.to_tell, []
        return told

    def end(self) -> None:
        """Take every hook out; harmless when done twice."""
        self._parts.do("expectations", self._expectations.hand_on, self._settings)
        self._parts.do("lint removal", self._lints.end)
        self.on_reading = _nobody
