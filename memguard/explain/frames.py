"""The frames of all threads: which user variables hold what, and where the loop stands."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from memguard import _kinds
from memguard.explain.places import Spot
from memguard.explain.reading import entries, isinstance_exact

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# What runs further out than `memguard run` is what it was started from, a file of any name.
_COMMAND_FOLDER = os.path.join(_OWN_FOLDER, "cli") + os.sep
_TORCH_FOLDER = _kinds.torch_folder()
_LIBRARY_FOLDERS = tuple(
    os.path.abspath(path) + os.sep
    for path in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        _TORCH_FOLDER,
    }
    if path
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# The compiler sets CO_OPTIMIZED on functions: their variables are not a dict of their own.
_OPTIMIZED = 0x01
_EXPRESSIONS = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"))
_RECEIVERS = ("self", "cls")


def is_own_file(name: str) -> bool:
    """Whether code from this file is memguard's."""
    return name.startswith(_OWN_FOLDER)


def is_command_file(name: str) -> bool:
    """Whether code from this file runs the user's program: what has called it is none of theirs."""
    return name.startswith(_COMMAND_FOLDER)


def is_library_file(name: str) -> bool:
    """Whether code from this file is torch's, the standard library's or an installed package's."""
    if name.startswith("<frozen"):
        return True
    return name.startswith(_LIBRARY_FOLDERS) or any(mark in name for mark in _INSTALLED)


def is_user_file(name: str) -> bool:
    """Whether code from this file is the user's."""
    return not is_own_file(name) and not is_library_file(name)


def qualified_name(code: CodeType) -> str:
    """The function's dotted name where Python keeps it (3.11), else its bare name."""
    return str(getattr(code, "co_qualname", code.co_name))


@dataclass(slots=True)
class FrameView:
    """One frame, for the time of an explanation.

    Attributes:
        frame: the frame itself; dropped by `Frames.release`.
        thread: name of its thread, which several may have.
        user: whether its code is the user's.
        ident: the thread's identity.
    """

    frame: FrameType
    thread: str
    user: bool
    ident: int = 0

    @property
    def is_module_level(self) -> bool:
        """Whether its variables are module globals."""
        return not self.frame.f_code.co_flags & _OPTIMIZED

    @property
    def is_expression(self) -> bool:
        """Whether it runs a part of an expression, no function that has a name."""
        return self.frame.f_code.co_name in _EXPRESSIONS

    def borrows(self, name: str) -> bool:
        """Whether a variable is a parameter: what it holds is somebody else's, as a rule.

        Not so the receiver of a method, by which a user names what the object has.
        """
        code = self.frame.f_code
        given = code.co_argcount + code.co_kwonlyargcount
        return name in code.co_varnames[:given] and name not in _RECEIVERS

    def spot(self) -> Spot:
        """Where this frame stands."""
        code = self.frame.f_code
        line = self.frame.f_lineno or code.co_firstlineno
        return Spot(code.co_filename, qualified_name(code), code.co_firstlineno, line)


