"""Reports as text: whole drawings, short ones, and what hostile input may not do to them."""

from __future__ import annotations

import io
import os
import re
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import sample_reports
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memguard.errors import LeakError
from memguard.failures import Failure
from memguard.judge.levers import advise
from memguard.ledgers import ROW_NAMES, Account, Ledger, Part, Row
from memguard.records import (
    Amount,
    CodeLine,
    Finding,
    Forecast,
    Growth,
    Holder,
    Report,
)
from memguard.report import ledger, page, text
from memguard.report.clean import clean, clean_lines, columns, fit

GOLDEN = Path(__file__).parent / "golden"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _golden(name: str, told: str) -> str:
    """The golden text; MEMGUARD_GOLDEN=write makes it anew from what is told now."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MEMGUARD_GOLDEN") == "write":
        path.write_text(told + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").removesuffix("\n")


@pytest.mark.parametrize("name", sample_reports.ALL)
def test_the_whole_report_reads_as_agreed(name: str) -> None:
    """Each finding users meet is drawn exactly as its golden file."""
    told = text.render(sample_reports.ALL[name])

    assert _golden(name, told) == told


@pytest.mark.parametrize("name", sample_reports.ALL)
def test_the_short_report_reads_as_agreed(name: str) -> None:
    """What goes into an exception is drawn exactly as its golden file, in 15 lines or so."""
    told = text.render(sample_reports.ALL[name], short=True)

    assert _golden(f"{name}.short", told) == told
    assert len(told.splitlines()) <= 15


def test_a_run_closes_with_one_line() -> None:
    """Steps, verdict, the first finding and memguard's own cost, each report in one line."""
    told = "\n".join(text.one_line(report) for report in sample_reports.ALL.values())

    assert len(told.splitlines()) == len(sample_reports.ALL)
    assert _golden("one_line", told) == told


def test_a_clean_run_closes_with_steps_beat_and_cost() -> None:
    """The closing line of a clean run says what was watched and at what price."""
    told = text.one_line(sample_reports.CLEAN)

    assert told == ("memguard: clean: 80 steps, beat optimizer; memguard took 0.31 % of the time")


def test_a_run_without_steps_is_not_called_healthy() -> None:
    """No step seen means nothing judged, and both tellings say so."""
    report = Report(verdict="clean", step=0)

    assert text.render(report).startswith(
        "memguard: clean: no step was seen, so nothing was judged"
    )
    assert text.one_line(report) == "memguard: clean: 0 steps, beat none: nothing was judged"


def test_a_plain_traceback_names_variable_line_and_fix() -> None:
    """The last lines of an uncaught error are the short report, headline first."""
    report = sample_reports.RUNNING_SUM
    error = LeakError(text.render(report, short=True), report)

    lines = "".join(traceback.format_exception_only(LeakError, error)).splitlines()

    assert lines[0] == (
        "memguard.LeakError: 9 past steps' autograd graphs are still alive, one more each step"
    )
    assert "  train.py:57 in train_epoch" in lines
    assert "     fix  total_loss += loss.item()" in lines


def test_no_forecast_is_no_forecast_line() -> None:
    """Where nobody can tell when memory ends, nothing is said about it."""
    finding = replace(sample_reports.RUNNING_SUM_FINDING, forecast=None)
    report = replace(sample_reports.RUNNING_SUM, findings=(finding,))

    assert "forecast" not in text.render(report)
    assert "forecast" in text.render(sample_reports.RUNNING_SUM)


def test_a_limit_already_reached_is_said_plainly() -> None:
    """No steps left is no arithmetic."""
    finding = replace(sample_reports.RUNNING_SUM_FINDING, forecast=Forecast(0, 0, 0, 2**30))

    told = text.render(replace(sample_reports.RUNNING_SUM, findings=(finding,)))

    assert "  forecast  memory is full any moment now (1 GiB limit)" in told.splitlines()


def test_without_a_pace_the_forecast_counts_steps_only() -> None:
    """No time is invented when steps were not timed."""
    told = text.render(replace(sample_reports.RUNNING_SUM, clock={"seconds_per_step": None}))

    assert "memory is full in about 240 steps (230 … 251; 8 GiB limit)" in told


