"""`Guard`: what a user holds of a loop under watch; it reports, reacts and closes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from memguard import bookkeeping
from memguard._events import nothing
from memguard._kinds import is_out_of_memory
from memguard._torch import Undo
from memguard.asking import answer_with
from memguard.errors import LeakError, UsageError
from memguard.explain.stepping import Said
from memguard.figures import environment
from memguard.ledgers import Ledger
from memguard.loop import WatchedLoop
from memguard.postmortem import PostMortem
from memguard.records import Finding, Growth, Report, Verdict
from memguard.redaction import without_source
from memguard.references import held, let_go, missing
from memguard.settings import Settings
from memguard.telling import Teller
from memguard.watchdog import Watchdog


class Guard:
    """Watches a loop and says who keeps past steps alive; made by `memguard.watch`.

    It holds the user's modules, optimizers and tensors weakly. A part of it that fails is switched
    off and named in the report; the loop goes on.

    Attributes:
        settings: the settings in force.
        teller: what is done with a finding.
    """

    def __init__(self, settings: Settings) -> None:
        on_leak, on_step = held(settings.on_leak), held(settings.on_step)
        settings = self.settings = replace(settings, on_leak=on_leak, on_step=on_step)
        self._process = os.getpid()
        self._closed = False
        self._depth = 0
        self._has_ended = False
        self._on_close: Callable[[Guard], None] | None = None
        self._undo: dict[str, Undo] = {}
        # Whether it watches a whole process: then the program's own `close` is not the end.
        self._is_process = False
        # Whether a variable alone made it: then nothing is said or written before a step has ended.
        self.is_quiet = False
        # Whether `watch` without objects has found it, in a loop at every turn.
        self._is_met_alone = False
        # Whether a leak was raised into the program.
        self.has_raised = False
        self._ledger = Ledger()
        self._loop = WatchedLoop(settings, self._react, self.finish)
        self.teller = Teller(settings, self._loop.parts)
        self._post_mortem = PostMortem(
            settings,
            self._loop.figures,
            lambda: list(self._loop.cases.findings.values()),
            self._report_of_the_end,
        )

    def step(self) -> None:
        """Say that one turn of the loop has ended; from now on only this call does.

        Raises:
            LeakError: this turn confirmed a leak and the action is `raise`.
        """
        self._loop.step()

    def expect_freed(self, obj: object, name: str) -> None:
        """Say that an object is done with: some steps from now it must be gone.

            guard.expect_freed(model, "fold 3 model")
            del model, optimizer

        If it is not, a warning of kind `stale` tells who still holds it.

        Args:
            obj: a model, an optimizer, a batch; anything that can be referred to weakly. It is held
                weakly, and may be a weak reference already.
            name: what to call it.

        Raises:
            UsageError: nothing can refer to `obj` weakly (a list, a dict, a number).

        Costs nothing when it is freed, else once a pass over the heap for each link of the chain.
        """
        self._loop.asides.expect_freed(obj, name)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Inside, nothing is judged: neither steps nor what is born here."""
        self._loop.pause()
        try:
            yield
        finally:
            self._loop.resume()

    def report(self) -> Report:
        """What is known now, as one frozen record (about a millisecond)."""
        loop = self._loop
        loop.catch_up()
        report = Report(
            verdict=self._verdict(),
            step=loop.clock.step,
            findings=_worst_first(f for f in loop.cases.findings.values() if f.known is None),
            ledger=self._ledger,
            clock={
                "beat": loop.clock.beat,
                "seconds_per_step": loop.governor.seconds_per_step,
                "optimizer_steps": loop.clock.optimizer_steps,
                "forwards": loop.clock.forwards,
                "backwards": loop.clock.backwards,
            },
            overhead={
                "share": loop.governor.taken,
                "seconds": loop.governor.spent,
                "audits": loop.audits,
            },
            environment=loop.parts.do("environment", environment) or {},
            memory=loop.parts.do("memory figures", loop.figures.memory) or {},
            failures=tuple(loop.parts.failures.values()),
            libraries=_worst_first(f for f in loop.cases.findings.values() if f.known is not None),
            ignored=loop.cases.triage.ignored(),
            suppressions=loop.cases.triage.suppressions(),
        )
        return report if self.settings.source else without_source(report)

    def ledger(self) -> Ledger:
        """Where memory is now, device by device; prints as a table.

        Taken between a forward and its backward it has the activations; graphs older than `window`
        steps are told apart as retained.

        Costs a pass over the heap (60 ms for a million objects), some ten microseconds for each
        autograd node and tensor, and a few passes more to name the holders of the largest tensors.
        """
        self._take_ledger(bookkeeping.MOST_NAMES)
        return self._ledger

    def close(self) -> None:
        """Stop watching: every hook, callback and mark is taken out; closing twice is harmless.

        Writes the report file when one was asked for. What was declared dead and is held by more
        than a variable is told; the rest is left to the next guard that steps, or to the end of
        the program.
        """
        if not self._is_process:
            self.finish(ask=True)

    def finish(self, write: bool = True, ask: bool = False) -> None:
        """`close`, also for the guard of a whole process.

        Args:
            write: whether to write the report.
            ask: whether to ask for what was declared dead and not asked for yet.
        """
        if self._closed:
            return
        self._closed = True
        self._loop.fall_silent()
        try:
            told = self._loop.asides.settle() if ask else []
            if told:
                self._react(told)
        finally:
            self._finish(write)

    def _finish(self, write: bool) -> None:
        while self._undo:
            self._loop.parts.do(*self._undo.popitem())
        if self._on_close is not None:
            self._on_close(self)
        if write and self._process == os.getpid() and self.settings.report is not None:
            self._write_report()
        self._post_mortem.end()
        self._loop.end()
        let_go(self.settings.on_leak, self.settings.on_step)

    @property
    def before_raising(self) -> Callable[[Report], None] | None:
        """Called with the report of a leak that is about to be raised."""
        return self.teller.before_raising

    @before_raising.setter
    def before_raising(self, called: Callable[[Report], None] | None) -> None:
        self.teller.before_raising = called

    @property
    def should_stop(self) -> bool:
        """Whether a leak was told and the loop is to end at its next safe point (action `stop`)."""
        return self.teller.should_stop

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        self._loop.catch_up()
        return self._loop.clock.step

    def __enter__(self) -> Guard:
        self._depth += 1
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._depth -= 1
        # Blocks within one another share the guard when they watch the same; the outermost ends it.
        if not self._depth:
            self.look_into(error)
            if not self._is_process:
                # An exception on its way holds the frames it has passed.
                self.finish(ask=error is None)

    def look_into(self, error: BaseException | None) -> None:
        """Write a post-mortem where the exception that ends the loop says that memory has ended.

        It may come by twice, out of the program and at the exit.
        """
        if error is None or self._closed or self._has_ended or not is_out_of_memory(error):
            return
        self._has_ended = True
        self._post_mortem.ended(error)

    # --- for watching.py ---

    def start(
        self,
        modules: list[Any],
        optimizers: list[Any],
        process: bool = False,
        quiet: bool = False,
        on_close: Callable[[Guard], None] | None = None,
    ) -> None:
        """Put the hooks in; called once, by `watch` or `guard_process`."""
        self._on_close = on_close
        self._is_process = process
        self.is_quiet = quiet
        if quiet:
            self._loop.on_first_step = self._tell_problems
        else:
            self._tell_problems()
        self._loop.parts.do("start", self._loop.begin, process)
        self._loop.parts.do("post-mortem", self._post_mortem.prepare)
        self._loop.asides.on_reading = self._post_mortem.hear
        self._loop.parts.do("hooks", self._loop.watch, modules, optimizers)
        self._attend(process)

    def _tell_problems(self) -> None:
        wanted = {"on_leak": self.settings.on_leak, "on_step": self.settings.on_step}
        for problem in (*self.settings.problems, *missing(wanted)):
            with contextlib.suppress(Exception):  # a closed stderr must not end the job
                if sys.stderr is not None:
                    print(f"memguard: {problem}", file=sys.stderr)

    def _attend(self, process: bool) -> None:
        """Be there for who asks, and for a loop that stands still; each only where it is wanted."""
        do, loop = self._loop.parts.do, self._loop
        if self.settings.ask or (process and self.settings.ask is None):
            self._undo["ask removal"] = do("ask", self._answer) or nothing
        if self.settings.watchdog is not None:
            dog = Watchdog(
                self.settings.watchdog,
                loop.events,
                lambda: loop.clock.step,
                is_paused=lambda: loop.is_paused,
            )
            self._undo["watchdog removal"] = do("watchdog", dog.begin) or nothing

    def _answer(self) -> Undo:
        try:
            return answer_with(self.report)
        except UsageError:
            if self.settings.ask:
                raise
            return nothing  # where nobody has asked for it, nobody misses it

    def adopt(self, modules: list[Any], optimizers: list[Any]) -> bool:
        """Watch these as well; whether any of them is new to it, or it is asked without any."""
        if not (modules or optimizers):
            is_met, self._is_met_alone = self._is_met_alone, True
            return not is_met
        return bool(self._loop.parts.do("hooks", self._loop.watch, modules, optimizers))

    def await_word(self, said: Said) -> None:
        """How far the program's text says itself when a step has ended."""
        self._loop.await_word(said)

    def abandon(self) -> None:
        """Fall silent in a forked child, where the hooks and marks of the parent's guard are."""
        self._closed = True
        self._undo.clear()  # neither the thread nor the signal's question has come along
        self._loop.fall_silent()
        let_go(self.settings.on_leak, self.settings.on_step)

    # --- telling ---

    def _react(self, told: list[Finding]) -> None:
        """Tell new findings; the only place from which an exception may reach the user's loop."""
        self._loop.parts.do("ledger", self._take_ledger)
        report = self._loop.parts.do("report", self.report) or self._in_need(told)
        worst: Verdict = "leak" if any(f.severity == "leak" for f in told) else "suspect"
        news = replace(
            report,
            findings=_worst_first(f for f in told if f.known is None),
            libraries=_worst_first(f for f in told if f.known is not None),
            verdict=worst,
        )
        if not self.settings.source:
            news = without_source(news)
        try:
            self.teller.tell(report, news)
        except LeakError as error:
            self.has_raised = True
            self._loop.cases.raised.update(finding.fingerprint for finding in told)
            raise LeakError(str(error), report) from None

    def _take_ledger(self, names: int = 0) -> None:
        """Take the ledger that reports from now on have."""
        loop = self._loop
        clock, window = loop.clock, self.settings.window

        def is_past(number: int) -> bool:
            return 0 <= clock.step_of(number) < clock.step - window

        # Looking at what a graph saves makes tensors of it, which nobody's loop has made.
        with self.pause():
            modules, optimizers = loop.watched()
            self._ledger = bookkeeping.take(
                modules,
                optimizers,
                loop.parts,
                loop.figures,
                is_past=is_past,
                kept=loop.cases.kept_by_graphs(clock.step),
                names=names,
                step=clock.step,
            )

    def _report_of_the_end(self) -> Report:
        """The report with the ledger of this moment."""
        self._take_ledger()
        return self.report()

    def _write_report(self) -> None:
        """The report at the end of a run; none where a variable alone asked and nothing stepped."""
        if self.is_quiet and not self.steps:
            return
        self._loop.parts.do("ledger", self._take_ledger)
        whole = self._loop.parts.do("report", self.report)
        found = self._loop.cases.findings.values()
        self.teller.write(whole or self._in_need(found), last=True)

    def _in_need(self, findings: Iterable[Finding]) -> Report:
        """The little that is told where the whole report cannot be made."""
        failures = tuple(self._loop.parts.failures.values())
        step, found = self._loop.clock.step, tuple(findings)
        report = Report(self._verdict(), step, found, failures=failures)
        return report if self.settings.source else without_source(report)

    def _verdict(self) -> Verdict:
        findings = self._loop.cases.findings.values()
        if any(finding.severity == "leak" for finding in findings):
            return "leak"
        # A habit, such as gradients that nobody clears, is told and makes nothing grow.
        grows = any(f.severity != "info" and f.growth != Growth() for f in findings)
        return "suspect" if self._loop.cases.in_doubt or grows else "clean"


def _worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=_gravity))


def _gravity(finding: Finding) -> tuple[int, str]:
    return ("leak", "warning", "info").index(finding.severity), finding.fingerprint
