"""From a path of objects, root first, to the place a user knows and the chain as text."""

from __future__ import annotations

import functools
import os
import threading
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memguard import _kinds
from memguard.explain import edges, hooks
from memguard.explain.edges import Edge
from memguard.explain.frames import FrameView
from memguard.explain.reading import (
    bound_function,
    class_module,
    class_name,
    class_qualname,
    entries,
    entry,
    function_module,
    is_tensor,
    isinstance_exact,
    own_dict,
    text_entry,
)
from memguard.explain.search import Search


@dataclass(frozen=True, slots=True)
class Step:
    """One readable reference of a chain.

    Attributes:
        edge: how it is written.
        owner: the object that refers (a function, an instance, a class); None for a root.
        value: the object referred to.
    """

    edge: Edge
    owner: Any
    value: Any


def readable(path: Sequence[Any], search: Search) -> list[Step]:
    """The path with what only the interpreter knows (instance dicts, cells) folded away."""
    steps = [_root_step(path, search)]
    index = 1 if search.root_module(path[0]) is None else 2
    while index < len(path):
        step, index = _fold(path, index)
        steps.append(step)
    return steps


def _root_step(path: Sequence[Any], search: Search) -> Step:
    first = path[0]
    module = search.root_module(first)
    if module is not None and len(path) > 1:
        name = edges.edge(first, path[1]).name
        if name == "_oh" and entry(first, "Out") is path[1]:
            name = "Out"  # IPython's own name for it comes first
        kind = "hook" if edges.is_hooks_name(name) else "global"
        return Step(Edge(kind, name, name), module, path[1])
    built = search.built.get(id(first))
    if built is not None:
        kind = "iterated" if built.iterated else "built"
        return Step(Edge(kind, built.name, built.name), built.index, first)
    holding = search.frames.holding(first)
    if holding:
        index, name = holding[0]
        return Step(Edge("local", name, name), index, first)
    if isinstance_exact(first, type):
        name = class_qualname(first)
        return Step(Edge("type", name, name), None, first)
    if hooks.are_hooks(first):
        return Step(Edge("hook", "hooks", "hooks"), None, first)
    return Step(Edge("unrooted", class_name(type(first)), ""), None, first)


def _fold(path: Sequence[Any], index: int) -> tuple[Step, int]:
    """The step that begins with the reference from `path[index - 1]`, and where to go on."""
    owner, child = path[index - 1], path[index]
    after = path[index + 1] if index + 1 < len(path) else None
    if after is not None and isinstance_exact(owner, types.FunctionType):
        if child is owner.__closure__ and index + 2 < len(path):
            name = edges.edge(owner, after).name
            return Step(
                Edge("closure", f" closes over {name}", name), owner, path[index + 2]
            ), index + 3
        if child is owner.__defaults__ or child is owner.__kwdefaults__:
            name = edges.default_name(owner, after) or ""
            return Step(Edge("default", f" default {name}", name), owner, after), index + 2
    if after is not None and isinstance_exact(owner, functools.partial):
        given = edges.argument_name(owner, after)
        if given is not None and child is not bound_function(owner):
            edge = Edge("argument", f" bound argument {given}", given)
            return Step(edge, owner, after), index + 2
    if after is not None and isinstance_exact(owner, threading.local):
        return _thread_local(path, index)
    if after is not None and isinstance_exact(owner, type) and isinstance_exact(child, dict):
        name = edges.edge(child, after).name
        return Step(Edge("class", f".{name}", name), owner, after), index + 2
    if after is not None and isinstance_exact(child, dict) and own_dict(owner) is child:
        return _attribute(path, owner, edges.edge(child, after).name, index + 1)
    found = edges.edge(owner, child)
    if found.kind in ("attribute", "buffer", "hook") and isinstance_exact(child, dict):
        return _attribute(path, owner, found.name or _module_dict_name(owner, child), index)
    return Step(found, owner, child), index + 1


def _attribute(path: Sequence[Any], owner: Any, name: str, index: int) -> tuple[Step, int]:
    """The step for attribute `name` of `owner`, whose value is `path[index]`."""
    value = path[index]
    if _is_ctx(owner):
        return Step(Edge("ctx", f".{name}", name), owner, value), index + 1
    found = edges.attribute(owner, name)
    if found.text or index + 1 >= len(path):
        return Step(
            found if found.text else Edge("attribute", f".{name}", name), owner, value
        ), index + 1
    # A module keeps buffers and submodules in dicts that users reach as plain attributes.
    inner = edges.edge(value, path[index + 1]).name
    text = f"[{inner}]" if inner.isdigit() else f".{inner}"  # layers of a Sequential have numbers
    return Step(Edge(found.kind, text, inner), owner, path[index + 1]), index + 2


