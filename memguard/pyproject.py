"""The pyproject.toml that settings come from: which one, and its table for memguard.

Its settings write files and name functions to import, so a file that somebody else may have put in
the way, such as one in /tmp, is not believed.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_ROOT = 0


def nearest(folder: str, problems: list[str]) -> Path | None:
    """The first pyproject.toml from the folder upwards, to its repository's top or home.

    Args:
        folder: where to begin.
        problems: gets a line for each file that names memguard and is not believed.
    """
    homes = {home := os.path.expanduser("~")}
    with suppress(OSError):  # the working directory may have been deleted
        homes.add(os.path.realpath(home))
    for place in (Path(folder), *Path(folder).parents):
        file = place / "pyproject.toml"
        # Unlike Path.is_file, this says no where reading is forbidden.
        if os.path.isfile(file):
            distrust = _distrust(file)
            if not distrust:
                return file
            if _names_us(file):
                problems.append(f"{file} {distrust}; it is passed over")
        if os.path.lexists(place / ".git") or str(place) in homes:
            break
    return None


def _distrust(file: Path) -> str:
    """Why the file is not believed; empty when it is."""
    if not hasattr(os, "getuid"):
        return ""
    try:
        found = os.stat(file)
    except OSError:
        return ""  # reading it says what is wrong
    if found.st_uid not in (os.getuid(), _ROOT):
        return f"belongs to somebody else (user {found.st_uid})"
    return "may be written by everybody" if found.st_mode & stat.S_IWOTH else ""


def _names_us(file: Path) -> bool:
    try:
        return "memguard" in file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def table(file: Path, problems: list[str]) -> dict[str, Any]:
    """The [tool.memguard] table, empty when there is none."""
    try:
        text = file.read_text(encoding="utf-8")
        # Most files do not name us: then neither load a parser nor judge the file.
        found = _parsed(text).get("tool", {}).get("memguard", {}) if "memguard" in text else {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        said = " ".join(str(error).split())
        problems.append(f"{file} could not be read: {said}; it is passed over")
        return {}
    if not isinstance(found, dict):
        problems.append(f"tool.memguard in {file} is no table; it is passed over")
        return {}
    return found


def _parsed(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    parsed: dict[str, Any] = tomllib.loads(text)
    return parsed
