"""Where a test's code stands in the source: its function, its fixtures, what runs around it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from memguard.explain.frames import is_user_file, qualified_name
from memguard.explain.places import Spot

# Methods that run around each test of a class, pytest's and unittest's.
_AROUND = ("setup_method", "teardown_method", "setUp", "tearDown", "asyncSetUp", "asyncTearDown")


def spots_of(fn: Any) -> list[Spot]:
    """Where a function stands in the source, as if it were running; empty where it has none."""
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if code is None or not is_user_file(code.co_filename):
        return []
    line = code.co_firstlineno
    return [Spot(code.co_filename, qualified_name(code), line, line, repeated=True)]


def stack_of(item: Any) -> list[Spot]:
    """The user's functions that ran for a test, itself first; asks for no instance of its class."""
    return [spot for function in _functions(item) for spot in spots_of(inspect.unwrap(function))]


def _functions(item: Any) -> Iterator[Any]:
    home = getattr(item.parent, "obj", None)
    for name in (getattr(item, "originalname", None) or item.name, *_AROUND):
        found = getattr(home, name, None)
        if inspect.isroutine(found):
            yield found
    info = getattr(item, "_fixtureinfo", None)
    for definitions in getattr(info, "name2fixturedefs", {}).values():
        for definition in definitions:
            if definition.scope == "function" and inspect.isroutine(definition.func):
                yield definition.func
