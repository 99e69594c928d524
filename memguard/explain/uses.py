"""Whether a program uses what a holder keeps as tensors, so that plain numbers would break it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from memguard.explain.syntax import Source, dotted, words

# What tensors have and floats lack, and functions that take tensors only.
_OF_TENSORS = words(
    "item detach cpu cuda to numpy tolist clone mean sum std dim shape backward float double half "
    "requires_grad grad_fn squeeze unsqueeze view reshape size"
)
_TAKING_TENSORS = words("stack cat hstack vstack concat concatenate")

# Names taken over from one another so often: the list, its mean, the variable of a caller.
_ROUNDS = 3


def used_as_tensor(source: Source, name: str, growth: ast.AST) -> bool:
    """Whether the file does with the holder, or what comes of it, what only tensors can do.

    By name alone and throughout the file: advice that keeps tensors is right too often rather than
    wrong once.
    """
    tree = source.module.node
    found = re.findall(r"[^\W\d]\w*", name)
    if not found:
        return False
    own = set(map(id, ast.walk(growth)))
    nodes = [node for node in ast.walk(tree) if id(node) not in own]
    names = {found[-1]}
    for _ in range(_ROUNDS):
        before = len(names)
        for node in nodes:
            for target, value in _handed_on(node):
                if target and _mentions(value, names):
                    names.add(target)
        if len(names) == before:
            break
    return any(_needs_tensor(node, names) for node in nodes)


def _handed_on(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(name, what it is given) for assignments, loops, comprehensions and what functions return."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for part in node.targets for target in _targets(part))
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from ((target, node.iter) for target in _targets(node.target))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for part in ast.walk(node):
            if isinstance(part, ast.Return) and part.value is not None:
                yield node.name, part.value


def _targets(node: ast.expr) -> Iterator[str]:
    if isinstance(node, (ast.Tuple, ast.List)):
        for part in node.elts:
            yield from _targets(part)
    elif isinstance(node, (ast.Name, ast.Attribute)):
        yield dotted(node).rpartition(".")[2]


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(
        (isinstance(part, ast.Name) and part.id in names)
        or (isinstance(part, ast.Attribute) and part.attr in names)
        for part in ast.walk(node)
    )


def _needs_tensor(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in _OF_TENSORS:
        return _mentions(node.value, names)
    if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in _TAKING_TENSORS:
        return any(_mentions(value, names) for value in node.args)
    return False
