"""`memguard config`: the settings in force here, and where each comes from."""

from __future__ import annotations

import argparse
import os
import site
import sys
from typing import TYPE_CHECKING, Any

from memguard.references import missing
from memguard.report.clean import clean
from memguard.settings import OPTIONS, Settings
from memguard.startup import say
from memguard.values import current_folder

if TYPE_CHECKING:
    # The class is generic for type checkers only.
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_LINE = "memguard_startup.pth"
_LONGEST = 120


def add_parser(subparsers: _Subparsers) -> argparse.ArgumentParser:
    """Add `config` to memguard's commands."""
    said = "print the settings in force in this folder and environment, and where each comes from"
    parser = subparsers.add_parser("config", help=said, description=said.capitalize() + ".")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print a line for each setting, and what was passed over on standard error."""
    settings, origins = Settings.read_with_origins({})
    rows = [("setting", "value", "from", "variable")]
    for option in OPTIONS:
        value = clean(_spelled(getattr(settings, option.name)), _LONGEST)
        origin = clean(origins.get(option.name, "default"), _LONGEST, keep_end=True)
        rows.append((option.name, value, origin, option.variable))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    print(f"\n{_switch(settings, origins.get('action') == 'MEMGUARD')}")
    functions = {"on_leak": settings.on_leak, "on_step": settings.on_step}
    for problem in (*settings.problems, *missing(functions, current_folder())):
        say(problem)
    return 0


def _spelled(value: Any) -> str:
    """A value as a user would write it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _switch(settings: Settings, is_switched: bool) -> str:
    """Whether a plain `python` in this environment is guarded."""
    line = _start_up_line()
    if line is None:
        return "start-up line: not installed, so MEMGUARD=1 alone switches nothing on"
    if not is_switched:
        state = "not set, so it does nothing"
    elif settings.off:
        state = "off, so nothing is guarded"
    else:
        state = "set, so programs are guarded"
    return f"start-up line: {clean(line, _LONGEST, keep_end=True)}; MEMGUARD is {state}"


def _start_up_line() -> str | None:
    """The file with the start-up line, where Python reads it."""
    folders = [*site.getsitepackages(), *sys.path]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    files = (os.path.join(folder, _LINE) for folder in folders)
    return next(filter(os.path.isfile, files), None)
