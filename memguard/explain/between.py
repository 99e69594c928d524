"""What lies between a holder and a survivor that hangs on it."""

from __future__ import annotations

import gc
import types
from collections.abc import Sequence
from typing import Any

from memguard import _kinds
from memguard.explain import reading
from memguard.explain.reading import is_tensor, isinstance_exact

# Entries of a container that are looked at to see whether numbers are among its tensors.
_MOST_MIXED = 1000

# A tensor is a small part of its memory when that is so many times as large.
_SMALL_PART = 4


def function_inside(path: Sequence[Any]) -> tuple[str, int] | None:
    """Name and first line of the function on the way from a holder's entry to the survivor."""
    made = next((item for item in path if type(item) is types.FunctionType), None)
    return None if made is None else (made.__code__.co_name, made.__code__.co_firstlineno)


def is_small_part(value: Any) -> bool:
    """Whether a tensor keeps much more memory than it shows, as a slice does."""
    if not is_tensor(value):
        return False
    with _kinds.without_overrides():
        try:
            own = value.numel() * value.element_size()
        except RuntimeError:  # kinds of tensors that do not tell
            return False
        return bool(_kinds.storage_of(value)[1] >= _SMALL_PART * max(1, own))


def is_mixed(path: Sequence[Any]) -> bool:
    """Whether what has the survivor, the last of the path, has anything but tensors as well."""
    holder: Any = path[-2] if len(path) > 1 else None
    if type(holder) is dict:
        values = [value for _, value in reading.entries(holder)[:_MOST_MIXED]]
    else:
        # A tuple that is still being built has empty places, which nobody but the collector may
        # pass over: reading one is a segmentation fault.
        tupled = gc.get_referents(holder) if type(holder) is tuple else []
        values = holder[:_MOST_MIXED] if type(holder) is list else tupled
    return not all(map(is_tensor, values))


def is_grouped(holder: Any) -> bool:
    """Whether a dict has lists only, and those tensors only: all may be emptied alike."""
    values = reading.entries(holder) if isinstance_exact(holder, dict) else []
    if not values or len(values) > _MOST_MIXED:
        return False
    lists = [value for _, value in values]
    return all(type(v) is list and all(map(is_tensor, v[:_MOST_MIXED])) for v in lists)
