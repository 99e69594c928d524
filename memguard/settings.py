"""What a user can set, in one table: keyword, variable, how it is read, default, help.

The environment is read here and nowhere else. Nothing read is ever evaluated.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

from memguard.errors import SettingsError
from memguard.patterns import Pattern
from memguard.pyproject import nearest, table
from memguard.values import (
    Action,
    Size,
    Unreadable,
    current_folder,
    read_action,
    read_function,
    read_ignore,
    read_report,
    read_seconds,
    read_share,
    read_size,
    read_steps,
    read_switch,
    shown,
)

__all__ = ["OPTIONS", "Action", "Option", "Settings", "Size"]

_PREFIX = "MEMGUARD"
_A_FUNCTION = "a function, or where to import it from: package.module:function"
Function = Callable[..., Any] | str
# Variables share a prefix, so the usual 0.6 would find everything alike.
_ALIKE = 0.8


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table of settings.

    Attributes:
        name: keyword of `watch`, field of `Settings`, key in pyproject.toml.
        variable: environment variable.
        default: the field's value when nobody sets it.
        accepted: the values it takes, in words, for error messages.
        help: what it does, for `--help`.
        metavar: what stands for the value in `--help`.
        parse: turns text or an object into the field's value; relative paths start at the folder.
    """

    name: str
    variable: str
    default: Any
    accepted: str
    help: str
    metavar: str
    parse: Callable[[Any, str], Any]

    @property
    def flag(self) -> str:
        """How the command line spells it: `--max-growth`."""
        return "--" + self.name.replace("_", "-")

    def read(self, value: object, spelled: str, folder: str) -> Any:
        """The setting's value from what the user wrote.

        Args:
            value: text, or an object of the right type.
            spelled: how the user named the setting, for the message.
            folder: where a relative path starts.

        Raises:
            SettingsError: `value` is not accepted; the message is one line.
        """
        how = ""
        try:
            return self.parse(value, folder)
        except Unreadable as error:
            how = f": {error}"
        except (ValueError, TypeError, LookupError, OverflowError):
            pass
        # Outside the handlers, so that no inner error is shown along with the clear line.
        raise SettingsError(f"{spelled} is {shown(value)}{how}; accepted: {self.accepted}")


