"""The user's files with the classes of the objects in them, as far as the text tells."""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Iterable, Iterator

from memguard.explain.definitions import Definitions, bind
from memguard.explain.syntax import Piece, Scope, bindings, dotted

_DEPTH = 4
_MOST_SITES = 20

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


class Program(Definitions):
    """The user's files, and the classes of the objects in them.

    Answers are remembered; one asked for again while it is being found out is unknown.
    """

    def __init__(self, files: Iterable[str | None]) -> None:
        super().__init__(files)
        self._types: dict[tuple[int, int], Types] = {}
        self._parameters: dict[tuple[int, str], Types] = {}
        self._members: dict[tuple[int, str], Types | None] = {}
        self._running: set[int] = set()

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
        key = (id(scope), name)
        if key not in self._parameters:
            self._parameters[key] = UNKNOWN  # while it is being found out, and ever after a circle
            self._parameters[key] = self._given_types(name, scope, depth)
        return self._parameters[key]

    def _given_types(self, name: str, scope: Scope, depth: int) -> Types:
        spec = scope.arguments
        parameters = (*spec.posonlyargs, *spec.args, *spec.kwonlyargs) if spec else ()
        for parameter in parameters:
            if parameter.arg == name and parameter.annotation is not None:
                noted = self.annotated(parameter.annotation, scope)
                if noted.known:
                    return noted
        given: list[Types] = []
        for call, piece in itertools.islice(self.sites(scope), _MOST_SITES):
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
        if not base.classes:
            return base
        given = (self._member_types(expr.attr, cls, depth) for cls in self.lineage(base.classes))
        return _merged(types for types in given if types is not None)

    def _member_types(self, name: str, cls: Scope, depth: int) -> Types | None:
        """The classes of an attribute by what the class itself assigns; None when it does not."""
        key = (id(cls), name)
        if key not in self._members:
            self._members[key] = UNKNOWN
            pieces = self.naming(cls.source, name)
            given = [t for piece in pieces for t in self._assigned_types(name, cls, piece, depth)]
            self._members[key] = _merged(given) if given else None
        return self._members[key]

    def _assigned_types(self, name: str, cls: Scope, piece: Piece, depth: int) -> Iterator[Types]:
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
                return self.imports.member(module, func.attr)
            for cls in self.types(func.value, scope).classes:
                method = self.method(cls, func.attr)
                if method is not None:
                    return cls if "classmethod" in method.marks else method
        return None
