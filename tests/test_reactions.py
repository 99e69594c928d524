"""What happens with a report, and that nothing but `raise` can end the job."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sample_reports

from memguard import reactions
from memguard.errors import LeakError, LeakWarning, MemguardWarning, SettingsError
from memguard.records import Report
from memguard.report import data, text

LEAK = sample_reports.RUNNING_SUM
SHORT = text.render(LEAK, short=True)


class _BrokenHandler(logging.Handler):
    def emit(self, _: logging.LogRecord) -> None:
        raise OSError("stderr is gone")


@pytest.fixture
def logged() -> Iterator[logging.Logger]:
    """The logger `memguard`, as it was before afterwards."""
    logger = logging.getLogger("memguard")
    before = logger.handlers[:], logger.propagate
    yield logger
    logger.handlers[:], logger.propagate = before


def _caught(report: Report, times: int = 1) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(times):
            reactions.warn(report)
    return caught


def test_raise_raises_the_short_report_with_the_whole_one_attached() -> None:
    """Whoever catches the error has all of it."""
    with pytest.raises(LeakError) as caught:
        reactions.react("raise", LEAK)

    assert str(caught.value) == SHORT
    assert caught.value.report is LEAK


def test_raise_only_warns_of_what_is_no_confirmed_leak() -> None:
    """A suspicion or a warning never ends the job."""
    for report in (sample_reports.SUSPECT, sample_reports.TENSOR_WARNING):
        with pytest.warns(LeakWarning):
            reactions.react("raise", report)


def test_warnings_stand_at_the_line_that_leaks() -> None:
    """A warning points at the holder's statement, not at memguard."""
    (caught,) = _caught(LEAK)

    assert (caught.filename, caught.lineno) == ("train.py", 57)
    assert caught.category is LeakWarning
    assert str(caught.message) == SHORT


def test_warnings_without_a_statement_stand_at_the_callers_line() -> None:
    """Where no line is known the user's running line is named, past memguard's own frames."""
    (caught,) = _caught(sample_reports.UNHELD)

    assert caught.filename == __file__


def test_a_second_leak_at_the_same_line_is_told_too() -> None:
    """No warning is lost as a repetition."""
    assert len(_caught(LEAK, times=2)) == 2


def test_warning_filters_know_the_file_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter on the module, or on `__main__` for the script itself, silences the warning."""
    for module in ("train", "__main__"):
        if module == "__main__":
            monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", module=f"{module}$")
            reactions.warn(LEAK)
        assert caught == []


def test_warnings_made_errors_are_raised() -> None:
    """Who asks for warnings as errors gets the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LeakWarning, match="9 past steps"):
            reactions.react("warn", LEAK)


def test_a_broken_display_of_warnings_does_not_end_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hook that cannot show a warning is survived."""
    called = []

    def broken(*args: object, **_: object) -> None:
        called.append(args)
        raise ValueError("I/O operation on closed file")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", broken)
        reactions.react("warn", LEAK)

    assert len(called) == 1


@pytest.mark.parametrize(
    ("report", "level"),
    [
        (LEAK, logging.ERROR),
        (sample_reports.SUSPECT, logging.WARNING),
        (sample_reports.TENSOR_WARNING, logging.WARNING),
    ],
)
def test_logging_carries_the_report(
    caplog: pytest.LogCaptureFixture, report: Report, level: int
) -> None:
    """Leaks are errors, the rest warnings, and the record holds the report as plain data."""
    reactions.react("log", report)

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("memguard", level)
    assert record.getMessage() == text.render(report, short=True)
    assert Report.from_dict(record.memguard) == report  # type: ignore[attr-defined]


def test_percent_signs_in_a_report_are_no_format(caplog: pytest.LogCaptureFixture) -> None:
    """The user's code is logged as it is."""
    finding = replace(sample_reports.RUNNING_SUM_FINDING, summary="100% of %s and %(name)s")

    reactions.log(replace(LEAK, findings=(finding,)))

    assert caplog.records[0].getMessage().startswith("100% of %s and %(name)s")


def test_a_broken_log_handler_does_not_end_the_job(logged: logging.Logger) -> None:
    """What a handler raises is survived."""
    logged.addHandler(_BrokenHandler())
    logged.propagate = False
    with pytest.raises(OSError, match="stderr is gone"):
        logged.error("this handler does raise")

    reactions.react("log", LEAK)


@pytest.mark.parametrize("action", ["raise", "warn", "log"])
def test_a_clean_report_causes_nothing(
    action: reactions.Action, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing found, nothing said."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reactions.react(action, sample_reports.CLEAN)

    assert caplog.records == []


def test_off_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """Switched off means silent even about a leak."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reactions.react("off", LEAK)

    assert caplog.records == []


def test_a_function_is_called_with_the_report() -> None:
    """The user's own reaction gets the report, and may raise."""
    seen: list[Report] = []

    def stop(report: Report) -> None:
        seen.append(report)
        raise StopIteration("enough")

    with pytest.raises(StopIteration, match="enough"):
        reactions.react(stop, LEAK)
    assert seen == [LEAK]


def test_an_unknown_action_is_refused_with_the_known_ones() -> None:
    """A mistyped action is named beside what is accepted."""
    with pytest.raises(SettingsError, match="'rise', accepted: raise, warn, log, stop, off"):
        reactions.react("rise", LEAK)  # type: ignore[arg-type]


def test_reports_are_written_where_the_template_says(tmp_path: Path) -> None:
    """Rank, process and step of the report fill the path, and the path is returned."""
    path = reactions.write(LEAK, f"{tmp_path}/{{rank}}-{{pid}}-{{step}}.json", 2, 99)

    assert path == f"{tmp_path}/2-99-12.json"
    assert data.loads(Path(path).read_bytes()) == LEAK


@pytest.mark.parametrize("template", ["missing/report.json", "nul\0.json", "."])
def test_a_report_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    """Path and reason are told, nothing is raised, no path is returned."""
    monkeypatch.chdir(tmp_path)
    with pytest.warns(MemguardWarning, match="cannot write report to ") as caught:
        assert reactions.write(LEAK, template) is None

    assert caught[0].filename == __file__
    assert list(tmp_path.iterdir()) == []


def test_even_warnings_as_errors_do_not_make_writing_raise() -> None:
    """The job survives a missing folder under strict filters as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reactions.write(LEAK, "missing/folder/report.json") is None
