"""Who started the workers that grow: the DataLoader, and what its dataset puts away.

The workers' memory cannot be looked into from here. Their dataset is a copy of the one in this
process, made when they started, so its class and its containers are known all the same.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from memguard import _torch
from memguard._heap import family, objects_of
from memguard.explain import paths
from memguard.explain.accumulation import Located, Question, locate, told
from memguard.explain.definitions import bind
from memguard.explain.frames import Frames
from memguard.explain.graph import Weight
from memguard.explain.loops import running_regions
from memguard.explain.places import Place, Spot
from memguard.explain.program import Program
from memguard.explain.reading import (
    attributes,
    class_module,
    class_name,
    class_qualname,
    entry,
    isinstance_exact,
    lineage,
    members,
    own_dict,
)
from memguard.explain.search import Search
from memguard.explain.source import find_statement
from memguard.explain.syntax import Scope, bindings

# Statements by which an attribute of the dataset grows.
_GROWING = ("append", "extend", "item", "accumulate")

MOST_HOLDERS = 2

# What a loop over a loader may wrap it in and still read each sample once.
_PASSING_ON = frozenset(("enumerate", "zip", "iter", "tqdm"))

# Assignments, calls and returns that are followed from a loop to what it goes over.
_MOST_FOLLOWED = 5


def locate_loaders(question: Question, pids: Sequence[int]) -> list[Located]:
    """What the datasets of these workers put away, then the loaders; empty when there are none."""
    with Frames() as frames, _torch.without_overrides():
        stack = frames.stack()
        loaders = _loaders(pids)
        found: list[Located] = []
        classes = frozenset(class_name(cls) for one in loaders for cls in lineage(type(one)))
        once = _reads_once(stack, classes - {"object"})
        for loader in loaders[:MOST_HOLDERS]:
            dataset = entry(own_dict(loader), "dataset")
            found += _put_away(question, dataset, stack, once=once)
            found += _loader_itself(question, loader, frames, stack, [loaders])
        loaders.clear()
        return found


def _loaders(pids: Sequence[int]) -> list[Any]:
    """The loaders that have these workers; all with workers where it cannot be told."""
    module: Any = sys.modules.get("torch.utils.data.dataloader")
    cls = getattr(module, "DataLoader", None)
    if cls is None:
        return []
    living = [one for one in objects_of(family(cls)) if entry(own_dict(one), "num_workers")]
    base = getattr(module, "_BaseDataLoaderIter", None)  # seen in 2.4 to 2.13
    if base is not None and len(living) > 1:
        iterators = objects_of(family(base))
        growing = [one for one in iterators if _pids(one) & set(pids)]
        datasets = {id(entry(own_dict(one), "_dataset")) for one in growing}
        growing.clear()
        iterators.clear()
        meant = [one for one in living if id(entry(own_dict(one), "dataset")) in datasets]
        living = meant or living
    return living


def _pids(iterator: Any) -> set[int]:
    workers = entry(own_dict(iterator), "_workers")
    return {worker.pid for worker in workers} if isinstance_exact(workers, list) else set()


def _put_away(question: Question, dataset: Any, stack: list[Spot], *, once: bool) -> list[Located]:
    """Containers among the dataset's attributes to which its own code adds.

    `once` says whether the program asks for each sample once.
    """
    owner = class_qualname(type(dataset))
    file = _file_of(type(dataset))
    found = []
    for name, value in attributes(dataset) if file is not None else ():
        if not isinstance_exact(value, (dict, list, set)):
            continue
        kind = class_qualname(type(value))
        place = Place("attribute", name, f"self.{name}", kind, file=file, owner=owner)
        statement = find_statement(place, stack, plain=True)
        if statement is not None and statement.verb in _GROWING:
            chain = ("worker process", f"its copy of the dataset: {owner}", f".{name}: {kind}")
            located = told(question, place, chain, kind, stack, Weight())
            # A cache by index is full once all samples have been asked for; in a program that asks
            # for each of them once it only grows, and nothing is ever read from it.
            full = statement.verb == "item" and _has_length(type(dataset))
            found.append(replace(located, finite=full and not once))
    return found[:MOST_HOLDERS]


def _reads_once(stack: list[Spot], classes: frozenset[str]) -> bool:
    """Whether all the loops that are running are one over a loader, so that no sample comes again.

    What a loop of a library, or a generator that goes round for ever, does with it is not known.

    Args:
        stack: where the program is.
        classes: names of the loaders' classes.
    """
    program = Program([spot.file for spot in stack])
    loops = running_regions(program, stack)
    loop = loops[0].loop if len(loops) == 1 else None
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return False
    if not isinstance(loop.iter, (ast.Name, ast.Attribute, ast.Call)):
        return False
    return _may_be_loader(program, loop.iter, loops[0].scope, classes, _MOST_FOLLOWED)


def _may_be_loader(
    program: Program, value: ast.expr, scope: Scope, classes: frozenset[str], depth: int
) -> bool:
    """Whether nothing says that an expression gives anything else than a loader.

    A call does, but for one of a loader's class or of a function that returns such a one.
    """
    if isinstance(value, ast.GeneratorExp):
        return False
    following: Iterator[tuple[ast.expr, Scope]] = iter(())
    if isinstance(value, ast.Call):
        name = _name_of(value.func)
        if name in _PASSING_ON and value.args:
            following = iter([(value.args[0], scope)])
        elif name not in classes:
            made = program.lookup(name, scope) if isinstance(value.func, ast.Name) else None
            if made is None or not made.is_function or _yields(made):
                return False
            following = _returned(made)
    elif isinstance(value, (ast.Name, ast.Attribute)):
        following = _given(program, value, scope)
    elif isinstance(value, ast.Tuple):  # what a function returns, one for each name
        following = ((part, scope) for part in value.elts)
    # An assignment may name itself, `loader = tqdm(loader)`: what is followed no further may be.
    return depth == 0 or all(
        _may_be_loader(program, next_value, where, classes, depth - 1)
        for next_value, where in following
    )


def _given(
    program: Program, variable: ast.Name | ast.Attribute, scope: Scope
) -> Iterator[tuple[ast.expr, Scope]]:
    """What a variable is given, by assignments and by calls, with the scope it stands in."""
    if isinstance(variable, ast.Attribute):
        for piece in program.naming(scope.source, variable.attr):
            for target, value, _ in bindings(piece.node):
                if isinstance(target, ast.Attribute) and target.attr == variable.attr:
                    yield value, piece.scope
        return
    name = variable.id
    for around in scope.chain():
        if around is not scope and isinstance(around.node, ast.ClassDef):
            continue
        if around.parent is not None and name not in around.bound():
            continue
        yield from ((value, around) for value, _ in program.assigned(name, around))
        for call, piece in program.sites(around) if name in around.parameters() else ():
            given = (value for parameter, value in bind(call, around) if parameter == name)
            yield from ((value, piece.scope) for value in given)
        return


def _yields(function: Scope) -> bool:
    nodes = (node for piece in function.pieces for node in piece.nodes())
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes)


def _returned(function: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    returns = (piece.node for piece in function.pieces if isinstance(piece.node, ast.Return))
    yield from ((node.value, function) for node in returns if node.value is not None)


def _name_of(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _has_length(cls: type) -> bool:
    """Whether a class says how many samples its data sets have, found without asking."""
    return any("__len__" in members(base) for base in lineage(cls))


def _loader_itself(
    question: Question, loader: Any, frames: Frames, stack: list[Spot], own: list[Any]
) -> list[Located]:
    targets = [loader]
    search = Search(frames, [targets, *own])
    search.run(targets)
    try:
        path = paths.best_path(search, id(loader))
        located = locate(question, search, path, 0, stack, Weight())
        return [located] if located is not None else []
    finally:
        search.release()
        targets.clear()


def _file_of(cls: type) -> str | None:
    """The file in which a class of the user's is defined."""
    module = sys.modules.get(class_module(cls))
    file = getattr(module, "__file__", None) if module is not None else None
    return file if isinstance(file, str) else None
