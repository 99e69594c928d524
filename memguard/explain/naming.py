"""From a path of objects, root first, to the place a user knows and the chain as text."""

from __future__ import annotations

import os
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memguard import _kinds
from memguard.explain import edges
from memguard.explain.edges import Edge, isinstance_exact, own_dict
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
        return Step(Edge("global", name, name), module, path[1])
    holding = search.frames.holding(first)
    if holding:
        index, name = holding[0]
        return Step(Edge("local", name, name), index, first)
    if isinstance_exact(first, type):
        name = type.__getattribute__(first, "__qualname__")
        return Step(Edge("type", name, name), None, first)
    return Step(Edge("unrooted", type(first).__name__, ""), None, first)


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


def _module_dict_name(owner: Any, child: Any) -> str:
    return next((name for name, value in (own_dict(owner) or {}).items() if value is child), "")


def _is_ctx(value: Any) -> bool:
    return _kinds.is_context(value)


def chain_text(steps: Sequence[Step], search: Search) -> tuple[str, ...]:
    """The chain, root first, one reference a line."""
    lines: list[str] = []
    first = steps[0]
    kind = type_text(first.value)
    if first.edge.kind == "local":
        view = search.frames.views[int(first.owner)]
        spot = view.spot()
        file = os.path.basename(spot.file)
        lines.append(f"thread {view.thread}")
        lines.append(f"frame {spot.function} ({file}:{spot.line})")
        lines.append(f"local {first.edge.name}: {kind}")
    elif first.edge.kind == "global":
        lines.append(f"module {first.owner}")
        lines.append(f"global {first.edge.name}: {kind}")
    elif first.edge.kind == "type":
        lines.append(f"class {first.edge.name}")
    else:
        lines.append(f"no root: {kind}")
    for step in steps[1:]:
        lines.append(f"{step.edge.text.strip()}: {type_text(step.value)}")
    return tuple(lines)


def thread_of(root: Step, search: Search) -> str | None:
    """Name of the thread in whose frame the root is; None when it is no local variable."""
    if root.edge.kind != "local":
        return None
    return search.frames.views[int(root.owner)].thread


def modules_of(steps: Sequence[Step], search: Search) -> tuple[str, ...]:
    """Modules of the classes and functions on the chain, root first, each once."""
    found: dict[str, None] = {}
    for step in steps:
        if step.edge.kind == "local":
            found[_name(search.frames.views[int(step.owner)].frame.f_globals)] = None
        elif step.edge.kind == "global":
            found[str(step.owner)] = None
        for value in (step.owner, step.value):
            # What survives is a tensor in every chain; that says nothing about who keeps it.
            if not _kinds.is_tensor_type(type(value)):
                found[_module_of(value)] = None
    return tuple(name for name in found if name and name != "builtins")


def _module_of(value: Any) -> str:
    """Module of a class or function, else of the object's class."""
    if isinstance_exact(value, type):
        name = type.__getattribute__(value, "__module__")
    else:
        # A cached function has its own module among its attributes, its class has functools'.
        name = getattr(value, "__module__", None) if _is_function(value) else None
        name = name or (own_dict(value) or {}).get("__module__")
        name = name or type.__getattribute__(type(value), "__module__")
    return name if isinstance(name, str) else ""


def _is_function(value: Any) -> bool:
    return type(value) in (types.FunctionType, types.MethodType)


def _name(variables: dict[str, Any]) -> str:
    name = variables.get("__name__")
    return name if isinstance(name, str) else ""


def type_text(value: Any) -> str:
    """The type of a chain's object; a tensor with dtype, shape and node."""
    cls = type(value)
    if not _kinds.is_tensor_type(cls):
        return str(type.__getattribute__(cls, "__name__"))
    with _kinds.without_overrides():
        dtype = str(value.dtype).removeprefix("torch.")
        node = f" {value.grad_fn.name()}" if _kinds.is_attached(value) else ""
        return f"{cls.__name__} {dtype} {list(value.shape)}{node}"
