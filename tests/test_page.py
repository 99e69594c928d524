"""Reports as one HTML file."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
import sample_reports

from memguard.records import Report
from memguard.report import page, text

VOID = {"meta", "br"}


class _Page(HTMLParser):
    """Reads a page as a browser would: its text, its tags, and whether they nest."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words = ""
        self.underlined: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data
            return
        if self.open and self.open[-1] == "u":
            self.underlined.append(data)
        self.words += data


@pytest.mark.parametrize("name", sample_reports.ALL)
def test_the_page_is_well_formed_and_needs_nothing_else(name: str) -> None:
    """Every element is closed; there is no script, picture, link or address."""
    read = _Page(page.render(sample_reports.ALL[name]))

    assert read.open == []
    assert read.addresses == []
    assert not {"script", "img", "link", "iframe"} & set(read.tags)


@pytest.mark.parametrize("name", sample_reports.ALL)
def test_the_page_says_what_the_text_says(name: str) -> None:
    """Every word of the text, drawing aside, stands on the page as well."""
    report = replace(sample_reports.ALL[name], findings=sample_reports.ALL[name].findings[:3])
    words = "".join(_Page(page.render(report)).words.split())

    for line in text.render(report, width=10_000).splitlines():
        bare = line
        for drawing in ("└─ ", "memguard: ", "clean: ", "leak: ", "suspect: ", "warning: ", "  > "):
            bare = bare.replace(drawing, "")
        label, _, said = bare.strip().partition("  ")
        for part in (label, said):
            assert "".join(part.replace("~", "").split()) in words


def test_the_suspect_stretch_is_underlined() -> None:
    """The holder's reference is marked in the chain, what leads to it is not."""
    read = _Page(page.render(sample_reports.LIST_OF_LOSSES))

    assert read.underlined == ["history", "['train']", "[...]"]


def test_foreign_text_stays_text() -> None:
    """Markup in names, code and paths is shown, not obeyed."""
    evil = "</pre><script>alert(1)</script><b title='\"&"
    finding = sample_reports.RUNNING_SUM_FINDING
    holder = replace(finding.holders[0], name=evil, code=evil, file=evil, chain=(evil,), context=())
    report = Report(
        verdict="leak",
        step=3,
        findings=(replace(finding, summary=evil, holders=(holder,), modules=(evil,)),),
        environment={evil: evil},
    )

    source = page.render(report)

    read = _Page(source)
    assert "script" not in read.tags
    assert "b" not in read.tags
    assert read.words.count("<script>alert(1)</script>") >= 7


def test_light_dark_and_paper_are_provided_for() -> None:
    """The page follows the reader's colours and prints."""
    source = page.render(sample_reports.CLEAN)

    assert "color-scheme: light dark" in source
    assert "@media (prefers-color-scheme: dark)" in source
    assert "@media print" in source
