"""What names in the user's files stand for: functions, classes, and the class of an object.

Nothing is run or imported; where the text does not say, the answer is "unknown".
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from memguard.explain.imports import Imports
from memguard.explain.syntax import Piece, Scope, Source, bindings, dotted, read_source

_DEPTH = 4

# Methods that hand back the object itself, so that its class is still known.
_SAME_OBJECT = frozenset(
    ("to", "cuda", "cpu", "half", "float", "double", "bfloat16", "train", "eval", "requires_grad_")
)


class Types:
    """The classes an expression's object may be of.

    Attributes:
        classes: the user's classes it may be an instance of (or be itself).
        known: whether the text says; known without classes means it is nothing of the user's.
    """

    __slots__ = ("classes", "known")

    def __init__(self, classes: Iterable[Scope] = (), *, known: bool = False) -> None:
        self.classes: tuple[Scope, ...] = tuple(dict.fromkeys(classes))
        self.known = known or bool(self.classes)


UNKNOWN, FOREIGN = Types(), Types(known=True)


def _merged(several: Iterable[Types]) -> Types:
    found = list(several)
    classes = [scope for types in found for scope in types.classes]
    return Types(classes, known=bool(found) and all(types.known for types in found))


class Program:
    """The user's files on a stack, and those they import from beside them."""

    def __init__(self, files: Iterable[str | None]) -> None:
        sources = [source for source in map(read_source, dict.fromkeys(files)) if source]
        self.imports = Imports(sources)
        self._based: dict[Scope, list[Scope]] = {}
        self._types: dict[tuple[int, int], Types] = {}
        self._running: set[int] = set()
        self._named: dict[tuple[int, str], list[Piece]] = {}

    @property
    def sources(self) -> list[Source]:
        """Files read so far, those of the stack first."""
        return self.imports.sources

    def find(self, file: str | None, qualname: str | None, first: int | None) -> Scope | None:
        """The function, class or module that a code object or class comes from."""
        sources = [source for source in self.sources if source.file == file]
        for source in sources or (self.sources if file is None else []):
            scopes = source.scopes
            exact = [s for s in scopes if s.first == first and qualname in (s.qualname, s.name)]
            if exact and first is not None:
                return exact[0]
            named = [s for s in scopes if qualname is not None and s.qualname == qualname]
            if named:
                return named[0]
            if first is not None:
                return source.scope_at(first)
            if qualname is not None and ".<locals>." in qualname:
                # A lambda or comprehension: the function it stands in.
                return self.find(file, qualname.rpartition(".<locals>.")[0], None)
        return None

    def naming(self, source: Source, word: str) -> list[Piece]:
        """Statements of a file that have the word on their lines; remembered."""
        key = (id(source), word)
        if key not in self._named:
            self._named[key] = source.pieces_naming(word)
        return self._named[key]

    def lookup(self, name: str, scope: Scope) -> Scope | None:
        """The function or class a plain name stands for; None when it is anything else."""
        for around in scope.chain():
            if around is not scope and isinstance(around.node, ast.ClassDef):
                continue
            if name in around.children:
                return around.children[name]
            if around.parent is not None and name in around.bound():
                return self._renamed(name, around)
        found = self.imports.scope_of(name, scope.source)
        return found or self._renamed(name, scope.source.module)

    def _renamed(self, name: str, scope: Scope) -> Scope | None:
        """For `step = train_step`: what the other name stands for."""
        values = [value for value, whole in self.assigned(name, scope) if whole]
        if len(values) == 1 and isinstance(values[0], ast.Name) and values[0].id != name:
            other = values[0].id
            return scope.children.get(other) or scope.source.module.children.get(other)
        return None

    def assigned(self, name: str, scope: Scope) -> list[tuple[ast.expr, bool]]:
        """Values a variable of the scope is given, and whether each is all of the value."""
        return [
            (value, whole)
            for piece in self.naming(scope.source, name)
            if piece.scope is scope
            for target, value, whole in bindings(piece.node)
            if isinstance(target, ast.Name) and target.id == name
        ]

    def types(self, expr: ast.expr, scope: Scope, depth: int = _DEPTH) -> Types:
        """The classes of the object an expression gives."""
        key = (id(expr), id(scope))
        if key in self._types:
            return self._types[key]
        if depth <= 0 or id(expr) in self._running:
            return UNKNOWN
        self._running.add(id(expr))
        try:
            found = self._types_of(expr, scope, depth)
        finally:
            self._running.discard(id(expr))
        if depth == _DEPTH:
            self._types[key] = found
        return found

    def _types_of(self, expr: ast.expr, scope: Scope, depth: int) -> Types:
        if isinstance(expr, ast.Name):
            return self.name_types(expr.id, scope, depth)
        if isinstance(expr, ast.Attribute):
            return self._attribute_types(expr, scope, depth)
        if isinstance(expr, ast.Call):
            return self._result_types(expr, scope, depth)
        if isinstance(expr, (ast.Await, ast.NamedExpr)):
            return self.types(expr.value, scope, depth)
        if isinstance(expr, (ast.IfExp, ast.BoolOp)):
            parts = expr.values if isinstance(expr, ast.BoolOp) else [expr.body, expr.orelse]
            return _merged(self.types(part, scope, depth) for part in parts)
        return UNKNOWN if isinstance(expr, ast.Subscript) else FOREIGN

    def name_types(self, name: str, scope: Scope, depth: int = _DEPTH) -> Types:
        """The classes of the object that a variable holds."""
        for around in scope.chain():
            if around is not scope and isinstance(around.node, ast.ClassDef):
                continue
            owner = around.owner
            if owner is not None and name == around.receiver():
                return Types([owner])
            if name in around.children and not around.children[name].is_function:
                return Types([around.children[name]])
            if around.arguments is not None and name in around.parameters():
                return self._parameter_types(name, around, depth)
            if around.parent is None or name in around.bound():
                values = self.assigned(name, around)
                if values:
                    return self._values_types(values, around, depth)
        imported = self.imports.scope_of(name, scope.source)
        if imported is not None:
            return UNKNOWN if imported.is_function else Types([imported])
        known = self.imports.is_imported(name, scope.source) or hasattr(builtins, name)
        return FOREIGN if known else UNKNOWN

    def _values_types(self, values: list[tuple[ast.expr, bool]], scope: Scope, depth: int) -> Types:
        real = [(v, whole) for v, whole in values if not isinstance(v, ast.Constant)]
        return _merged(self.types(v, scope, depth - 1) if whole else UNKNOWN for v, whole in real)

    def _parameter_types(self, name: str, scope: Scope, depth: int) -> Types:
        spec = scope.arguments
        parameters = (*spec.posonlyargs, *spec.args, *spec.kwonlyargs) if spec else ()
        for parameter in parameters:
            if parameter.arg == name and parameter.annotation is not None:
                noted = self.annotated(parameter.annotation, scope)
                if noted.known:
                    return noted
        given: list[Types] = []
        for call, piece in self.sites(scope):
            for parameter_name, value in bind(call, scope):
                if parameter_name == name:
                    given.append(self.types(value, piece.scope, depth - 1))
        return _merged(given)

    def annotated(self, annotation: ast.expr, scope: Scope) -> Types:
        """The classes an annotation names."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            word = annotation.value.strip("'\" ")
            found = self.lookup(word, scope) if word.isidentifier() else None
            return Types([found] if found else [])
        names = [dotted(node) for node in ast.walk(annotation)]
        scopes = (self.lookup(name, scope) for name in names if name and "." not in name)
        classes = [found for found in scopes if found and not found.is_function]
        plain = {"Tensor", "torch.Tensor", "int", "float", "str", "list", "dict", "List", "Dict"}
        return Types(classes, known=not classes and bool(plain & set(names)))

    def _attribute_types(self, expr: ast.Attribute, scope: Scope, depth: int) -> Types:
        module = self.imports.module_of(dotted(expr.value), scope.source)
        if module is not None:
            return self.name_types(expr.attr, module.module, depth - 1)
        base = self.types(expr.value, scope, depth)
        given: list[Types] = []
        for cls in self.lineage(base.classes):
            for piece in self.naming(cls.source, expr.attr):
                given += self._attribute_values(expr.attr, cls, piece, depth)
        return _merged(given) if base.classes else base

    def _attribute_values(self, name: str, cls: Scope, piece: Piece, depth: int) -> Iterator[Types]:
        noted = piece.scope is cls and isinstance(piece.node, ast.AnnAssign)
        if noted and isinstance(piece.node, ast.AnnAssign) and dotted(piece.node.target) == name:
            yield self.annotated(piece.node.annotation, cls)
        if piece.scope is not cls and piece.scope.owner is not cls:
            return
        for target, value, whole in bindings(piece.node):
            own = dotted(target) in (name, f"{piece.scope.receiver()}.{name}")
            if own and not isinstance(value, ast.Constant):
                yield self.types(value, piece.scope, depth - 1) if whole else UNKNOWN

    def _result_types(self, call: ast.Call, scope: Scope, depth: int) -> Types:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in _SAME_OBJECT:
            return self.types(func.value, scope, depth)
        target = self._called(func, scope)
        if target is not None and not target.is_function:
            return Types([target])
        if target is not None and target.is_function:
            returned = [p.node for p in target.pieces if isinstance(p.node, ast.Return)]
            values = [node.value for node in returned if node.value is not None]
            return _merged(self.types(value, target, depth - 1) for value in values)
        base = func.value if isinstance(func, ast.Attribute) else func
        if not self.types(base, scope, depth).known:
            return UNKNOWN
        # A foreign wrapper (DataParallel, compile, DataLoader) still runs what it was given.
        wrapped = [self.types(arg, scope, depth - 1) for arg in call.args[:1] if dotted(arg)]
        return Types([cls for types in wrapped for cls in types.classes], known=True)

    def _called(self, func: ast.expr, scope: Scope) -> Scope | None:
        if isinstance(func, ast.Name):
            return self.lookup(func.id, scope)
        if isinstance(func, ast.Attribute):
            module = self.imports.module_of(dotted(func.value), scope.source)
            if module is not None:
                return module.module.children.get(func.attr)
            for cls in self.types(func.value, scope).classes:
                method = self.method(cls, func.attr)
                if method is not None:
                    return cls if "classmethod" in method.marks else method
        return None

    def lineage(self, classes: Iterable[Scope]) -> list[Scope]:
        """The classes and those they inherit from, as far as their files are read."""
        found: dict[Scope, None] = {}
        todo = list(classes)
        while todo:
            cls = todo.pop(0)
            if cls not in found and isinstance(cls.node, ast.ClassDef):
                found[cls] = None
                todo += self._bases(cls)
        return list(found)

    def _bases(self, cls: Scope) -> list[Scope]:
        if cls not in self._based:
            names = [dotted(base) for base in getattr(cls.node, "bases", ())]
            scopes = (self._dotted_scope(name, cls.parent or cls) for name in names if name)
            self._based[cls] = [scope for scope in scopes if scope is not None]
        return self._based[cls]

    def _dotted_scope(self, name: str, scope: Scope) -> Scope | None:
        base, _, last = name.rpartition(".")
        if not base:
            return self.lookup(last, scope)
        module = self.imports.module_of(base, scope.source)
        return None if module is None else module.module.children.get(last)

    def family(self, classes: Iterable[Scope]) -> list[Scope]:
        """The classes, those they inherit from, and those that inherit from them."""
        own = list(classes)
        family = dict.fromkeys(self.lineage(own))
        names = {cls.name for cls in own}
        for source in list(self.sources):
            for scope in source.scopes:
                bases = {
                    dotted(base).rpartition(".")[2] for base in getattr(scope.node, "bases", ())
                }
                if bases & names:
                    family[scope] = None
                    names.add(scope.name)
        return list(family)

    def method(self, cls: Scope, name: str) -> Scope | None:
        """The function that `name` is on objects of the class."""
        for scope in self.lineage([cls]):
            if name in scope.children and scope.children[name].is_function:
                return scope.children[name]
        return None

    def sites(self, scope: Scope) -> Iterator[tuple[ast.Call, Piece]]:
        """Calls that may be of this function, by its name (a constructor: by its class's)."""
        constructs = scope.name == "__init__" and scope.owner is not None
        name = scope.owner.name if constructs and scope.owner else scope.name
        for source in list(self.sources):
            for piece in self.naming(source, name):
                for call in piece.calls():
                    if _last_name(call.func) == name:
                        yield call, piece


def _last_name(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def bind(call: ast.Call, function: Scope) -> Iterator[tuple[str, ast.expr]]:
    """Which parameter of a function each argument of a call becomes.

    Extra arguments come with the name of `*args` or `**kwargs`; what follows a starred argument
    in the call cannot be placed and is left out.
    """
    spec = function.arguments
    if spec is None:
        return
    names = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
    if function.receiver() is not None and not _names_class(call.func, function):
        names = names[1:]
    for position, value in enumerate(call.args):
        if isinstance(value, ast.Starred):
            break
        if position < len(names):
            yield names[position], value
        elif spec.vararg is not None:
            yield spec.vararg.arg, value
    accepted = set(function.parameters())
    for keyword in call.keywords:
        if keyword.arg in accepted and keyword.arg is not None:
            yield keyword.arg, keyword.value
        elif keyword.arg is not None and spec.kwarg is not None:
            yield spec.kwarg.arg, keyword.value


def _names_class(func: ast.expr, function: Scope) -> bool:
    """Whether a method is called on its class, so that the receiver is the first argument."""
    if "classmethod" in function.marks or not isinstance(func, ast.Attribute):
        return False
    return function.owner is not None and dotted(func.value) == function.owner.name
