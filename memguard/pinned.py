"""Pinned graphs: one or a few of long ago that something keeps, and that do not become more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from memguard import _storage, _torch
from memguard.explain.accumulation import Located, Question
from memguard.explain.explain import Explanation, explain
from memguard.explain.fingerprint import fingerprint
from memguard.explain.wording import holder_of
from memguard.judge.survivors import is_pinned
from memguard.records import Amount, Finding, Growth, Holder
from memguard.report import stale


class Pinned:
    """Notes the first graph that has been kept for long: a note in the report, told to nobody.

    Args:
        window: steps a graph may outlive its own.
        step_of: dates an autograd node.
        own_tensors: parameters, buffers, gradients and states, whose storages no graph adds.
        add: takes the finding.
    """

    def __init__(
        self,
        window: int,
        step_of: Callable[[Any], int | None],
        own_tensors: Callable[[], list[Any]],
        add: Callable[[Finding], None],
    ) -> None:
        self._window = window
        self._step_of = step_of
        self._own_tensors = own_tensors
        self._add = add
        self._noted = False

    def look(self, now: int, births: Sequence[int]) -> bool:
        """Steps with living graphs were counted at the end of step `now`, oldest first.

        Returns whether it was looked for who keeps them.
        """
        if self._noted or not is_pinned(now, births, self._window):
            return False
        self._noted = True
        old = [birth for birth in births if now - birth > self._window]
        with _torch.without_overrides():
            own = frozenset(_storage.storage_of(tensor)[0] for tensor in self._own_tensors())
        question = Question("graph", now, old, self._step_of, self._window, own_storages=own)
        explanation = explain(question)
        if explanation.located:
            self._add(_finding(now, old, explanation))
        return True


def _finding(now: int, old: list[int], explanation: Explanation) -> Finding:
    weight = explanation.weight
    size = weight.saved_bytes * len(old)
    holders = tuple(_holder(located, len(old), size) for located in explanation.located)
    advice = "; ".join(filter(None, (holders[0].fix, holders[0].alternative)))
    return Finding(
        "stale",
        "info",
        stale.pinned(len(old), now - old[0], size),
        fingerprint("stale", explanation.located),
        old[0],
        now,
        growth=Growth(total=Amount(len(old), weight.nodes * len(old), size)),
        holders=holders,
        advice=advice,
        reason=f"alive since step {old[0]}, and no more have come",
        saved_bytes=size,
        steps=(old[0], old[-1]),
    )


def _holder(located: Located, survivors: int, size: int) -> Holder:
    holder = holder_of(located.place, located.statement, located.type, located.chain)
    advice = located.advice
    return replace(
        holder,
        survivors=survivors,
        bytes=size,
        why=stale.why_pinned(holder.name, survivors),
        fix=advice.fix,
        alternative=advice.alternative,
        modules=located.modules,
    )