def test_a_holder_without_source_is_still_named() -> None:
    """Without a file the place says so, and the holder's name and home stand below it."""
    holder = Holder(name="cache", where="global of __main__", type="dict", survivors=9)
    finding = replace(sample_reports.RUNNING_SUM_FINDING, holders=(holder,))
    report = replace(sample_reports.RUNNING_SUM, findings=(finding,))

    for told in (text.render(report), text.render(report, short=True)):
        lines = told.splitlines()
        assert "  no source at hand" in lines
        assert "     who  cache (dict), global of __main__, keeps 9 graphs" in lines
        assert "     fix  Add total_loss up as a number: loss.item(), or loss.detach()." in lines


def test_a_statement_outside_its_context_is_shown_all_the_same() -> None:
    """The marked line never goes missing, whatever lines came with it."""
    finding = sample_reports.RUNNING_SUM_FINDING
    holder = replace(finding.holders[0], context=(CodeLine(56, "loss.backward()"),))
    report = replace(sample_reports.RUNNING_SUM, findings=(replace(finding, holders=(holder,)),))

    assert "     56   loss.backward()\n  >  57   total_loss += loss\n" in text.render(report)


def test_a_source_line_stays_one_line() -> None:
    """What claims to be one line but holds several cannot forge others."""
    finding = sample_reports.RUNNING_SUM_FINDING
    holder = replace(finding.holders[0], context=(CodeLine(57, "  total += loss\n  >  58   fine"),))
    report = replace(sample_reports.RUNNING_SUM, findings=(replace(finding, holders=(holder,)),))

    assert "  >  57   total += loss\\n  >  58   fine" in text.render(report).splitlines()


def test_growth_beyond_numbers_is_left_out() -> None:
    """An infinite average is nothing to tell."""
    endless = Growth(Amount(float("inf"), 8, 2**21), Amount(9, 72, 9 * 2**21))
    finding = replace(sample_reports.RUNNING_SUM_FINDING, growth=endless)

    told = text.render(replace(sample_reports.RUNNING_SUM, findings=(finding,)))

    assert "  growth    +2 MiB a step since step 3" in told.splitlines()


def test_a_long_chain_loses_its_middle() -> None:
    """Root and survivors stay; how much was left out is said."""
    finding = sample_reports.RUNNING_SUM_FINDING
    chain = ("thread MainThread", *(f".part{i}: Node" for i in range(60)), ".loss: Tensor")
    holder = replace(finding.holders[0], name="loss", chain=chain)
    report = replace(sample_reports.RUNNING_SUM, findings=(replace(finding, holders=(holder,)),))

    told = text.render(report)

    assert "└─ … 49 references left out" in told
    assert told.count("└─") == 14
    assert "└─ .loss: Tensor" in told


@pytest.mark.parametrize(
    ("name", "entry", "underlined"),
    [
        ("encode(...)", "cache encode: dict of 9", "encode"),
        ("trainer.history", ".history: list of 9", "history"),
        ("self.history", "attribute self.history: list of 9", "self.history"),
        ("loss", "local loss_sum: Tensor", "local loss_sum"),
    ],
)
def test_the_underline_finds_the_holder_in_its_reference(
    name: str, entry: str, underlined: str
) -> None:
    """The name as typed, else its last part, else the whole last reference."""
    finding = sample_reports.RUNNING_SUM_FINDING
    holder = replace(finding.holders[0], name=name, chain=("module train (main)", entry))
    report = replace(sample_reports.RUNNING_SUM, findings=(replace(finding, holders=(holder,)),))

    drawn, tildes = text.render(report).split("  └─ ", 1)[1].splitlines()[:2]
    start = tildes.index("~") - len("  └─ ")

    assert drawn == entry
    assert drawn[start : start + tildes.count("~")] == underlined


