"""Which of the user's functions a statement may run, by name; and everything a loop runs."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from memguard.explain.program import Program
from memguard.explain.syntax import Piece, Scope, dotted

MAX_DEPTH = 4
# Functions followed from one loop: more than that is a library, where names say little.
_MOST_REACHED = 400

# Methods of lists, dicts, tensors, modules and optimizers: by name alone they say nothing about
# which of the user's classes is meant.
_COMMON = frozenset(
    [
        *dir(list),
        *dir(dict),
        *dir(set),
        *dir(str),
        *("append", "appendleft", "popleft", "put", "get", "backward", "item", "detach", "mean"),
        *("sum", "to", "train", "eval", "zero_grad", "parameters", "state_dict", "cpu", "numpy"),
        *("size", "view", "flatten", "squeeze", "max", "min", "cuda", "log", "close", "write"),
    ]
)
# Optimizers and schedules step too, and so do environments, which are the user's.
_LIBRARY_STEPS = re.compile(r"opt|sched|scaler|engine", re.IGNORECASE)
_OWN = frozenset(("self", "cls"))
_BUILTINS = frozenset(dir(builtins))


@dataclass(eq=False, slots=True)
class Reached:
    """A function that a loop's body runs.

    Attributes:
        via: the statement that calls it.
        before: how the function holding `via` was reached; None when `via` is in the loop.
        receivers: objects it is called on as a method, as written.
    """

    scope: Scope
    via: Piece
    before: Reached | None
    receivers: set[str] = field(default_factory=set)

    @property
    def anchor(self) -> Piece:
        """The statement in the loop's own body that leads to it."""
        return self.via if self.before is None else self.before.anchor

    def path(self) -> Iterator[Piece]:
        """The calling statements, outermost first."""
        if self.before is not None:
            yield from self.before.path()
        yield self.via


def callees(program: Program, piece: Piece) -> Iterator[tuple[Scope, str]]:
    """Functions that a statement's own expressions may run, and the object each is called on."""
    for call in piece.calls():
        receiver = _receiver(call, piece)
        for scope in called(program, call, piece.scope):
            yield scope, receiver
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            # A function handed over (a closure, a hook, a key) is taken to be called.
            if dotted(value):
                yield from ((scope, receiver) for scope in handed(program, value, piece.scope))
        if receiver and receiver not in _OWN:
            registered = registered_with(program, piece, call, receiver)
            yield from ((scope, "") for scope in registered)
    if isinstance(piece.node, (ast.For, ast.AsyncFor)):
        for cls in program.types(_iterated(piece.node.iter), piece.scope).classes:
            for name in ("__iter__", "__next__", "__getitem__", "__aiter__", "__anext__"):
                method = program.method(cls, name)
                if method is not None:
                    yield method, dotted(piece.node.iter)


