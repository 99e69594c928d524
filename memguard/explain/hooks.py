"""Dicts of hooks: what they are told by, and the place of a hook that is registered too often."""

from __future__ import annotations

import functools
import os
import types
from typing import Any

from memguard.explain.frames import plain_integers
from memguard.explain.places import Place
from memguard.explain.reading import (
    bound_function,
    class_qualname,
    entries,
    function_module,
    isinstance_exact,
)

# Classes of functions that Python code can only have handed over as callbacks.
_CALLABLE = (types.FunctionType, types.MethodType, functools.partial)
_GLOBAL_OWNERS = {"_global_optimizer": "every optimizer", "_global": "every module"}


def are_hooks(value: Any) -> bool:
    """Whether a dict that nothing in Python refers to is one in which C++ keeps hooks."""
    if not isinstance_exact(value, dict) or not dict.__len__(value):
        return False
    return all(type(k) is int and isinstance_exact(v, _CALLABLE) for k, v in entries(value))


def count(value: Any) -> int | None:
    """How many hooks a dict of hooks has."""
    return dict.__len__(value) if isinstance_exact(value, dict) else None


def function_of(value: Any) -> types.FunctionType | None:
    """The Python function that a hook runs: itself, a method's, or that of a partial."""
    while isinstance_exact(value, functools.partial):
        value = bound_function(value)
    if isinstance_exact(value, types.MethodType):
        value = value.__func__
    return value if isinstance_exact(value, types.FunctionType) else None


def registered_on(name: str, owner: Any, module: str | None) -> str:
    """What a dict of hooks hangs on, in a word."""
    if module is not None:
        words = (words for start, words in _GLOBAL_OWNERS.items() if name.startswith(start))
        return next(words, module)
    return "a tensor or node" if owner is None else class_qualname(type(owner))


def place_of_hook(
    function: types.FunctionType, expression: str, container: str, owner: str, entries: int | None
) -> Place:
    """The place of hooks that gather: named by the hook function itself."""
    code = function.__code__
    return Place(
        "hook",
        function.__name__,
        expression,
        container,
        "",
        file=code.co_filename,
        function=function.__qualname__,
        first_line=code.co_firstlineno,
        owner=owner,
        module=function_module(function),
        entries=entries,
        numbers=plain_integers(function.__globals__),
    )


def defined_at(place: Place) -> str:
    """Where the hook function was defined: `tap.<locals>.hook (train.py:12)`."""
    return f"{place.function} ({os.path.basename(place.file or '?')}:{place.first_line})"
