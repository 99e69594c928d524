"""The six figures of each step, and the user's function that is told them."""

from __future__ import annotations

import time
from collections.abc import Callable

from memguard.cases import Cases
from memguard.figures import Figures
from memguard.references import imported
from memguard.sensors.canaries import Canaries
from memguard.sensors.devices import used_backends
from memguard.sensors.governor import Governor
from memguard.settings import Function, Settings

# Seconds for which figures that take longer to read are told again as they were.
READ_EVERY = 1.0


class StepFigures:
    """Puts together the figures of each step, most of them as they were a moment ago.

    The names follow Prometheus: base units, the unit last. `steps` (ended so far), `memory_bytes`
    (allocated on the devices in use; resident in RAM where there are none), `retained_graphs` (past
    steps' graphs that outlived their time), `retained_bytes` (kept by what was found), `leaks`
    (found so far) and `overhead_ratio` (share of time that watching took).
    """

    def __init__(
        self,
        function: Function,
        figures: Figures,
        cases: Cases,
        canaries: Canaries,
        governor: Governor,
        window: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._function = function
        self._figures = figures
        self._cases = cases
        self._canaries = canaries
        self._governor = governor
        self._window = window
        self._clock = clock
        self._read_at = -READ_EVERY
        self._found = -1
        self._read: dict[str, float] = {}

    @classmethod
    def wanted(
        cls,
        settings: Settings,
        figures: Figures,
        cases: Cases,
        canaries: Canaries,
        governor: Governor,
    ) -> StepFigures | None:
        """What the settings ask for; None when nobody is to be told of steps."""
        if settings.on_step is None:
            return None
        return cls(settings.on_step, figures, cases, canaries, governor, settings.window)

    def tell(self, step: int) -> float:
        """Call the user's function; returns the seconds that it took, which watching did not."""
        begun = time.perf_counter()
        self._function = function = imported(self._function)
        figures = self.of(step)
        called = time.perf_counter()
        self._cases.explaining += called - begun  # no reason to look less
        function(figures)
        return time.perf_counter() - called

    def of(self, step: int) -> dict[str, float]:
        """The figures of a step that has just ended, in a dict of the caller's own."""
        now = self._clock()
        if now - self._read_at >= READ_EVERY or len(self._cases.findings) != self._found:
            self._read_at, self._found = now, len(self._cases.findings)
            self._read = self._slow(step)
        return {"steps": step, **self._read, "overhead_ratio": self._governor.taken}

    def _slow(self, step: int) -> dict[str, float]:
        alive = self._canaries.cohorts.births()
        findings = list(self._cases.findings.values())
        return {
            "memory_bytes": self._memory(),
            "retained_graphs": sum(step - born > self._window for born in alive),
            "retained_bytes": sum(found.growth.total.bytes for found in findings),
            "leaks": sum(found.severity == "leak" for found in findings),
        }

    def _memory(self) -> int:
        devices = [record for backend in used_backends() for record in backend.figures()]
        if not devices:
            return self._figures.resident()
        return sum(record["allocated"] for record in devices)