def test_the_suspect_stretch_is_underlined_under_wide_names_too() -> None:
    """The underline begins and ends below the name, in terminal columns."""
    finding = sample_reports.RUNNING_SUM_FINDING
    holder = replace(finding.holders[0], name="損失", chain=("module 訓練", "訓練.損失: Tensor"))
    report = replace(sample_reports.RUNNING_SUM, findings=(replace(finding, holders=(holder,)),))

    assert "  └─ 訓練.損失: Tensor\n          ~~~~\n" in text.render(report)


def test_ranks_of_a_distributed_job_are_told() -> None:
    """The last line says whose report this is, unless the job has one process."""
    report = sample_reports.CLEAN
    alone, third = {"rank": 0, "world_size": 1}, {"rank": 3, "world_size": 8}

    assert "; rank 3; " in text.render(replace(report, environment=third))
    assert "rank" not in text.render(replace(report, environment=alone))


def test_colour_only_adds_colour() -> None:
    """Without its colour codes the coloured text is the plain one."""
    for report in sample_reports.ALL.values():
        painted = text.render(report, color=True)

        assert "\x1b[" in painted
        assert ANSI.sub("", painted) == text.render(report)


def test_sentences_wrap_at_the_width_asked_for() -> None:
    """Narrow text keeps labels and words in their columns."""
    told = text.render(sample_reports.RUNNING_SUM, width=60)

    why = told[told.index("     why") : told.index("     fix")].splitlines()
    assert len(why) == 3
    assert all(len(line) <= 60 for line in why)
    assert all(line.startswith(" " * 10) for line in why[1:])


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    """A terminal that knows colour, in an environment that says nothing about it."""
    for variable in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return _Terminal()


def test_terminals_get_colour(terminal: _Terminal) -> None:
    """A terminal is painted on, and gets the same words."""
    text.print_report(sample_reports.HOOK, terminal)

    assert "\x1b[1;31mleak\x1b[0m" in terminal.getvalue()


