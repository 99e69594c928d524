"""Whether a program uses what a holder keeps as tensors, so that plain numbers would break it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from memguard.explain.syntax import Source, dotted, words

# What tensors have and floats lack, and functions that take tensors only.
_OF_TENSORS = words(
    "item detach cpu cuda to numpy tolist clone mean sum std dim shape backward float double half "
    "requires_grad grad_fn squeeze unsqueeze view reshape size"
)
_TAKING_TENSORS = words("stack cat hstack vstack concat concatenate")

# Names taken over from one another so often: the list, its mean, the variable of a caller.
_ROUNDS = 3


def used_as_tensor(source: Source, name: str, growth: ast.AST, keys: Collection[str] = ()) -> bool:
    """Whether the file does with the holder, or what comes of it, what only tensors can do.

    By name alone and throughout the file: advice that keeps tensors is right too often rather than
    wrong once. Entries under other words than `keys`, where there are any, are not what is kept.
    """
    tree = source.module.node
    found = re.findall(r"[^\W\d]\w*", name)
    if not found:
        return False
    own = set(map(id, ast.walk(growth)))
    nodes = [node for node in ast.walk(tree) if id(node) not in own]
    functions = _parameters(tree)
    names = {found[-1]}
    for _ in range(_ROUNDS):
        before = len(names)
        for node in nodes:
            for target, value in (*_handed_on(node), *_handed_over(node, functions)):
                if target and _mentions(value, names, keys):
                    names.add(target)
        if len(names) == before:
            break
    return any(_needs_tensor(node, names, keys) for node in nodes)


def begins_as_none(source: Source, name: str) -> bool:
    """Whether the file gives a variable or attribute of that name None, as `state = None` does."""
    wanted = name.rpartition(".")[2]
    for node in ast.walk(source.module.node):
        if isinstance(node, ast.Assign) and _is_none(node.value):
            if any(wanted == target for part in node.targets for target in _targets(part)):
                return True
        elif isinstance(node, ast.AnnAssign) and node.value is not None and _is_none(node.value):
            if wanted in _targets(node.target):
                return True
        elif isinstance(node, ast.arguments):
            positional = reversed((*node.posonlyargs, *node.args))
            pairs = zip(positional, reversed(node.defaults), strict=False)
            if any(arg.arg == wanted and _is_none(default) for arg, default in pairs):
                return True
    return False


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _parameters(tree: ast.AST) -> dict[str, list[str]]:
    """The parameters of the file's functions, by the functions' names; no `self` among them."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
            found[node.name] = names[1:] if names[:1] == ["self"] else names
    return found


def _handed_over(node: ast.AST, functions: dict[str, list[str]]) -> Iterator[tuple[str, ast.AST]]:
    """(parameter, what it is given) for a call of one of the file's functions."""
    if not isinstance(node, ast.Call):
        return
    names = functions.get(dotted(node.func).rpartition(".")[2], [])
    yield from zip(names, node.args, strict=False)
    yield from ((k.arg, k.value) for k in node.keywords if k.arg in names and k.arg is not None)


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


def _mentions(node: ast.AST, names: set[str], keys: Collection[str]) -> bool:
    if isinstance(node, ast.Subscript) and keys and isinstance(node.slice, ast.Constant):
        key, base = node.slice.value, dotted(node.value).rpartition(".")[2]
        if isinstance(key, str) and key not in keys and base in names:
            return False
    if isinstance(node, ast.Name) and node.id in names:
        return True
    if isinstance(node, ast.Attribute) and node.attr in names:
        return True
    return any(_mentions(part, names, keys) for part in ast.iter_child_nodes(node))


def _needs_tensor(node: ast.AST, names: set[str], keys: Collection[str]) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in _OF_TENSORS:
        return _mentions(node.value, names, keys)
    if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in _TAKING_TENSORS:
        return any(_mentions(value, names, keys) for value in node.args)
    return False
