"""Faults to inject: where in memguard, with what, and when."""

from __future__ import annotations

import errno
import gc
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from memguard._heap import newest


@dataclass(frozen=True)
class Spot:
    """A function of ours that a fault is put into.

    Attributes:
        where: `module:name` or `module:Class.name`.
        parts: what the report may call the part that failed.
        settings: keywords of `memguard.watch` that make the loop come by here.
        is_late: whether a healthy run calls it so often that a later call can be the one to fail.
        is_exit: whether it takes something out, which is done before it fails.
        is_file: whether it writes, so that a disk may be full.
    """

    where: str
    parts: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...] = ()
    is_late: bool = False
    is_exit: bool = False
    is_file: bool = False

    def __str__(self) -> str:
        return self.where.rpartition("memguard.")[2]

    def owner(self) -> tuple[Any, str]:
        """The module or class, and the attribute of it."""
        module, _, path = self.where.partition(":")
        owner: Any = importlib.import_module(module)
        *classes, name = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        return owner, name


def nothing(_: object) -> None:
    """A function of the user's that leaves all as it is."""


def _spots(*rows: tuple[str, str], **common: Any) -> list[Spot]:
    return [Spot(f"memguard.{where}", tuple(parts.split(", ")), **common) for where, parts in rows]


SENSORS = [
    *_spots(
        ("sensors.census:Census.look", "census"),
        ("sensors.census:Census.take_fresh", "census"),
        ("sensors.census:Census.begin", "events"),
        ("sensors.census:Census.expected_cost", "events"),
        ("sensors.canaries:Canaries.place", "canaries, audit"),
        ("sensors.canaries:Canaries.survey", "graph judge"),
        ("sensors.marks:Cohorts.survey", "graph judge, tensor judge"),
        ("sensors.marks:Cohorts.add", "canaries, audit, census"),
        ("sensors.audit:Audit.next_step", "audit"),
        ("sensors.governor:Governor.end_step", "events"),
        ("sensors.governor:Governor.charge", "overhead"),
        ("clock.beats:Clock.optimizer", "events"),
        ("clock.beats:Clock.forward", "events"),
        ("clock.sources:Sources.end_step", "events"),
        ("pace:Pace.look_is_due", "events"),
        is_late=True,
    ),
    *_spots(
        ("sensors.census:Census.install", "census"),
        ("sensors.audit:Audit.begin", "audit"),
        ("loop:steps_reached", "dated look"),
        ("clock.sources:Sources._judge", "discovery"),
        ("clock.sources:Sources.watch", "hooks"),
        ("clock.tape:Tape.take_off", "events"),
    ),
]
JUDGES = [
    *_spots(
        ("suspicion:Suspicion.survey", "graph judge, tensor judge"),
        is_late=True,
    ),
    *_spots(
        ("suspicion:advance", "graph judge"),
        ("suspicion:Suspicion.reach", "dated look"),
        ("suspicion:Suspicion.settle", "graph judge"),
        ("investigation:rule", "graph explanation"),
        ("investigation:growing.growth", "graph explanation"),
        ("triage:Triage.sort", "graph judge"),
    ),
]
EXPLAINERS = _spots(
    ("investigation:Investigator.investigate", "graph explanation"),
    ("investigation:explain", "graph explanation"),
    ("investigation:fingerprint", "graph explanation"),
    ("explain.accumulation:find_statement", "graph explanation"),
    ("explain.search:Search.__init__", "graph explanation"),
    ("figures:Figures.room", "graph explanation"),
    ("figures:Figures.limit", "graph explanation"),
    ("cases:renewed", "renewal"),
    ("creation:Creation.of", "graph judge"),
    ("creation:Creation.note", "canaries, audit"),
)
TELLING = [
    *_spots(
        ("figures:Figures.memory", "memory figures"),
        ("guard:environment", "environment"),
        ("guard:Guard.report", "report"),
        ("report.text:render", "text"),
        ("reactions:warn", "reaction"),
        ("reactions:_statement", "reaction"),
    ),
    *_spots(
        ("reactions:log", "reaction"),
        ("reactions:_fields", "log, reaction"),
        settings=(("action", "log"),),
    ),
    *_spots(
        ("report.data:save", "report file"),
        ("report.data:dumps", "report file"),
        ("telling:_torch.rank", "rank"),
        settings=(("report", "report.json"),),
        is_file=True,
    ),
    *_spots(
        ("report.page:render", "report file"), settings=(("report", "report.html"),), is_file=True
    ),
    *_spots(("telling:imported", "on_leak"), settings=(("on_leak", nothing),)),
    *_spots(
        ("step_figures:StepFigures.of", "on_step"), settings=(("on_step", nothing),), is_late=True
    ),
    *_spots(("watchdog:Watchdog.begin", "watchdog"), settings=(("watchdog", 60),)),
    *_spots(("guard:answer_with", "ask"), settings=(("ask", True),)),
]
ASIDES = [
    *_spots(
        ("lints:Lints.stepped", "lints"),
        ("lints:Lints.look", "lints"),
        ("expectations:Expectations.look", "expectations"),
        ("memory:Memory.look", "memory"),
        ("postmortem:PostMortem.hear", "post-mortem"),
        ("sensors.touched:room", "events, graph judge, dated look, ledger: graphs"),
        is_late=True,
    ),
    *_spots(
        ("lints:Lints._read", "lints"),
        ("expectations:Expectations.settle", "expectations"),
        ("expectations:Expectations.hand_on", "expectations"),
        ("postmortem:PostMortem.prepare", "post-mortem"),
        ("guard:bookkeeping.take", "ledger"),
        ("bookkeeping:claim_states", "ledger: states"),
        ("bookkeeping:stray_states", "ledger: stray states"),
        ("bookkeeping:living_tensors", "ledger: living tensors"),
        ("bookkeeping:claim_saved", "ledger: graphs"),
        ("bookkeeping:claim_others", "ledger: other tensors"),
        ("bookkeeping:_host", "ledger: host"),
    ),
]
ENDINGS = _spots(
    ("sensors.census:Census.remove", "census removal"),
    ("sensors.audit:Audit.end", "audit, audit removal"),
    ("clock.sources:Sources.remove", "hook removal"),
    ("watchdog:Watchdog.end", "watchdog removal"),
    is_exit=True,
    settings=(("watchdog", 60),),
)
SPOTS = [*SENSORS, *JUDGES, *EXPLAINERS, *TELLING, *ASIDES, *ENDINGS]

