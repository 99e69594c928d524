"""One loop under watch: events in, findings out; everything that happens when a step ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from memguard import _torch, threads
from memguard.asides import Asides
from memguard.cases import Cases
from memguard.clock import discovery
from memguard.clock.beats import WORD_AWAITED, Clock
from memguard.clock.sources import Sources
from memguard.clock.tape import MANUAL, OPTIMIZER, Tape
from memguard.creation import Creation
from memguard.explain.stepping import Said
from memguard.figures import Figures
from memguard.judge.chains import Look
from memguard.memory import Memory
from memguard.pace import Pace
from memguard.parts import TOO_DEEP, Parts
from memguard.records import Finding
from memguard.sensors.audit import Audit, outermost
from memguard.sensors.canaries import Canaries, attached_outputs
from memguard.sensors.census import Census
from memguard.sensors.dated import (
    MAX_NODES,
    MAX_REACH,
    MOST_SECONDS_PER_NODE,
    Dating,
    numbered,
    steps_reached,
)
from memguard.sensors.governor import FREE_STEPS, Governor
from memguard.settings import Settings
from memguard.step_figures import StepFigures

# With this many canaries alive no more are spent on audits; the rest is for the steps' own.
MAX_AUDITED = 400

# Seconds from which an event is taken to have been interrupted by the kernel.
INTERRUPTED = 5e-4


class WatchedLoop:
    """Hears of every event of the loop, senses and judges when a step ends, and keeps the findings.

    One event is handled at a time; what comes meanwhile, in another thread or from within the
    first, is not the loop's.

    Attributes:
        cases, asides: what is under suspicion and was found; what is watched beside survivors.
        parts: what failed and was switched off.
        audits: audits begun.
        on_first_step: called when the first step has ended.
    """

    def __init__(
        self,
        settings: Settings,
        tell: Callable[[list[Finding]], None],
        all_gone: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._all_gone = all_gone
        self.on_first_step: Callable[[], None] | None = None
        self._busy = threading.Lock()
        self._silent = False
        self._paused = 0
        self.audits = 0
        clock = self.clock = Clock()
        parts = self.parts = Parts(lambda: clock.step)
        governor = self.governor = Governor(settings.overhead)
        # Who is told of each step is told when it ends.
        self._tape = Tape() if settings.on_step is None else Tape(most=0)
        self._pace = Pace(self.governor, self._tape)
        self.figures = Figures(settings)
        self._canaries = Canaries(settings.window)
        self._census = Census(settings.window, self._may_look)
        self._creation = Creation()
        self._audit = Audit(self._canaries, self._creation.note)
        self._sources = Sources(self, self.clock, self._tape, self.governor)
        self.cases = Cases(
            settings,
            self.clock,
            self._sources,
            self._canaries,
            self._census,
            self._creation,
            self.figures,
            self.parts,
            governor,
        )
        self._memory = Memory(settings, self._sources, self._census, self.figures, self.cases)
        self.asides = Asides(
            settings, clock, self._sources, self._census, parts, self.cases, governor
        )
        self._step_figures = StepFigures.wanted(
            settings, self.figures, self.cases, self._canaries, self.governor
        )
        self._canary_due = True
        self._looked_at = 0
        self._met_at = 0.0
        self._expected = 0.0
        self._dated_cost = MAX_NODES * MOST_SECONDS_PER_NODE

    # --- beginning and end ---

    def begin(self, process: bool) -> None:
        """Start listening; with `process` to whatever this process turns out to run."""
        self.parts.do("census", self._census.install)
        self.clock.note_sequence(_torch.sequence_number())
        if process:
            self._sources.watch_process()

    def watch(self, modules: list[Any], optimizers: list[Any]) -> bool:
        """Listen to these as well; whether any of them is new."""
        return self._sources.watch(modules, optimizers)

    def await_word(self, said: Said) -> None:
        """Wait with judging forwards for a step that the program's text says itself, or may say."""
        self.clock.await_word(WORD_AWAITED[said])

    def fall_silent(self) -> None:
        """Hear nothing any more."""
        self._silent = True
        self._tape.close()

    def end(self) -> None:
        """Take every hook, callback and mark out; harmless when done twice."""
        self._silent = True
        threads.forget(id(self))
        self.parts.do("audit removal", self._audit.end)
        self.asides.end()
        self.parts.do("hook removal", self._sources.remove)
        self.parts.do("census removal", self._census.remove)
        self._canaries.clear()

    def pause(self) -> None:
        """From now on nothing is judged."""
        self._take_census(judged=True)
        self.parts.do("memory", self._memory.pause)
        self._paused += 1
        self._audit.muted = True

    def resume(self) -> None:
        """End the last pause; what was born in it never counts."""
        self._paused -= 1
        self._audit.muted = bool(self._paused)
        self._take_census(judged=False)
        self.parts.do("memory", self._memory.resume)

    @property
    def is_paused(self) -> bool:
        """Whether events are not heard just now; asked from any thread."""
        return bool(self._paused)

    def step(self) -> None:
        """The user says that a step has ended."""
        if not self._tape.takes(MANUAL):
            self._hear(self.clock.manual)

    def watched(self) -> tuple[list[Any], list[Any]]:
        """(modules, optimizers) that are listened to or have stepped lately, still alive."""
        optimizers = [*self._sources.optimizers(), *self._sources.stepping_optimizers()]
        return self._sources.roots(), list({id(one): one for one in optimizers}.values())

    def events(self) -> int:
        """A number that changes with every event; asked from any thread, and waits for nothing."""
        return self.clock.step + self.clock.forwards + len(self._tape.events)

    def catch_up(self) -> None:
        """Hear of the events that were put down in passing, so that all is counted."""
        if self._busy.acquire(False) or self._was_left_busy():
            try:
                self.parts.do("events", self._hear_tape)
                if not self._silent and not self._paused:
                    self._pace.rest(self.clock.step)
            finally:
                self._busy.release()

    # --- events, in the user's threads ---

    def on_forward(self, module: Any, output: Any, gives_beat: bool) -> None:
        """A root module was called: its output carries the step's canary."""
        self._hear(self._forward, module, output, gives_beat)

    def on_optimizer(self, optimizer: Any) -> None:
        """An optimizer stepped."""
        self._hear(self.asides.stepped, optimizer)

    def on_backward(self, roots: Any, is_gradient: bool) -> None:
        """A backward pass ended, or `torch.autograd.grad` did (where a process is guarded)."""
        self._hear(self._backward, roots, is_gradient)

    def on_failure(self, part: str, error: Exception) -> None:
        """Something failed beside the loop's own events."""
        self.parts.note(part, error)

    def on_all_gone(self) -> None:
        """What was watched has been collected: there is nothing left to watch."""
        self._all_gone()

    def _forward(self, module: Any, output: Any, gives_beat: bool) -> bool:
        if self._canary_due:
            self.parts.do("canaries", self._place_canary, output)
            if self._audit.running:
                self._audit.called.add(id(module))
            self.asides.forward(module, output)
        return gives_beat and self.clock.forward(id(module), discovery.is_training(module))

    def _backward(self, roots: Any, is_gradient: bool) -> bool:
        if self._canary_due:
            self.parts.do("canaries", self._place_canary, roots)
        return self.clock.gradient() if is_gradient else self.clock.backward()

    def _hear(self, event: Callable[..., bool], *args: Any) -> None:
        """Take an event into account, and end the step when it says so.

        Nothing but what is told afterwards may be raised into the user's loop.
        """
        begun = self._enter()
        if not begun:
            return
        try:
            self._hear_tape()
            self._pace.heard()
            if event(*args):
                self._end_step()
                if self._step_figures is not None:
                    theirs = self.parts.do("on_step", self._step_figures.tell, self.clock.step)
                    begun += theirs or 0.0
        except RecursionError:
            self.parts.exhausted["events"] = TOO_DEEP
        except Exception as error:
            self.parts.note("events", error)
        finally:
            self._leave(begun)
        if self.cases.to_tell:
            # Outside the event, since telling may raise into the user's loop.
            told, self.cases.to_tell = self.cases.to_tell, []
            self._tell(told)

    def _hear_tape(self) -> None:
        """Take the events on the tape into account; the steps they ended go without a look."""
        events = self._tape.take_off()
        if not events:
            return
        before = self.clock.step
        is_end = self.clock.hear_all(events)
        for source in {source for event, source in events if event == OPTIMIZER}:
            self._sources.mark_stepped(source)
        ended = self.clock.step - before
        self.governor.count(ended)
        self._pace.woken(len(events), self.clock.step, within=not is_end)

    def _enter(self) -> float:
        """When this event began; 0 when it is not ours: closed, paused, or within another event."""
        if self._silent or self._paused:
            return 0.0
        if not self._busy.acquire(False) and not self._was_left_busy():
            return 0.0
        return time.perf_counter()

    def _was_left_busy(self) -> bool:
        """Whether nobody has the turn: a signal handler's exception struck between two lines.

        Then it is this event's. Handlers strike in the main thread, so only that one asks.
        """
        return threads.is_main() and not threads.runs_another(_TURNS)

    def _leave(self, begun: float) -> None:
        try:
            self._charge(time.perf_counter() - begun)
        except RecursionError:
            self.parts.exhausted["overhead"] = TOO_DEEP
        except Exception as error:
            self.parts.note("overhead", error)
        finally:
            self._busy.release()

    def _charge(self, spent: float) -> None:
        explaining = self.asides.take_explaining()
        expected, self._expected = self._expected, 0.0
        # On a busy machine the kernel takes the processor away for milliseconds, now and then in
        # the midst of an event; that is not what watching costs.
        sensing = min(spent - explaining, INTERRUPTED + 4 * expected)
        self.governor.charge(sensing, explaining)

    # --- the step ---

    def _take_census(self, judged: bool) -> None:
        """Meet what is new now, as the user's own moment (the edge of a pause) asks for it."""
        begun = self._enter()
        if not begun:
            return
        try:
            self.parts.do("events", self._hear_tape)
            self.parts.do("census", self._census.look, self.clock.step, judged)
        finally:
            self._leave(begun)

    def _may_touch(self) -> bool:
        return not self._canaries.full

    def _may_look(self) -> bool:
        """Whether the collector's callback may scan; asked from any thread.

        What a collection moves on is not met afterwards, so these looks have a share of their own.
        """
        if self._silent or self._paused:
            return False
        now, cost = time.perf_counter(), self._census.expected_cost()
        if not self.governor.allows(cost) and not self.governor.earns(cost, now - self._met_at):
            return False
        self._met_at = now
        return True

    def _place_canary(self, output: Any) -> None:
        step = self.clock.step
        self.cases.observe_graphs(step)
        with _torch.without_overrides():
            # The usual case without the detours that containers need.
            plain = type(output) is _torch.Tensor
            self._canaries.place(step, (output,) if plain else attached_outputs(output))
        self._canaries.note_caller()
        self._creation.note(step, "")

    def _end_step(self) -> None:
        """Everything that happens when a step has ended, cheapest first."""
        now = self.clock.step
        if now == 1 and self.on_first_step is not None:
            self.on_first_step()
        self.clock.note_sequence(_torch.sequence_number())
        due = self._pace.look_is_due(now)
        if not due and not self._audit.running and not self.cases.in_doubt:
            self.governor.end_step()
            if not self._silent:
                self._pace.rest(now)
            return
        if due:
            self._expected += self._census.expected_cost()
            self.parts.do("census", self._look, now)
        # Before tensors: graphs keep those that they have saved.
        self.parts.do("graph judge", self.cases.judge_graphs, now)
        if due:
            self.parts.do("tensor judge", self.cases.judge_tensors, now)
            self.asides.end_look(now, self.parts.do("memory", self._memory.look, now))
        free = self._pace.is_free(now)
        if free or self._audit.running or self.cases.in_doubt:
            self.parts.do("audit", self._continue_audits, now)
            if self.cases.in_doubt and self._creation.step is None:
                self._creation.want()
        self._sources.end_step()
        self.governor.end_step()
        self._canary_due = self._may_touch()
        if due and not self._silent:
            # What is new then counts as born in the step before, the least age that is certain.
            stirs = self.cases.stirs or self._memory.in_doubt
            watchful = self._audit.running or self.cases.in_doubt or stirs
            following = self._pace.looked(
                now,
                watchful,
                climbs=self._memory.climbs,
                by=self.cases.certain_at,
                cost=self._census.expected_cost(),
            )
            self._census.begin(following - 1)

    def _look(self, now: int) -> None:
        """Meet what is new since the last look."""
        self.cases.observe_tensors(now - 1)
        met = self._census.look(now - 1)
        fresh = self._census.take_fresh()
        if fresh and threads.is_alone(id(self)) and self._may_touch():
            with _torch.without_overrides():
                if self._pace.dated_look_is_due(now, self._dated_cost):
                    self.parts.do("dated look", self._date, fresh, now)
                self._place_dated(fresh, now)
        self.asides.look(now, fresh)
        if met:
            self._looked_at = now

    def _place_dated(self, tensors: list[Any], now: int) -> None:
        """Canaries for what is new since the last look, each of the step that its node was made in.

        So every step counts, also those that nobody looked at when they ended.
        """
        dating = Dating(self.clock.step_of, self.clock.nodes_a_step)
        for number, node, tensor in numbered(tensors):
            born = now - 1 if number < 0 else dating.step_of(number, node)
            # Nodes of other threads are numbered by themselves.
            born = min(max(born, self._looked_at), now - 1)
            self._canaries.place(born, (tensor,), latest=now - 1)
            self.cases.observe_graphs(born)
        if dating.looked:
            self._canaries.looked(now - 1, dating.looked)
        self.cases.observe_graphs(now - 1)

    def _date(self, tensors: list[Any], now: int) -> None:
        """How far back the present reaches; a chain that never lets go is a suspicion confirmed."""
        begun = time.perf_counter()
        reached, nodes = steps_reached(tensors, self.clock.step_of, now - MAX_REACH)
        self._dated_cost = min(time.perf_counter() - begun, nodes * MOST_SECONDS_PER_NODE)
        self._pace.dated(now, self._dated_cost)
        self._expected += self._dated_cost
        self._canaries.looked(now - 1, nodes)
        self.cases.judge_reach(Look(now, reached))

    def _continue_audits(self, now: int) -> None:
        """Audit the first steps, and steps under suspicion when the budget allows."""
        room = len(self._canaries.cohorts) < MAX_AUDITED
        affordable = now < FREE_STEPS or (self.cases.in_doubt and self.governor.allows())
        wanted = room and affordable and self._may_touch()
        if self._audit.running:
            if now == 3:
                self._learn_roots()
            if wanted:
                self._audit.next_step(now)
            else:
                self._audit.rest()
            return
        # A compiled model compiles in its first call, and a hook that goes makes it compile again.
        if wanted and now >= 2 and self.clock.forwards:
            self._audit.begin(self._sources.roots(), now)
            self.audits += self._audit.running

    def _learn_roots(self) -> None:
        """A root that is never called itself is replaced by what the loop calls."""
        called = self._audit.called
        silent = [m for m in self._sources.roots() if id(m) not in called]
        found = [reference() for reference in outermost(called, silent)]
        self._sources.replace_roots([module for module in found if module is not None])


# Whoever has the turn is in one of these.
_TURNS = frozenset(
    function.__code__
    for function in (WatchedLoop._hear, WatchedLoop._take_census, WatchedLoop.catch_up)
)
