"""How one object refers to another, written as Python a user would write.

A table from the referrer's type to a small function. Everything is read past
what classes define, so that no foreign `__getattr__`, `__eq__` or `__repr__` runs.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import re
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memguard import _kinds
from memguard.explain.capacity import LRU_CACHE
from memguard.explain.frames import read_locals
from memguard.explain.reading import (
    attributes,
    bound_function,
    entries,
    is_tensor,
    isinstance_exact,
    members,
    own_dict,
    text_entry,
)


@dataclass(frozen=True, slots=True)
class Edge:
    """One reference.

    Attributes:
        kind: what sort of reference. Of Python's own: `item`, `key`, `attribute`, `class`, `cell`,
            `closure`, `default`, `argument`, `bound`, `cache`, `frame`, `error` (a traceback or
            what it was raised from), `value` (of a context variable), `yielded`. Of torch's:
            `buffer`, `hook`, `grad`, `base`, `ctx`, `graph`. Where a chain begins: `local`,
            `global`, `type`, `built`, `iterated`, `unrooted`, `itself`. `internal` where it cannot
            be told.
        text: as Python: `.history`, `['loss']`, `[...]`.
        name: the bare attribute, variable or key.
    """

    kind: str
    text: str
    name: str = ""


# Modules, optimizers and tensors keep hooks in dicts of such names, and torch keeps global ones in
# variables of its modules.
_HOOK_DICT = re.compile(
    r"_(?:global|forward|backward|state_dict|load_state_dict|optimizer|post_accumulate_grad)"
    r"(?:_\w+)?_hooks"
)
_MODULE_DICTS = {"_buffers": "buffer", "_parameters": "attribute", "_modules": "attribute"}


def edge(parent: Any, child: Any) -> Edge:
    """How `parent` refers to `child`; an `internal` edge when it cannot be told."""
    found = _tensor(parent, child) if is_tensor(parent) else None
    if found is not None:
        return found
    for cls, tell in _TABLE:
        if isinstance_exact(parent, cls):
            found = tell(parent, child)
            if found is not None:
                return found
    return _array(parent, child) or _instance(parent, child) or Edge("internal", " →")


def _sequence(parent: Any, child: Any) -> Edge | None:
    names = members(type(parent)).get("_fields") if type(parent) is not tuple else None
    if isinstance_exact(parent, tuple) and type(names) is tuple:  # a named tuple
        for name, value in zip(names, tuple.__iter__(parent), strict=False):
            if value is child and type(name) is str:
                return Edge("attribute", f".{name}", name)
    return Edge("item", "[...]")


def _set(parent: Any, child: Any) -> Edge | None:
    return Edge("item", "{...}")


def _mapping(parent: dict[Any, Any], child: Any) -> Edge | None:
    for key, value in entries(parent):
        if value is child:
            # Numbers differ from step to step; a word names the entry.
            if type(key) is str:
                return Edge("key", f"[{key!r}]", key)
            return Edge("key", "[...]")
        if key is child:
            return Edge("key", " (key)")
    return None


def _cell(parent: types.CellType, child: Any) -> Edge | None:
    return Edge("cell", "", "")


def _function(parent: types.FunctionType, child: Any) -> Edge | None:
    if child is parent.__closure__:
        return Edge("closure", "")
    for name, cell in zip(parent.__code__.co_freevars, parent.__closure__ or (), strict=False):
        if cell is child:
            return Edge("closure", f" closes over {name}", name)
    if child is parent.__defaults__ or child is parent.__kwdefaults__:
        return Edge("default", "")
    if child is own_dict(parent):
        return Edge("attribute", "")
    return None


def default_name(function: types.FunctionType, value: Any) -> str | None:
    """The parameter whose default `value` is."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    given = function.__defaults__
    defaults = tuple.__getitem__(given, slice(None)) if given is not None else ()
    for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=False):
        if default is value:
            return str(name)
    for name, default in entries(function.__kwdefaults__):
        if default is value and type(name) is str:
            return str(name)
    return None


def _method(parent: types.MethodType, child: Any) -> Edge | None:
    return Edge("bound", ".__self__") if child is parent.__self__ else None


def _partial(parent: functools.partial[Any], child: Any) -> Edge | None:
    return (
        Edge("bound", ".func")
        if child is bound_function(parent)
        else Edge("bound", " bound argument")
    )


def argument_name(bound: functools.partial[Any], value: Any) -> str | None:
    """The parameter to which a partial binds `value`; None when its function does not tell.

    Only a function of Python's has parameters that stand somewhere: not a class, an object that can
    be called, or what is written in C.
    """
    function = bound_function(bound)
    if type(function) is not types.FunctionType:
        return None
    for name, given in entries(functools.partial.keywords.__get__(bound)):
        if given is value and type(name) is str:
            return str(name)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    for name, given in zip(names, functools.partial.args.__get__(bound), strict=False):
        if given is value:
            return str(name)
    return None


