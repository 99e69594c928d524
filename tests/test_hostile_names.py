"""Names that a program chooses to harm its reader: no report is broken or coloured."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest
import sample_reports
from programs import Run

from memguard import Report
from memguard.records import Kept
from memguard.report import chains, data, page, picture, text
from memguard.report import tests as pytest_report

HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "html": "<script>alert('x')</script>\"><img src=x onerror=y>&amp;",
    "lines": "one\nmemguard: clean: forged\r\ntwo\x0b\x0c\x85\u2028three",
    "megabyte": "a" * 2**20,
    "surrogates": "lone \ud800 and \udfff",
    "directions": "\u202eevil\u202c\u200b\ufeff",
    "braces": '%s %(x)s {0} {rank} \\N \\" \\',
    "nul": "\0\x08\x7f\x9b31m",
}
# What may stand in a report: lines, and no other control or direction character.
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028\u2029\u202a-\u202e\ufeff]")


def poisoned(value: Any, hint: Any, poison: str) -> Any:
    """A record with every free text in it replaced."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        fields = {
            field.name: poisoned(getattr(value, field.name), hints[field.name], poison)
            for field in dataclasses.fields(value)
            if field.name != "schema"
        }
        return dataclasses.replace(value, **fields)
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and value is not None:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return poisoned(value, kinds[0], poison)
    if isinstance(value, tuple):
        inner = (typing.get_args(hint) or (Any,))[0]
        return tuple(poisoned(item, inner, poison) for item in value)
    # A chain's entries are read by their form, so the form is left to one half of the text.
    return f"{value}{poison}" if hint is str and isinstance(value, str) else value


def hostile(report: Report, poison: str) -> Report:
    found = poisoned(report, Report, poison)
    assert isinstance(found, Report)
    return dataclasses.replace(
        found, environment={"torch": poison, "rank": 0}, clock={"beat": poison}
    )


class Tags(html.parser.HTMLParser):
    """The tags of a page, and the attributes that could run something."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


REPORTS = (sample_reports.RUNNING_SUM, sample_reports.TENSOR_WARNING, sample_reports.UNHELD)


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE)
def poison(request: pytest.FixtureRequest) -> str:
    """One hostile text."""
    found: str = request.param
    return found


@pytest.mark.parametrize("short", [False, True])
def test_text_stays_plain(poison: str, short: bool) -> None:
    """No control character, no forged headline, no endless line; every stream can write it."""
    for report in REPORTS:
        told = text.render(hostile(report, poison), short=short)

        assert not FORBIDDEN.search(told)
        assert len(told) < 20_000
        assert told.count("\nmemguard: clean") == 0
        told.encode("utf-8")
    assert "\n" not in text.one_line(hostile(REPORTS[0], poison))


def test_pages_have_no_tag_of_the_programs(poison: str) -> None:
    """Whatever the names, the page has the tags of a harmless report."""
    for report in REPORTS:
        found, harmless = Tags(page.render(hostile(report, poison))), Tags(page.render(report))

        assert found.tags <= harmless.tags | {"tr", "td", "dt", "dd", "li", "span", "b", "p"}
        assert not found.tags & {"script", "img"}
        assert not {name for name in found.attributes if name.startswith("on")}
        page.render(hostile(report, poison)).encode("utf-8")


def test_json_gives_back_what_went_in(poison: str) -> None:
    """In ASCII, so that no terminal is moved by it, and letter for letter the same."""
    for report in REPORTS:
        given = hostile(report, poison)
        written = data.dumps(given)

        assert written.isascii()
        assert not FORBIDDEN.search(written)
        assert data.loads(written) == given


@pytest.mark.parametrize("ending", [".json", ".html", ".txt"])
def test_files_are_written_whatever_the_names(ending: str, poison: str, tmp_path: Path) -> None:
    """All of it or nothing, and this is all of it."""
    data.save(hostile(REPORTS[0], poison), tmp_path / f"report{ending}")

    assert (tmp_path / f"report{ending}").stat().st_size > 500


def test_the_language_of_graphviz_is_not_left(poison: str) -> None:
    """A label ends where we end it."""
    holder = sample_reports.RUNNING_SUM.findings[0].holders[0]
    kept = poisoned(Kept("Tensor", (holder,)), Kept, poison)
    drawn = picture.dot([kept])
    labels = re.sub(r'"(?:[^"\\]|\\.)*"', "LABEL", drawn)

    assert not FORBIDDEN.search(drawn)
    assert '"' not in labels
    assert len(drawn) < 20_000
    for line in labels.splitlines():
        assert re.fullmatch(
            r"digraph memguard \{|\}|  node \[shape=box, fontname=monospace\];|"
            r"  \w+ \[label=LABEL(, style=filled)?\];|  \w+ -> \w+( \[label=LABEL\])?;",
            line,
        ), line
    drawn.encode("utf-8")
    assert not FORBIDDEN.search(chains.render(kept.type, (kept,), None))


def test_pytests_output_stays_plain(poison: str) -> None:
    """Sections and summary lines of the plugin are made of the same words."""
    for finding in hostile(REPORTS[0], poison).findings:
        told = [
            pytest_report.render(finding, 2),
            pytest_report.summary(poison, 1, 2, 0, 0, size=2**30),
            pytest_report.mended(poison, poison),
            pytest_report.expected(poison, "global model"),
        ]

        assert not [line for line in told if FORBIDDEN.search(line)]
        assert sum(map(len, told)) < 20_000


PROGRAM = """
Evil = type({kind!r}, (list,), {{"__module__": {name!r}, "__repr__": lambda self: {name!r}}})
evil = Evil()
table = {{{name!r}: evil}}
evil.__dict__[{name!r}] = evil
for step in range(40):
    loss = train_step(model, optimizer)
    table[{name!r}].append(loss)
"""


def test_a_program_full_of_hostile_names_is_told_plainly(poison: str, tmp_path: Path) -> None:
    """Classes, modules, keys and attributes named like that: found, and told in plain lines."""
    # Python refuses some of these in the name of a class, and in no other.
    kind = poison.replace("\0", "").encode("ascii", "ignore").decode()
    run = Run(tmp_path, PROGRAM.format(name=poison, kind=kind))
    told = text.render(run.report)

    assert run.report.verdict == "leak"
    assert run.report.failures == ()
    assert not FORBIDDEN.search(told)
    assert len(told) < 20_000
    assert not Tags(page.render(run.report)).tags & {"script", "img"}
    assert data.loads(data.dumps(run.report)) == run.report
    assert json.dumps(run.report.to_dict()).isascii()


def test_a_path_full_of_hostile_names_is_told_plainly(tmp_path: Path) -> None:
    """A folder may be called anything but what has a slash or a NUL in it."""
    folder = tmp_path / "\x1b[31m<b>\n\u202e\udcff"
    try:
        folder.mkdir()
    except (OSError, UnicodeError):
        pytest.skip("this file system takes no such name")
    run = Run(
        folder, "kept = []\nfor step in range(40): kept.append(train_step(model, optimizer))\n"
    )
    told = text.render(run.report)

    assert run.report.verdict == "leak"
    assert not FORBIDDEN.search(told)
    assert "<b>" not in page.render(run.report)
    assert data.loads(data.dumps(run.report)) == run.report