def test_no_color_is_respected(terminal: _Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR silences colour, and asking for colour outright overrides it."""
    monkeypatch.setenv("NO_COLOR", "1")
    text.print_report(sample_reports.HOOK, terminal)
    assert "\x1b" not in terminal.getvalue()

    text.print_report(sample_reports.HOOK, terminal, color=True)
    assert "\x1b" in terminal.getvalue()


def test_a_dumb_terminal_gets_no_colour(
    terminal: _Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that cannot paint is not painted on."""
    monkeypatch.setenv("TERM", "dumb")

    text.print_report(sample_reports.HOOK, terminal)

    assert "\x1b" not in terminal.getvalue()


def test_colour_needs_no_rich(terminal: _Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rich a terminal is still recognised."""
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)

    text.print_report(sample_reports.HOOK, terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    plain, silenced = io.StringIO(), _Terminal()
    text.print_report(sample_reports.HOOK, plain)
    text.print_report(sample_reports.HOOK, silenced)

    assert "\x1b[1;31mleak\x1b[0m" in terminal.getvalue()
    assert plain.getvalue() == text.render(sample_reports.HOOK) + "\n"
    assert "\x1b" not in silenced.getvalue()


def test_files_and_pipes_get_the_plain_text() -> None:
    """What is no terminal gets the text as it is, with a final newline."""
    stream = io.StringIO()

    text.print_report(sample_reports.SEVERAL, stream)

    assert stream.getvalue() == text.render(sample_reports.SEVERAL) + "\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "shift-jis", "utf-8"])
def test_any_encoding_can_carry_a_report(encoding: str) -> None:
    """Where the drawing characters are missing the tree is drawn in ASCII."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n")

    text.print_report(sample_reports.RUNNING_SUM, stream)

    told = raw.getvalue().decode(encoding)
    assert "total_loss" in told
    if encoding in ("ascii", "latin-1"):
        assert "  +- frame train_epoch (train.py:57)" in told.splitlines()
        assert "(230 ... 251; 8 GiB limit)" in told


def test_an_unknown_encoding_means_ascii() -> None:
    """A stream that names an encoding nobody knows gets ASCII."""
    assert fit("└─ µ \N{SNOWMAN}", "klingon") == "+- u \\u2603"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("plain `name`", "plain `name`"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("two\nlines\r\n", "two\\nlines\\r\\n"),
        ("bell\a, C1 \x9b2J", "bell\\x07, C1 \\x9b2J"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("wide\u3000and\xa0fixed", "wide and fixed"),
        ("paragraph\u2029", "paragraph\\u2029"),
    ],
)
def test_foreign_text_is_made_harmless(found: str, said: str) -> None:
    """Control characters are shown, not obeyed; readable text stays as it is."""
    assert said == clean(found)


def test_long_text_is_shortened_at_the_end_that_says_least() -> None:
    """Names lose their end, paths their beginning, and both say so."""
    assert clean("abcdef", 4) == "abc…"
    assert clean("/a/long/path/train.py", 9, keep_end=True) == "…train.py"
    assert clean("abcd", 4) == "abcd"
    assert len(clean("\x1b" * 10**6, 50)) == 50


def test_source_keeps_its_lines_and_loses_its_tail() -> None:
    """Statements may span lines, but not a screen."""
    assert clean_lines("f(\n\tx,\r\n)") == ["f(", "    x,", ")"]
    assert clean_lines("a\nb\nc", most=2) == ["a", "b", "…"]


@given(st.text(), st.integers(min_value=1, max_value=50), st.booleans())
def test_clean_text_is_one_printable_line_within_its_limit(
    found: str, limit: int, keep_end: bool
) -> None:
    """Whatever comes in, what goes out is printable and short, and stays so."""
    said = clean(found, limit, keep_end=keep_end)

    assert said.isprintable()
    assert len(said) <= limit
    assert clean(said, limit, keep_end=keep_end) == said
    said.encode("utf-8")


@given(st.text())
def test_columns_of_ascii_are_its_characters(found: str) -> None:
    """Wide characters count twice at most."""
    assert columns("abc") == 3
    assert columns("e\N{COMBINING ACUTE ACCENT}") == 1
    assert 0 <= columns(found) <= 2 * len(found)


def test_a_megabyte_of_name_is_a_name_like_others() -> None:
    """Size alone cannot flood a terminal or an exception."""
    huge = "x\x1b" * 2**19
    finding = sample_reports.RUNNING_SUM_FINDING
    holder = Holder(huge, huge, huge, 3, huge, huge, chain=(huge,) * 50, why=huge, fix=huge)
    finding = replace(finding, summary=huge, modules=(huge,), advice=huge, holders=(holder,))
    report = replace(sample_reports.RUNNING_SUM, findings=(finding,), failures=())

    assert len(text.render(report)) < 8_000
    assert len(text.render(report, short=True)) < 3_000


EVIL = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "\x1b]0;owned\x07",
            "</pre><script>alert(1)</script>",
            "a\nmemguard: clean: nothing kept growing",
            "\ud800",
            "%s %(x)s {0}",
            "y" * 5_000,
            "\u202e",
            "\r",
        ]
    ),
)
NUMBERS = st.integers(min_value=-(10**30), max_value=10**30)
TEXTS = st.lists(EVIL, max_size=4).map(tuple)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
AMOUNTS = st.builds(Amount, FLOATS, NUMBERS, NUMBERS)
HOLDERS = st.builds(
    Holder,
    name=EVIL,
    where=EVIL,
    file=st.none() | EVIL,
    line=st.none() | NUMBERS,
    code=st.none() | EVIL,
    type=EVIL,
    survivors=NUMBERS,
    bytes=NUMBERS,
    chain=st.lists(EVIL, max_size=30).map(tuple),
    created=TEXTS,
    function=st.none() | EVIL,
    context=st.lists(st.builds(CodeLine, st.integers(0, 20), EVIL), max_size=5).map(tuple),
    why=EVIL,
    fix=st.none() | EVIL,
    alternative=st.none() | EVIL,
    bound=st.none() | NUMBERS,
)
FINDINGS = st.builds(
    Finding,
    kind=st.sampled_from(["graph", "tensor", "cycle", "host", "stale", "grad"]),
    severity=st.sampled_from(["leak", "warning", "info"]),
    summary=EVIL,
    fingerprint=EVIL,
    first_step=NUMBERS,
    step=NUMBERS,
    growth=st.builds(Growth, AMOUNTS, AMOUNTS),
    forecast=st.none() | st.builds(Forecast, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    modules=TEXTS,
    holders=st.lists(HOLDERS, max_size=3).map(tuple),
    advice=EVIL,
    reason=EVIL,
    saved_bytes=NUMBERS,
    steps=st.none() | st.tuples(NUMBERS, NUMBERS),
)
ODD = st.none() | st.booleans() | FLOATS | NUMBERS | EVIL | st.lists(st.none() | EVIL, max_size=2)
FREE = st.dictionaries(
    EVIL | st.sampled_from(["beat", "share", "seconds_per_step", "host_bytes", "rank"]),
    ODD,
    max_size=4,
)
DEVICES = st.lists(FREE | ODD, max_size=3).map(lambda found: {"devices": found, "host_bytes": 1})
PARTS = st.builds(Part, EVIL, NUMBERS, NUMBERS, EVIL)
SIZES = st.dictionaries(EVIL, NUMBERS, max_size=5)
ROWS = st.builds(
    Row,
    st.sampled_from(ROW_NAMES),
    NUMBERS,
    NUMBERS,
    SIZES,
    NUMBERS,
    st.lists(PARTS, max_size=7).map(tuple),
)
ACCOUNTS = st.builds(
    Account,
    EVIL | st.just("cpu"),
    st.lists(ROWS, max_size=6).map(tuple),
    NUMBERS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    NUMBERS,
)
LEDGERS = st.builds(
    Ledger, st.lists(ACCOUNTS, max_size=3).map(tuple), st.booleans(), TEXTS, NUMBERS
)
REPORTS = st.builds(
    Report,
    verdict=st.sampled_from(["leak", "suspect", "clean"]),
    step=NUMBERS,
    findings=st.lists(FINDINGS, max_size=3).map(tuple),
    ledger=LEDGERS,
    clock=FREE,
    overhead=FREE,
    environment=FREE,
    memory=FREE | DEVICES,
    failures=st.lists(st.builds(Failure, EVIL, EVIL, NUMBERS), max_size=4).map(tuple),
)


@settings(max_examples=50, deadline=None)
@given(REPORTS, st.booleans())
@example(sample_reports.SEVERAL, False)
def test_no_report_can_break_the_telling(report: Report, short: bool) -> None:
    """Hostile names and numbers neither raise, nor move a cursor, nor fill a screen."""
    told = text.render(report, short=short)

    assert not CONTROL.search(told)
    assert len(told.splitlines()) < 400
    assert len(told) < 60_000
    told.encode("utf-8")
    closing = text.one_line(report)
    assert "\n" not in closing
    assert not CONTROL.search(closing)


@settings(max_examples=50, deadline=None)
@given(LEDGERS, st.booleans())
@example(sample_reports.LEDGER, False)
def test_no_ledger_can_break_its_table(found: Ledger, leaking: bool) -> None:
    """Nor do hostile ledgers, whatever levers they seem to ask for."""
    told = ledger.render(found, advise(found, leaking=leaking))

    assert not CONTROL.search(told)
    assert len(told.splitlines()) < 400
    assert len(told) < 60_000
    told.encode("utf-8")


@settings(max_examples=50, deadline=None)
@given(REPORTS)
def test_no_report_can_break_the_page(report: Report) -> None:
    """Foreign text cannot end an element or begin one."""
    told = page.render(report)

    assert "<script" not in told
    assert not CONTROL.search(told)
    told.encode("utf-8")


def test_a_file_below_the_current_folder_is_shown_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal opens the shorter path just as well; other files keep their whole path."""
    monkeypatch.chdir(tmp_path)
    [finding] = sample_reports.RUNNING_SUM.findings
    [holder, *_] = finding.holders
    for file, shown in [
        (str(tmp_path / "jobs" / "train.py"), "  jobs/train.py:57 in"),
        ("/elsewhere/train.py", "  /elsewhere/train.py:57 in"),
    ]:
        moved = replace(finding, holders=(replace(holder, file=file),))
        report = replace(sample_reports.RUNNING_SUM, findings=(moved,))
        assert shown in text.render(report)