class Frames:
    """A snapshot of every thread's frames, memguard's own left out; use as a context manager."""

    def __init__(self) -> None:
        self.views: list[FrameView] = []
        self._locals: list[dict[str, Any]] = []
        self._by_value: dict[int, list[tuple[int, str]]] = {}
        self.own_ids: set[int] = set()

    def __enter__(self) -> Frames:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        current = threading.get_ident()
        snapshot = sys._current_frames()
        # The thread whose step ended first: its variables are the likeliest to be meant.
        for ident in sorted(snapshot, key=lambda key: key != current):
            self._add_thread(snapshot[ident], names.get(ident, f"thread {ident}"), ident)
        snapshot.clear()
        return self

    def _add_thread(self, frame: FrameType | None, thread: str, ident: int) -> None:
        is_inside = True
        while frame is not None:
            name = frame.f_code.co_filename
            is_inside = is_inside and not is_command_file(name)
            if is_own_file(name):
                self.own_ids.add(id(frame))
            else:
                self._add(FrameView(frame, thread, is_inside and is_user_file(name), ident))
            frame = frame.f_back

    def _add(self, view: FrameView) -> None:
        index = len(self.views)
        self.views.append(view)
        if view.is_module_level:
            self._locals.append({})  # found through the module's dict instead
            return
        values = read_locals(view.frame)
        self._locals.append(values)
        self.own_ids.add(id(values))
        for name, value in values.items():
            self._by_value.setdefault(id(value), []).append((index, name))

    def holding(self, value: object) -> list[tuple[int, str]]:
        """(index of frame, variable) pairs for `value`, innermost user frames first.

        Parameters come last: whoever handed the value over has a name of its own for it.
        """
        found = self._by_value.get(id(value), [])
        return sorted(found, key=self._claim)

    def _claim(self, pair: tuple[int, str]) -> tuple[bool, bool, int, str]:
        index, name = pair
        view = self.views[index]
        return not view.user, view.borrows(name), index, name

    def identities(self) -> set[int]:
        """Identities of what any variable holds."""
        return set(self._by_value)

    def owned(self, value: object) -> bool:
        """Whether a variable of the user's that is no parameter holds `value`."""
        return any(
            self.views[index].user and not self.views[index].borrows(name)
            for index, name in self._by_value.get(id(value), ())
        )

    def known(self, value: object) -> bool:
        """Whether any variable of the user's holds `value`."""
        return any(self.views[index].user for index, _ in self._by_value.get(id(value), ()))

    def user_values(self) -> list[Any]:
        """What the variables of the user's functions hold."""
        views = zip(self.views, self._locals, strict=True)
        return [value for view, values in views if view.user for value in values.values()]

    def owned_values(self) -> list[Any]:
        """The same, parameters left out, innermost first."""
        views = zip(self.views, self._locals, strict=True)
        return [
            value
            for view, values in views
            if view.user
            for name, value in values.items()
            if not view.borrows(name)
        ]

    def integers(self, index: int) -> dict[str, int]:
        """Integer variables visible in that frame."""
        view = self.views[index]
        visible = plain_integers(view.frame.f_globals)
        visible.update(plain_integers(self._locals[index]))
        return visible

    def stack(self) -> list[Spot]:
        """The user's frames of the current thread, innermost first."""
        ident = threading.get_ident()
        mine = [view for view in self.views if view.ident == ident]
        user = [view.spot() for view in mine if view.user]
        if user:
            return user
        # A program that is itself an installed package: everything but torch and us is its code.
        return [v.spot() for v in mine if _is_installed(v.frame.f_code.co_filename)]

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Let go of every frame and every variable looked at."""
        self.views.clear()
        self._locals.clear()
        self._by_value.clear()


def _is_installed(name: str) -> bool:
    """Whether a file is that of an installed package other than torch."""
    is_torch = _TORCH_FOLDER is not None and name.startswith(_TORCH_FOLDER)
    return any(mark in name for mark in _INSTALLED) and not is_torch


def read_locals(frame: FrameType) -> dict[str, Any]:
    """A copy of a function's variables that leaves nothing behind on its frame.

    Up to Python 3.12 reading `f_locals` makes a dict that stays on the frame and keeps the values
    alive after the variables are gone, so it is emptied, unless somebody else (`locals()`, a
    debugger) has hold of it. From 3.13 on it is a view.
    """
    values = frame.f_locals
    code = frame.f_code
    if not code.co_flags & _OPTIMIZED:
        # Whatever the body of a class, or `exec`, was given to put its variables into.
        return dict(entries(values)) if isinstance_exact(values, dict) else {}
    copy = dict(values)
    # References here: the frame's, ours, and the argument of getrefcount.
    if sys.version_info < (3, 13):
        if sys.getrefcount(values) <= 3:
            # Only the function's own names: what `exec` has added to them is found nowhere else.
            for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
                values.pop(name, None)
    return copy


def own_variables(threads: Iterable[int]) -> list[Any]:
    """What functions running in these threads have in variables of their own.

    Variables that functions share, and those of modules, are left out: anybody may have put there
    what they hold. Hold the result no longer than needed.
    """
    found: list[Any] = []
    snapshot = sys._current_frames()
    for ident in threads:
        frame = snapshot.get(ident)
        while frame is not None:
            code = frame.f_code
            if code.co_flags & _OPTIMIZED and not is_own_file(code.co_filename):
                shared = {*code.co_cellvars, *code.co_freevars}
                found += [one for name, one in read_locals(frame).items() if name not in shared]
            frame = frame.f_back
    snapshot.clear()
    return found


def plain_integers(values: dict[str, Any] | None) -> dict[str, int]:
    """The entries that are exactly integers, dunder names left out."""
    return {
        name: value
        for name, value in entries(values)
        if type(value) is int and type(name) is str and not name.startswith("__")
    }
