"""`memguard show`: a saved report, told again in another form."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from memguard.cli.reading import WRONG_USAGE, read, readers_may_leave
from memguard.records import Report
from memguard.report import data, text

if TYPE_CHECKING:
    # The class is generic for type checkers only.
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_COLOR = {"auto": None, "always": True, "never": False}


def add_parser(subparsers: _Subparsers) -> argparse.ArgumentParser:
    """Add `show` to memguard's commands."""
    said = "tell a saved report again"
    parser = subparsers.add_parser("show", help=said, description=said.capitalize() + ".")
    parser.add_argument("file", help="report written as JSON")
    parser.add_argument(
        "--format",
        choices=("text", "html", "json"),
        default="text",
        help="form to write on standard output (default: text)",
    )
    parser.add_argument(
        "--color",
        choices=tuple(_COLOR),
        default="auto",
        help="colour for text; auto asks the terminal and NO_COLOR (default: auto)",
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Tell the report that `args.file` holds; returns the exit status."""
    report = read(args.file, "memguard show")
    if report is None:
        return WRONG_USAGE
    with readers_may_leave():
        _write(report, args.format, _COLOR[args.color])
    return 0


def _write(report: Report, form: str, color: bool | None) -> None:
    if form == "text":
        text.print_report(report, sys.stdout, color=color)
    elif form == "json":
        print(data.dumps(report), flush=True)
    else:
        from memguard.report import page

        # Character references are true whatever encoding standard output happens to have.
        whole = page.render(report).encode("ascii", "xmlcharrefreplace").decode("ascii")
        print(whole, end="", flush=True)
