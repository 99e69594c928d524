"""The place of an accumulation point: the variable a user knows it by."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memguard.explain import between, capacity, edges, hooks
from memguard.explain.frames import is_user_file, plain_integers, qualified_name, read_locals
from memguard.explain.naming import Step
from memguard.explain.places import Place
from memguard.explain.reading import (
    bound_function,
    class_module,
    class_name,
    class_qualname,
    entry,
    function_module,
    is_optimizer,
    isinstance_exact,
    lineage,
    members,
    module_file,
    own_dict,
    text_entry,
)
from memguard.explain.search import Search


def place_of(steps: Sequence[Step], position: int, search: Search) -> Place | None:
    """The place of the accumulation point, which is the value of `steps[position]`.

    The nearest step at or above it that has a name a user typed gives the name; what lies between
    becomes the place's path.
    """
    named = position
    if position + 1 < len(steps) and steps[position + 1].edge.kind == "cache":
        named += 1  # a cache with a limit has its results itself, not in a dict of its own
    while named >= 0 and not _is_users_name(steps, named):
        named -= 1
    if named < 0:
        return None
    step = steps[named]
    path = "".join(
        below.edge.text
        for index, below in enumerate(steps[named + 1 :], start=named + 1)
        # What a library's own object keeps its entries in is not for the user to write.
        if index > position or not _is_inner(steps, index)
    )
    container = class_name(type(steps[position].value))
    make = _MAKERS[step.edge.kind]
    layers = tuple(class_name(type(layer.value)) for layer in steps[named:-1])
    place = make(steps, named, path, container, search)
    return replace(
        place,
        layers=layers,
        grouped=between.is_grouped(step.value),
        reached_in=_reached_in(steps[0], search),
    )


def _reached_in(root: Step, search: Search) -> str | None:
    """The function whose variable a chain begins with; None where a module's code has it."""
    if root.edge.kind != "local":
        return None
    view = search.frames.views[int(root.owner)]
    return None if view.is_module_level else qualified_name(view.frame.f_code)


def _is_inner(steps: Sequence[Step], at: int) -> bool:
    kind = steps[at].edge.kind
    return kind in ("value", "yielded", "internal") or (
        kind == "attribute" and not _is_users_name(steps, at)
    )


def _is_users_name(steps: Sequence[Step], at: int) -> bool:
    """Whether the step has a name that stands in the user's code.

    An attribute that a library's class uses itself (the deque inside a `queue.Queue`) is the
    library's; one that the user has set on a library's object is the user's.
    """
    step = steps[at]
    if step.edge.kind not in _MAKERS or (step.edge.kind in _BY_NAME and not step.edge.name):
        return False
    if step.edge.kind != "attribute" or at == 0:
        return True
    if step.edge.name == "state" and is_optimizer(step.owner):
        return True  # documented, and users do write it
    cls = type(step.owner)
    file = class_file(cls)
    return file is None or is_user_file(file) or not _mentions(cls, step.edge.name)


def _mentions(cls: type, attribute: str) -> bool:
    """Whether a function of the class uses this attribute."""
    for base in lineage(cls):
        for value in list(members(base).values()):
            function = hooks.function_of(value)
            if function is not None and attribute in function.__code__.co_names:
                return True
    return False


def _expression(steps: Sequence[Step], last: int) -> str:
    parts = []
    for step in steps[: last + 1]:
        parts.append(step.edge.text)
    return "".join(parts).strip()


def _local(steps: Sequence[Step], at: int, path: str, container: str, search: Search) -> Place:
    name, index = steps[at].edge.name, int(steps[at].owner)
    code = search.frames.views[index].frame.f_code
    return Place(
        "built" if steps[at].edge.kind == "built" else "local",
        name,
        name,
        container,
        path,
        file=code.co_filename,
        function=qualified_name(code),
        first_line=code.co_firstlineno,
        numbers=search.frames.integers(index),
    )


