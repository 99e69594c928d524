"""The `memguard` command: one module for each of its commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from memguard._version import __version__
from memguard.cli import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Args:
        arguments: what follows `memguard`; by default what this process was started with.

    Returns:
        The exit status: that of the program run, 23 after a leak, 2 for wrong usage.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser: argparse.ArgumentParser = _Parser(
        prog="memguard", description="Finds what keeps memory growing in PyTorch jobs."
    )
    parser.add_argument("--version", action="version", version=f"memguard {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run_parser = run.add_parser(commands)
    if given[:1] == ["run"]:
        # That process is the user's own, so no other command's imports go into it.
        own, program = run.split(given[1:])
        return run.run(run_parser.parse_args(own, argparse.Namespace(program=program)))
    from memguard.cli import ask, config, estimate, ledger, show

    for command in (ask, config, show, ledger, estimate):
        command.add_parser(commands)
    args = parser.parse_args(given)
    status: int = args.run(args)
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the usual paragraph of usage."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")
