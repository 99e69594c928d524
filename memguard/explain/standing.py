"""Where the user's code stands, read off a stack without a look at any variable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import FrameType

from memguard import _kinds
from memguard.explain.frames import is_command_file, is_own_file, is_user_file, qualified_name
from memguard.explain.places import Spot

# Frames that are walked; what lies further out says nothing of a loop.
MAX_DEPTH = 200

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_EXPRESSIONS = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"))


def user_spots(frame: FrameType | None) -> list[Spot]:
    """Where the user's frames from this one outwards stand, innermost first."""
    return [_spot(one) for one in _outwards(frame) if is_user_file(one.f_code.co_filename)]


def direct_spots(frame: FrameType | None) -> list[Spot]:
    """The same, but only as far as no installed package, lambda or comprehension is in between.

    What a package's own loop calls (a trainer's step function), or a comprehension, is in no loop
    of the user's: the loops further out go round once a run, not once a step.
    """
    found: list[Spot] = []
    for one in _outwards(frame):
        file = one.f_code.co_filename
        if is_own_file(file):
            continue
        if one.f_code.co_name in _EXPRESSIONS or _is_installed(file):
            break
        if is_user_file(file):
            found.append(_spot(one))
    return found


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(MAX_DEPTH):
        if frame is None or is_command_file(frame.f_code.co_filename):
            return
        yield frame
        frame = frame.f_back


def _spot(frame: FrameType) -> Spot:
    code = frame.f_code
    line = frame.f_lineno or code.co_firstlineno
    return Spot(code.co_filename, qualified_name(code), code.co_firstlineno, line)


def _is_installed(file: str) -> bool:
    torch = _kinds.torch_folder()
    is_torch = torch is not None and file.startswith(torch)
    return not is_torch and any(mark in file for mark in _INSTALLED)