def _frame_place(
    steps: Sequence[Step], at: int, path: str, container: str, search: Search
) -> Place:
    """A variable of a suspended generator, or of a frame that something keeps."""
    step = steps[at]
    frame = edges.suspended_frame(step.owner)
    assert frame is not None  # its edge was read from it
    code = frame.f_code
    return Place(
        "local",
        step.edge.name,
        step.edge.name,
        container,
        path,
        file=code.co_filename,
        function=qualified_name(code),
        first_line=code.co_firstlineno,
        numbers={**plain_integers(frame.f_globals), **plain_integers(read_locals(frame))},
    )


def _global(steps: Sequence[Step], at: int, path: str, container: str, search: Search) -> Place:
    name, module = steps[at].edge.name, str(steps[at].owner)
    written = name if search.is_user_module(module) else f"{module}.{name}"
    found = (d for d in search.objects.values() if search.root_module(d) == module)
    values: dict[str, Any] = next(found, {})
    file = module_file(values)
    return Place(
        "global",
        name,
        written,
        container,
        path,
        file=file or _running_file(search, module),
        module=module,
        numbers=plain_integers(values),
    )


def _running_file(search: Search, module: str) -> str | None:
    """The file (or notebook cell) of module-level code that is running now."""
    for view in search.frames.views:
        if view.is_module_level and text_entry(view.frame.f_globals, "__name__") == module:
            return view.frame.f_code.co_filename
    return None


def _attribute_place(
    steps: Sequence[Step], at: int, path: str, container: str, search: Search
) -> Place:
    step = steps[at]
    cls = type(step.owner)
    numbers = {f"self.{k}": v for k, v in plain_integers(own_dict(step.owner)).items()}
    numbers.update(_module_integers(cls))
    state = step.edge.name == "state" and is_optimizer(step.owner)
    return Place(
        "state" if state else "buffer" if step.edge.kind == "buffer" else "attribute",
        step.edge.name,
        _expression(steps, at),
        container,
        path,
        file=class_file(cls),
        owner=class_qualname(cls),
        module=class_module(cls),
        numbers=numbers,
    )


def _class_place(
    steps: Sequence[Step], at: int, path: str, container: str, search: Search
) -> Place:
    cls = steps[at].owner
    name = steps[at].edge.name
    expression = f"{class_qualname(cls)}.{name}"
    return Place(
        "class",
        name,
        expression,
        container,
        path,
        file=class_file(cls),
        owner=class_qualname(cls),
        module=class_module(cls),
        numbers=_module_integers(cls),
    )


def _function_place(
    steps: Sequence[Step], at: int, path: str, container: str, search: Search
) -> Place:
    step = steps[at]
    kind = step.edge.kind
    function = step.owner
    code = function.__code__
    return Place(
        "default" if kind == "default" else "closure",
        step.edge.name,
        step.edge.name,
        container,
        path,
        file=code.co_filename,
        function=function.__qualname__,
        first_line=code.co_firstlineno,
        module=function_module(function),
        numbers=plain_integers(function.__globals__),
    )


def _hook_place(steps: Sequence[Step], at: int, path: str, container: str, search: Search) -> Place:
    """A dict of hooks that grows: named by the hook function itself."""
    step = steps[at]
    below = (hooks.function_of(inner.value) for inner in steps[at + 1 :])
    function = next((found for found in below if found is not None), None)
    at_root = at == 0 and step.owner is not None
    if function is None:
        make = _global if at_root else _attribute_place
        return make(steps, at, path, container, search)
    module = str(step.owner) if at_root else None
    owner = hooks.registered_on(step.edge.name, step.owner, module)
    entries = hooks.count(step.value)
    return hooks.place_of_hook(function, _expression(steps, at), container, owner, entries)