def _class(parent: type, child: Any) -> Edge | None:
    for name, value in list(members(parent).items()):
        if value is child:
            return Edge("class", f".{name}", name)
    return Edge("class", "")


_FRAME_ATTRIBUTES = ("gi_frame", "cr_frame", "ag_frame")


def suspended_frame(value: Any) -> types.FrameType | None:
    """The frame of a generator or coroutine, or the frame itself; None when it has ended."""
    if type(value) is types.FrameType:
        return value
    found = (getattr(value, name, None) for name in _FRAME_ATTRIBUTES)
    return next((frame for frame in found if frame is not None), None)


def _generator(parent: Any, child: Any) -> Edge | None:
    frame = suspended_frame(parent)
    if frame is None:
        return None
    names = [name for name, value in read_locals(frame).items() if value is child]
    if not names:
        return Edge("frame", "")
    kept = type(parent) is types.FrameType
    text = f".f_locals[{names[0]!r}]" if kept else f" local {names[0]}"
    return Edge("frame", text, names[0])


def _cache(parent: Any, child: Any) -> Edge | None:
    return Edge("cache", "(...)", text_entry(own_dict(parent), "__name__") or "cache")


def _tensor(parent: Any, child: Any) -> Edge | None:
    values = own_dict(parent)
    if values is child:
        return Edge("attribute", "")
    door = _kinds.torch_door()
    with _kinds.without_overrides():
        if not is_tensor(child):
            name = door.hooks_name(parent, child)
            return Edge("hook", f".{name}", name) if name is not None else None
        if door.gradient_of(parent) is child:
            return Edge("grad", ".grad", "grad")
        return Edge("base", "._base", "_base") if door.base_of(parent) is child else None


_ERROR_ATTRIBUTES = ("__traceback__", "__cause__", "__context__")


def _error(parent: BaseException, child: Any) -> Edge | None:
    for name in _ERROR_ATTRIBUTES:
        if BaseException.__dict__[name].__get__(parent) is child:
            return Edge("error", f".{name}", name)
    return None


def _traceback(parent: types.TracebackType, child: Any) -> Edge | None:
    name = "tb_next" if parent.tb_next is child else "tb_frame"
    return Edge("error", f".{name}", name)


def _variable(parent: Any, child: Any) -> Edge | None:
    return Edge("value", ".get()")


def _thread_local(parent: Any, child: Any) -> Edge | None:
    return Edge("attribute", "") if isinstance_exact(child, dict) else None


def _yielded(parent: Any, child: Any) -> Edge | None:
    return Edge("yielded", " (already yielded)") if type(child) is list else None


def _array(parent: Any, child: Any) -> Edge | None:
    """An element of an array of objects, or the tensor whose memory an array uses."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    if kind is None or not isinstance_exact(parent, kind):
        return None
    objects = kind.dtype.__get__(parent).kind == "O"
    return Edge("item", "[...]") if objects else Edge("base", ".base", "base")


def _instance(parent: Any, child: Any) -> Edge | None:
    values = own_dict(parent)
    if values is child:
        return Edge("attribute", "")
    for name, value in attributes(parent):
        if value is child and type(name) is str:
            return attribute(parent, name)
    return None


def attribute(parent: Any, name: str) -> Edge:
    """The edge for attribute `name` of an instance."""
    if is_hooks_name(name):
        return Edge("hook", f".{name}", name)
    if name in _MODULE_DICTS and _kinds.is_module(parent):
        return Edge(_MODULE_DICTS[name], "", "")
    return Edge("attribute", f".{name}", name)


def is_hooks_name(name: str) -> bool:
    """Whether a variable or attribute of that name is a dict of hooks."""
    return _HOOK_DICT.fullmatch(name) is not None


_TABLE: tuple[tuple[type, Callable[[Any, Any], Edge | None]], ...] = (
    (types.CellType, _cell),
    (types.FunctionType, _function),
    (types.MethodType, _method),
    (functools.partial, _partial),
    (LRU_CACHE, _cache),
    (types.GeneratorType, _generator),
    (types.CoroutineType, _generator),
    (types.AsyncGeneratorType, _generator),
    (types.FrameType, _generator),
    (list, _sequence),
    (tuple, _sequence),
    (collections.deque, _sequence),
    (set, _set),
    (frozenset, _set),
    (dict, _mapping),
    (BaseException, _error),
    (types.TracebackType, _traceback),
    (contextvars.ContextVar, _variable),
    (threading.local, _thread_local),
    (itertools.cycle, _yielded),
    (type, _class),
)
