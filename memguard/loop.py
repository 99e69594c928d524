"""One loop under watch: events in, findings out; everything that happens when a step ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from memguard import _torch
from memguard.clock import discovery
from memguard.clock.beats import Clock
from memguard.clock.sources import Sources
from memguard.clock.tape import MANUAL, OPTIMIZER, Tape
from memguard.creation import Creation
from memguard.figures import Figures
from memguard.investigation import Case, Investigator, Outcome
from memguard.judge.chains import Look
from memguard.judge.survivors import Opinion
from memguard.pace import Pace
from memguard.records import Failure, Finding
from memguard.sensors.audit import Audit, outermost
from memguard.sensors.canaries import Canaries, attached_outputs
from memguard.sensors.census import Census
from memguard.sensors.dated import MAX_NODES, MAX_REACH, MOST_SECONDS_PER_NODE, steps_reached
from memguard.sensors.governor import FREE_STEPS, Governor
from memguard.settings import Settings
from memguard.suspicion import Suspicion, Watched
from memguard.triage import Triage

_Result = TypeVar("_Result")

# With this many canaries alive no more are spent on audits; the rest is for the steps' own.
MAX_AUDITED = 400

# Nodes that one explanation may touch (explain.graph.MAX_NODES, and one step's once more).
EXPLAINED_NODES = 2000

# Seconds from which an event is taken to have been interrupted by the kernel.
INTERRUPTED = 5e-4


# Threads in which watched loops have run; with several, what is new in the heap may be any loop's.
_threads: dict[int, set[int]] = {}

# Fingerprints that each loop has told. Two guards of one thread see the same tensors, and one
# telling is enough.
_told: dict[int, set[str]] = {}


class WatchedLoop:
    """Hears of every event of the loop, senses and judges when a step ends, and keeps the findings.

    One event is handled at a time; what comes meanwhile, in another thread or from within the
    first, is not the loop's.

    Attributes:
        findings: by fingerprint, all that was found and not ignored.
        triage: what was ignored, and which suppressions were of use.
        failures: by part, what failed and was switched off.
        audits: audits begun.
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
        self._busy = threading.Lock()
        self._silent = False
        self._paused = 0
        self.failures: dict[str, Failure] = {}
        self.findings: dict[str, Finding] = {}
        self.triage = Triage(settings.ignore)
        self.audits = 0
        self._to_tell: list[Finding] = []
        self.clock = Clock()
        self.governor = Governor(settings.overhead)
        self._tape = Tape()
        self._pace = Pace(self.governor, self._tape)
        self.figures = Figures(settings)
        self._canaries = Canaries(settings.window)
        self._census = Census(settings.window, self._may_look)
        self._creation = Creation()
        self._audit = Audit(self._canaries, self._creation.note)
        self._sources = Sources(self, self.clock, self._tape)
        self._investigator = Investigator(
            self._canaries,
            self._census,
            self.figures,
            self.clock.step_of,
            self._sources.own_tensors,
            settings.window,
        )
        self._suspicions: dict[Watched, Suspicion] = {
            "graph": Suspicion(settings.window, settings.patience),
            "tensor": Suspicion(settings.window, settings.patience),
        }
        self._graph_told = False
        self._canary_due = True
        self._looked_at = 0
        self._explaining = 0.0
        self._expected = 0.0
        self._dated_cost = MAX_NODES * MOST_SECONDS_PER_NODE

    # --- beginning and end ---

    def begin(self, process: bool) -> None:
        """Start listening; with `process` to whatever this process turns out to run."""
        self.part("census", self._census.install)
        self.clock.note_sequence(_torch.sequence_number())
        if process:
            self._sources.watch_process()

    def watch(self, modules: list[Any], optimizers: list[Any]) -> None:
        """Listen to these as well."""
        self._sources.watch(modules, optimizers)

    def fall_silent(self) -> None:
        """Hear nothing any more."""
        self._silent = True
        self._tape.close()
        _told.pop(id(self), None)

    def end(self) -> None:
        """Take every hook, callback and mark out; harmless when done twice."""
        self._silent = True
        for ident in [ident for ident, loops in list(_threads.items()) if id(self) in loops]:
            _threads[ident].discard(id(self))
            if not _threads[ident]:
                _threads.pop(ident, None)
        self.part("audit removal", self._audit.end)
        self.part("hook removal", self._sources.remove)
        self.part("census removal", self._census.remove)
        self._canaries.clear()

    def pause(self) -> None:
        """From now on nothing is judged."""
        self._take_census(judged=True)
        self._paused += 1
        self._audit.muted = True

    def resume(self) -> None:
        """End the last pause; what was born in it never counts."""
        self._paused -= 1
        self._audit.muted = bool(self._paused)
        self._take_census(judged=bool(self._paused))

    @property
    def in_doubt(self) -> bool:
        """Whether graphs survive in a way that is not explained yet."""
        return self._suspicions["graph"].opinion.state != "clean"

    def step(self) -> None:
        """The user says that a step has ended."""
        if not self._tape.takes(MANUAL):
            self._hear(self.clock.manual)

    def catch_up(self) -> None:
        """Hear of the events that were put down in passing, so that all is counted."""
        if self._busy.acquire(False):
            try:
                self.part("events", self._hear_tape)
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
        self._hear(self.clock.optimizer, id(optimizer))

    def on_backward(self, roots: Any, is_gradient: bool) -> None:
        """A backward pass ended, or a call of `torch.autograd.grad` (only under `memguard run`)."""
        self._hear(self._backward, roots, is_gradient)

    def on_failure(self, part: str, error: Exception) -> None:
        """Something failed beside the loop's own events."""
        self._note_failure(part, error)

    def on_all_gone(self) -> None:
        """What was watched has been collected: there is nothing left to watch."""
        self._all_gone()

    def _forward(self, module: Any, output: Any, gives_beat: bool) -> bool:
        if self._canary_due:
            self.part("canaries", self._place_canary, output)
            if self._audit.running:
                self._audit.called.add(id(module))
        return gives_beat and self.clock.forward(id(module), discovery.is_training(module))

    def _backward(self, roots: Any, is_gradient: bool) -> bool:
        if self._canary_due:
            self.part("canaries", self._place_canary, roots)
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
        except Exception as error:
            self._note_failure("events", error)
        finally:
            self._leave(begun)
        if self._to_tell:
            self._tell_findings()

    def _hear_tape(self) -> None:
        """Take the events on the tape into account; the steps they ended go without a look."""
        events = self._tape.take_off()
        if not events:
            return
        ended, is_end = 0, False
        for event, source in events:
            if event == OPTIMIZER:
                self._sources.mark_stepped(source)
            is_end = self.clock.hear(event, source)
            if is_end:
                ended += 1
        self.governor.count(ended)
        self._pace.woken(len(events), self.clock.step, within=not is_end)

    def _enter(self) -> float:
        """When this event began; 0 when it is not ours: closed, paused, or within another event."""
        if self._silent or self._paused or not self._busy.acquire(False):
            return 0.0
        return time.perf_counter()

    def _leave(self, begun: float) -> None:
        spent = time.perf_counter() - begun
        if spent < INTERRUPTED:
            self.governor.sensing += spent
        else:
            self._charge(spent)
        self._busy.release()

    def _charge(self, spent: float) -> None:
        """Charge a long event: an explanation, a costly look, or an interruption."""
        explaining, self._explaining = self._explaining, 0.0
        expected, self._expected = self._expected, 0.0
        # On a busy machine the kernel takes the processor away for milliseconds, now and then in
        # the midst of an event; that is not what watching costs.
        self.governor.charge(min(spent - explaining, INTERRUPTED + 4 * expected), explaining)

    def part(self, name: str, work: Callable[..., _Result], *args: Any) -> _Result | None:
        """Do a part's work; a part that fails is switched off and named in the report."""
        if name in self.failures:
            return None
        try:
            return work(*args)
        except Exception as error:
            self._note_failure(name, error)
            return None

    def _note_failure(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:300]
        self.failures.setdefault(name, Failure(name, text, self.clock.step))

    # --- the step ---

    def _tell_findings(self) -> None:
        """Hand on what is new; outside the event, since telling may raise into the user's loop."""
        told, self._to_tell = self._to_tell, []
        self._tell(told)

    def _take_census(self, judged: bool) -> None:
        """Meet what is new now, as the user's own moment (the edge of a pause) asks for it."""
        begun = self._enter()
        if not begun:
            return
        try:
            self.part("events", self._hear_tape)
            self.part("census", self._census.look, self.clock.step, judged)
        finally:
            self._leave(begun)

    def _may_touch(self) -> bool:
        return not self._graph_told and not self._canaries.full

    def _may_look(self) -> bool:
        """Whether the collector's callback may scan; asked from any thread."""
        return (
            not self._silent
            and not self._paused
            and self.governor.allows(self._census.expected_cost())
        )

    def _place_canary(self, output: Any) -> None:
        step = self.clock.step
        self._suspicions["graph"].observe(step)
        with _torch.without_overrides():
            # The usual case without the detours that containers need.
            plain = type(output) is _torch.Tensor
            self._canaries.place(step, (output,) if plain else attached_outputs(output))
        self._creation.note(step, "")

    def _end_step(self) -> None:
        """Everything that happens when a step has ended, cheapest first."""
        now = self.clock.step
        self.clock.note_sequence(_torch.sequence_number())
        due = self._pace.look_is_due(now)
        if not due and not self._audit.running and not self.in_doubt:
            self.governor.end_step()
            self._pace.rest(now)
            return
        if due:
            cost = self._census.expected_cost()
            if self._pace.affords(now, cost):
                self._expected += cost
                self.part("census", self._look, now)
            self.part("tensor judge", self._judge_tensors, now)
        self.part("graph judge", self._judge_graphs, now)
        free = self._pace.is_free(now)
        if free or self._audit.running or self.in_doubt:
            self.part("audit", self._continue_audits, now)
            if self.in_doubt and self._creation.step is None:
                self._creation.want()
        self._sources.end_step()
        self.governor.end_step()
        self._canary_due = self._may_touch()
        if due:
            # What is new then counts as born in the step before, the least age that is certain.
            stirs = self._suspicions["graph"].stirs
            watchful = self._audit.running or self.in_doubt or stirs
            self._census.begin(self._pace.looked(now, watchful) - 1)

    def _look(self, now: int) -> None:
        """Meet what is new since the last look."""
        self._suspicions["tensor"].observe(now - 1)
        met = self._census.look(now - 1)
        fresh = self._census.take_fresh()
        _threads.setdefault(threading.get_ident(), set()).add(id(self))
        if fresh and len(_threads) == 1 and self._may_touch():
            with _torch.without_overrides():
                if self._pace.dated_look_is_due(now, self._dated_cost):
                    self.part("dated look", self._date, fresh, now)
                self._place_dated(fresh, now)
        if met:
            self._looked_at = now

    def _place_dated(self, tensors: list[Any], now: int) -> None:
        """Canaries for what is new since the last look, each of the step that its node was made in.

        So every step counts, also those that nobody looked at when they ended.
        """
        for tensor in tensors:
            node = _torch.node_of(tensor)
            number = None if node is None else _torch.node_sequence(node)
            born = now - 1 if number is None else self.clock.step_of(number)
            # Nodes of other threads are numbered by themselves.
            self._canaries.place(min(max(born, self._looked_at), now - 1), (tensor,))
        for step in range(self._looked_at, now):
            self._suspicions["graph"].observe(step)

    def _date(self, tensors: list[Any], now: int) -> None:
        """How far back the present reaches; a chain that never lets go is a suspicion confirmed."""
        begun = time.perf_counter()
        reached, nodes = steps_reached(tensors, self.clock.step_of, now - MAX_REACH)
        self._dated_cost = min(time.perf_counter() - begun, nodes * MOST_SECONDS_PER_NODE)
        self._pace.dated(now, self._dated_cost)
        self._expected += self._dated_cost
        self._canaries.looked(now - 1, nodes)
        opinion = self._suspicions["graph"].reach(Look(now, reached))
        if opinion is not None:
            self._investigate("graph", now, opinion)

    def _continue_audits(self, now: int) -> None:
        """Audit the first steps, and steps under suspicion when the budget allows."""
        room = len(self._canaries.cohorts) < MAX_AUDITED
        affordable = now < FREE_STEPS or (self.in_doubt and self.governor.allows())
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

    def _judge_graphs(self, now: int) -> None:
        births, deaths = self._canaries.survey(now)
        if self._graph_told:
            # What was told stands; when it is all gone, watching begins again.
            self._graph_told = bool(births)
            return
        opinion = self._suspicions["graph"].survey(now, births, deaths)
        if opinion is not None:
            self._investigate("graph", now, opinion)

    def _judge_tensors(self, now: int) -> None:
        births, deaths = self._census.plain.survey(now)
        opinion = self._suspicions["tensor"].survey(now, births, deaths)
        if opinion is not None:
            self._investigate("tensor", now, opinion)

    def _investigate(self, kind: Watched, now: int, opinion: Opinion) -> None:
        if kind == "graph" and self._is_premature():
            return
        begun = time.perf_counter()
        awaiting = self.clock.beat in ("forward", "manual")
        evaluation = self._is_evaluation()
        created = self._created(opinion.births) if kind == "graph" else ()
        case = Case(kind, now, opinion.births, opinion.reason, evaluation, awaiting, created)
        outcome = self.part(f"{kind} explanation", self._investigator.investigate, case)
        if kind == "graph":
            self._canaries.looked(now - 1, EXPLAINED_NODES)
        if outcome is None:
            # It could not be explained: say what is known rather than nothing.
            outcome = self._investigator.unexplained(case)
        self._settle(kind, opinion, outcome)
        self._explaining += time.perf_counter() - begun

    def _created(self, births: Sequence[int]) -> tuple[str, ...]:
        """Where survivors like these were made, seen in a later step of the same loop."""
        deepest = next(filter(None, map(self._canaries.deepest, reversed(births))), "")
        return self._creation.of(deepest.partition(":")[2])

    def _is_premature(self) -> bool:
        """Whether a training loop's forwards gave the beat although an optimizer has turned up."""
        if self.clock.beat != "forward" or self.clock.optimizer_known:
            return False
        self.part("discovery", self._sources.discover)
        return self.clock.optimizer_known and any(map(discovery.is_training, self._sources.roots()))

    def _is_evaluation(self) -> bool:
        if self.clock.beat != "forward":
            return False
        roots = [module for module in self._sources.roots() if discovery.has_parameters(module)]
        trains = self.clock.backwards or self.clock.gradients
        return not trains or not any(map(discovery.is_training, roots))

    def _settle(self, kind: Watched, opinion: Opinion, outcome: Outcome) -> None:
        self._suspicions[kind].hold(len(opinion.births), outcome.ruling.until)
        if kind == "graph":
            self._creation.forget()
        finding = outcome.finding
        if finding is None:
            return
        if kind == "graph" and finding.severity == "leak":
            # No more canaries on a chain that leaks, told or ignored: see canaries.MAX_TOUCHED.
            self._graph_told = True
            self._suspicions["graph"].settle()
            self._audit.rest()
        finding = self.triage.sort(finding)
        if finding is None:
            return
        known = self.findings.get(finding.fingerprint)
        self.findings[finding.fingerprint] = finding
        if known is not None and (known.severity == "leak" or finding.severity != "leak"):
            return
        if not any(finding.fingerprint in told for told in list(_told.values())):
            self._to_tell.append(finding)
        if finding.severity == "leak":
            _told.setdefault(id(self), set()).add(finding.fingerprint)
