"""What is said of an object that was declared dead and lives on."""

from __future__ import annotations

from dataclasses import replace

from memguard.records import Holder, Kept
from memguard.report.clean import clean
from memguard.units import format_bytes, plural

_NAME = 60
_CONTAINERS = frozenset(("list", "dict", "set", "tuple", "deque", "OrderedDict", "defaultdict"))


def summary(name: str, size: int, steps: int | None) -> str:
    """The headline: `fold 3 model was to be freed 5 steps ago and is still alive, 1.2 MiB`."""
    when = "" if steps is None else f" {plural(steps, 'step')} ago"
    weight = f", {format_bytes(size)}" if size else ""
    return f"{clean(name, _NAME)} was to be freed{when} and is still alive{weight}"


def pinned(count: int, steps: int, size: int) -> str:
    """The headline: `1 autograd graph has been kept for 300 steps, 1.2 MiB`."""
    weight = f", {format_bytes(size)}" if size else ""
    has = "has" if count == 1 else "have"
    return f"{plural(count, 'autograd graph')} {has} been kept for {plural(steps, 'step')}{weight}"


def why_pinned(name: str, count: int) -> str:
    """Why a holder keeps graphs of long ago that do not become more."""
    graphs = "a graph" if count == 1 else "graphs"
    return (
        f"{name} keeps {graphs} of long ago; no more have come, so it costs this much and no more"
    )


def with_advice(holder: Holder, name: str) -> Holder:
    """The holder with why it keeps the object, and how to make it let go.

    Args:
        holder: as `why_alive` found it.
        name: what the user called the object.
    """
    fix, other = _release(holder)
    why = f"{holder.name} still refers to {clean(name, _NAME)}"
    return replace(holder, why=why, fix=fix, alternative=other, survivors=0)


def _release(holder: Holder) -> tuple[str | None, str | None]:
    if holder.type in _CONTAINERS:
        return None, f"take it out of {holder.name}, or keep a number or a detached copy there"
    if holder.where.startswith(("local", "global")) and holder.name.isidentifier():
        return f"del {holder.name}", f"put something else into {holder.name}"
    if holder.where.startswith(("attribute", "class attribute")):
        return f"{holder.name} = None", None
    return None, f"have {holder.name} let go of it"


def unnamed(kept: Kept) -> str:
    """Why nobody is named, as a sentence; empty where C++ alone can hold it."""
    if kept.cycles:
        return (
            "Nothing in the program refers to it but its own parts, in a reference cycle: "
            "it stays until the garbage collector runs."
        )
    return "" if kept.hidden else "Something holds it under no name that could be found."


def advice(kept: Kept) -> str:
    """What to do in general."""
    if kept.holders or not kept.cycles:
        return "drop the last reference to it: del, = None, or clear() of what it was put into"
    return "break the cycle (weakref.ref for one direction), or call gc.collect() where it ends"
