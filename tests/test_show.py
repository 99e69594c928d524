"""`memguard show` from its arguments to its exit status."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sample_reports

from memguard.cli import show
from memguard.report import data, page, text


def _show(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="memguard")
    show.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["show", *arguments])
    status = args.run(args)
    assert isinstance(status, int)
    return status


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A saved report with everything in it."""
    path = tmp_path / "report.json"
    data.save(sample_reports.SEVERAL, path)
    return str(path)


def test_text_is_the_usual_form(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options the report is told as text, without colour where nobody sees it."""
    assert _show(saved) == 0
    assert capsys.readouterr().out == text.render(sample_reports.SEVERAL) + "\n"


def test_colour_can_be_asked_for(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Colour goes into a pipe when it is wanted there."""
    assert _show(saved, "--color", "always") == 0
    assert "\x1b[1;31mleak" in capsys.readouterr().out


def test_json_reads_back(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON form is the report again."""
    assert _show(saved, "--format", "json") == 0
    assert data.loads(capsys.readouterr().out) == sample_reports.SEVERAL


def test_html_is_the_page(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The page form is the page, in characters any terminal or file can hold."""
    assert _show(saved, "--format", "html") == 0

    written = capsys.readouterr().out
    assert written.isascii()
    assert written == page.render(sample_reports.SEVERAL).encode(
        "ascii", "xmlcharrefreplace"
    ).decode("ascii")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"", "found no JSON"),
        (b"\x80\x81", "found bytes that are no UTF-8 text"),
        (b'{"schema": "other/1"}', "schema is 'other/1', wanted 'memguard.report/1'"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    """File and reason on standard error, nothing on standard output, exit status 2."""
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)

    assert _show(str(path)) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("memguard show: cannot read ")
    assert "report.json: " in err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("path", [".", "nul\0byte", "esc\x1b[2Jape"])
def test_odd_paths_are_one_clear_line_too(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders and names that are no names do not end in a traceback, or touch the terminal."""
    assert _show(path) == 2

    err = capsys.readouterr().err
    assert err.startswith("memguard show: cannot read ")
    assert err.count("\n") == 1
    assert "\x1b" not in err


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": root, "PYTHONIOENCODING": "ascii:strict"},
    )


_LOADED = """
import argparse, json, sys
from memguard.cli import show
for form in ("text", "html", "json"):
    show.run(argparse.Namespace(file=sys.argv[1], format=form, color="auto"))
if len(sys.argv) > 2:
    sys.modules["torch"] = None
print(json.dumps(["torch" in sys.modules]))
"""


def test_showing_loads_no_torch_and_fits_an_ascii_terminal(saved: str) -> None:
    """A report is told where no torch is installed; the second run proves torch would be seen."""
    told, counter = _run(_LOADED, saved), _run(_LOADED, saved, "torch")

    assert told.stderr == ""
    assert json.loads(told.stdout.splitlines()[-1]) == [False]
    assert json.loads(counter.stdout.splitlines()[-1]) == [True]


@pytest.mark.skipif(os.name != "posix", reason="closing the reader's end needs a POSIX pipe")
def test_a_reader_that_leaves_early_is_no_error(saved: str) -> None:
    """Piping into `head` ends quietly."""
    code = (
        "import argparse, sys\nfrom memguard.cli import show\n"
        "sys.exit(show.run(argparse.Namespace(file=sys.argv[1], format='text', color='auto')))"
    )
    read_end, write_end = os.pipe()
    os.close(read_end)

    done = subprocess.run(
        [sys.executable, "-c", code, saved],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    os.close(write_end)

    assert done.stderr == ""
    assert done.returncode == 0
