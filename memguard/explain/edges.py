"""How one object refers to another, written as Python a user would write.

A table from the referrer's type to a small function. Everything is read through the type's own
slots, so that no foreign `__getattr__`, `__eq__` or `__repr__` runs.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memguard import _kinds
from memguard.explain.frames import read_locals


@dataclass(frozen=True, slots=True)
class Edge:
    """One reference.

    Attributes:
        kind: `item`, `key`, `attribute`, `buffer`, `hook`, `cell`, `default`, `closure`, `class`,
            `global`, `bound`, `cache`, `frame`, `grad`, `internal`.
        text: as Python: `.history`, `['loss']`, `[...]`.
        name: the bare attribute, variable or key.
    """

    kind: str
    text: str
    name: str = ""


_HOOK_DICTS = frozenset(
    {
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_post_accumulate_grad_hooks",
        "_state_dict_hooks",
        "_load_state_dict_pre_hooks",
        "_optimizer_step_post_hooks",
        "_optimizer_step_pre_hooks",
    }
)
_MODULE_DICTS = {"_buffers": "buffer", "_parameters": "attribute", "_modules": "attribute"}
_SLOT_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType)
_SIMPLE_KEYS = (str, int, float, bool, bytes, type(None))


def own_dict(value: Any) -> dict[str, Any] | None:
    """The instance's `__dict__`, read past anything its class defines; None when it has none."""
    for cls in type.__dict__["__mro__"].__get__(type(value)):
        descriptor = cls.__dict__.get("__dict__")
        if type(descriptor) in _SLOT_TYPES:
            found = descriptor.__get__(value)
            return found if isinstance(found, dict) else None
    return None


def slots(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of the instance's slots that are set."""
    found: list[tuple[str, Any]] = []
    for cls in type.__dict__["__mro__"].__get__(type(value)):
        for name, descriptor in list(cls.__dict__.items()):
            if type(descriptor) is types.MemberDescriptorType:
                try:
                    found.append((name, descriptor.__get__(value)))
                except AttributeError:
                    continue
    return found


def edge(parent: Any, child: Any) -> Edge:
    """How `parent` refers to `child`; an `internal` edge when it cannot be told."""
    if _kinds.is_tensor_type(type(parent)):
        found = _tensor(parent, child)
        if found is not None:
            return found
    for cls, tell in _TABLE:
        if isinstance_exact(parent, cls):
            found = tell(parent, child)
            if found is not None:
                return found
    return _instance(parent, child) or Edge("internal", f" → {type(child).__name__}")


def isinstance_exact(value: Any, classes: type | tuple[type, ...]) -> bool:
    """isinstance by the real type: a class that lies about `__class__` is not asked."""
    wanted = classes if type(classes) is tuple else (classes,)
    # By identity: a metaclass may compare its classes in ways of its own.
    lineage = map(id, type.__dict__["__mro__"].__get__(type(value)))
    return not {id(cls) for cls in wanted}.isdisjoint(lineage)


def _sequence(parent: Any, child: Any) -> Edge | None:
    names = type(parent).__dict__.get("_fields") if type(parent) is not tuple else None
    if isinstance_exact(parent, tuple) and type(names) is tuple:  # a named tuple
        for name, value in zip(names, tuple.__iter__(parent), strict=False):
            if value is child and type(name) is str:
                return Edge("attribute", f".{name}", name)
    return Edge("item", "[...]")


def _set(parent: Any, child: Any) -> Edge | None:
    return Edge("item", "{...}")


def _mapping(parent: dict[Any, Any], child: Any) -> Edge | None:
    for key, value in list(dict.items(parent)):
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
    defaults = function.__defaults__ or ()
    for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=False):
        if default is value:
            return name
    for name, default in (function.__kwdefaults__ or {}).items():
        if default is value:
            return name
    return None


def _method(parent: types.MethodType, child: Any) -> Edge | None:
    return Edge("bound", ".__self__") if child is parent.__self__ else None


def _partial(parent: functools.partial[Any], child: Any) -> Edge | None:
    return Edge("bound", "(partial argument)")


def _class(parent: type, child: Any) -> Edge | None:
    for name, value in list(type.__dict__["__dict__"].__get__(parent).items()):
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
    return Edge("frame", f" local {names[0]}", names[0]) if names else Edge("frame", "")


def _cache(parent: Any, child: Any) -> Edge | None:
    return Edge("cache", "(...)", getattr(parent, "__name__", "cache"))


def _tensor(parent: Any, child: Any) -> Edge | None:
    values = own_dict(parent)
    if values is child:
        return Edge("attribute", "")
    hooks = getattr(parent, "_backward_hooks", None)
    if hooks is child:
        return Edge("hook", "._backward_hooks", "_backward_hooks")
    return None


def _instance(parent: Any, child: Any) -> Edge | None:
    values = own_dict(parent)
    if values is child:
        return Edge("attribute", "")
    for name, value in [*(values or {}).items(), *slots(parent)]:
        if value is child and type(name) is str:
            return attribute(parent, name)
    return None


def attribute(parent: Any, name: str) -> Edge:
    """The edge for attribute `name` of an instance."""
    if name in _HOOK_DICTS:
        return Edge("hook", f".{name}", name)
    if name in _MODULE_DICTS and _kinds.is_module(parent):
        return Edge(_MODULE_DICTS[name], "", "")
    return Edge("attribute", f".{name}", name)


_LRU_CACHE: type = type(functools.lru_cache(maxsize=1)(lambda: None))

_TABLE: tuple[tuple[type, Callable[[Any, Any], Edge | None]], ...] = (
    (types.CellType, _cell),
    (types.FunctionType, _function),
    (types.MethodType, _method),
    (functools.partial, _partial),
    (_LRU_CACHE, _cache),
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
    (type, _class),
)

CONTAINERS: tuple[type, ...] = (list, tuple, collections.deque, set, frozenset, dict)


def is_container(value: Any) -> bool:
    """Whether the object is a builtin container, or a subclass of one."""
    return any(isinstance_exact(value, cls) for cls in CONTAINERS)


def size_limit(value: Any) -> int | None:
    """Most entries the container can ever have; None when nothing limits it."""
    if isinstance_exact(value, collections.deque):
        limit = collections.deque.maxlen.__get__(value)
        return int(limit) if limit is not None else None
    if isinstance_exact(value, _LRU_CACHE):
        parameters: Mapping[str, int | None] = value.cache_parameters()
        return parameters["maxsize"]
    return None
