"""Reading objects and classes past whatever they define: no code of theirs is run."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from typing import Any

from memguard import _kinds

_class_dict: Any = type.__dict__["__dict__"].__get__
_class_module: Any = type.__dict__["__module__"].__get__
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
    try:
        module = _class_module(cls)
    except AttributeError:  # taken out of the class
        return ""
    return module if type(module) is str else ""


def function_module(function: types.FunctionType) -> str:
    """The name of a function's module; empty where it was set to something else."""
    module = function.__module__
    return module if type(module) is str else ""


# Whatever has a dict may have one of a class that defines what it likes: its size, its entries.


def entries(values: dict[Any, Any] | None) -> list[tuple[Any, Any]]:
    """(key, value) of a dict, read past its class; none of None."""
    return list(dict.items(values)) if values is not None else []


def entry(values: dict[Any, Any] | None, key: str) -> Any:
    """A dict's value under a key, read past its class; None when there is none."""
    return dict.get(values, key) if values is not None else None


def text_entry(values: dict[Any, Any] | None, key: str) -> str:
    """The same where it is text, and nobody's subclass of it; else empty."""
    found = entry(values, key)
    return found if type(found) is str else ""


def module_file(values: dict[str, Any] | None) -> str:
    """The file of the module with these variables; empty where it has none.

    A script's `__file__` is taken away when its last line has run; how it was loaded stays.
    """
    loader = entry(values, "__loader__")
    path = loader.path if type(loader) is SourceFileLoader else None
    return text_entry(values, "__file__") or (path if type(path) is str else "")


def own_dict(value: Any) -> dict[str, Any] | None:
    """The instance's `__dict__`, read past anything its class defines; None when it has none."""
    for cls in lineage(type(value)):
        descriptor: Any = members(cls).get("__dict__")
        kind = type(descriptor)
        # By identity: `in` would ask a metaclass whether classes are equal.
        if kind is types.GetSetDescriptorType or kind is types.MemberDescriptorType:
            found = descriptor.__get__(value)
            return found if isinstance_exact(found, dict) else None
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
    return [*entries(own_dict(value)), *slots(value)]