def _thread_local(path: Sequence[Any], index: int) -> tuple[Step, int]:
    """An attribute of a `threading.local`, which keeps a dict for each thread."""
    owner = path[index - 1]
    for inner in range(index, len(path)):
        found = edges.edge(path[inner - 1], path[inner])
        if found.kind == "key" and found.name:
            text = f".{found.name}"
            return Step(Edge("attribute", text, found.name), owner, path[inner]), inner + 1
    return Step(Edge("internal", " →"), owner, path[index]), index + 1


def _module_dict_name(owner: Any, child: Any) -> str:
    return next((name for name, value in entries(own_dict(owner)) if value is child), "")


def _is_ctx(value: Any) -> bool:
    return _kinds.is_context(value)


# Kinds of roots that lie in a running frame.
_IN_FRAMES = frozenset(("local", "built", "iterated"))

# What is left of a reference's text where its name is missing.
_NAMELESS = frozenset(("", ".", "closes over", "default"))


def chain_text(steps: Sequence[Step], search: Search) -> tuple[str, ...]:
    """The chain, root first, one reference a line."""
    lines: list[str] = []
    first = steps[0]
    kind = type_text(first.value)
    if first.edge.kind == "local":
        lines += _frame_lines(search.frames.views[int(first.owner)])
        lines.append(f"local {first.edge.name}: {kind}")
    elif first.edge.kind == "built":
        lines += _frame_lines(search.frames.views[int(first.owner)])
        lines.append(f"{first.edge.name}: {kind} being built")
    elif first.edge.kind == "iterated":
        lines += _frame_lines(search.frames.views[int(first.owner)])
        lines.append(f"the running for loop: {kind}")
    elif first.owner is not None and first.edge.kind in ("global", "hook"):
        lines.append(f"module {first.owner}")
        lines.append(f"global {first.edge.name}: {_counted(first, kind)}")
    elif first.edge.kind == "type":
        lines.append(f"class {first.edge.name}")
    elif first.edge.kind == "hook":
        lines.append("no root in Python: hooks of a tensor or node, held by C++")
        lines.append(f"hooks: {_counted(first, kind)}")
    elif is_tensor(first.value):
        lines.append(f"no root in Python: {kind}, held by C++")
    else:
        lines.append(f"no root: {kind}")
    for step in steps[1:]:
        lines.append(f"{reference_text(step.edge)}: {_counted(step, type_text(step.value))}")
    return tuple(lines)


def reference_text(edge: Edge) -> str:
    """The reference as a chain shows it.

    What only the interpreter knows (a class's tuple of bases) has no name to write.
    """
    text = edge.text.strip()
    return "→" if not edge.name and text in _NAMELESS else text


def _frame_lines(view: FrameView) -> tuple[str, str]:
    spot = view.spot()
    file = os.path.basename(spot.file)
    return f"thread {view.thread}", f"frame {spot.function} ({file}:{spot.line})"


def _counted(step: Step, kind: str) -> str:
    """The type, and of a dict of hooks how many there are."""
    count = hooks.count(step.value) if step.edge.kind == "hook" else None
    return kind if count is None else f"{kind} of {count}"


def thread_of(root: Step, search: Search) -> int | None:
    """Identity of the thread in whose frame the root is; None when it is no local variable."""
    if root.edge.kind not in _IN_FRAMES:
        return None
    return search.frames.views[int(root.owner)].ident


def modules_of(steps: Sequence[Step], search: Search) -> tuple[str, ...]:
    """Modules of the classes and functions on the chain, root first, each once."""
    found: dict[str, None] = {}
    for step in steps:
        if step.edge.kind in _IN_FRAMES:
            variables = search.frames.views[int(step.owner)].frame.f_globals
            found[text_entry(variables, "__name__")] = None
        elif isinstance_exact(step.owner, str):
            found[step.owner] = None
        else:
            found[_module_of(step.owner)] = None
        # What survives is a tensor in every chain; that says nothing about who keeps it.
        if not is_tensor(step.value):
            found[_module_of(step.value)] = None
    return tuple(name for name in found if name and name != "builtins")


def _module_of(value: Any) -> str:
    """Module of a class or function, else of the object's class."""
    if isinstance_exact(value, type):
        return class_module(value)
    function = value.__func__ if type(value) is types.MethodType else value
    if type(function) is types.FunctionType:
        return function_module(function)
    # A cached function has its own module among its attributes, its class has functools'.
    named = text_entry(own_dict(function), "__module__")
    return named or ("" if is_tensor(function) else class_module(type(function)))


def type_text(value: Any) -> str:
    """The type of a chain's object; a tensor with dtype, shape and node."""
    cls = type(value)
    if not is_tensor(value):
        return class_name(cls)
    with _kinds.without_overrides():
        return f"{class_name(cls)} {_kinds.torch_door().type_of(value)}"
