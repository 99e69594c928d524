"""`memguard estimate`: what training will need, by arithmetic, without torch."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from memguard.cli.reading import WRONG_USAGE, write
from memguard.errors import UsageError
from memguard.judge.estimates import STATES, estimate_of
from memguard.report.clean import clean
from memguard.report.estimate import render
from memguard.units import parse_size

if TYPE_CHECKING:
    # The class is generic for type checkers only.
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: _Subparsers) -> argparse.ArgumentParser:
    """Add `estimate` to memguard's commands."""
    said = "say what training will need, by arithmetic"
    parser = subparsers.add_parser("estimate", help=said, description=said.capitalize() + ".")
    parser.add_argument(
        "--params",
        type=_whole,
        required=True,
        metavar="N",
        help="number of parameters, such as 7e9",
    )
    parser.add_argument(
        "--optimizer",
        default="adamw",
        metavar="NAME",
        help=f"one of {', '.join(STATES)} (default: adamw)",
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        metavar="TYPE",
        help="data type of parameters and gradients, such as bf16 (default: float32)",
    )
    parser.add_argument(
        "--masters",
        metavar="TYPE",
        help="data type of a second copy of the parameters that the optimizer steps",
    )
    parser.add_argument(
        "--states", metavar="TYPE", help="data type of the optimizer's states (default: masters')"
    )
    parser.add_argument(
        "--activations",
        type=_size,
        default=0,
        metavar="SIZE",
        help="what one step keeps for its backward, such as 2GiB",
    )
    parser.add_argument(
        "--ranks", type=_whole, default=1, metavar="N", help="ranks that share the states"
    )
    parser.add_argument(
        "--zero-stage",
        type=_stage,
        action="append",
        metavar="{0,1,2,3}",
        default=[],
        help="stage of sharding to tell; may be repeated (default: all, with several ranks)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="form to write on standard output (default: text)",
    )
    parser.set_defaults(run=run)
    return parser


def _whole(text: str) -> int:
    try:
        number = float(text)
        whole = int(number)
    except (ValueError, OverflowError):
        number, whole = 0.0, 0
    if whole < 1 or whole != number:
        raise argparse.ArgumentTypeError(
            f"found {clean(repr(text), 80)}; accepted: a whole number, 1 or more, such as 8 or 7e9"
        )
    return whole


def _stage(text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise argparse.ArgumentTypeError(f"found {clean(repr(text), 80)}; accepted: 0, 1, 2 or 3")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Tell the estimate that `args` asks for; returns the exit status."""
    try:
        estimate = estimate_of(
            args.params,
            args.optimizer,
            args.dtype,
            masters=args.masters,
            states=args.states,
            ranks=args.ranks,
            stages=args.zero_stage,
            activations=args.activations,
        )
    except UsageError as error:
        print(f"memguard {error}", file=sys.stderr)
        return WRONG_USAGE
    as_json = args.format == "json"
    write(json.dumps(estimate.to_dict(), indent=1) if as_json else render(estimate))
    return 0
