"""Chains drawn as a graph."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from things import Thing

import memguard


def test_a_picture_as_text_needs_nothing(tmp_path: Path) -> None:
    """Graphviz's own language, what two chains have in common drawn once, quotes escaped."""
    box = {'"quoted"': [Thing()], "other": [Thing()]}

    memguard.why_alive(Thing).picture(tmp_path / "why.dot")

    drawn = (tmp_path / "why.dot").read_text()
    assert drawn.startswith("digraph memguard {")
    assert drawn.count('label="local box: dict"') == 1
    assert "['\\\"quoted\\\"']: list" in drawn
    assert box


def test_a_picture_without_graphviz_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what is missing and what to do, and leaves no file."""
    monkeypatch.setenv("PATH", str(tmp_path))
    thing = Thing()

    with pytest.raises(memguard.MemguardError, match="needs Graphviz") as caught:
        memguard.why_alive(thing).picture(tmp_path / "why.svg")

    assert "apt install graphviz" in str(caught.value)
    assert not (tmp_path / "why.svg").exists()


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_a_picture_is_drawn_by_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets the graph and the form; what it complains of is passed on."""
    program = tmp_path / "dot"
    program.write_text(
        f"#!{sys.executable}\nimport sys; open(sys.argv[3], 'w').write(sys.stdin.read())"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    thing = Thing()

    memguard.why_alive(thing).picture(tmp_path / "why.svg")
    program.write_text(f"#!{sys.executable}\nimport sys; sys.exit('out of ink')")

    assert (tmp_path / "why.svg").read_text().startswith("digraph")
    with pytest.raises(memguard.MemguardError, match="out of ink"):
        memguard.why_alive(thing).picture(tmp_path / "why.png")


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_graphviz_itself_understands_the_picture(tmp_path: Path) -> None:
    """Names with quotes, brackets and line ends among them."""
    box = {'"quoted"': [Thing()], "<b>": {"two\nlines": Thing()}, "back\\slash": (Thing(),)}

    answer = memguard.why_alive(Thing, limit=9)
    answer.picture(tmp_path / "why.svg")

    drawn = (tmp_path / "why.svg").read_text()
    assert "<svg" in drawn
    assert drawn.count("local box: dict") == 1
    assert drawn.count(">Thing<") == len(answer.kept)
    assert box


def test_a_picture_of_no_known_form_is_refused(tmp_path: Path) -> None:
    """The message lists the endings there are."""
    with pytest.raises(memguard.UsageError, match=r"accepted: a name that ends in \.dot, \.gv"):
        memguard.why_alive(Thing()).picture(tmp_path / "why.bmp")


@pytest.mark.parametrize("name", ["missing/why.dot", "nul\0.dot", "missing/why.svg"])
def test_a_picture_that_cannot_be_written_is_one_clear_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with path and reason, whoever would have written it."""
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\necho no such folder >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")

    with pytest.raises(memguard.MemguardError, match=r"picture: .*why|picture: .*nul") as caught:
        memguard.why_alive(Thing()).picture(tmp_path / name)

    assert "\n" not in str(caught.value)