def _option(
    default: Any,
    variable: str,
    parse: Callable[[Any, str], Any],
    accepted: str,
    metavar: str,
    help: str,
) -> Any:
    row = {"variable": variable, "default": default, "parse": parse}
    row |= {"accepted": accepted, "metavar": metavar, "help": help}
    return dataclasses.field(default=default, metadata=row)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for, from keywords, environment and pyproject.toml.

    Attributes:
        problems: one line for each environment or pyproject.toml entry that was passed over.
    """

    action: Action = _option(
        "raise",
        "MEMGUARD",
        read_action,
        "raise, warn, log, stop or off (1 for raise, 0 for off)",
        "ACTION",
        "what to do about a leak: raise, warn, log, stop or off",
    )
    window: int = _option(
        2,
        "MEMGUARD_WINDOW",
        read_steps,
        "a whole number of steps, 1 or more",
        "STEPS",
        "steps a graph may outlive its own",
    )
    patience: int = _option(
        5,
        "MEMGUARD_PATIENCE",
        read_steps,
        "a whole number of steps, 1 or more",
        "STEPS",
        "growing steps before a graph is called leaked",
    )
    max_growth: Size = _option(
        Size(share=0.1),
        "MEMGUARD_MAX_GROWTH",
        read_size,
        "bytes, a size such as 512MiB or 2GB, or a share of the limit such as 10%",
        "SIZE",
        "retained growth that makes a warning a leak",
    )
    limit: Size | None = _option(
        None,
        "MEMGUARD_LIMIT",
        read_size,
        "bytes, a size such as 512MiB or 2GB, or a share of the memory found such as 90%",
        "SIZE",
        "memory the forecast runs into; what the device, cgroup or machine has when not given",
    )
    overhead: float = _option(
        0.01,
        "MEMGUARD_OVERHEAD",
        read_share,
        "a share of step time above 0 and at most 1, such as 0.01 or 1%",
        "SHARE",
        "share of step time that closer looks may cost",
    )
    report: str | None = _option(
        None,
        "MEMGUARD_REPORT",
        read_report,
        "a file name ending in .json, .html or .txt, in which {rank}, {pid} and {step} may stand",
        "FILE",
        "file to write the report to (.json, .html or .txt)",
    )
    ignore: tuple[Pattern, ...] = _option(
        (),
        "MEMGUARD_IGNORE",
        read_ignore,
        "patterns, separated by commas, or the name of a file with one pattern a line",
        "PATTERN",
        "findings to leave out: a pattern such as holder:losses, or a file of them",
    )
    on_leak: Function | None = _option(
        None,
        "MEMGUARD_ON_LEAK",
        read_function,
        _A_FUNCTION,
        "FUNCTION",
        "function to call with the report of a leak before it is reacted to (package.module:name)",
    )
    on_step: Function | None = _option(
        None,
        "MEMGUARD_ON_STEP",
        read_function,
        _A_FUNCTION,
        "FUNCTION",
        "function to call with a few figures at each step's end (package.module:name)",
    )
    ask: bool | None = _option(
        None,
        "MEMGUARD_ASK",
        read_switch,
        "yes or no (1 or 0)",
        "YES|NO",
        "whether `memguard ask` is answered (where a whole process is guarded: yes)",
    )
    watchdog: float | None = _option(
        None,
        "MEMGUARD_WATCHDOG",
        read_seconds,
        "seconds, a number above 0",
        "SECONDS",
        "seconds without a step after which it is said that steps have stopped",
    )
    source: bool = _option(
        True,
        "MEMGUARD_SOURCE",
        read_switch,
        "yes or no (1 or 0)",
        "YES|NO",
        "whether reports show lines of the program's source",
    )
    problems: tuple[str, ...] = ()

    @property
    def off(self) -> bool:
        """Whether nothing is to be watched."""
        return self.action == "off"

    @classmethod
    def read(
        cls,
        keywords: Mapping[str, object],
        environ: Mapping[str, str] | None = None,
        pyproject: Path | EllipsisType | None = ...,
        folder: str | None = None,
    ) -> Settings:
        """The settings in force: keywords before environment before pyproject.toml.

        A wrong keyword raises; a wrong entry elsewhere is passed over and told in `problems`.
        `off` in the environment silences everything, whatever the keywords say.

        Args:
            keywords: settings by name; one that is None counts as not given.
            environ: environment variables; the process's own when None.
            pyproject: the file to read; None reads none; by default the first pyproject.toml
                from the folder upwards to its repository's top or home, unless others own it.
            folder: where relative paths start; the current folder when None.

        Raises:
            SettingsError: a keyword is unknown or has a value that is not accepted.
        """
        return cls.read_with_origins(keywords, environ, pyproject, folder)[0]

    @classmethod
    def read_with_origins(
        cls,
        keywords: Mapping[str, object],
        environ: Mapping[str, str] | None = None,
        pyproject: Path | EllipsisType | None = ...,
        folder: str | None = None,
    ) -> tuple[Settings, dict[str, str]]:
        """`read`, and where each setting comes from: `keyword`, a variable, or a file's name.

        What nobody has set is not among them. Arguments and errors are those of `read`.
        """
        variables = os.environ if environ is None else environ
        folder = folder or current_folder()
        problems: list[str] = []
        file = nearest(folder, problems) if isinstance(pyproject, EllipsisType) else pyproject
        chosen = _from_pyproject(file, problems) if file else {}
        origins = dict.fromkeys(chosen, str(file))
        chosen |= (environment := _from_environment(variables, folder, problems))
        origins |= {name: _BY_NAME[name].variable for name in environment}
        chosen |= (given := _from_keywords(keywords, folder))
        origins |= dict.fromkeys(given, "keyword")
        if environment.get("action") == "off":
            chosen["action"], origins["action"] = "off", _PREFIX
        return cls(**chosen, problems=tuple(problems)), origins


OPTIONS: tuple[Option, ...] = tuple(
    Option(name=field.name, **field.metadata)
    for field in dataclasses.fields(Settings)
    if field.metadata
)
_BY_NAME = {option.name: option for option in OPTIONS}
_BY_VARIABLE = {option.variable: option for option in OPTIONS}
_NAMES = {option.name: option.name for option in OPTIONS}
# By what a user would guess, so that MEMGUARD_ACTION leads to MEMGUARD.
_VARIABLES = {f"{_PREFIX}_{option.name.upper()}": option.variable for option in OPTIONS}


# --- the three sources ---


def _from_keywords(keywords: Mapping[str, object], folder: str) -> dict[str, Any]:
    found = {}
    for name, value in keywords.items():
        if name not in _BY_NAME:
            raise SettingsError(f"unknown setting {name!r}{_nearest(name, _NAMES)}")
        if value is not None:
            found[name] = _BY_NAME[name].read(value, name, folder)
    return found


def _from_environment(
    environ: Mapping[str, str], folder: str, problems: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    # MEMGUARDIAN is somebody else's.
    ours = [key for key in environ if key == _PREFIX or key.startswith(f"{_PREFIX}_")]
    for variable in sorted(ours):
        option, text = _BY_VARIABLE.get(variable), environ[variable]
        if option is None:
            near = _nearest(variable, _VARIABLES)
            problems.append(f"unknown environment variable {variable}{near}")
        elif text.strip():
            _note(found, option, text, variable, folder, problems)
    return found


def _from_pyproject(file: Path, problems: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table(file, problems).items():
        if name not in _BY_NAME:
            near = _nearest(name, _NAMES)
            problems.append(f"unknown setting {name!r} in {file}{near}")
        else:
            spelled = f"[tool.memguard] {name} in {file}"
            _note(found, _BY_NAME[name], value, spelled, str(file.parent), problems)
    return found


def _note(
    found: dict[str, Any],
    option: Option,
    value: object,
    spelled: str,
    folder: str,
    problems: list[str],
) -> None:
    try:
        found[option.name] = option.read(value, spelled, folder)
    except SettingsError as error:
        problems.append(f"{error}; it is passed over")


# --- words ---


def _nearest(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
    if near:
        return f"; did you mean {known[near[0]]}?"
    return f"; known are {', '.join(sorted(known.values()))}"
