"""Having the Python processes that a guarded program starts guarded, too.

They get the settings by their variables, and by PYTHONPATH a `sitecustomize` of ours, since not
every install has a start-up line. Nothing else of what they see is different.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from memguard.settings import OPTIONS, Settings

_PATH = "PYTHONPATH"
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "startup", "injected")
# What makes a report's name one of each process.
_OF_ITS_OWN = ("{pid}", "{rank}")


def pass_on(settings: Settings, texts: Mapping[str, str]) -> Callable[[], None]:
    """Set the variables that this process's children inherit; returns the undo.

    A report goes to the children only if its name tells processes apart.

    Args:
        settings: the settings in force here.
        texts: by name, what the command line said.
    """
    variables = {option.variable: texts[option.name] for option in OPTIONS if option.name in texts}
    variables["MEMGUARD"] = settings.action
    if settings.report is not None:
        # An empty variable counts as not set.
        variables["MEMGUARD_REPORT"] = of_children(settings).report or ""
    if "MEMGUARD_IGNORE" in variables:
        lines = variables["MEMGUARD_IGNORE"].splitlines()
        variables["MEMGUARD_IGNORE"] = "\n".join(map(_anchored, lines))
    variables[_PATH] = os.pathsep.join(filter(None, [_FOLDER, os.environ.get(_PATH)]))
    before = MappingProxyType({name: os.environ.get(name) for name in variables})
    os.environ.update(variables)
    return functools.partial(_restore, before)


def of_children(settings: Settings) -> Settings:
    """The settings of this process's children: the same, but for a report that is this one's."""
    report = settings.report
    if report is None or any(field in report for field in _OF_ITS_OWN):
        return settings
    return replace(settings, report=None)


def _anchored(line: str) -> str:
    """A file of patterns by its whole path: a child may start elsewhere."""
    return os.path.abspath(line) if os.path.isfile(line) else line


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
