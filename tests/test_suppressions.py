"""Suppressions: their patterns, their reasons, and what is told of them."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
from pathlib import Path

import pytest
import sample_reports
from conftest import Python
from programs import PRELUDE, Run

from memguard import Report, SettingsError
from memguard.patterns import Pattern
from memguard.records import Finding, Holder
from memguard.report import data, page, text
from memguard.settings import Settings
from memguard.triage import Triage

LEAK = """
def fit():
    losses = []
    for _ in range(40):
        losses.append(train_step(model, optimizer))
fit()
"""

# --- patterns ---

FINDING = sample_reports.RUNNING_SUM_FINDING
WITH_MODULES = dataclasses.replace(
    FINDING,
    holders=(
        dataclasses.replace(
            FINDING.holders[0],
            file="/home/ada/project/vision/train.py",
            modules=("vision.train", "torchmetrics.classification.roc"),
        ),
    ),
)


def is_ignored(finding: Finding, *patterns: str) -> bool:
    return Triage([Pattern(pattern) for pattern in patterns]).sort(finding) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "graph",
        "total_loss",
        "train.py",
        "*/train.py",
        "local of train_epoch",
        "3f9c1a",
        "blocks.11",
        "kind:graph",
        "holder:total_*",
        "holder:local of *",
        "file:*/vision/*",
        "file:train.py",
        "fingerprint:3f9c1a",
        "module:blocks.*",
        "module:vision.train",
        "module:torchmetrics.*",
        "module:project.vision.train",
        "kind:graph & holder:total_loss",
        "kind: graph",
    ],
)
def test_a_pattern_leaves_a_finding_out(pattern: str) -> None:
    """Fingerprint, kind, holder, file and module are matched, by field or whichever it is."""
    assert is_ignored(WITH_MODULES, "nothing", pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "tensor",
        "loss",
        "train_epoch",
        "evaluate.py",
        "kind:total_loss",
        "holder:graph",
        "file:blocks.11",
        "module:total_loss",
        "kind:graph & holder:history",
        "Total_loss",
        "module:torchmetrics",
    ],
)
def test_other_patterns_do_not(pattern: str) -> None:
    """A pattern is matched whole, in its own field, and all its parts must match."""
    assert not is_ignored(WITH_MODULES, pattern)


def test_brackets_mean_themselves() -> None:
    """Holders are written with them: `sums['loss'][...]`."""
    holder = Holder("sums['loss'][...]", "local of fit")
    finding = dataclasses.replace(FINDING, holders=(holder,))

    assert is_ignored(finding, "holder:sums['loss'][...]")
    assert not is_ignored(finding, "holder:sums['los']")
    assert not is_ignored(dataclasses.replace(finding, holders=(Holder("s", ""),)), "holder:[s]")


# --- several holders ---

HISTORY = dataclasses.replace(FINDING.holders[0], name="history", fix="history.clear()")
VENDORS = dataclasses.replace(FINDING.holders[0], name="cache", file="/job/vendor/x.py")
SEVERAL = dataclasses.replace(FINDING, holders=(HISTORY, VENDORS), advice="history.clear()")


def test_one_holder_ignored_leaves_the_others_told() -> None:
    """The other one is a leak of its own; advice and what is noted as ignored are each one's."""
    triage = Triage([Pattern("holder:history")])

    told = triage.sort(SEVERAL)

    assert told is not None
    assert told.holders == (VENDORS,)
    assert told.severity == "leak"
    assert VENDORS.fix in told.advice
    [ignored] = triage.ignored()
    assert ignored.finding.holders == (HISTORY,)
    assert [one.used for one in triage.suppressions()] == [1]


@pytest.mark.parametrize(
    "patterns",
    [
        ("holder:history", "holder:cache"),
        ("holder:*",),
        ("kind:graph",),
        ("fingerprint:3f9c1a",),
        ("module:blocks.11",),
    ],
)
def test_a_finding_is_ignored_when_no_holder_is_left(patterns: tuple[str, ...]) -> None:
    """Each by a pattern of its own, all by one, or the finding as such."""
    triage = Triage([Pattern(pattern) for pattern in patterns])

    assert triage.sort(SEVERAL) is None
    assert triage.ignored()[0].finding == SEVERAL


