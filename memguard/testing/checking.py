"""`Checker`: runs the tests that are to be judged, again where they leave something, and tells."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from memguard.errors import LeakWarning
from memguard.parts import Parts
from memguard.sensors.births import Births
from memguard.testing import options, phases
from memguard.testing.options import EXPECTED, Wanted
from memguard.testing.runs import Runs

if TYPE_CHECKING:
    from memguard.records import Finding
    from memguard.triage import Triage


class Leaked(Exception):
    """A test left something behind; its message is the whole failure, headline first."""


class Mended(Leaked):
    """A test that is marked leaky left nothing behind: it fails, and has not leaked."""


@dataclass(slots=True)
class _Check:
    """One test under judgement.

    Attributes:
        passed: whether everything so far has.
        judged: whether what it leaves is judged; else only what it expects to be freed is.
        ruled: whether it was, since it had passed.
        again: whether it is being run once more, to see whether it leaves something each time.
        left: whether the last run left anything.
        globs: a doctest's variables, as they are before it runs.
        told: what is said in the progress line; see `plugin.pytest_report_teststatus`.
    """

    plan: Wanted
    runs: Runs
    judged: bool = True
    ruled: bool = False
    passed: bool = True
    again: bool = False
    left: bool = False
    told: str = "checked"
    globs: dict[str, Any] = field(default_factory=dict)
    row: dict[str, Any] | None = None
    text: str = ""
    seconds: float = 0.0


# The part whose failure fails no test.
_JUDGING = "judging tests"

_PLAN: pytest.StashKey[Wanted] = pytest.StashKey()
_CHECK: pytest.StashKey[_Check] = pytest.StashKey()


class Checker:
    """Judges tests by what they leave; a plugin that is registered only where one is asked for.

    Args:
        config: the session's.

    Raises:
        WrongOption: an option or ini value cannot be read.
    """

    def __init__(self, config: pytest.Config) -> None:
        get, ini = config.getoption, config.getini
        self.action = options.session_action(get("memguard"), ini("memguard"))
        repeat = get("memguard_repeat") or ini("memguard_repeat") or options.RUNS
        self.repeat = options.whole(repeat, "--memguard-repeat", 1)
        self.file = get("memguard_report") or ini("memguard_report")
        self._ignored = options.patterns(get("memguard_ignore") or (), ini("memguard_ignore"))
        self.rows: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.failures: dict[str, None] = {}
        self.judged = 0
        self.seconds = 0.0
        self._births: Births | None = None
        self._config = config
        self._parts = Parts(lambda: self.judged)
        self._is_worker = hasattr(config, "workerinput")

    def plan(self, items: list[pytest.Item]) -> None:
        """Read the marks of all tests.

        Raises:
            WrongOption: one of them has a value that cannot be read.
        """
        for item in items:
            plan = options.wanted(item, self.action, self.repeat)
            if plan is not None:
                item.stash[_PLAN] = plan

    # --- around the phases of a test ---

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """What is born from here on is the test's."""
        self._parts.do(_JUDGING, self._begin, item)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """What a wider-scoped fixture makes is not the test's."""
        if fixturedef.scope == "function" or self._births is None:
            return (yield)
        self._parts.do(_JUDGING, self._births.pause)
        try:
            return (yield)
        finally:
            self._parts.do(_JUDGING, self._births.resume)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Judge the test when it and its own fixtures are gone, and before wider ones go."""
        check = item.stash.get(_CHECK, None)
        if check is None:
            return (yield)
        try:
            with phases.only_the_test(item):
                result = yield
            phases.forget_fixtures(item)
            if check.again:
                check.left = bool(self._parts.do(_JUDGING, check.runs.end))
            else:
                self._judge(item, nextitem, check)
        finally:
            if not check.again:
                phases.tear_down_rest(item, nextitem)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note how the test went, and put what was found into the report."""
        report = yield
        check = item.stash.get(_CHECK, None)
        if call.excinfo is not None and isinstance(call.excinfo.value, Leaked):
            text = str(call.excinfo.value)
            report.longrepr = phases.as_failure(item, text)
            told = "mended" if isinstance(call.excinfo.value, Mended) else "leaked"
            report.memguard = told  # type: ignore[attr-defined]
        failures = self._parts.failures
        if failures:
            failed = [f"{one.part} failed: {one.error}" for one in failures.values()]
            report.memguard_failed = failed  # type: ignore[attr-defined]
        if check is None or check.again:
            return report
        check.passed = check.passed and report.passed and not hasattr(report, "wasxfail")
        if report.when == "call" and check.passed:
            report.memguard = "wait"  # type: ignore[attr-defined]
        elif report.when == "teardown":
            self._put_into(report, item, check)
        return report

    def _put_into(self, report: Any, item: pytest.Item, check: _Check) -> None:
        if check.passed:
            report.memguard = check.told
        if check.ruled:
            report.memguard_judged = check.seconds
        # Most tests leave nothing, and what each report holds is kept until the session ends.
        if check.row is not None:
            report.memguard_row = check.row
            report.memguard_text = check.text
            for name in ("outcome", "kind", "survivors", "bytes", "holder"):
                report.user_properties.append((f"memguard_{name}", check.row[name]))
        del item.stash[_CHECK]

    # --- judging ---

    def _begin(self, item: pytest.Item) -> None:
        check = item.stash.get(_CHECK, None)
        if check is None or not check.again:
            plan = item.stash.get(_PLAN, None)
            if plan is None and "memguard" not in getattr(item, "fixturenames", ()):
                return
            check = _Check(plan or Wanted(), Runs(self._sensor()), judged=plan is not None)
            # Running a doctest empties its variables.
            check.globs = dict(getattr(getattr(item, "dtest", None), "globs", ()))
            item.stash[_CHECK] = check
        check.runs.begin()

    def _sensor(self) -> Births:
        if self._births is None:
            self._births = Births()
            self._births.install()
        return self._births

    def _judge(self, item: pytest.Item, nextitem: pytest.Item | None, check: _Check) -> None:
        began = time.perf_counter()
        judged = check.passed and check.judged
        try:
            end = check.runs.end if judged else check.runs.abandon
            left = self._parts.do(_JUDGING, end)
            if check.passed:
                self._check_expected(item, check)
            if judged and left is not None:
                check.ruled = True
                self._rule(item, nextitem, check, left)
        finally:
            check.seconds = time.perf_counter() - began

    def _check_expected(self, item: pytest.Item, check: _Check) -> None:
        expected = item.stash.get(EXPECTED, [])
        if not expected:
            return
        from memguard.report import tests as telling
        from memguard.testing.asserting import outlives

        found = [(label, outlives(ref)) for ref, label in expected]
        expected.clear()
        for label, told in found:
            if told:
                check.ruled = True
                note = f"{label} was expected to be freed"
                check.row = telling.row(item.nodeid, "leaked", None, note=note)
                check.row |= {"kind": "stale", "survivors": 1}
                raise Leaked(telling.expected(label, told))

    def _rule(
        self, item: pytest.Item, nextitem: pytest.Item | None, check: _Check, left: bool
    ) -> None:
        plan, runs = check.plan, check.runs
        if not left and plan.leaky is None:
            return
        from memguard.report import tests as telling  # takes 15 ms, and most have nothing to tell

        while left and len(runs) < plan.repeat and runs.may_grow(plan.window):
            if not self._run_again(item, nextitem, check):
                self._note(item, check, None, "unconfirmed")
                return
            left = check.left
        if not left or not self._parts.do(_JUDGING, runs.grow, plan.window):
            if plan.leaky is not None and not self._parts.failures:
                raise Mended(telling.mended(item.name, plan.leaky))
            return
        # Explaining loads torch, which is there by now.
        from memguard.testing.code import stack_of
        from memguard.testing.leftovers import leftover

        try:
            finding, bound = leftover(runs.survivors(), runs.earlier(), item.name, stack_of(item))
        except Exception as error:  # a failure of ours fails no test
            self._note(item, check, None, "unexplained")
            check.text = f"{item.name} leaves something behind, and explaining it failed: {error!r}"
            return
        outcome = self._outcome(plan, finding, bound)
        check.text = telling.render(finding, len(runs))
        self._note(item, check, finding, outcome)
        if outcome == "known":
            check.told = "leaky"
        elif outcome == "leaked" and plan.action == "fail":
            raise Leaked(check.text)
        elif outcome == "leaked" and plan.action == "warn":
            try:
                item.warn(LeakWarning(check.text))
            except LeakWarning:  # filters turn warnings into errors
                raise Leaked(check.text) from None

    @functools.cached_property
    def _triage(self) -> Triage:
        from memguard.triage import Triage  # takes 15 ms with all that a finding is made of

        return Triage(self._ignored)

    def _outcome(self, plan: Wanted, finding: Finding, bound: int | None) -> str:
        total = finding.growth.total
        if plan.leaky is not None:
            return "known"
        sorted_out = self._triage.sort(finding)
        if sorted_out is None:
            return "ignored"
        if sorted_out.known is not None:
            return "library"
        if finding.kind in plan.allow or (plan.max_growth and total.bytes <= plan.max_growth):
            return "allowed"
        if plan.filter is not None and not plan.filter(finding):
            return "allowed"
        return "bounded" if bound is not None else "leaked"

    def _note(
        self, item: pytest.Item, check: _Check, finding: Finding | None, outcome: str
    ) -> None:
        from memguard.report import tests as telling

        note = {
            "unconfirmed": "left something, and failed when run once more",
            "known": check.plan.leaky or "",
        }
        check.row = telling.row(item.nodeid, outcome, finding, note=note.get(outcome, ""))

    def _run_again(self, item: Any, nextitem: pytest.Item | None, check: _Check) -> bool:
        """Run the test once more, untold; whether it passed."""
        check.again = True
        if check.globs:
            item.dtest.globs.update(check.globs)
        try:
            return phases.run_once_more(item, nextitem)
        finally:
            check.again = False

    # --- telling ---

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather what was found; on the controller of xdist what its workers found."""
        if getattr(report, "memguard", None) in ("leaked", "mended"):
            phases.fail_in_junit(self._config, report)
        self.failures.update(dict.fromkeys(getattr(report, "memguard_failed", ())))
        # What another plugin will run again as flaky is neither: its last run is what counts.
        over = report.passed or report.failed
        if not over or not hasattr(report, "memguard_judged"):
            return
        self.judged += 1
        self.seconds += report.memguard_judged
        if hasattr(report, "memguard_row"):
            row = {**report.memguard_row, "seconds": round(report.memguard_judged, 6)}
            self.rows.append(row)
            if not report.failed:
                self.texts.append(report.memguard_text)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let go of the process, and write the session's file."""
        if self._births is not None:
            self._parts.do("letting go", self._births.remove)
            self._births = None
        if not self.file or self._is_worker:
            return
        from memguard.report import tests as telling

        data = telling.session(self.rows, self.judged, self.seconds)
        try:
            with open(self.file, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
                file.write("\n")
        except OSError as error:
            session.config.issue_config_time_warning(
                pytest.PytestWarning(f"memguard: {self.file} cannot be written: {error}"), 2
            )

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """The table of what was left; more of it with -v, a line with -q."""
        verbosity = config.get_verbosity()
        lines = list(self.failures)
        if self.rows or verbosity > 0:
            from memguard.report import tests as telling

            lines = [*telling.closing(self.rows, self.judged, self.texts, verbosity), *lines]
        if lines:
            terminalreporter.section("memguard", sep="=")
            for line in lines:
                terminalreporter.write_line(line)
