"""Cases: from the judge's suspicions to findings, each kind of survivor by itself."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from memguard import _torch
from memguard.case_words import Case
from memguard.clock import discovery
from memguard.clock.beats import Clock
from memguard.clock.sources import Sources
from memguard.creation import Creation
from memguard.explain.graph import attached_tensors
from memguard.figures import Figures
from memguard.investigation import Investigator, Outcome
from memguard.judge.chains import Look
from memguard.judge.growth import NODE_BYTES, so_far, timed
from memguard.judge.survivors import Opinion, completed
from memguard.judge.verdict import worth_a_warning
from memguard.parts import Parts
from memguard.pinned import Pinned
from memguard.records import Amount, Finding
from memguard.renewal import renewed
from memguard.sensors.canaries import Canaries
from memguard.sensors.census import Census
from memguard.sensors.dated import MAX_REACH, steps_reached
from memguard.sensors.governor import Governor
from memguard.settings import Settings
from memguard.suspicion import Suspicion, Watched
from memguard.triage import Triage

# Kinds of findings about what survives.
_SURVIVING = ("graph", "tensor", "cycle")


class Cases:
    """The suspicions of one loop, and what came of looking into them.

    Attributes:
        findings: by fingerprint, all that was found and not ignored.
        triage: what was ignored, and which suppressions were of use.
        to_tell: findings that the user has not heard of yet.
        explaining: seconds that explanations took since somebody reset it.
        raised: fingerprints of what was raised into the user's loop.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        sources: Sources,
        canaries: Canaries,
        census: Census,
        creation: Creation,
        figures: Figures,
        parts: Parts,
        governor: Governor,
    ) -> None:
        self.findings: dict[str, Finding] = {}
        self.triage = Triage(settings.ignore)
        self.to_tell: list[Finding] = []
        self.explaining = 0.0
        # Name, place and file of the holders of the leaks that were told.
        self._told: set[tuple[str, str, str | None]] = set()
        # By fingerprint, what survived when it was told.
        self._told_size: dict[str, float] = {}
        self._figures = figures
        # Fingerprints of those that have ended the user's step.
        self.raised: set[str] = set()
        self._clock = clock
        self._sources = sources
        self._canaries = canaries
        self._census = census
        self._creation = creation
        self._parts = parts
        self._governor = governor
        # The leak of graphs that was looked into last.
        self._leak: Finding | None = None
        # Seconds that looking into told cases again has taken, and the last time by itself.
        self._again = self._last = 0.0
        self._graphs = Suspicion(settings.window, settings.patience)
        self._tensors = Suspicion(settings.window, settings.patience, is_grouped=True)
        self._investigator = Investigator(
            canaries,
            census,
            figures,
            clock.step_of,
            clock.nodes_a_step,
            sources.own_tensors,
            settings.window,
        )

        self._pinned = Pinned(settings.window, self.date, sources.own_tensors, self.add)

    @property
    def in_doubt(self) -> bool:
        """Whether graphs survive in a way that is not explained yet."""
        return self._graphs.opinion.state != "clean"

    def told_per_step(self, device: str, but: Collection[str]) -> float:
        """Bytes of a device that what was found keeps more of at each step, ignored or not.

        Args:
            device: as forecasts name it; empty for the host.
            but: fingerprints of findings that do not count.
        """
        ignored = [one.finding for one in self.triage.ignored()]
        return sum(
            finding.growth.per_step.bytes + NODE_BYTES * finding.growth.per_step.nodes
            for finding in (*self.findings.values(), *ignored)
            if finding.kind in _SURVIVING
            and _device_of(finding) == device
            and finding.fingerprint not in but
        )

    def kept_by_graphs(self, now: int) -> Amount:
        """What past steps' graphs keep by step `now`, going by what was found, ignored or not."""
        if not self._graphs.told:
            return Amount()  # what was found is gone
        ignored = [one.finding for one in self.triage.ignored()]
        graphs = (one for one in (*self.findings.values(), *ignored) if one.kind == "graph")
        grown = [so_far(one.growth, now - one.step) for one in graphs]
        return Amount(nodes=sum(one.nodes for one in grown), bytes=sum(one.bytes for one in grown))

    def collect(self) -> bool:
        """Make the one collection that a guard may make; False when it was made before."""
        return self._investigator.collect()

    @property
    def stirs(self) -> bool:
        """Whether a graph has survived of late that is too little for a doubt."""
        return self._graphs.stirs

    @property
    def certain_at(self) -> int | None:
        """The step at which more is to be said of what is known already."""
        known = (one.certain_at for one in (self._graphs, self._tensors) if one.is_believed)
        return min((step for step in known if step is not None), default=None)

    def date(self, node: Any) -> int | None:
        """The step an autograd node was made in; None when it cannot be told."""
        return self._investigator.date(node)

    def observe_graphs(self, step: int) -> None:
        """Graphs made in `step` could be seen."""
        self._graphs.observe(step)

    def observe_tensors(self, step: int) -> None:
        """Tensors made in `step` could be seen."""
        self._tensors.observe(step)

    def judge_graphs(self, now: int) -> None:
        """Count the graphs that survived, and look into what the judge is sure of."""
        births, deaths = self._canaries.survey(now)
        opinion = self._graphs.survey(now, births, deaths)
        begun = time.perf_counter()
        if self._parts.do("pinned graphs", self._pinned.look, now, births):
            self.explaining += time.perf_counter() - begun
        if opinion is not None and self._may_explain():
            self._investigate("graph", now, opinion, complete=True)

    def judge_tensors(self, now: int) -> None:
        """The same for tensors without graph."""
        births, deaths = self._census.plain.survey(now)
        opinion = self._tensors.survey(now, births, deaths)
        if opinion is not None:
            self._investigate("tensor", now, opinion)

    def judge_reach(self, look: Look) -> None:
        """The same for chains, by how far back the present reaches."""
        opinion = self._graphs.reach(look)
        if opinion is not None and self._may_explain():
            self._investigate("graph", look.step, opinion)

    def _may_explain(self) -> bool:
        """Whether graphs may be walked: told ones not for ever, see `sensors.touched`."""
        return not (self._graphs.settled and self._canaries.full)

    def _is_earned(self, kind: Watched, opinion: Opinion, now: int) -> bool:
        """Whether to look into a case: one that was told goes on, and each time is dear.

        Passes over the heap are no part of what looks may take; looking again may take as much.
        It waits for that unless more is certain, or twice as much survives of what has no newer
        figures otherwise.
        """
        suspicion = self._suspicion_of(kind)
        if not suspicion.told or suspicion.is_certain(now):
            return True
        if len(opinion.births) >= 2 * suspicion.told and self._known_leak(kind) is None:
            return True
        return self._governor.earns(self._again + self._last, self._governor.elapsed)

    def _known_leak(self, kind: Watched) -> Finding | None:
        """The leak of graphs that was told and still goes on, unless it is ignored."""
        leak = self._leak if kind == "graph" and self._graphs.settled else None
        return leak if leak is not None and leak.fingerprint in self.findings else None

    def _renew(self, leak: Finding, now: int, opinion: Opinion) -> None:
        """Give a leak its new figures without looking into it again."""
        self._graphs.settle(len(opinion.births))
        case = Case("graph", now, opinion.births, opinion.reason)
        self.add(renewed(leak, case, self._figures))

    def _suspicion_of(self, kind: Watched) -> Suspicion:
        return self._graphs if kind == "graph" else self._tensors

    def _completed(self, opinion: Opinion, now: int) -> Opinion:
        """With the steps that nobody looked at when they ended, as far as a walk finds them."""
        births = opinion.births
        if births[-1] - births[0] < len(births):
            return opinion
        with _torch.without_overrides():
            reached, nodes = steps_reached(attached_tensors(), self._clock.step_of, now - MAX_REACH)
        self._canaries.looked(now - 1, nodes)
        return replace(opinion, births=completed(births, reached))

    def _investigate(
        self, kind: Watched, now: int, opinion: Opinion, complete: bool = False
    ) -> None:
        if kind == "graph" and self._is_premature():
            return
        if not self._is_earned(kind, opinion, now):
            leak = self._known_leak(kind)
            if leak is not None:
                self._parts.do("renewal", self._renew, leak, now, opinion)
            return
        begun = time.perf_counter()
        if complete:
            opinion = self._parts.do("survivors", self._completed, opinion, now) or opinion
        awaiting = self._clock.beat in ("forward", "manual")
        evaluation = self._is_evaluation()
        created = self._created(opinion.births) if kind == "graph" else ()
        case = Case(kind, now, opinion.births, opinion.reason, evaluation, awaiting, created)
        outcome = self._parts.do(f"{kind} explanation", self._investigator.investigate, case)
        if kind == "graph":
            self._canaries.looked(now - 1, self._investigator.looked)
        if outcome is None:
            # It could not be explained: say what is known rather than nothing.
            outcome = self._investigator.unexplained(case)
        is_again = self._suspicion_of(kind).told > 0
        self._settle(kind, opinion, outcome)
        self._last = time.perf_counter() - begun
        self._again += self._last if is_again else 0.0
        self.explaining += self._last

    def _created(self, births: Sequence[int]) -> tuple[str, ...]:
        """Where survivors like these were made, seen in a later step of the same loop."""
        deepest = next(filter(None, map(self._canaries.deepest, reversed(births))), "")
        return self._creation.of(deepest.partition(":")[2])

    def _is_premature(self) -> bool:
        """Whether a training loop's forwards gave the beat although an optimizer has turned up."""
        if self._clock.beat != "forward" or self._clock.optimizer_known:
            return False
        self._parts.do("discovery", self._sources.look_for_optimizer)
        return self._clock.optimizer_known and any(
            map(discovery.is_training, self._sources.roots())
        )

    def _is_evaluation(self) -> bool:
        if self._clock.beat != "forward":
            return False
        roots = [module for module in self._sources.roots() if discovery.has_parameters(module)]
        trains = self._clock.backwards or self._clock.gradients
        return not trains or not any(map(discovery.is_training, roots))

    def _settle(self, kind: Watched, opinion: Opinion, outcome: Outcome) -> None:
        suspicion = self._suspicion_of(kind)
        suspicion.hold(len(opinion.births), outcome.ruling.until, outcome.steps)
        if kind == "graph":
            self._creation.forget()
        finding = outcome.finding
        if finding is None:
            return
        suspicion.note_told(len(opinion.births))
        if kind == "graph" and finding.severity == "leak":
            self._graphs.settle(len(opinion.births))
            self._leak = finding
        self.add(finding)

    def add(self, found: Finding) -> None:
        """Keep a finding, and tell it unless it is ignored, a mere note, or known already."""
        forecast = timed(found.forecast, self._governor.usual_seconds_per_step)
        finding = self.triage.sort(replace(found, forecast=forecast))
        if finding is None:
            return
        known = self.findings.get(finding.fingerprint)
        self.findings[finding.fingerprint] = finding
        if known is not None and (known.severity == "leak" or finding.severity != "leak"):
            if self._has_doubled(finding):
                self.to_tell.append(finding)
            return
        if finding.severity == "info":
            return
        # Another line that feeds a holder which was told is no news.
        holders = {(holder.name, holder.where, holder.file) for holder in finding.holders}
        if finding.severity != "leak" or not holders or not holders <= self._told:
            self.to_tell.append(finding)
            self._told_size[finding.fingerprint] = _size(finding)
        if finding.severity == "leak":
            self._told |= holders

    def _has_doubled(self, finding: Finding) -> bool:
        """Whether twice as much survives as when it was last told: then it is told again.

        Not where it was raised: who went on after that has decided.
        """
        size, told = _size(finding), self._told_size.get(finding.fingerprint)
        # What has no size at all, such as a habit, is told once.
        if told is None or size < max(1, 2 * told) or finding.fingerprint in self.raised:
            return False
        if finding.kind == "cycle" and not self._is_worth_a_word(finding):
            return False
        self._told_size[finding.fingerprint] = size
        return True

    def _is_worth_a_word(self, finding: Finding) -> bool:
        """Whether so much waits that tensors would be spoken of: a collection may take it away."""
        device = _device_of(finding) or "cpu"
        retained, max_growth = finding.growth.total.bytes, self._figures.max_growth(device)
        return worth_a_warning(retained, max_growth, self._figures.limit(device))


def _size(finding: Finding) -> float:
    """What survives of it: graphs, or bytes of what has none."""
    total = finding.growth.total
    return total.graphs or total.bytes


def _device_of(finding: Finding) -> str:
    return finding.forecast.device if finding.forecast is not None else ""
