"""The user's functions: named as text, `package.module:function`, or given and held with care.

Text is imported, never evaluated.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import PurePath
from types import MethodType, ModuleType
from typing import Any, cast

_MAIN = "__main__"


def imported(function: Callable[..., Any] | str) -> Callable[..., Any]:
    """The function itself; text names it, and the running program is not imported a second time.

    Args:
        function: the function, or where it is: `package.module:function`. The running program is
            `__main__`, or goes by its name (`python -m package.train`) or by that of its file.

    Raises:
        ImportError: there is no such module.
        AttributeError: nothing in it has the name.
        TypeError: what has the name cannot be called.
    """
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    found: Any = _module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{function} is of type {type(found).__name__}, and cannot be called")
    return cast("Callable[..., Any]", found)


class Held:
    """A function of the user's, until it is let go of; it compares like the function itself.

    A method's object, which is often what trains and has the model, is held weakly; a function has
    nobody else who would hold it.
    """

    __slots__ = ("_function", "_is_weak", "_name")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = str(getattr(function, "__qualname__", type(function).__name__))
        self._function: Callable[..., Any] | None = function
        self._is_weak = False
        if isinstance(function, MethodType):
            with suppress(TypeError):  # an object that nothing can refer to weakly
                self._function, self._is_weak = weakref.WeakMethod(function), True

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function; None when it was let go of, or its object is gone."""
        held = self._function
        return held() if held is not None and self._is_weak else held

    def __call__(self, *args: Any) -> Any:
        """Call the function, as long as it is held.

        Raises:
            ReferenceError: the method's object is gone.
        """
        function = self.function
        if function is not None:
            return function(*args)
        if self._function is None:
            return None
        raise ReferenceError(f"the object whose method {self._name} is has gone")

    def __eq__(self, other: object) -> bool:
        return self.function == (other.function if isinstance(other, Held) else other)

    __hash__ = None  # type: ignore[assignment]

    def let_go(self) -> None:
        """Hold nothing any more."""
        self._function, self._is_weak = None, False


def held(function: Callable[..., Any] | str | None) -> Callable[..., Any] | str | None:
    """What a setting names, held with care; text and nothing as they are."""
    return Held(function) if callable(function) and not isinstance(function, Held) else function


def let_go(*functions: object) -> None:
    """Let go of those that are held."""
    for function in functions:
        if isinstance(function, Held):
            function.let_go()


def missing(functions: Mapping[str, object], folder: str | None = None) -> list[str]:
    """A line for each function whose package is nowhere; looks for it and imports nothing.

    Args:
        functions: what settings hold, by their names.
        folder: a folder that programs are started from, where it is not the program's own process.
    """
    return [
        f"{name} is {function}: there is no module {function.partition(':')[0]!r} to import it from"
        for name, function in functions.items()
        if isinstance(function, str) and not _is_there(function.partition(":")[0], folder)
    ]


def _is_there(module: str, folder: str | None) -> bool:
    top = module.partition(".")[0]
    if _is_running(module) or top in sys.modules:
        return True
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    try:
        if folder is not None and PathFinder.find_spec(top, [folder]) is not None:
            return True
        return find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _module(name: str) -> ModuleType:
    if _is_running(name):
        return sys.modules[_MAIN]
    import importlib

    return importlib.import_module(name)


def _is_running(name: str) -> bool:
    """Whether this is the program that runs: to import it would run it once more."""
    main = sys.modules.get(_MAIN)
    if main is None or name == _MAIN:
        return name == _MAIN
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return bool(spec.name == name)
    file = getattr(main, "__file__", None)
    return isinstance(file, str) and PurePath(file).stem == name
