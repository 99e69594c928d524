"""`memguard ledger`: where memory was when a report was written, and which lever fits."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from memguard.cli.reading import WRONG_USAGE, read, write
from memguard.judge.levers import advise, leaking_devices
from memguard.report.clean import clean
from memguard.report.ledger import render

if TYPE_CHECKING:
    # The class is generic for type checkers only.
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: _Subparsers) -> argparse.ArgumentParser:
    """Add `ledger` to memguard's commands."""
    said = "tell where memory was when a report was written"
    parser = subparsers.add_parser("ledger", help=said, description=said.capitalize() + ".")
    parser.add_argument("file", help="report written as JSON")
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="form to write on standard output (default: text)",
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Tell the ledger in the report that `args.file` holds; returns the exit status."""
    report = read(args.file, "memguard ledger")
    if report is None:
        return WRONG_USAGE
    if not report.ledger.accounts:
        named = clean(args.file, 200, keep_end=True)
        print(f"memguard ledger: the report in {named} has no ledger", file=sys.stderr)
        return WRONG_USAGE
    if args.format == "json":
        write(json.dumps(report.ledger.to_dict(), indent=1))
    else:
        leaking = report.verdict == "leak"
        levers = advise(
            report.ledger,
            leaking=leaking,
            devices=leaking_devices(report.findings),
            ranks=report.environment.get("world_size"),
        )
        write(render(report.ledger, levers))
    return 0
