"""Lints: habits that spoil training or waste memory and leak nothing, each told once as a warning.

They ride on the looks that are taken anyway and on the events that are heard anyway; the source is
read once, at a look. What is settled is not asked again.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from memguard import _storage, _torch
from memguard.clock import discovery
from memguard.clock.beats import Clock
from memguard.clock.sources import Sources
from memguard.explain import habits
from memguard.explain.fingerprint import fingerprint_of
from memguard.explain.graph import MAX_NODES, Weight, weigh_each
from memguard.explain.places import Statement
from memguard.explain.standing import direct_spots, user_spots
from memguard.judge import lints as judge
from memguard.records import CodeLine, Finding, Holder, Kind
from memguard.report import lints as words
from memguard.sensors import touched
from memguard.sensors.canaries import attached_outputs
from memguard.sensors.dated import steps_reached
from memguard.sensors.devices import used_backends
from memguard.sensors.gradients import Asked, Gradients
from memguard.sensors.unused import Sampled, UnusedGraphs

# The step at whose look the source is read: what a loop does in its first steps may be warm-up.
READ_AT = 5

# Steps that a look at a retained graph follows back.
MOST_BACK = 3


class Lints:
    """The habits of one loop.

    Args:
        clock: says which step it is.
        sources: what is watched.
        tell: takes a finding, once a habit.
        date: dates an autograd node.

    Attributes:
        explaining: seconds spent on reading and telling since somebody reset it.
    """

    def __init__(
        self,
        clock: Clock,
        sources: Sources,
        tell: Callable[[Finding], None],
        date: Callable[[Any], int | None],
    ) -> None:
        self._date = date
        self._clock = clock
        self._sources = sources
        self._tell = tell
        self._gradients = Gradients()
        self._unused = UnusedGraphs()
        self._source_read = False
        self._retaining: Statement | None = None
        self._retained: list[int] = []
        self._off_since: int | None = None
        self._collections = 0
        self._collector_settled = False
        self.explaining = 0.0

    def end(self) -> None:
        """Take the hooks out; harmless when done twice."""
        self._gradients.remove()
        self._unused.remove()

    # --- events that are heard ---

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped, and was heard."""
        if not self._gradients.curious:
            return
        asked = self._gradients.stepped(optimizer)
        if asked is None or asked.settled or not judge.never_cleared(asked.uncleared):
            return
        asked.settled = True
        self._tell_gradients(optimizer, asked)

    def forward(self, module: Any, output: Any) -> None:
        """A root was called, and heard."""
        self._gradients.forward()
        if discovery.is_training(module):
            return
        sampled = self._unused.of(module)
        if sampled is None or sampled.settled:
            return
        wasted = sampled.wasted()
        if judge.is_unused(wasted):
            begun = time.perf_counter()
            self._tell_evaluation(module, sampled, wasted)
            self.explaining += time.perf_counter() - begun
        elif sampled.is_wanting:
            self._sample(module, sampled, output)

    def look(self, now: int, fresh: Sequence[Any]) -> None:
        """A look is taken at the end of step `now`; `fresh` are attached tensors it has met."""
        if not self._source_read and now >= READ_AT:
            self._source_read = True
            begun = time.perf_counter()
            self._read()
            self.explaining += time.perf_counter() - begun
        if self._retaining is not None and fresh:
            self._look_for_retained(now, fresh)
        if not self._collector_settled and self._misses_collections(now):
            self._collector_settled = True
            begun = time.perf_counter()
            self._tell_collector(now)
            self.explaining += time.perf_counter() - begun

    # --- gradients ---

    def _tell_gradients(self, optimizer: Any, asked: Asked) -> None:
        begun = time.perf_counter()
        stack = user_spots(sys._getframe())
        parameter = asked.parameter() if asked.parameter is not None else None
        on_cpu = parameter is None or _torch.device_name(parameter) == "cpu"
        if on_cpu or not habits.Habits(stack).clears_past_autograd():
            step = habits.stepping(stack)
            statement = step.statement if step is not None else None
            written = step.optimizer if step is not None else None
            kind, carried = type(optimizer).__name__, asked.uncleared
            code = _code(statement) if written is not None else None
            name = written or kind
            told = words.gradients(name, self._name_of(parameter), carried, code)
            reason = f"unchanged from the end of a step to the next gradient, {carried} times"
            self._put("grad", "gradients", told, statement, (name, kind), reason)
        self.explaining += time.perf_counter() - begun

    def _name_of(self, parameter: Any) -> str:
        if parameter is None:
            return ""
        roots = self._sources.roots()
        named = (pair for module in roots for pair in module.named_parameters())
        return next((name for name, value in named if value is parameter), "")

    # --- evaluation ---

    def _sample(self, module: Any, sampled: Sampled, output: Any) -> None:
        with _torch.without_overrides():
            roots = sampled.forward(attached_outputs(output))
            if not roots or sampled.weight is not None or touched.room() < MAX_NODES:
                return
            own = {_storage.storage_of(tensor)[0] for tensor in self._sources.own_tensors()}
            own |= {_storage.storage_of(tensor)[0] for tensor in module.parameters()}
            (sampled.weight,) = weigh_each([(0, roots)], lambda number: 0, own)
            _note_touched(roots, sampled.weight.looked)

    def _tell_evaluation(self, module: Any, sampled: Sampled, wasted: int) -> None:
        sampled.leave()
        weight: Weight = sampled.weight or Weight()
        if not judge.is_worth_a_warning(weight.saved_bytes):
            return
        stack = user_spots(sys._getframe())
        statement = habits.standing_at(stack[0]) if stack else None
        kind = type(module).__name__
        saved, nodes = weight.saved_bytes, weight.nodes
        told = words.evaluation(kind, wasted, saved, nodes, _code(statement))
        reason = f"{wasted} graphs died without a backward, none was used"
        self._put("graph", "evaluation", told, statement, (kind, "Module"), reason)

    # --- the source ---

    def _read(self) -> None:
        stack = direct_spots(sys._getframe())
        # Without a device there is no allocator whose cache could be emptied.
        on_device = bool(used_backends())
        wanted = (habits.RETAIN, habits.EMPTY) if on_device else (habits.RETAIN,)
        if not stack or not habits.is_worth_reading(stack, wanted):
            return
        found = habits.Habits(stack)
        self._retaining = found.retaining()
        emptying = found.emptying() if on_device else None
        if emptying is not None:
            reason = "called by the loop's own statements at every step"
            where = ("empty_cache()", "function")
            self._put("reserved", "emptied", words.emptied(), emptying, where, reason)

    def _look_for_retained(self, now: int, fresh: Sequence[Any]) -> None:
        begun = time.perf_counter()
        statement = self._retaining
        with _torch.without_overrides():
            if touched.room() < 2 * MAX_NODES:
                return
            reached, looked = steps_reached(fresh, self._clock.step_of, now - MOST_BACK)
            if reached and reached[0] < now - 1:
                # The next backward goes through it: a state that is carried on, which is a leak.
                self._retaining = None
                return
            own = {_storage.storage_of(tensor)[0] for tensor in self._sources.own_tensors()}
            nodes = [node for tensor in fresh if (node := _torch.node_of(tensor)) is not None]
            (weight,) = weigh_each([(now - 1, nodes)], self._date, own)
            # The same nodes twice, as far as both have come.
            _note_touched(nodes, max(looked, weight.looked))
            nodes.clear()
        if weight.saved_bytes:
            self._retained.append(weight.saved_bytes)
        if len(self._retained) >= judge.RETAINED and statement is not None:
            self._retaining = None
            size = min(self._retained)
            told = words.retained(statement.code, size, len(self._retained))
            reason = f"still saved after the only backward, at {len(self._retained)} looks"
            self._put("graph", "retained", told, statement, ("backward", "method"), reason)
        self.explaining += time.perf_counter() - begun

    def _misses_collections(self, now: int) -> bool:
        if gc.isenabled() and gc.get_threshold()[0] > 0:
            self._off_since = None
            return False
        collections = sum(generation["collections"] for generation in gc.get_stats())
        if self._off_since is None:
            self._off_since, self._collections = now, collections
        # Somebody collects, of whatever generation, and will do so again.
        self._collector_settled = collections > self._collections
        return not self._collector_settled and judge.collects_nothing(now - self._off_since)

    def _tell_collector(self, now: int) -> None:
        found = habits.Habits(user_spots(sys._getframe()))
        if found.collects():
            return
        off = now - (self._off_since or 0)
        reason = f"off for {off} steps, last collection before that"
        where = ("gc", "module")
        self._put("cycle", "uncollected", words.uncollected(off), found.disabling(), where, reason)

    # --- telling ---

    def _put(
        self,
        kind: Kind,
        habit: str,
        told: words.Words,
        statement: Statement | None,
        who: tuple[str, str],
        reason: str,
    ) -> None:
        name, its_type = who
        code = statement.code if statement is not None else ""
        self._tell(
            Finding(
                kind,
                "warning",
                told.summary,
                fingerprint_of(kind, habit, name, code),
                self._clock.step,
                self._clock.step,
                holders=(_holder(name, its_type, statement, told),),
                advice=told.advice,
                reason=reason,
            )
        )


def _note_touched(roots: Sequence[Any], nodes: int) -> None:
    """Count nodes behind these as touched, for as long as one of these is alive."""
    life = touched.Life()
    for root in roots:
        _torch.node_metadata(root)[life] = None
    touched.note(life, nodes)


def _holder(name: str, kind: str, statement: Statement | None, told: words.Words) -> Holder:
    if statement is None:
        return Holder(name, "", type=kind, why=told.why, alternative=told.alternative)
    return Holder(
        name,
        f"in {statement.function}" if statement.function else "at module level",
        file=statement.file,
        line=statement.line,
        code=statement.code,
        type=kind,
        function=statement.function,
        context=tuple(CodeLine(line, text) for line, text in statement.context),
        why=told.why,
        fix=told.fix,
        alternative=told.alternative,
    )


def _code(statement: Statement | None) -> str | None:
    return None if statement is None else statement.code