def _argument_place(
    steps: Sequence[Step], at: int, path: str, container: str, search: Search
) -> Place:
    """What a `functools.partial` binds: told by the parameter it is bound to."""
    step = steps[at]
    function = bound_function(step.owner)  # a function of Python's, as its edge was made from it
    code = function.__code__
    return Place(
        "argument",
        step.edge.name,
        step.edge.name,
        container,
        path,
        file=code.co_filename,
        function=function.__qualname__,
        first_line=code.co_firstlineno,
        module=function_module(function),
        numbers=plain_integers(function.__globals__),
    )


def _gradient_place(
    steps: Sequence[Step], at: int, path: str, container: str, search: Search
) -> Place:
    owner = class_name(type(steps[at].owner))
    return Place("attribute", "grad", _expression(steps, at), container, path, owner=owner)


def _cache_place(
    steps: Sequence[Step], at: int, path: str, container: str, search: Search
) -> Place:
    wrapper = steps[at].owner
    variables = own_dict(wrapper)
    function = hooks.function_of(entry(variables, "__wrapped__"))
    code = function.__code__ if function is not None else None
    name = text_entry(variables, "__name__") or "cache"
    qualified = text_entry(variables, "__qualname__")
    whole = (qualified or name).rpartition("<locals>.")[2]
    size = capacity.cache_size(wrapper)
    return Place(
        "cache",
        name,
        f"{whole}(...)",
        "cache",
        path,
        file=code.co_filename if code is not None else None,
        function=qualified or None,
        first_line=code.co_firstlineno if code is not None else None,
        module=text_entry(variables, "__module__") or None,
        entries=size[0],
        limit=size[1],
    )


def _ctx_place(steps: Sequence[Step], at: int, path: str, container: str, search: Search) -> Place:
    name = steps[at].edge.name
    made = type(steps[at].owner)  # torch makes a class for the contexts of each Function
    named = (members(base).get("_forward_cls") for base in lineage(made))
    cls: Any = next((found for found in named if isinstance_exact(found, type)), made)
    forward = _function_in(members(cls).get("forward"))
    code = forward.__code__ if forward is not None else None
    return Place(
        "ctx",
        name,
        f"ctx.{name}",
        container,
        path,
        file=code.co_filename if code is not None else None,
        function=forward.__qualname__ if forward is not None else None,
        first_line=code.co_firstlineno if code is not None else None,
        owner=class_qualname(cls),
        module=class_module(cls),
    )


_MAKERS = {
    "frame": _frame_place,
    "local": _local,
    "built": _local,
    "argument": _argument_place,
    "grad": _gradient_place,
    "global": _global,
    "attribute": _attribute_place,
    "buffer": _attribute_place,
    "class": _class_place,
    "closure": _function_place,
    "default": _function_place,
    "hook": _hook_place,
    "cache": _cache_place,
    "ctx": _ctx_place,
}


# Kinds that are nothing to a user without a name: a class's tuple of bases, an instance's dict.
_BY_NAME = ("frame", "attribute", "buffer", "class", "closure", "default")


def class_file(cls: type) -> str | None:
    """The file a class was defined in, told by one of its own functions or by its module."""
    told: list[str] = []
    module = class_module(cls)
    for value in list(members(cls).values()):
        function = _function_in(value)
        if function is not None and function_module(function) == module:
            name = str(function.__code__.co_filename)
            if os.path.isabs(name) or os.path.exists(name):
                if is_user_file(name):
                    return name
                told.append(name)
    # A generated method (of a dataclass, say) stands in the library that generated it.
    return module_file(_module_values(cls)) or next(iter(told), None)


def _function_in(value: Any) -> types.FunctionType | None:
    """The function that an entry of a class is, or wraps as its method or property."""
    kind = type(value)
    # By identity: `in` would ask a metaclass whether classes are equal.
    if kind is staticmethod or kind is classmethod:
        value = value.__func__
    elif kind is property:
        value = value.fget
    return value if type(value) is types.FunctionType else None


def _module_values(cls: type) -> dict[str, Any] | None:
    return own_dict(sys.modules.get(class_module(cls)))


def _module_integers(cls: type) -> dict[str, int]:
    return plain_integers(_module_values(cls))
