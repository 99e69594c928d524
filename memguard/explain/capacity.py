"""What a container itself shows of its bound: how much it may hold, and whether entries recur."""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from memguard.explain.reading import entries, isinstance_exact, own_dict

CONTAINERS: tuple[Any, ...] = (list, tuple, collections.deque, set, frozenset, dict)
LRU_CACHE: type = type(functools.lru_cache(maxsize=1)(lambda: None))

# Queues with a bound, and the attribute that has it; what the program has not imported it has not.
_QUEUES = (("queue", "Queue", "maxsize"), ("asyncio.queues", "Queue", "_maxsize"))

# Keys of labels lie close together; of 64 entries the largest is some hundred at most. Identities
# and hashes lie far apart.
_KEYS_PER_ENTRY = 16

# Entries whose keys are looked at.
_MOST_KEYS = 1000


def is_container(value: Any) -> bool:
    """Whether the object is a builtin container, or a subclass of one."""
    return any(isinstance_exact(value, cls) for cls in CONTAINERS)


def length(value: Any) -> int | None:
    """Entries that a builtin container (or a subclass of one) has; None for anything else."""
    for cls in CONTAINERS:
        if isinstance_exact(value, cls):
            return int(cls.__len__(value))
    return None


def cache_size(wrapper: Any) -> tuple[int | None, int | None]:
    """(entries, most entries) of a cached function; None when unknown or without limit."""
    if type(wrapper) is not LRU_CACHE:
        return None, None
    read: Any = wrapper
    info = read.cache_info()
    return int(info.currsize), info.maxsize


def size_limit(value: Any, owners: Sequence[Any] = ()) -> int | None:
    """Most entries the container can ever have; None when nothing limits it.

    Args:
        value: the container.
        owners: what it belongs to, as the deque inside a queue does.
    """
    if isinstance_exact(value, collections.deque):
        limit = collections.deque.maxlen.__get__(value)
        if limit is not None:
            return int(limit)
    if type(value) is LRU_CACHE:
        cache: Any = value
        parameters: Mapping[str, int | None] = cache.cache_parameters()
        return parameters["maxsize"]
    for owner in (value, *owners):
        limit = _queue_limit(owner)
        if limit is None and owner is not value:
            limit = _handler_limit(owner, length(value))
        if limit is not None:
            return limit
    return None


def _handler_limit(value: Any, held: int | None) -> int | None:
    """Records that a logging handler gathers before it hands them on and begins anew.

    Not so without a target, to which it would hand them, nor where it has more already.
    """
    handlers = sys.modules.get("logging.handlers")
    cls = getattr(handlers, "BufferingHandler", None)
    if held is None or cls is None or not isinstance_exact(value, cls):
        return None
    own = own_dict(value) or {}
    if own.get("target", value) is None:
        return None
    limit = own.get("capacity")
    return limit if type(limit) is int and limit >= held else None


def _queue_limit(value: Any) -> int | None:
    for module, name, attribute in _QUEUES:
        cls = getattr(sys.modules.get(module), name, None)
        if cls is not None and isinstance_exact(value, cls):
            limit = (own_dict(value) or {}).get(attribute)
            return limit if type(limit) is int and limit > 0 else None
    return None


def recurs(value: Any) -> bool:
    """Whether a dict's keys look like a fixed set, so that its entries are overwritten in time.

    There are places waiting to be filled, or the keys are small numbers in no order, as labels
    come; a counter's come in order.
    """
    if not isinstance_exact(value, dict):
        return False
    found = entries(value)[:_MOST_KEYS]
    empty = sum(1 for _, held in found if held is None)
    if empty and 3 * empty >= len(found):
        return True
    keys = [key for key, _ in found if type(key) is int]
    if len(keys) < len(found) or len(keys) < 3:
        return False
    in_order = keys in (sorted(keys), sorted(keys, reverse=True))
    return not in_order and max(map(abs, keys)) <= _KEYS_PER_ENTRY * len(keys)
