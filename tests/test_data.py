"""Reports as JSON and as files: what is written reads back, and nothing is half written."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import sample_reports
from hypothesis import given
from hypothesis import strategies as st

from memguard import failures, ledgers, records
from memguard.errors import ReportError
from memguard.records import Amount, Growth, Report
from memguard.report import data, page, text

# The shape promised to whoever reads reports with other tools.
PROMISED = """
{"schema": "memguard.report/1", "verdict": "leak", "step": 12,
 "findings": [{
   "kind": "graph", "severity": "leak", "summary": "…", "fingerprint": "…",
   "first_step": 3, "step": 12,
   "growth": {"per_step": {"graphs": 1.0, "nodes": 801, "bytes": 32714752},
              "total":    {"graphs": 9,   "nodes": 7209, "bytes": 294432768}},
   "forecast": {"steps": 240, "low": 230, "high": 251, "limit": 8589934592},
   "modules": ["blocks.1.mlp"],
   "holders": [{
     "name": "total_loss", "where": "local of train_epoch", "file": "train.py", "line": 57,
     "code": "total_loss += loss", "type": "Tensor", "survivors": 9, "bytes": 294432768,
     "chain": ["thread MainThread", "frame train_epoch (train.py:57)", "local total_loss", "…"],
     "created": ["train.py:55 in train_epoch", "…"]}],
   "advice": "…"}],
 "ledger": {}, "clock": {}, "overhead": {}, "environment": {}}
"""


def _validate(found: Any) -> None:
    jsonschema.Draft202012Validator(data.schema()).validate(found)


def _same_shape(promised: Any, found: Any) -> bool:
    """Whether `found` has every field promised, of the same JSON type; more fields are welcome."""
    if isinstance(promised, dict):
        return isinstance(found, dict) and all(
            key in found and _same_shape(value, found[key]) for key, value in promised.items()
        )
    if isinstance(promised, list):
        return isinstance(found, list) and all(_same_shape(promised[0], item) for item in found)
    numbers = isinstance(promised, (int, float)) and isinstance(found, (int, float))
    return numbers or type(promised) is type(found)


@pytest.mark.parametrize("name", sample_reports.ALL)
def test_what_is_written_reads_back_the_same(name: str) -> None:
    """A report survives being saved, to the last field."""
    report = sample_reports.ALL[name]

    again = data.loads(data.dumps(report))

    assert report == again
    assert text.render(report) == text.render(again)


@pytest.mark.parametrize("name", sample_reports.ALL)
def test_what_is_written_obeys_the_schema(name: str) -> None:
    """Every kind of report is valid by the schema that ships."""
    _validate(json.loads(data.dumps(sample_reports.ALL[name])))


def test_the_promised_shape_is_kept() -> None:
    """The promised report is valid, can be told, and what is written has all its fields."""
    promised = json.loads(PROMISED)

    _validate(promised)
    assert "  train.py:57\n" in text.render(data.loads(PROMISED))
    assert _same_shape(promised, json.loads(data.dumps(sample_reports.RUNNING_SUM)))
    assert not _same_shape(promised, {**promised, "findings": [{"kind": "graph"}]})


def test_fields_stay_in_order() -> None:
    """Two reports differ only where they differ: the order of fields is fixed."""
    written = json.loads(data.dumps(sample_reports.RUNNING_SUM))

    assert list(written) == ["schema", *(f.name for f in dataclasses.fields(Report)[:-1])]
    assert list(written["findings"][0])[:4] == ["kind", "severity", "summary", "fingerprint"]


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (records.Report, None),
        (records.Finding, "finding"),
        (records.Holder, "holder"),
        (records.Growth, "growth"),
        (records.Amount, "amount"),
        (records.Forecast, "forecast"),
        (records.CodeLine, "code_line"),
        (failures.Failure, "failure"),
        (ledgers.Ledger, "ledger"),
        (ledgers.Account, "account"),
        (ledgers.Row, "row"),
        (ledgers.Part, "part"),
    ],
)
def test_the_schema_knows_every_field(record: type, name: str | None) -> None:
    """Schema and records name the same fields and require the same of them."""
    whole = data.schema()
    part = whole["$defs"][name] if name else whole
    fields = dataclasses.fields(record)
    needed = [
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]

    assert {f.name for f in fields} == set(part["properties"])
    assert set(part.get("required", ())) - {"schema"} == set(needed)


def test_the_schema_knows_every_word() -> None:
    """Verdicts, kinds and severities are the records' own."""
    whole = data.schema()
    finding = whole["$defs"]["finding"]["properties"]

    jsonschema.Draft202012Validator.check_schema(whole)
    assert tuple(whole["properties"]["verdict"]["enum"]) == typing.get_args(records.Verdict)
    assert tuple(finding["kind"]["enum"]) == typing.get_args(records.Kind)
    assert tuple(finding["severity"]["enum"]) == typing.get_args(records.Severity)
    assert tuple(whole["$defs"]["row"]["properties"]["name"]["enum"]) == ledgers.ROW_NAMES


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "memguard.report/2"},
        {"verdict": "fine"},
        {"step": "12"},
        {"findings": [{"kind": "graph"}]},
        {"failures": [3]},
        {"clock": []},
        {"ledger": []},
        {"ledger": {"accounts": [{"rows": []}]}},
        {"ledger": {"accounts": [{"device": "cpu", "rows": [{"name": "gold", "bytes": 1}]}]}},
        {
            "ledger": {
                "accounts": [
                    {
                        "device": "cpu",
                        "rows": [{"name": "other", "bytes": 1, "dtypes": {"float32": "much"}}],
                    }
                ]
            }
        },
    ],
)
def test_schema_and_reader_refuse_the_same(change: dict[str, Any]) -> None:
    """What the schema calls wrong cannot be read either."""
    wrong = {**json.loads(PROMISED), **change}

    with pytest.raises(jsonschema.ValidationError):
        _validate(wrong)
    with pytest.raises(ReportError):
        data.loads(json.dumps(wrong))