def registered_with(
    program: Program, piece: Piece, call: ast.Call, receiver: str
) -> Iterator[Scope]:
    """Functions registered with an object whose method is called: `hooks.fire("step_end")`.

    They were decorated by a method of it, `@hooks.on("step_end")`, or given to one; where both
    sides name a moment, it must be the same.
    """
    root = receiver.partition(".")[0]
    home = next((scope for scope in piece.scope.chain() if root in scope.bound()), None)
    if home is None:
        return
    moment = _constants(call)
    for other in program.naming(piece.scope.source, receiver.rpartition(".")[2]):
        if not _same_variable(root, home, other.scope):
            continue
        if isinstance(other.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for mark in other.node.decorator_list:
                if _is_method_of(mark, receiver) and _agree(moment, _constants(mark)):
                    yield from filter(None, [other.scope.children.get(other.node.name)])
        for given in other.calls():
            if given is not call and _is_method_of(given, receiver):
                for value in given.args if _agree(moment, _constants(given)) else ():
                    yield from handed(program, value, other.scope) if dotted(value) else ()


def _same_variable(name: str, home: Scope, scope: Scope) -> bool:
    """Whether a variable of one scope is meant by its name in another; `self` is in a class's."""
    if name == home.receiver():
        return scope.owner is home.owner
    for around in scope.chain():
        if around is home:
            return True
        if name in around.parameters() or (home.parent is None and name in around.bound()):
            return False
    return False


def _is_method_of(node: ast.AST, receiver: str) -> bool:
    func = node.func if isinstance(node, ast.Call) else node
    return isinstance(func, ast.Attribute) and dotted(func.value) == receiver


def _constants(node: ast.AST) -> set[object]:
    """Words that a call has as arguments: names of moments, or attributes of an enumeration."""
    values = node.args if isinstance(node, ast.Call) else []
    found = {value.value for value in values if isinstance(value, ast.Constant)}
    return found | {dotted(value) for value in values if isinstance(value, ast.Attribute)}


def _agree(first: set[object], second: set[object]) -> bool:
    return not first or not second or bool(first & second)


def _receiver(call: ast.Call, piece: Piece) -> str:
    """The object a method is called on, as written; nothing when a loop goes through several."""
    name = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    root = name.partition(".")[0]
    for loop in piece.parents:
        targets = ast.walk(loop.target) if isinstance(loop, (ast.For, ast.AsyncFor)) else ()
        if any(isinstance(target, ast.Name) and target.id == root for target in targets):
            return ""
    return name


def _iterated(value: ast.expr) -> ast.expr:
    while (
        isinstance(value, ast.Call)
        and dotted(value.func) in ("enumerate", "iter", "zip", "tqdm", "reversed")
        and value.args
    ):
        value = value.args[-1 if dotted(value.func) == "zip" else 0]
    return value


def handed(program: Program, value: ast.expr, scope: Scope) -> list[Scope]:
    """The function that an expression names without calling it."""
    if isinstance(value, ast.Name):
        found = program.lookup(value.id, scope)
        return [found] if found is not None and found.is_function else []
    if isinstance(value, ast.Attribute):
        classes = program.types(value.value, scope).classes
        methods = (program.method(cls, value.attr) for cls in classes)
        return [method for method in methods if method is not None]
    return []


def called(program: Program, call: ast.Call, scope: Scope) -> list[Scope]:
    """The user's functions that a call may be of; empty for library calls."""
    func = call.func
    if isinstance(func, ast.Name):
        target = program.lookup(func.id, scope)
        if target is not None:
            return _construction(program, target)
        return [] if func.id in _BUILTINS else _instance_called(program, func, scope)
    if isinstance(func, ast.Attribute):
        return _method_called(program, func, scope)
    return _instance_called(program, func, scope)


def _construction(program: Program, target: Scope) -> list[Scope]:
    if target.is_function:
        return [target]
    names = ("__init__", "__post_init__")
    return [method for name in names if (method := program.method(target, name)) is not None]


def _instance_called(program: Program, func: ast.expr, scope: Scope) -> list[Scope]:
    """`model(x)` runs the class's `forward`; of an unknown class, any `forward` there is."""
    types = program.types(func, scope)
    if types.known:
        classes: Iterable[Scope] = types.classes
        found = [program.method(cls, name) for cls in classes for name in ("forward", "__call__")]
        return [method for method in found if method is not None]
    return _methods_named(program, "forward") + _methods_named(program, "__call__")


def _methods_named(program: Program, name: str) -> list[Scope]:
    every = (scope for source in program.sources for scope in source.scopes)
    return [scope for scope in every if scope.name == name and scope.owner is not None]


def _method_called(program: Program, func: ast.Attribute, scope: Scope) -> list[Scope]:
    module = program.imports.module_of(dotted(func.value), scope.source)
    if module is not None:
        target = program.imports.member(module, func.attr)
        return [] if target is None else _construction(program, target)
    if isinstance(func.value, ast.Call) and dotted(func.value.func) == "super":
        owners = [around.owner for around in scope.chain() if around.owner is not None]
        bases = program.lineage(owners[:1])[1:]
        found = [base.children[func.attr] for base in bases if func.attr in base.children]
        return found[:1]
    types = program.types(func.value, scope)
    if types.classes:
        return _on_classes(program, func, scope, types.classes)
    if types.known:
        return []
    if func.attr == "step" and _LIBRARY_STEPS.search(dotted(func.value)):
        return []
    methods = _methods_named(program, func.attr)
    alike = [m for m in methods if m.owner is not None and _alike(dotted(func.value), m.owner.name)]
    if alike or func.attr in _COMMON:
        return alike
    return methods or _instance_called(program, func, scope)


def _on_classes(
    program: Program, func: ast.Attribute, scope: Scope, classes: Iterable[Scope]
) -> list[Scope]:
    found: list[Scope] = []
    for cls in program.family(classes):
        method = cls.children.get(func.attr)
        found += [method] if method is not None and method.is_function else []
    if found:
        return found
    if func.attr == "apply":  # of an autograd Function
        names = ("forward", "setup_context", "backward")
        return [m for cls in classes for n in names if (m := program.method(cls, n)) is not None]
    return _instance_called(program, func, scope)


def _alike(receiver: str, cls: str) -> bool:
    """Whether a variable is named after a class: `bank` and `FeatureBank`."""
    word = receiver.rpartition(".")[2].strip("_").replace("_", "").lower()
    name = cls.strip("_").lower()
    return len(word) > 2 and (word in name or word.rstrip("s") in name or name in word)


def reach(program: Program, pieces: Iterable[Piece]) -> dict[Scope, Reached]:
    """Functions that the statements run, through calls by name up to four deep."""
    found: dict[Scope, Reached] = {}
    todo: list[tuple[Piece, Reached | None]] = [(piece, None) for piece in pieces]
    for _ in range(MAX_DEPTH):
        following: list[Reached] = []
        for piece, before in todo:
            for scope, receiver in callees(program, piece):
                if scope not in found and len(found) < _MOST_REACHED:
                    found[scope] = Reached(scope, piece, before)
                    following.append(found[scope])
                if scope in found:
                    found[scope].receivers.add(receiver)
        todo = [(piece, reached) for reached in following for piece in reached.scope.pieces]
    return found
