"""Assertions about memory that need no pytest: `assert_freed` and `assert_no_growth`."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from memguard import _kinds
from memguard.alive import why_alive
from memguard.errors import UsageError
from memguard.explain.frames import Frames
from memguard.explain.holders import Held, holders_of
from memguard.report import tests as telling
from memguard.sensors.births import Births
from memguard.testing.code import spots_of
from memguard.testing.runs import PATIENCE, Runs


def assert_freed(obj: object) -> None:
    """Fail unless nothing but the variable you hand over keeps an object alive.

        ref = weakref.ref(model)
        del model
        memguard.assert_freed(ref)

    Args:
        obj: a weak reference, which must be dead; or the object itself, which nothing may hold but
            a local variable of each running function and, where a script or a notebook's cell calls
            it outside of any function, one of its own variables.

    Raises:
        AssertionError: something keeps it alive; the message has the chain.
        UsageError: `obj` is something Python shares among everybody, such as None.

    Costs nothing when the weak reference is dead already; else a collection and a pass over the
    heap for each link of the chain.
    """
    if isinstance(obj, weakref.ref):
        told = outlives(obj)
        if told:
            raise AssertionError(f"expected to be freed, and still alive\n\n{told}")
        return
    gc.collect()
    with Frames() as frames, _kinds.without_overrides():
        held = holders_of(obj, frames, frames.stack())
    # What a library's frame holds is the caller's own argument or fixture on its way.
    others = [h for h in held.holdings if h.rooted and not h.direct and not h.cycle]
    if others or held.others or _has_two_names(obj, held, sys._getframe(1)):
        raise AssertionError(f"expected to be held by nobody else\n\n{why_alive(obj)}")


def _has_two_names(obj: object, held: Held, caller: FrameType) -> bool:
    """Whether a function, or the script that asks, has the object in more than one variable."""
    names: dict[tuple[str | None, str | None], set[str]] = {}
    for place in (holding.place for holding in held.holdings if holding.direct):
        if place is not None:
            names.setdefault((place.file, place.function), set()).add(place.name)
    if any(len(each) > 1 for each in names.values()):
        return True
    is_script = caller.f_code.co_name == "<module>"
    return is_script and sum(value is obj for value in list(caller.f_globals.values())) > 1


def outlives(reference: weakref.ref[Any]) -> str:
    """Who keeps an object alive after a collection and some patience; empty when it is dead."""
    if reference() is None:
        return ""
    gc.collect()
    for seconds in PATIENCE:
        if reference() is None:
            return ""
        time.sleep(seconds)
    found = reference()
    return "" if found is None else str(why_alive(found))


def assert_no_growth(fn: Callable[[], object], repeat: int = 5) -> None:
    """Fail if calling a function leaves more tensors, graphs, modules or optimizers each time.

    Args:
        fn: called without arguments `repeat` times, after one call that may fill caches.
        repeat: calls that are judged; 2 or more, default 5.

    Raises:
        AssertionError: each call left something; the message names who holds it, line and fix.
        UsageError: `repeat` is no whole number above 1, or `fn` cannot be called.

    Costs a look at the collector's youngest generation a call, a collection for each call that
    leaves something, and one pass over the heap (60 ms for a million objects) for all of them.
    """
    if not callable(fn) or isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 2:
        raise UsageError(
            f"assert_no_growth: found fn={type(fn).__name__}, repeat={repeat!r}; accepted: a "
            "function without parameters, and a whole number of calls, 2 or more"
        )
    fn()
    births = Births()
    births.install()
    try:
        runs = Runs(births)
        for _ in range(repeat):
            runs.begin()
            fn()
            if not runs.end() or not runs.may_grow():
                return
        if runs.grow():
            # Explaining loads torch, which is there by now.
            from memguard.testing.leftovers import leftover

            name = getattr(fn, "__name__", type(fn).__name__)
            finding, bound = leftover(runs.survivors(), runs.earlier(), name, spots_of(fn))
            if bound is None:
                raise AssertionError(telling.render(finding, repeat))
    finally:
        births.remove()