def test_parts_of_a_pattern_are_about_one_holder() -> None:
    """A file of one holder says nothing about the name of another."""
    mixed, true = "holder:history & file:*/vendor/*", "kind:graph & holder:cache & file:*/vendor/*"

    assert Triage([Pattern(mixed)]).sort(SEVERAL) == SEVERAL
    told = Triage([Pattern(true)]).sort(SEVERAL)
    assert told is not None
    assert told.holders == (HISTORY,)


# --- files of patterns ---

FILE = """\
# The plot at the end needs them;
# they are few.
holder:losses
kind:tensor & file:*/vendor/*   # issue 12: the vendor knows

fingerprint:3f9c1a
"""


def read(**keywords: object) -> tuple[Pattern, ...]:
    return Settings.read(keywords, {}).ignore


def test_a_file_gives_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments above the patterns or behind one are the reason; a blank line ends them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.txt").write_text(FILE)

    first, second, third = read(ignore="known.txt")

    assert (first, first.where) == ("holder:losses", "known.txt:3")
    assert first.reason == "The plot at the end needs them; they are few."
    assert (second, second.where) == ("kind:tensor & file:*/vendor/*", "known.txt:4")
    assert second.reason == "issue 12: the vendor knows"
    assert (third, third.reason) == ("fingerprint:3f9c1a", "")


def test_a_reason_can_stand_behind_a_pattern_anywhere() -> None:
    """In code, in pyproject.toml and in the environment as well."""
    [pattern] = read(ignore=["holder:losses  # plotted at the end"])

    assert (pattern, pattern.reason) == ("holder:losses", "plotted at the end")


def test_commas_part_only_what_is_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list says by itself where its patterns end; each piece of a text may be a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.txt").write_text("holder:x\n")
    (tmp_path / "a,b.txt").write_text("holder:y\n")

    assert read(ignore=["file:*/a,b/*"]) == ("file:*/a,b/*",)
    assert read(ignore="kind:graph, holder:z") == ("kind:graph", "holder:z")
    for given in ("kind:graph,known.txt", "known.txt , kind:graph"):
        assert set(read(ignore=given)) == {"kind:graph", "holder:x"}
    assert Settings.read({}, {"MEMGUARD_IGNORE": "kind:graph,known.txt"}).ignore[1:] == (
        "holder:x",
    )
    assert read(ignore=["known.txt", "a,b.txt"]) == ("holder:x", "holder:y")
    assert read(ignore="a,b.txt") == ("holder:y",)


@pytest.mark.parametrize("text", ["kind:graph&holder:total_loss", "kind:graph &holder:total_loss"])
def test_an_and_needs_no_blanks_before_a_field(text: str) -> None:
    """It cannot mean anything else; in the name of a file it stands for itself."""
    [pattern] = read(ignore=text)

    assert is_ignored(WITH_MODULES, pattern)
    assert not is_ignored(WITH_MODULES, "kind:graph&holder:other")
    place = dataclasses.replace(FINDING.holders[0], file="/job/r&d/a.py")
    assert is_ignored(dataclasses.replace(FINDING, holders=(place,)), "file:*/r&d/*")


