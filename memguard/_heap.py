"""The collector's objects of certain types, picked out without harm to other threads.

`gc.get_objects` hands out everything, also tuples that another thread is still building, and a
tuple that somebody else refers to cannot be finished: the thread gets a SystemError. So no Python
code runs while everything is held: the picking is one call into C, during which no other thread
does, and only the wanted objects come out of it.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain, compress, takewhile, tee
from operator import is_not
from typing import Any

# Objects of ours that `newest` makes, most before it holds everything. Up to 45 were counted on
# Python 3.11; to wait for a collection from there on told leaks of small steps some steps later.
# One that begins in the midst of a look for all that harms nothing: its start is a look.
OWN_OBJECTS = 32


def family(*roots: type) -> frozenset[int]:
    """The classes and all their subclasses, as `objects_of` wants them.

    By identity and walking down, so that no metaclass is asked to hash, compare or list anything.
    """
    pending = list(roots)
    found: set[int] = set()
    while pending:
        cls = pending.pop()
        if id(cls) not in found:
            found.add(id(cls))
            pending.extend(type.__subclasses__(cls))
    return frozenset(found)


def objects_of(classes: frozenset[int], generation: int | None = None) -> list[Any]:
    """The objects whose type is one of `classes`, roughly the oldest first.

    Roughly, since a collection puts what is only reached through others behind those.

    Args:
        classes: identities of the types; subclasses are not included by themselves.
        generation: look only at this generation of the collector; at all when None.

    Costs about 60 ns an object of the generation, so 60 ms for a heap of a million.
    """
    found = list(_picked(classes, map(gc.get_objects, (generation,))))
    if generation is None and len(found) > 1:
        # The collector hands out the youngest generation first. All are asked for at once, and then
        # told apart: between three questions a collection may move an object past all of them.
        young = [list(_picked(classes, map(gc.get_objects, (number,)))) for number in (0, 1)]
        age = {id(item): -number for number, items in enumerate(young) for item in items}
        found.sort(key=lambda item: age.get(id(item), -2))
    return found


def count_types() -> dict[int, int]:
    """How many objects of each type the collector knows, by the type's identity.

    Costs about 100 ns an object, so 0.1 seconds for a heap of a million.
    """
    lists = map(gc.get_objects, (None,))
    types_of = map(partial(map, type), lists)
    # In one call into C, like `_picked`: the list of everything is gone when it returns.
    return Counter(list(chain.from_iterable(map(partial(map, id), types_of))))


def newest(classes: frozenset[int], mark: object) -> list[Any]:
    """The objects in the youngest generation that were made after a certain one, the newest first.

    Args:
        classes: identities of the types, as for `objects_of`.
        mark: the object to stop at; all of the generation where it is not in it any more.

    Costs 10 us, 10 ns for each object of the generation, and 150 ns for each that is newer.
    """
    everything = map(gc.get_objects, (0,))
    until = partial(takewhile, partial(is_not, mark))
    # Each step drops what it was handed as soon as it has made its own.
    return list(_picked(classes, map(list, map(until, map(reversed, everything)))))


def is_collection_near() -> bool:
    """Whether the few objects that `newest` makes might set off a collection.

    Finalizers would run then while everything young is held. Not to be asked within a collection,
    where no other can begin.
    """
    return gc.isenabled() and gc.get_count()[0] + OWN_OBJECTS >= gc.get_threshold()[0] > 0


def _picked(classes: frozenset[int], lists: Iterator[list[Any]]) -> Iterator[Any]:
    lists, same, last = tee(lists, 3)
    types_of = map(partial(map, type), same)
    keys_of = map(partial(map, id), types_of)
    wanted = map(partial(map, classes.__contains__), keys_of)
    picked = chain.from_iterable(map(compress, lists, wanted))
    # The list of everything has these very iterators in it, and they have the list: emptied last,
    # and still within the one call, so that no cycle goes on holding everything.
    return chain(picked, filter(None, map(list.clear, last)))
