"""After a suspicion is confirmed: explain it, weigh it, rule on it and word the finding.

Nothing here runs in a healthy loop.
"""

from __future__ import annotations

import gc
import linecache
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from memguard import _storage, _torch, unnamed
from memguard.case_words import Case, holder, summary
from memguard.explain import cycles
from memguard.explain.accumulation import Located, Question
from memguard.explain.explain import Explanation, explain
from memguard.explain.fingerprint import fingerprint
from memguard.explain.graph import MAX_NODES, attached_tensors, live_tensors
from memguard.figures import Figures
from memguard.judge import growth as growing
from memguard.judge.entries import Entries
from memguard.judge.verdict import (
    MOST_OF_ROOM,
    Evidence,
    Ruling,
    least_worth,
    rule,
    steps_until_more,
    worth_a_warning,
)
from memguard.records import Finding, Severity
from memguard.sensors.canaries import Canaries
from memguard.sensors.census import Census

# Survivors without root that are told although no collection may tell whether it would free them.
UNTOLD = 64

# Nodes that one explanation may touch: the walk to past steps, and those that weigh three steps.
MOST_LOOKED = 4 * MAX_NODES

# Survivors whose bytes are added up; more are extrapolated from these.
MEASURED_BIRTHS = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: a finding to tell, or survivors to wait for.

    Attributes:
        finding, ruling: what is told, and why or why not yet.
        steps: steps after which the same growth will have become worth another ruling.
    """

    finding: Finding | None
    ruling: Ruling
    steps: int | None = None


class Investigator:
    """Turns confirmed suspicions into findings.

    Attributes:
        looked: nodes of graphs that the last investigation touched.
        collected: whether a collection was made to tell cycles from what C++ holds; there is at
            most one in a guard's life.
    """

    def __init__(
        self,
        canaries: Canaries,
        census: Census,
        figures: Figures,
        step_of: Callable[[int], int],
        nodes_a_step: Callable[[int], int],
        own_tensors: Callable[[], list[Any]],
        window: int,
    ) -> None:
        self._canaries = canaries
        self._census = census
        self._figures = figures
        self._step_of = step_of
        self._nodes_a_step = nodes_a_step
        self._own_tensors = own_tensors
        self._window = window
        self._births: frozenset[int] = frozenset()
        self.looked = 0
        self.collected = False
        self._entries = Entries()
        # Cycles that the collection freed: bytes a step, by holder.
        self._freed: dict[str, int] = {}

    def investigate(self, case: Case) -> Outcome:
        """Explain the survivors of `case` and rule on them."""
        self.looked = MOST_LOOKED  # as long as nothing is known of it
        self._births = frozenset(case.births)
        try:
            return self._explain(case)
        finally:
            self._births = frozenset()  # graphs are dated for others as well

    def _explain(self, case: Case) -> Outcome:
        survivors, device, each = self._measure(case)
        if survivors:
            scale = self._census.plain.scale
            each_birth = sum(len(survivors[birth]) * scale(birth) for birth in survivors)
            each_birth /= len(survivors)
            case = replace(case, tensors=each_birth)
        if case.kind == "tensor":
            small = self._too_small(case, each, device)
            if small is not None:
                survivors.clear()
                return small
        if (left := self._figures.room()) < unnamed.needed():
            return self._conclude(
                case, Explanation(complete=False), 0, device, unnamed.cramped(left)
            )
        before = self._alive(case.kind)
        explanation = explain(
            Question(
                case.kind,
                case.now,
                case.births,
                self.date,
                self._window,
                case.evaluation,
                self._own_storages(),
                survivors,
            )
        )
        self.looked = explanation.looked
        size = explanation.weight.saved_bytes if case.kind == "graph" else each
        if case.kind == "graph":
            device = self._device_of_graphs()
        if explanation.rooted or not explanation.complete:
            return self._conclude(case, explanation, size, device)
        alive = frozenset(self._alive(case.kind))
        if sum(birth in alive for birth in before) <= len(before) // 2:
            # The collector's own doing, in the midst of the search.
            return Outcome(None, Ruling("hold", "a collection has just freed them", len(before)))
        return self._without_root(case, explanation, size, device)

    def _too_small(self, case: Case, each: int, device: str) -> Outcome | None:
        """The outcome for tensors that are not worth a word yet; None for others."""
        max_growth, limit = self._figures.max_growth(device), self._figures.limit(device)
        count, births = self._count(case), len(case.births)
        if worth_a_warning(each * count, max_growth, limit):
            return None
        per_step = growing.rate(case.births, count, case.now) * each
        steps = steps_until_more(each * count, per_step, [least_worth(max_growth, limit)])
        ruling = Ruling("hold", "too small to matter", births + births // 4 + 1)
        return Outcome(None, ruling, steps)

    def _without_root(
        self, case: Case, explanation: Explanation, size: int, device: str
    ) -> Outcome:
        """Nothing in Python holds them: either a collection frees them, or C++ holds them."""
        if case.kind == "tensor" and self._have_graphs(case):
            # What a graph has saved is let go with it, and graphs are a case of their own.
            return Outcome(None, Ruling("hold", "graphs hold them", 2 * len(case.births)))
        # Whether graphs or tensors made the suspicion, the cycle is the same one.
        holder = fingerprint("cycle", (explanation.cycle,) if explanation.cycle else ())
        if holder not in self._freed and self.collected and len(case.births) < self._untold(case):
            # One collection is all there is; the collector's own may yet tell cycles from the rest.
            until = 2 * len(case.births)
            return Outcome(None, Ruling("hold", "nothing in Python holds them", until))
        if not self.collected:
            before = _storage_bytes()
            self.collect()
            # The collector's own doing, a moment ago, tells the same as ours.
            left = frozenset(self._alive(case.kind))
            if sum(birth in left for birth in case.births) <= len(case.births) // 2:
                freed = max(0, before - _storage_bytes())
                self._freed[holder] = freed // max(1, len(case.births)) or size
        found = explanation.cycle or explanation.native
        located = (found,) if found is not None else ()
        nameless = not located and not explanation.located
        if nameless and len(case.births) < UNTOLD and threading.active_count() > 1:
            # They may be another thread's, which holds them where nobody can look.
            return Outcome(None, Ruling("hold", "another thread may hold them", UNTOLD))
        explanation = replace(explanation, located=explanation.located or located)
        if holder in self._freed:
            case = replace(case, kind="cycle")
            size = self._freed[holder]
            told = tuple(map(cycles.collected, explanation.located))
            explanation = replace(explanation, located=told)
        return self._conclude(case, explanation, size, device)

    def _have_graphs(self, case: Case) -> bool:
        """Whether the graphs of most of their steps survive, too."""
        graphs = frozenset(self._canaries.cohorts.births())
        return 2 * sum(birth in graphs for birth in case.births) > len(case.births)

    def _untold(self, case: Case) -> int:
        """Survivors up to which the collector is waited for, which may yet free them.

        Longer where it is known to have cycles to free, and has not been since the first of them.
        """
        awaited = self._freed and gc.isenabled() and self._census.collected_at <= case.births[0]
        return 4 * UNTOLD if awaited else UNTOLD

    def date(self, node: Any) -> int | None:
        """The step an autograd node was made in; None when it cannot be told."""
        # Canaries know it also where each request has a thread, whose numbers begin anew.
        step = self._canaries.step_of(node)
        number = _torch.node_sequence(node) if step is None else None
        if number is not None:
            step = self._step_of(number)
            if step not in self._births and self._nodes_a_step(number):
                # Steps that were only counted are known but for one: those under suspicion, better.
                near = (one for one in (step + 1, step - 1) if one in self._births)
                step = next(near, step)
        # A number from before the first step may as well be another thread's.
        return step if step is not None and step >= 0 else None

    def collect(self) -> bool:
        """Make the one collection that a guard may make; False when it was made before."""
        if self.collected:
            return False
        self.collected = True
        collected_at = self._census.collected_at
        gc.collect()
        self._census.collected_at = collected_at
        return True

    def _rule_elsewhere(self, located: Located, count: int, ruling: Ruling) -> Ruling:
        """The ruling on what a function of another thread holds."""
        if count < UNTOLD:
            return Ruling("hold", "another thread holds them", UNTOLD)
        if located.thread not in self._canaries.callers:
            return ruling
        # It has a loop of its own: how many of this one's steps go by says nothing of that one's,
        # and an exception here would end the wrong loop.
        return Ruling("warning", "they grow in another thread's loop", 2 * count)

    def unexplained(self, case: Case) -> Outcome:
        """The outcome when explaining failed: what was counted is still told."""
        return self._conclude(case, Explanation(complete=False), 0, "cpu", unnamed.FAILED)

    def _count(self, case: Case) -> int:
        """Steps with survivors, those that the census has forgotten included."""
        if case.kind != "tensor":
            return len(case.births)
        return sum(map(self._census.plain.stands_for, case.births))

    def _alive(self, kind: str) -> list[int]:
        cohorts = self._canaries.cohorts if kind == "graph" else self._census.plain
        return cohorts.births()

    def _conclude(
        self, case: Case, explanation: Explanation, size: int, device: str, reason: str = ""
    ) -> Outcome:
        reason = reason or unnamed.reason(explanation)
        first = explanation.located[0] if explanation.located else None
        release = first.statement.release if first and first.statement else None
        pending = first.statement.pending if first and first.statement else None
        mark = fingerprint(case.kind, explanation.located, self._modules(case))
        count = self._count(case)
        nodes = explanation.weight.nodes if case.kind != "tensor" else 0
        grown = growing.growth(case.births, count, case.now, nodes, size, max(1.0, case.tensors))
        per_step = grown.per_step.bytes + grown.per_step.nodes * growing.NODE_BYTES
        forecast = growing.forecast(
            self._figures.limit(device),
            self._figures.used(device),
            per_step,
            growing.spread(case.births),
            "" if device == "cpu" else device,
        )
        # A container's limit is in entries, of which a step may put in several.
        several = max(1.0, case.tensors) if case.kind == "tensor" else 1.0
        limited = first is not None and first.limit is not None
        ruling = rule(
            Evidence(
                case.kind,
                round(count * several) if limited else count,
                self._window,
                first.limit if first else None,
                release.bound if release else None,
                release is not None and not release.outer,
                pending is not None and case.awaiting,
                grown.total.bytes,
                int(size / several),
                self._figures.max_growth(device),
                self._figures.limit(device),
                forecast.steps if forecast else None,
                explanation.growing or not explanation.rooted,
                case.kind == "cycle" and self._collector_idle(case, explanation),
                outer=release is not None and release.outer,
            )
        )
        if ruling.action == "leak" and _is_elsewhere(first):
            ruling = self._rule_elsewhere(first, count, ruling)
        if ruling.action == "leak" and _overwrites(first):
            doubt = self._entries.doubt(mark, count, first.place.length, self._window)
            ruling = doubt or ruling
        steps = None
        if case.kind != "graph" and ruling.action != "leak":
            levels = [self._figures.max_growth(device), MOST_OF_ROOM * self._figures.limit(device)]
            left = forecast.steps if forecast else None
            steps = steps_until_more(grown.total.bytes, grown.per_step.bytes, levels, left)
        if ruling.action == "hold":
            return Outcome(None, ruling, steps)
        severity: Severity = "leak" if ruling.action == "leak" else "warning"
        holders = tuple(
            holder(located, case, count, size, ruling) for located in explanation.located
        )
        finding = Finding(
            case.kind,
            severity,
            summary(case, count, ruling.bound),
            mark,
            growing.since_it_grows(case.births)[0],
            case.now,
            grown,
            forecast if ruling.bound is None else None,
            self._modules(case),
            holders,
            unnamed.advice(case.kind, explanation, reason),
            f"{case.reason}; {ruling.reason}",
            count * size if case.kind == "graph" else 0,
            (case.births[0], case.births[-1]),
            reason,
        )
        return Outcome(finding, ruling, steps)

    def _measure(self, case: Case) -> tuple[dict[int, list[Any]], str, int]:
        """(surviving tensors by birth, their device, bytes one birth keeps)."""
        if case.kind != "tensor":
            return {}, "cpu", 0
        own = self._own_storages()
        survivors: dict[int, list[Any]] = {}
        storages: dict[int, tuple[int, str]] = {}
        with _torch.without_overrides():
            for birth in list(case.births)[-MEASURED_BIRTHS:]:
                living = self._census.plain.living(birth)
                sizes = {id(t): _storage.storage_of(t) for t in living}
                # The largest first: they are what the search should explain.
                living.sort(key=lambda tensor: -sizes[id(tensor)][1])
                scale = self._census.plain.scale(birth)
                for tensor in living:
                    key, size = sizes[id(tensor)]
                    if key not in own:
                        storages[key] = int(size * scale), _torch.device_name(tensor)
                survivors[birth] = [t for t in living if sizes[id(t)][0] not in own]
        survivors = {birth: living for birth, living in survivors.items() if living}
        by_device: dict[str, int] = {}
        for size, name in storages.values():
            by_device[name] = by_device.get(name, 0) + size
        device = max(by_device, key=lambda name: (by_device[name], name), default="cpu")
        measured = min(len(case.births), MEASURED_BIRTHS)
        return survivors, device, by_device.get(device, 0) // max(1, measured)

    def _own_storages(self) -> frozenset[int]:
        """Storages of parameters, buffers and gradients: shared by many, retained by no leak."""
        with _torch.without_overrides():
            return frozenset(_storage.storage_of(tensor)[0] for tensor in self._own_tensors())

    def _device_of_graphs(self) -> str:
        """The device most attached tensors live on."""
        with _torch.without_overrides():
            names = [_torch.device_name(tensor) for tensor in attached_tensors()]
        return max(set(names), key=lambda name: (names.count(name), name), default="cpu")

    def _collector_idle(self, case: Case, explanation: Explanation) -> bool:
        """Whether automatic collection is off and no code of the user's collects by itself."""
        if gc.isenabled() or self._census.collected_at > case.births[0]:
            return False
        files = {spot.file for spot in explanation.stack}
        files |= {one.place.file for one in explanation.located if one.place.file is not None}
        return not any("gc.collect(" in line for file in files for line in linecache.getlines(file))

    def _modules(self, case: Case) -> tuple[str, ...]:
        """Paths of the modules called last among those whose outputs survive."""
        if case.kind != "graph":
            return ()
        names: dict[str, None] = {}
        for birth in case.births:
            label = self._canaries.deepest(birth)
            if label is not None:
                names[label.partition(":")[2]] = None
        return tuple(names)[:3]


def _overwrites(located: Located | None) -> TypeGuard[Located]:
    """Whether entries are put in under a key, which may have been there before."""
    return (
        located is not None and located.statement is not None and located.statement.verb == "item"
    )


def _is_elsewhere(located: Located | None) -> TypeGuard[Located]:
    """Whether a function that runs in another thread holds it."""
    if located is None or located.thread is None:
        return False
    return located.thread != threading.get_ident()


def _storage_bytes() -> int:
    with _torch.without_overrides():
        return sum(dict(_storage.storage_of(tensor) for tensor in live_tensors()).values())
