"""Records to plain data and back, whatever their classes are."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from memguard.errors import ReportError

_Record = TypeVar("_Record")


def to_plain(value: Any) -> Any:
    """A record and all within it as dicts, lists, text and numbers."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(cls: type[_Record], data: Any, path: str) -> _Record:
    """The record that `to_plain` made; fields that the class does not know are passed over.

    Args:
        cls: the record's class.
        data: what was read.
        path: where in the report it stands, for the message.

    Raises:
        ReportError: a field is missing or has the wrong type.
    """
    if not isinstance(data, Mapping):
        raise ReportError(f"reading a report: {path} is {type(data).__name__}, wanted an object")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for part in dataclasses.fields(cls):  # type: ignore[arg-type]
        if part.name in data:
            values[part.name] = _value(hints[part.name], data[part.name], f"{path}.{part.name}")
        elif part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING:
            raise ReportError(f"reading a report: {path} lacks {part.name!r}")
    return cls(**values)


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _value(next(a for a in arguments if a is not type(None)), value, path)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ReportError(f"reading a report: {path} is {value!r}, wanted a list")
        return tuple(_value(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping) and arguments[1] is not Any:
        return {
            str(key): _value(arguments[1], item, f"{path}.{key}") for key, item in value.items()
        }
    if origin is Literal:
        if value not in arguments:
            raise ReportError(f"reading a report: {path} is {value!r}, wanted one of {arguments}")
        return value
    if dataclasses.is_dataclass(hint):
        return from_plain(typing.cast("type[Any]", hint), value, path)
    wanted: Any = Mapping if origin is not None else (int, float) if hint is float else hint
    mistaken = wanted is int and isinstance(value, bool)
    if wanted is not Any and (mistaken or not isinstance(value, wanted)):
        name = getattr(hint, "__name__", hint)
        raise ReportError(f"reading a report: {path} is {value!r}, wanted {name}")
    return value
