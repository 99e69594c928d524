"""Plain containers that grow, and objects that become more: what Python knows of host memory.

Two looks at the heap, some steps apart, are compared. Nothing of what is looked at is kept between
them, only numbers; a container is known again by its identity and type.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Any

from memguard._heap import count_types, family, objects_of
from memguard.explain.frames import Frames
from memguard.explain.reading import class_qualname, is_tensor, isinstance_exact, own_dict
from memguard.explain.search import is_user_module

# Shorter containers are passed over: a program has a few hundred thousand of them.
SHORTEST = 8

# Newest entries whose size is measured; the others are taken to be like them.
MEASURED = 6

# Objects looked at to tell the size of one entry, and how deep.
MOST_PARTS, DEEPEST = 400, 5

# Objects looked at below the user's variables for dicts that the collector does not know.
MOST_BELOW = 10_000

# Types whose instances became more that are named.
MOST_TYPES = 3

# Fewer new objects than this say nothing, nor do those that could not be this share of the growth.
FEW_OBJECTS, MATTERS = 50, 0.05

_SIZED: tuple[Any, ...] = (list, dict, set, deque, bytearray)
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None))
_NOT_PARTS = (type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Numbers of one look.

    Attributes:
        lengths: by identity of a container, its type's identity and its length.
        counts: by identity of a type, how many instances the collector knows.
    """

    lengths: dict[int, tuple[int, int]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grown:
    """A container that is longer than before.

    Attributes:
        container: the object itself; let go of it soon.
        added: entries more than before.
        bytes: what those take, going by the newest.
        entry: type of the newest entry.
    """

    container: Any
    added: int
    bytes: int
    entry: str


def snapshot() -> Snapshot:
    """Look at all containers and count all objects (0.2 seconds for a heap of a million)."""
    counts = count_types()
    found = _containers()
    lengths = {id(item): (id(type(item)), _length(item)) for item in found}
    found.clear()
    return Snapshot(lengths, counts)


def grown_since(before: Snapshot) -> list[Grown]:
    """The containers that are longer than before, what takes most first."""
    found = _containers()
    result: list[Grown] = []
    for item in found:
        kind, length = before.lengths.get(id(item), (0, 0))
        if kind == id(type(item)) and _length(item) > length and item is not before.lengths:
            result.append(_measured(item, _length(item) - length))
    found.clear()
    return sorted(result, key=lambda grown: -grown.bytes)


def more_than(before: Snapshot, gained: float) -> list[tuple[str, int]]:
    """(type, how many more) of the objects that have become more, most first.

    Args:
        before: the look before.
        gained: bytes that are to be explained; a type is named when its new objects would matter
            beside them if each had a kilobyte with it.
    """
    now = count_types()
    fewest = max(FEW_OBJECTS, MATTERS * gained / 1024)
    more = {key: count - before.counts.get(key, 0) for key, count in now.items()}
    names = {id(cls): cls for cls in _all_types()}
    known = [
        (class_qualname(names[key]), count)
        for key, count in more.items()
        if count >= fewest and key in names
    ]
    names.clear()
    return sorted(known, key=lambda pair: -pair[1])[:MOST_TYPES]


def is_any_more(before: Snapshot, fewest: float) -> bool:
    """Whether objects of any type have become more by so many (0.1 seconds for a million)."""
    now = count_types()
    return any(count - before.counts.get(key, 0) >= fewest for key, count in now.items())


def _containers() -> list[Any]:
    """All containers that are long enough to matter."""
    with Frames() as frames:
        plain = objects_of(frozenset(map(id, _SIZED)))
        # Without a step of Python's for each: there may be hundreds of thousands.
        found = list(compress(plain, map(SHORTEST.__le__, map(len, plain))))
        plain.clear()
        others = objects_of(family(*_SIZED) - frozenset(map(id, _SIZED)))
        found += [item for item in others if _length(item) >= SHORTEST]
        others.clear()
        found = [item for item in found if id(item) not in frames.own_ids]
        known = set(map(id, found))
        untracked = untracked_below(frames, _is_long)
        found += [item for item in untracked if id(item) not in known]
        return found


def untracked_below(frames: Frames, is_wanted: Callable[[Any], bool]) -> list[Any]:
    """What is wanted, of all that user's variables lead to and the collector does not know.

    It knows none of what cannot be part of a cycle: dicts of plain values, byte arrays, arrays.
    """
    pending: deque[Any] = deque(frames.user_values())
    pending += [view.frame.f_globals for view in frames.views if view.user]
    names = [name for name, module in list(sys.modules.items()) if _is_users(name, module)]
    pending += [own_dict(sys.modules.get(name)) for name in names]
    found: dict[int, Any] = {}
    seen: set[int] = set()
    while pending and len(seen) < MOST_BELOW:
        item = pending.popleft()
        if not gc.is_tracked(item):
            if is_wanted(item):
                found[id(item)] = item
        elif id(item) not in seen and not isinstance_exact(item, _NOT_PARTS):
            seen.add(id(item))
            pending.extend(gc.get_referents(item))
    pending.clear()
    return list(found.values())


def _is_long(item: Any) -> bool:
    return type(item) in (dict, bytearray) and len(item) >= SHORTEST


def _is_users(name: str, module: Any) -> bool:
    values = own_dict(module)
    return values is not None and is_user_module(name, values)


def _length(item: Any) -> int:
    """The container's length, past anything a subclass defines."""
    for cls in _SIZED:
        if isinstance_exact(item, cls):
            return int(cls.__len__(item))
    return 0


def _measured(item: Any, added: int) -> Grown:
    if isinstance_exact(item, bytearray):
        return Grown(item, added, added, "byte")
    newest = _newest(item, min(added, MEASURED))
    seen: set[int] = set()
    parts = [_size_of(entry, seen) for entry in newest]
    kind = class_qualname(type(newest[0][-1])) if newest else ""
    newest.clear()
    return Grown(item, added, int(sum(parts) / max(1, len(parts)) * added), kind)


def _newest(item: Any, count: int) -> list[tuple[Any, ...]]:
    """The entries put in last, of a dict with their keys."""
    if isinstance_exact(item, OrderedDict):
        return list(islice(OrderedDict.items(item), count))
    if isinstance_exact(item, dict):
        # A dict without its last keys cannot be read backward past what its class defines.
        plain: Any = dict.__reversed__(item)
        keys = list(islice(plain, count))
        return [(key, dict.__getitem__(item, key)) for key in keys]
    if isinstance_exact(item, set):
        return [(entry,) for entry in islice(set.__iter__(item), count)]
    cls: Any = deque if isinstance_exact(item, deque) else list
    return [(entry,) for entry in islice(cls.__reversed__(item), count)]


def _size_of(entry: tuple[Any, ...], seen: set[int]) -> int:
    """Bytes of one entry with what only it refers to, as far as a few hundred objects tell."""
    total, looked = 0, 0
    pending: deque[tuple[Any, int]] = deque((part, 0) for part in entry)
    while pending and looked < MOST_PARTS:
        part, depth = pending.popleft()
        if id(part) in seen or isinstance_exact(part, _NOT_PARTS) or is_tensor(part):
            continue
        seen.add(id(part))
        looked += 1
        total += _own_size(part)
        if depth < DEEPEST and type(part) not in _LEAVES:
            below = gc.get_referents(part)
            pending.extend((child, depth + 1) for child in below[:MOST_PARTS])
            if len(below) > MOST_PARTS:  # the rest is taken to be like those
                total += _own_size(below[0]) * (len(below) - MOST_PARTS)
    return total


def _own_size(part: Any) -> int:
    """Bytes of an object by itself; runs no code of its class."""
    cls = type(part)
    if cls in _LEAVES or cls in (list, dict, tuple, set, frozenset, deque, defaultdict):
        return sys.getsizeof(part)
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is not None and isinstance_exact(part, array):
        owns = array.flags.__get__(part).owndata
        return int(array.nbytes.__get__(part)) if owns else 0
    return int(type.__dict__["__basicsize__"].__get__(cls))


def _all_types() -> list[type]:
    pending: list[type] = [object]
    seen: dict[int, type] = {}
    while pending:
        cls = pending.pop()
        if id(cls) not in seen:
            seen[id(cls)] = cls
            pending.extend(type.__subclasses__(cls))
    return list(seen.values())
