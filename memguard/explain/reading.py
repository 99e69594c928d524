"""Reading objects and classes past whatever they define: no code of theirs is run."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

from memguard import _kinds

_SLOT_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType)
_class_dict: Any = type.__dict__["__dict__"].__get__
_class_lineage: Any = type.__dict__["__mro__"].__get__


def isinstance_exact(value: Any, classes: type | tuple[type, ...]) -> bool:
    """isinstance by the real type: a class that lies about `__class__` is not asked."""
    wanted = classes if type(classes) is tuple else (classes,)
    # By identity: `in` would ask a metaclass whether classes are equal.
    known = {id(cls) for cls in _class_lineage(type(value))}
    return any(id(cls) in known for cls in wanted)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor by its real type; asks no metaclass to hash or compare."""
    return _kinds.is_tensor_type(type(value))


def is_optimizer(value: Any) -> bool:
    """Whether a value is an optimizer by its real type."""
    return _kinds.is_optimizer(value)


def members(cls: type) -> Mapping[str, Any]:
    """What a class itself defines, read past its metaclass."""
    found: Mapping[str, Any] = _class_dict(cls)
    return found


def lineage(cls: type) -> tuple[type, ...]:
    """A class and those it inherits from, read past its metaclass."""
    found: tuple[type, ...] = _class_lineage(cls)
    return found


def class_name(cls: type) -> str:
    """A class's name, read past its metaclass."""
    return str(type.__dict__["__name__"].__get__(cls))


def class_qualname(cls: type) -> str:
    """A class's qualified name, read past its metaclass."""
    return str(type.__dict__["__qualname__"].__get__(cls))


def class_module(cls: type) -> str:
    """The name of a class's module, read past its metaclass."""
    module = type.__getattribute__(cls, "__module__")
    return module if type(module) is str else ""


def own_dict(value: Any) -> dict[str, Any] | None:
    """The instance's `__dict__`, read past anything its class defines; None when it has none."""
    for cls in lineage(type(value)):
        descriptor: Any = members(cls).get("__dict__")
        if type(descriptor) in _SLOT_TYPES:
            found = descriptor.__get__(value)
            return found if isinstance(found, dict) else None
    return None


def bound_function(bound: functools.partial[Any]) -> Any:
    """What a partial calls, read past what a subclass of it defines."""
    return functools.partial.func.__get__(bound)


def slots(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of the instance's slots that are set."""
    found: list[tuple[str, Any]] = []
    for cls in lineage(type(value)):
        for name, descriptor in list(members(cls).items()):
            if type(descriptor) is types.MemberDescriptorType:
                try:
                    found.append((name, descriptor.__get__(value)))
                except AttributeError:
                    continue
    return found


def attributes(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of what an instance has, in its dict and in its slots."""
    return [*(own_dict(value) or {}).items(), *slots(value)]