def test_newer_fields_are_passed_over() -> None:
    """A report of a later version of the same schema is still read."""
    newer = json.loads(PROMISED)
    newer["weather"] = "rain"
    newer["findings"][0]["holders"][0]["mood"] = 3

    _validate(newer)
    assert data.loads(json.dumps(newer)) == data.loads(PROMISED)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("", "found no JSON"),
        ("memguard: leak: 9 past steps", "found no JSON"),
        ("[]", "found list, wanted an object"),
        ("{}", "schema is None, wanted 'memguard.report/1'"),
        ('{"schema": "memguard.report/1", "step": 3}', "lacks 'verdict'"),
        ('{"schema": "memguard.report/1", "verdict": "leak", "step": NaN}', "found NaN"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff\xfe\xfa", "found bytes that are no UTF-8 text"),
        ('{"schema": "%s"}' % ("x" * 10**6), "schema is 'xxx"),
    ],
)
def test_what_is_no_report_is_refused_in_one_clear_line(found: str | bytes, said: str) -> None:
    """The message says what was found, and does not repeat the file."""
    with pytest.raises(ReportError) as caught:
        data.loads(found)

    assert str(caught.value).startswith("reading a report: ")
    assert said in str(caught.value)
    assert len(str(caught.value)) <= 400
    assert "\n" not in str(caught.value)


def test_numbers_json_lacks_are_left_out() -> None:
    """NaN and infinities never reach a file, wherever they come from."""
    endless = Growth(Amount(math.inf, 1, 1), Amount(math.nan, 1, 1))
    report = replace(
        sample_reports.RUNNING_SUM,
        findings=(replace(sample_reports.RUNNING_SUM_FINDING, growth=endless),),
        clock={"seconds_per_step": math.nan, "all": [math.inf, 1.5]},
        overhead={"share": -math.inf},
    )

    again = data.loads(data.dumps(report))

    assert again.findings[0].growth.per_step == Amount(0, 1, 1)
    assert again.clock == {"seconds_per_step": None, "all": [None, 1.5]}
    assert again.overhead == {"share": None}


@given(st.text(), st.text())
def test_any_text_survives(name: str, file: str) -> None:
    """Lone surrogates of undecodable file names come back as they were, in plain ASCII."""
    finding = sample_reports.RUNNING_SUM_FINDING
    holder = replace(finding.holders[0], name=name, file=file)
    report = replace(sample_reports.RUNNING_SUM, findings=(replace(finding, holders=(holder,)),))

    written = data.dumps(report)

    assert written.isascii()
    assert report == data.loads(written)


def test_foreign_values_in_free_fields_are_written_as_text() -> None:
    """A path among the environment's values does not stop the report."""
    report = replace(sample_reports.CLEAN, environment={"folder": Path("here")})

    assert data.loads(data.dumps(report)).environment == {"folder": "here"}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("report.json", data.dumps),
        ("report.HTML", page.render),
        ("report.txt", text.render),
        ("report", text.render),
        ("report.log", text.render),
    ],
)
def test_a_files_ending_chooses_its_form(tmp_path: Path, name: str, form: Any) -> None:
    """JSON, page or text, each ending with one newline."""
    data.save(sample_reports.SEVERAL, tmp_path / name)

    written = (tmp_path / name).read_text(encoding="utf-8")
    assert written == form(sample_reports.SEVERAL).rstrip("\n") + "\n"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_saving_replaces_and_keeps_the_usual_permissions(tmp_path: Path) -> None:
    """A report over an old one is whole, and readable by whom the umask lets."""
    path, usual = tmp_path / "report.json", tmp_path / "usual"
    path.write_text("x" * 10**6)
    usual.touch()

    data.save(sample_reports.CLEAN, str(path))

    assert data.loads(path.read_bytes()) == sample_reports.CLEAN
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_a_failed_save_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last move fails the old file stays and no draft is left."""
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)

    with pytest.raises(OSError, match="No space left"):
        data.save(sample_reports.CLEAN, path)

    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "old"


def test_missing_folders_are_not_made(tmp_path: Path) -> None:
    """A mistyped folder is an error, not a new folder."""
    with pytest.raises(FileNotFoundError):
        data.save(sample_reports.CLEAN, tmp_path / "nowhere" / "report.json")

    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The file a link points to is replaced, the link stays."""
    real, link = tmp_path / "real.json", tmp_path / "latest.json"
    real.write_text("old")
    link.symlink_to(real)

    data.save(sample_reports.CLEAN, link)

    assert link.is_symlink()
    assert data.loads(real.read_bytes()) == sample_reports.CLEAN


@pytest.mark.skipif(os.name != "posix", reason="named pipes are made differently elsewhere")
def test_pipes_are_written_to_not_replaced(tmp_path: Path) -> None:
    """Whoever reads a named pipe gets the report, and the pipe is still one afterwards."""
    pipe = tmp_path / "reports.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data.save(sample_reports.CLEAN, pipe)

        assert data.loads(os.read(reader, 2**16)) == sample_reports.CLEAN
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_placeholders_are_filled_in() -> None:
    """Rank, process and step find their places; other braces are the user's own."""
    template = "out/{rank}-{pid}-{step}-{other}-{}.json"

    assert data.expand(template, rank=3, pid=42, step=7) == "out/3-42-7-{other}-{}.json"
    assert data.expand(Path("{pid}.txt")) == f"{os.getpid()}.txt"
