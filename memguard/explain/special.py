"""Holders that are no plain variables: hooks, closures, caches, ctx attributes, cycles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from memguard.explain.consuming import consumers
from memguard.explain.expressions import starts_over
from memguard.explain.loops import Region
from memguard.explain.places import Place, Spot
from memguard.explain.program import Program
from memguard.explain.rewrite import looks_like_tensor
from memguard.explain.syntax import Piece, Scope, bindings, dotted
from memguard.explain.verbs import APPENDING, EXTENDING, Growth

_LOG_RECORD = re.compile(r"\.buffer\b.*\.args\b|\.args\[")
_LOG_LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
_REGISTERING = re.compile(r"register_\w*hook\w*")


def hook_growth(program: Program, place: Place, regions: list[Region]) -> Growth | None:
    """The registration when hooks are registered again and again; else what the hook stores."""
    registered = list(_registrations(program, place))
    repeated = [g for g in registered if any(region.route(g.steps) for region in regions)]
    if repeated:
        return repeated[0]
    function = program.find(place.file, place.function, place.first_line)
    stored = list(_stored_by(function)) if function is not None else []
    found = stored or registered
    return found[0] if found else None


def _registrations(program: Program, place: Place) -> Iterator[Growth]:
    parts = [part for part in (place.function or place.name).split(".") if part.isidentifier()]
    names = [place.name, *reversed(parts[:-1])] if place.name.isidentifier() else []
    every = (scope for source in program.sources for scope in source.scopes)
    for piece in (piece for scope in every for piece in scope.pieces):
        for call in piece.calls():
            method = dotted(call.func).rpartition(".")[2]
            if isinstance(call.func, ast.Attribute):
                method = call.func.attr
            if _REGISTERING.fullmatch(method) and _hands_over(call, names, place.first_line):
                yield Growth(piece, "register", call.args[0] if call.args else None)


def _hands_over(call: ast.Call, names: list[str], first_line: int | None) -> bool:
    """Whether a call's arguments have the function in them, or the lambda of that line."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for node in ast.walk(argument):
            if isinstance(node, ast.Lambda) and not names and node.lineno == first_line:
                return True
            if dotted(node).rpartition(".")[2] in names:
                return True
    return False


def _stored_by(function: Scope) -> Iterator[Growth]:
    """Statements of a hook that store one of its parameters outside."""
    parameters = set(function.parameters())
    for piece in function.pieces:
        for call in piece.calls():
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if name in APPENDING | EXTENDING and call.args and _uses(call.args[-1], parameters):
                yield Growth(piece, "append" if name in APPENDING else "extend", call.args[-1])
        for target, value, _ in bindings(piece.node):
            if isinstance(target, (ast.Subscript, ast.Attribute)) and _uses(value, parameters):
                yield Growth(
                    piece, "item" if isinstance(target, ast.Subscript) else "attribute", value
                )