def test_patterns_stay_what_they_are_when_copied() -> None:
    """Settings are pickled for workers, and may be read from settings again."""
    pattern = Pattern("holder:losses", "plotted", "known.txt:3")

    for same in (
        pickle.loads(pickle.dumps(pattern)),
        copy.deepcopy(pattern),
        *read(ignore=[pattern]),
    ):
        assert (same, same.reason, same.where) == ("holder:losses", "plotted", "known.txt:3")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "hodler:losses",
            "'hodler' is no field, known are fingerprint, kind, holder, file, module",
        ),
        ("missing.txt", "there is no such file"),
        ("kind:graph,missing.txt", "there is no such file"),
        ("holder:", "'holder:' has an empty part, which matches nothing"),
        ("kind:graph & ", "has an empty part"),
        ("kind:graph & holder:", "has an empty part"),
        (["& kind:graph"], "has an empty part"),
        ("empty.txt", "'file:' in empty.txt:1 has an empty part"),
        (Path("missing"), "it cannot be read"),
        ("wrong.txt", "'colour' in wrong.txt:2 is no field"),
    ],
)
def test_a_wrong_pattern_is_one_clear_error(
    value: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip of the pen would otherwise suppress nothing, or a whole list would be missing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("file:\n")
    (tmp_path / "wrong.txt").write_text("kind:graph\ncolour:red\n")

    with pytest.raises(SettingsError) as caught:
        read(ignore=value)

    assert said in str(caught.value)
    assert "; accepted: patterns, separated by commas" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_pattern_in_the_environment_does_not_stop_the_job() -> None:
    """It is told in one line and passed over."""
    settings = Settings.read({}, {"MEMGUARD_IGNORE": "hodler:losses"})

    assert settings.ignore == ()
    assert "'hodler' is no field" in settings.problems[0]


# --- what is told of it ---


def test_a_leak_beside_an_ignored_one_is_raised(tmp_path: Path) -> None:
    """Two lists share the graphs out; leaving out the one leaves the other a leak."""
    body = """
    class Log:
        def __init__(self): self.losses = []
    history, log = [], Log()
    for turn in range(60):
        (history if turn % 2 else log.losses).append(train_step(model, optimizer))
    """
    watch = "guard = memguard.watch(model, optimizer, ignore='holder:history')\n"

    run = Run(tmp_path, body, watch=watch)

    assert run.stopped
    assert [holder.name for holder in run.report.findings[0].holders] == ["log.losses"]
    assert [holder.name for holder in run.report.ignored[0].finding.holders] == ["history"]


def test_an_ignored_leak_is_not_raised_and_not_lost(tmp_path: Path) -> None:
    """The loop runs to its end; the report keeps the whole finding apart, and says by what."""
    watch = (
        "guard = memguard.watch(model, optimizer, "
        "ignore=['holder:losses  # plotted', 'kind:tensor'])\n"
    )
    run = Run(tmp_path, LEAK, watch=watch)

    assert not run.stopped
    assert run.report.findings == ()
    assert run.report.verdict == "clean"
    [ignored] = run.report.ignored
    assert ignored.finding.holders[0].name == "losses"
    assert (ignored.pattern, ignored.reason) == ("holder:losses", "plotted")
    assert [(one.pattern, one.used) for one in run.report.suppressions] == [
        ("holder:losses", 1),
        ("kind:tensor", 0),
    ]
    assert text.render(run.report).startswith("memguard: clean (1 ignored): nothing else kept")


def test_a_run_closes_with_how_many_were_ignored(python: Python, tmp_path: Path) -> None:
    """The last line of `memguard run` does not call clean what was only left out."""
    program = tmp_path / "train.py"
    program.write_text(PRELUDE + LEAK)

    ended = python("-m", "memguard", "run", "--ignore", "holder:losses", program)

    assert ended.returncode == 0
    assert re.match(r"memguard: clean \(1 ignored\): \d+ steps", ended.stderr)


def test_a_finding_made_again_is_counted_once() -> None:
    """A growing finding is looked at again and again; every pattern that matches is of use."""
    triage = Triage([Pattern("graph"), Pattern("total_loss"), Pattern("kind:tensor")])

    for step in (12, 15, 19):
        triage.sort(dataclasses.replace(FINDING, step=step))

    assert [one.used for one in triage.suppressions()] == [1, 1, 0]
    [ignored] = triage.ignored()
    assert (ignored.pattern, ignored.finding.step) == ("graph", 19)


def test_every_form_ends_with_suppressions_and_their_use() -> None:
    """Text, page and JSON say what was used, how often, and what never was."""
    report = sample_reports.ALL["ignored"]

    for told in (text.render(report), page.render(report)):
        assert "holder:total_loss (known.txt:2) left out 1 finding: plotted at the end" in told
        assert "3f9c1b never used" in told
    written = json.loads(data.dumps(report))
    assert [one["used"] for one in written["suppressions"]] == [0, 1, 0]
    assert written["ignored"][0]["finding"]["fingerprint"] == "3f9c1a"
    assert data.loads(data.dumps(report)) == report


def test_an_older_report_is_still_read() -> None:
    """Reports of before have no libraries, no ignored findings and no suppressions."""
    plain = sample_reports.RUNNING_SUM.to_dict()
    for name in ("libraries", "ignored", "suppressions"):
        del plain[name]
    del plain["findings"][0]["known"]
    del plain["findings"][0]["holders"][0]["modules"]

    assert Report.from_dict(plain) == sample_reports.RUNNING_SUM
