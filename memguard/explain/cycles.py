"""Survivors without a root: the attribute that closes their cycle, or the ctx that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memguard import _torch
from memguard.explain import capacity, graph, naming, paths, placing
from memguard.explain.accumulation import Located, Question, is_known, locate
from memguard.explain.advice import advise
from memguard.explain.frames import is_user_file
from memguard.explain.hooks import are_hooks, place_of_hook
from memguard.explain.places import Place, Spot
from memguard.explain.reading import class_module, class_name, class_qualname, is_tensor
from memguard.explain.remedies import holder_text
from memguard.explain.search import Search, is_user_module
from memguard.explain.source import find_statement


def find_cycle(
    question: Question,
    search: Search,
    targets: list[Any],
    stack: list[Spot],
    weight: graph.Weight,
) -> Located | None:
    """Without a root: the attribute that closes the cycle, or the ctx that keeps the tensor."""
    kept, outputs = _located(question, search, targets, stack, weight)
    # Of what a ctx keeps it is an output that closes the cycle: an input is only kept with it.
    for located in (*outputs, *kept):
        if located.place.kind in ("ctx", "hook"):
            return located
    children = paths.children_of(search)
    loop = paths.cycle_through(search, children)
    if loop:
        objects = _from_an_instance([search.objects[key] for key in loop])
        closing = _cycle_place(question, search, [*objects, objects[0]], stack, weight)
        if closing is not None:
            return closing
    return kept[0] if kept else None


def _located(
    question: Question,
    search: Search,
    targets: list[Any],
    stack: list[Spot],
    weight: graph.Weight,
) -> tuple[list[Located], list[Located]]:
    """What each survivor hangs on by itself; and those of it that keep an output on its own ctx."""
    found: list[Located] = []
    outputs: list[Located] = []
    for target in targets:
        path = paths.path_to_root(search, id(target))
        # What hangs on a hook that C++ keeps is the hook's doing.
        below = len(path) - 1 if are_hooks(path[0]) else 0
        located = locate(question, search, path, below, stack, weight)
        if located is not None and not is_known(located, found):
            found.append(located)
            if located.place.kind == "ctx" and _is_output(target, path):
                outputs.append(located)
    return found, outputs


def _is_output(tensor: Any, path: list[Any]) -> bool:
    """Whether a tensor was made by one of the objects above it, a ctx being its own node."""
    with _torch.without_overrides():
        node = _torch.node_of(tensor) if is_tensor(tensor) else None
    return node is not None and any(node is item for item in path)


def collected(located: Located) -> Located:
    """The same holder, told now that a collection was seen to free what hangs on it."""
    if located.place.kind != "ctx":
        return located
    place, statement = located.place, located.statement
    advice = advise("cycle", place, statement, evaluation=False, after_backward=None)
    return replace(located, advice=advice)


def _cycle_place(
    question: Question,
    search: Search,
    path: list[Any],
    stack: list[Spot],
    weight: graph.Weight,
) -> Located | None:
    steps = naming.readable(path, search)
    hook = _hook_place(steps)
    if hook is not None:
        statement = find_statement(hook, stack, question.evaluation)
        advice = advise("graph", hook, statement, evaluation=False, after_backward=None)
        chain = ("no root: a cycle through a hook", *_loop_text(steps))
        return Located(hook, statement, advice, chain, "function")
    named = [s for s in steps if s.edge.kind == "attribute" and s.edge.name and s.owner is not None]
    if not named:
        return None
    # The user's classes first; then by name, so that the same cycle is always told the same way.
    closing = min(named, key=_claim)
    owner, name = closing.owner, closing.edge.name
    cls = type(owner)
    own_view = any(step.edge.kind == "base" for step in steps)
    place = Place(
        "cycle",
        name,
        f"{class_name(cls)}.{name}",
        class_name(type(closing.value)),
        "._base" if own_view else "",
        file=placing.class_file(cls),
        owner=class_qualname(cls),
        module=class_module(cls),
    )
    statement = find_statement(place, stack, question.evaluation, plain=True)
    if own_view and statement is not None:
        place = replace(place, expression=holder_text(place, statement))
    advice = advise("cycle", place, statement, evaluation=False, after_backward=None)
    kind = "a view of the tensor it is kept on, held by C++" if own_view else "a reference cycle"
    chain = (f"no root: {kind}", *_loop_text(steps))
    return Located(place, statement, advice, chain, class_name(cls))


def _from_an_instance(loop: list[Any]) -> list[Any]:
    """The loop turned so that it begins with an object that has attributes, not with its dict."""
    for index, item in enumerate(loop):
        if not capacity.is_container(item) and not is_tensor(item):
            return [*loop[index:], *loop[:index]]
    return loop


def _claim(step: naming.Step) -> tuple[bool, str, str]:
    return not _is_user_owner(step.owner), class_qualname(type(step.owner)), step.edge.name


def _hook_place(steps: Sequence[naming.Step]) -> Place | None:
    """A hook that closes over the tensor it hangs on: named by where it was defined."""
    if not any(is_tensor(step.value) for step in steps):
        return None
    for step in steps:
        if step.edge.kind == "closure" and is_user_file(step.owner.__code__.co_filename):
            expression = f"{step.owner.__name__} closing over {step.edge.name}"
            return place_of_hook(step.owner, expression, "function", "the tensor", None)
    return None


def _loop_text(steps: Sequence[naming.Step]) -> list[str]:
    lines = [naming.type_text(steps[0].value)]
    lines += [f"{naming.reference_text(s.edge)}: {naming.type_text(s.value)}" for s in steps[1:]]
    return lines


def _is_user_owner(owner: Any) -> bool:
    cls = type(owner)
    if is_user_module(class_module(cls), None):
        return True
    file = placing.class_file(cls)
    return file is not None and is_user_file(file)