def _uses(value: ast.expr, names: set[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(value))


def library_growth(program: Program, place: Place, regions: list[Region]) -> Growth | None:
    """What makes a library's own object grow: gradients with a graph, buffered log records."""
    found: list[Growth] = []
    if "grad" in (place.name, place.path.rpartition(".")[2]):
        found = list(_calls_with_graph(program))
    elif is_finalizers(place):
        found = list(calling_back(program, "finalize", 2))
    elif _LOG_RECORD.search(place.path):
        found = list(_logging_calls(program))
    running = [g for g in found if any(region.route(g.steps) for region in regions)]
    return next(iter(running or found), None)


def _calls_with_graph(program: Program) -> Iterator[Growth]:
    """`loss.backward(create_graph=True)`, which gives gradients a graph of their own."""
    for source in program.sources:
        for piece in program.naming(source, "create_graph"):
            for call in piece.calls():
                name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
                if name in ("backward", "manual_backward"):
                    yield Growth(piece, "accumulate", None)


def _logging_calls(program: Program) -> Iterator[Growth]:
    """`log.debug("loss %s", loss)`: a record keeps its arguments until it is formatted."""
    for source in program.sources:
        for level in _LOG_LEVELS:
            for piece in program.naming(source, level):
                for call in piece.calls():
                    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
                    likely = [arg for arg in call.args[1:] if looks_like_tensor(arg)]
                    plain = [arg for arg in likely if isinstance(arg, ast.Name)]
                    if name == level and likely:
                        yield Growth(piece, "append", (plain or likely)[0])


def is_finalizers(place: Place) -> bool:
    """Whether it is where `weakref.finalize` keeps what each finalizer is to be called with."""
    return place.owner == "finalize" and place.name == "_registry"


def calling_back(program: Program, name: str, skipped: int) -> Iterator[Growth]:
    """`weakref.finalize(obj, fn, loss)`: calls that keep their arguments for a function.

    Args:
        program: the user's files.
        name: what is called; with its module where the last word alone says too little.
        skipped: arguments before those that are kept.
    """
    last = name.rpartition(".")[2]
    for source in program.sources:
        for piece in program.naming(source, last):
            for call in piece.calls():
                written = dotted(call.func)
                given = [*call.args[skipped:], *(keyword.value for keyword in call.keywords)]
                likely = [arg for arg in given if looks_like_tensor(arg)]
                bare = written == last and program.imports.is_imported(last, source)
                meant = bare or written == name or written.endswith(f".{name}")
                if given and meant:
                    yield Growth(piece, "append", (likely or given)[0])


def built_growth(program: Program, place: Place, stack: Sequence[Spot]) -> Growth | None:
    """The comprehension, or the call that uses up a generator, which builds what is kept."""
    for spot in stack:
        if (spot.file, spot.function, spot.first_line) != (
            place.file,
            place.function,
            place.first_line,
        ):
            continue
        source = next((s for s in program.sources if s.file == spot.file), None)
        found = list(consumers(source, spot.line)) if source is not None else []
        found = [c for c in found if c.container in (place.container, _sum_of(place.container))]
        named = [c for c in found if c.name == place.name]
        for consumer in [*reversed(named), *reversed(found)]:
            return Growth(consumer.piece, "build", consumer.value)
    return None


def _sum_of(container: str) -> str:
    return "Tensor" if container.endswith("Tensor") else ""


def running_call(program: Program, name: str, stack: Sequence[Spot]) -> Growth | None:
    """A call of an object's method in which the loop runs: a trainer's own loop, say."""
    for spot in stack:
        scope = program.find(spot.file, spot.function, spot.first_line)
        for piece in scope.pieces if scope is not None else ():
            if piece.top <= spot.line <= piece.last:
                methods = [call.func for call in piece.calls()]
                bases = [dotted(f.value) for f in methods if isinstance(f, ast.Attribute)]
                if any(base.partition(".")[0] == name for base in bases):
                    return Growth(piece, "call", None, weak=True)
    return None


def shown(program: Program, stack: Sequence[Spot]) -> Growth | None:
    """The last line of the notebook's cell that is running: the session keeps its result."""
    for spot in stack:
        source = next((s for s in program.sources if s.file == spot.file), None)
        if spot.function != "<module>" or source is None or not source.module.pieces:
            continue
        last = source.module.pieces[-1]
        if isinstance(last.node, ast.Expr):
            return Growth(last, "show", last.node.value)
    return None


def named_at_run_time(program: Program, place: Place) -> Growth | None:
    """`globals()[f"loss{step}"] = loss`: a module's variables under names made at run time."""
    home = next((s for s in program.sources if s.file == place.file), None)
    for piece in (p for scope in home.scopes for p in scope.pieces) if home is not None else ():
        for target, value, _ in bindings(piece.node):
            if isinstance(target, ast.Subscript) and _is_namespace(target.value, piece.scope):
                key = target.slice
                if not isinstance(key, ast.Constant) or key.value == place.name:
                    return Growth(piece, "item", value)
    return None


def _is_namespace(expression: ast.expr, scope: Scope) -> bool:
    """Whether an expression is the dict of the module's variables."""
    name = dotted(expression.func) if isinstance(expression, ast.Call) else ""
    return name == "globals" or (name in ("vars", "locals") and scope.parent is None)


def properties(owners: Iterable[Scope], attribute: str) -> list[str]:
    """Properties of classes that give the attribute out under another name."""
    found: dict[str, None] = {}
    for method in (child for owner in owners for child in owner.children.values()):
        if method.is_function and method.marks & {"property", "cached_property"}:
            returned = [p.node.value for p in method.pieces if isinstance(p.node, ast.Return)]
            if any(dotted(value) == f"{method.receiver()}.{attribute}" for value in returned):
                found[method.name] = None
    return list(found)


def capturing(program: Program, place: Place, scope: Scope) -> Growth | None:
    """The lambda or `def` that captures a variable of the scope."""
    for piece in program.naming(scope.source, place.name):
        lambdas = [node for node in piece.nodes() if isinstance(node, ast.Lambda)]
        for node in lambdas:
            if piece.scope is scope and _uses(node.body, {place.name}):
                return Growth(piece, "define", node)
    for child in scope.children.values():
        if child.is_function and place.name not in child.bound():
            inside = [p for p in program.naming(scope.source, place.name) if p.scope is child]
            definition = next((p for p in scope.pieces if p.node is child.node), None)
            if inside and definition is not None:
                return Growth(definition, "define", None)
    return None


def cache_growth(program: Program, place: Place) -> tuple[Growth, ast.expr | None] | None:
    """What makes a function cached, and the expression that says how large its cache may be.

    That is its decorator, with the function's definition; or a call that wraps it,
    `embed = lru_cache(maxsize=None)(encode)`.
    """
    function = program.find(place.file, place.function, place.first_line)
    if function is None or not function.is_function or function.parent is None:
        return None
    piece = next((p for p in function.parent.pieces if p.node is function.node), None)
    if piece is None or not isinstance(piece.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    marks = [m for m in piece.node.decorator_list if "cache" in _decorator_name(m).lower()]
    if marks:
        return Growth(piece, "define", None), marks[0]
    for other in program.naming(function.source, function.name):
        for call in other.calls():
            wrapped = [dotted(arg).rpartition(".")[2] for arg in call.args]
            if function.name in wrapped and "cache" in _decorator_name(call.func).lower():
                return Growth(other, "define", call), call.func
    return Growth(piece, "define", None), None


def cache_limit(decorator: ast.expr) -> ast.expr | int | None:
    """Entries a cache decorator allows: an expression, a number, or None for no limit."""
    if _decorator_name(decorator).rpartition(".")[2] != "lru_cache":
        return None
    if not isinstance(decorator, ast.Call):
        return 128  # functools' own default
    sizes = [keyword.value for keyword in decorator.keywords if keyword.arg == "maxsize"]
    sizes = sizes or decorator.args[:1]
    return sizes[0] if sizes else 128


def _decorator_name(decorator: ast.expr) -> str:
    return dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)


def ctx_growth(program: Program, place: Place) -> Growth | None:
    """`ctx.name = value` in the forward of a custom autograd Function."""
    forward = program.find(place.file, place.function, place.first_line)
    if forward is None or forward.name not in ("forward", "setup_context"):
        owner = class_of(program, place)
        names = ("forward", "setup_context")
        methods = (owner.children.get(name) for name in names) if owner is not None else ()
        forward = next((method for method in methods if method is not None), None)
    if forward is None or not forward.is_function:
        return None
    returned = {
        node.id
        for piece in forward.pieces
        if isinstance(piece.node, ast.Return)
        for node in piece.nodes()
        if isinstance(node, ast.Name)
    }
    found: list[tuple[bool, bool, Growth]] = []
    for piece in forward.pieces:
        for target, value, _ in bindings(piece.node):
            kept = isinstance(target, ast.Attribute) and not starts_over(value)
            if kept and dotted(target).partition(".")[0] in forward.parameters():
                other = dotted(target).rpartition(".")[2] != place.name
                # Keeping an output is what closes the circle through the graph.
                found.append((other, not _uses(value, returned), Growth(piece, "attribute", value)))
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def saved_beside(piece: Piece) -> str:
    """What the statement's function gives `save_for_backward`, which takes all in one call."""
    calls = (call for other in piece.scope.pieces for call in other.calls())
    found = [call for call in calls if dotted(call.func).endswith(".save_for_backward")]
    return ", ".join(map(ast.unparse, found[0].args)) if found else ""


def class_of(program: Program, place: Place) -> Scope | None:
    """The class that a place names as its owner, wherever its file is."""
    if place.owner is None:
        return None
    found = program.find(place.file, place.owner, None)
    if found is not None:
        return found
    last = place.owner.rpartition(".")[2]
    every = (scope for source in program.sources for scope in source.scopes)
    return next((s for s in every if s.name == last and isinstance(s.node, ast.ClassDef)), None)


def closes_cycle(growth: Growth) -> bool:
    """Whether the stored value is or is given the object that stores it."""
    receiver = growth.piece.scope.receiver()
    return receiver is not None and growth.value is not None and _uses(growth.value, {receiver})