KINDS: dict[str, Callable[[], Exception]] = {
    "ValueError": lambda: ValueError("on purpose"),
    "MemoryError": MemoryError,
    "RecursionError": lambda: RecursionError("on purpose"),
    "OSError": lambda: OSError(errno.ENOSPC, "No space left on device"),
}


class Fault:
    """A function that fails, and otherwise does what the one in its place did.

    Attributes:
        struck: how often it failed.
    """

    def __init__(
        self, spot: Spot, kind: Callable[[], BaseException], when: Callable[[int], bool]
    ) -> None:
        self._spot = spot
        self._kind = kind
        self._when = when
        self._calls = 0
        self.struck = 0

    def install(self, patch: pytest.MonkeyPatch) -> Fault:
        """Put it in the place of the spot's function."""
        owner, name = self._spot.owner()
        original = getattr(owner, name)

        def failing(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            strikes = self._when(self._calls)
            if strikes and not self._spot.is_exit:
                self._strike()
            result = original(*args, **kwargs)
            if strikes:
                self._strike()
            return result

        patch.setattr(owner, name, failing)
        return self

    def _strike(self) -> None:
        self.struck += 1
        raise self._kind()


# The call that fails: the first, a later one, each.
MOMENTS: dict[str, Callable[[int], bool]] = {
    "first": lambda call: call == 1,
    "later": lambda call: call >= 5,
    "always": lambda call: True,
}


def cells() -> list[Any]:
    """(spot, kind of failure, moment) of the matrix.

    The odd spots run out of memory, the even ones of stack, so that it takes half a minute.
    """
    found = []
    for number, spot in enumerate(SPOTS):
        moment = "first" if spot.is_late else "always"
        scarce = ("MemoryError", "RecursionError")[number % 2]
        chosen = [("ValueError", moment), (scarce, moment)]
        chosen += [("ValueError", "later"), (scarce, "later")] if spot.is_late else []
        chosen += [("OSError", moment)] if spot.is_file else []
        found += [
            pytest.param(spot, kind, when, id=f"{spot}-{kind}-{when}") for kind, when in chosen
        ]
    return found


def collecting(before: bool) -> Callable[[frozenset[int], object], list[Any]]:
    """`newest`, with a collection of what is young right before or after it."""

    def look(classes: frozenset[int], mark: object) -> list[Any]:
        if before:
            gc.collect(0)
        found = newest(classes, mark)
        if not before:
            gc.collect(0)
        return found

    return look
