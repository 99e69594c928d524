"""`why_alive`: who keeps an object alive, asked at once, in a script, a test or a notebook."""

from __future__ import annotations

import gc
import operator
import os
import sys
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any, cast

from memguard import _kinds
from memguard._heap import family, objects_of
from memguard.errors import UsageError
from memguard.explain.frames import Frames
from memguard.explain.holders import Held, Holding, holders_of
from memguard.explain.places import Place, Spot
from memguard.explain.reading import class_module, function_module, isinstance_exact
from memguard.explain.wording import holder_of, name_of, where_of
from memguard.records import Holder, Kept
from memguard.report import chains, picture
from memguard.report.clean import clean

# Python's own flag of types whose instances the collector keeps in its lists.
_HAVE_GC = 1 << 14
# References beyond the limit that get a line each.
_MOST_ALSO = 5
# Values that Python makes once and shares among everybody.
_SHARED = frozenset(map(id, (type(None), bool, type(...), type(NotImplemented))))
_SMALL_INTEGERS = range(-5, 257)


@dataclass(frozen=True, slots=True, repr=False)
class WhyAlive:
    """The answer of `why_alive`: prints as text, and holds records of text and numbers only.

    Attributes:
        subject: what was asked about: an object's type, or a class's name.
        kept: one record an object: the object itself, or the instances looked at.
        living: how many instances of the class are alive; None where an object was asked about.
    """

    subject: str
    kept: tuple[Kept, ...]
    living: int | None = None

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The holders of all objects that were looked at, in the order of the text."""
        return tuple(holder for one in self.kept for holder in one.holders)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain dicts, lists, text and numbers, ready for `json.dumps`."""
        kept = [one.to_dict() for one in self.kept]
        return {"subject": self.subject, "living": self.living, "kept": kept}

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw the chains as a graph.

        Args:
            path: file to write: `.dot` or `.gv` (text, needs nothing), or `.svg`, `.png` or `.pdf`,
                which Graphviz's program `dot` makes.

        Raises:
            UsageError: the name has another ending.
            MemguardError: the file cannot be written, or Graphviz is not there or fails.
        """
        picture.draw(self.kept, path)

    def __str__(self) -> str:
        return chains.render(self.subject, self.kept, self.living)

    # At a prompt and in a notebook the bare call shows the text.
    __repr__ = __str__


def why_alive(obj: object, limit: int = 3) -> WhyAlive:
    """Say who keeps an object alive, or some of the living instances of a class.

        >>> memguard.why_alive(loss)
        memguard: 2 references keep this Tensor float32 [] MeanBackward0 alive
        ...

    Args:
        obj: any object; of a class, its living instances (subclasses' too) are asked about. The
            variable that you hand over is a holder like any other, and told after the others.
        limit: most chains told in full: to the object, or, for a class, one to each of so many
            instances, roughly from the oldest to the newest.

    Returns:
        An answer that prints as text and has the records in `kept` and `holders`. It keeps nothing
        of what it looked at.

    Raises:
        UsageError: `obj` is something Python shares among everybody (None, True, a small number),
            a class whose instances the collector does not know, or `limit` is no number above 0.

    Costs a pass over the heap for each link of the longest chain: some 30 ms each for a million
    objects.
    """
    most = _limit(limit)
    if _is_class(obj):
        return _of_class(obj, most)
    if id(type(obj)) in _SHARED or (type(obj) is int and obj in _SMALL_INTEGERS):
        raise UsageError(
            f"why_alive: obj is {obj!r}, which Python makes once, shares and never frees; "
            "accepted: an object that your program made, or a class"
        )
    with Frames() as frames, _kinds.without_overrides():
        held = holders_of(obj, frames, frames.stack())
    return WhyAlive(held.type, (_kept(held, most),))


def holder_names(objects: list[Any]) -> list[str]:
    """The first holder of each object by name and home; empty text where nobody can name one.

    Args:
        objects: whose holders to name. The list itself is not told.

    Costs what `why_alive` does, for each object.
    """
    with Frames() as frames, _kinds.without_overrides():
        stack = frames.stack()
        kept = [_kept(holders_of(one, frames, stack, [objects]), 1) for one in objects]
    first = (next(iter(one.holders), None) for one in kept)
    return [f"{one.name}, {one.where}" if one is not None else "" for one in first]


def _is_class(obj: object) -> bool:
    """Whether `obj` is a class by its real type, whatever it says itself."""
    return any(cls is type for cls in type.__dict__["__mro__"].__get__(type(obj)))


def _limit(limit: object) -> int:
    try:
        most = operator.index(limit)  # type: ignore[arg-type]
    except TypeError:
        most = 0
    if isinstance(limit, bool) or most < 1:
        raise UsageError(
            f"why_alive: limit is {clean(repr(limit), 80)}; accepted: a whole number, 1 or more"
        )
    return most


def _of_class(cls: Any, most: int) -> WhyAlive:
    name = type.__dict__["__qualname__"].__get__(cls)
    if not type.__dict__["__flags__"].__get__(cls) & _HAVE_GC:
        raise UsageError(
            f"why_alive: the collector keeps no list of {clean(name)} objects, so its instances "
            "cannot be found; accepted: a class whose instances refer to others, or one object"
        )
    living = objects_of(family(cls))
    own = _own_objects() | {id(living)}
    living[:] = [item for item in living if id(item) not in own]
    count = len(living)
    try:
        with Frames() as frames, _kinds.without_overrides():
            stack = frames.stack()
            kept = tuple(_instance(living, at, frames, stack) for at in _spread(count, most))
    finally:
        living.clear()
    return WhyAlive(clean(name), kept, count)


def _own_objects() -> set[int]:
    """What memguard is made of: its modules' variables, their containers, classes and functions."""
    own: set[int] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "memguard" and type(module) is ModuleType:
            variables = vars(module)
            own.add(id(variables))
            own |= {id(value) for key, value in variables.items() if _is_own(key, value)}
    return own


def _is_own(name: str, value: object) -> bool:
    if isinstance_exact(value, type):
        return class_module(cast("type", value)).partition(".")[0] == "memguard"
    if type(value) is FunctionType:
        return function_module(value).partition(".")[0] == "memguard"
    return not name.startswith("__") and type(value) in (list, dict, tuple, set, frozenset)


def _instance(living: list[Any], at: int, frames: Frames, stack: list[Spot]) -> Kept:
    return _kept(holders_of(living[at], frames, stack, [living]), 1)


def _spread(count: int, most: int) -> list[int]:
    """Positions of so many out of `count`, evenly from first to last."""
    if count <= most or most == 1:
        return list(range(min(count, most)))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def _kept(held: Held, most: int) -> Kept:
    rooted = [holding for holding in held.holdings if not holding.cycle]
    cycles = tuple(holding.chain for holding in held.holdings if holding.cycle)
    told, rest = rooted[:most], rooted[most:]
    return Kept(
        held.type,
        tuple(map(_holder, told)),
        tuple(map(_in_one_line, rest[:_MOST_ALSO])),
        len(rest[_MOST_ALSO:]) + held.others,
        cycles[:most],
        held.complete,
        held.hidden,
        gc.get_freeze_count(),
    )


def _holder(holding: Holding) -> Holder:
    place, statement = holding.place, holding.statement
    if place is None:
        where = "held by nothing that Python shows" if not holding.rooted else ""
        return Holder(f"a {holding.type}", where, chain=holding.chain)
    name, where = _called(holding, place)
    return replace(holder_of(place, statement, holding.type, holding.chain), name=name, where=where)


def _called(holding: Holding, place: Place) -> tuple[str, str]:
    """Name and home; also of what lies inside a library's object, as `net.lin.weight` does."""
    if holding.expression and place.kind in ("attribute", "local", "global"):
        return holding.expression, f"attribute of {holding.owner}"
    return name_of(place), where_of(place)


def _in_one_line(holding: Holding) -> str:
    if holding.place is None:
        return "; ".join(holding.chain[-2:])
    return ", ".join(_called(holding, holding.place))
