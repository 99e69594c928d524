"""The value of an integer in the source, where text and known values tell it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping

from memguard.explain.definitions import bind
from memguard.explain.program import Program
from memguard.explain.syntax import Scope, bindings, dotted

_DEPTH = 4
_MOST = 10**9
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Integers:
    """Reads integers out of expressions without running anything.

    Args:
        program: the user's files.
        given: values known by the name a user would type; they win over the source.
        home: the scope whose variables `given` names; elsewhere a variable of the same name is
            another one.
    """

    def __init__(self, program: Program, given: Mapping[str, int], home: Scope | None) -> None:
        self._program = program
        self._given = given
        self._home = home

    def value(self, expr: ast.expr, scope: Scope) -> int | None:
        """The integer an expression stands for in a scope; None when nothing says."""
        return self._value(expr, scope, _DEPTH)

    def _value(self, expr: ast.expr, scope: Scope, depth: int) -> int | None:
        if depth <= 0:
            return None
        if isinstance(expr, ast.Constant):
            whole = isinstance(expr.value, int) and not isinstance(expr.value, bool)
            return expr.value if whole and isinstance(expr.value, int) else None
        if isinstance(expr, ast.BinOp):
            return self._operation(expr, scope, depth)
        if isinstance(expr, ast.Call) and dotted(expr.func) == "int" and expr.args:
            return self._value(expr.args[0], scope, depth)
        name = dotted(expr)
        if name in self._given and (scope is self._home or name not in scope.bound()):
            return self._given[name]
        origins = self._origins(expr, scope)
        found = {self._value(value, where, depth - 1) for value, where in origins}
        return found.pop() if len(found) == 1 else None

    def _operation(self, expr: ast.BinOp, scope: Scope, depth: int) -> int | None:
        operation = _OPERATIONS.get(type(expr.op))
        left = self._value(expr.left, scope, depth)
        right = self._value(expr.right, scope, depth)
        if operation is None or left is None or right is None:
            return None
        try:
            result = operation(left, right)
        except ZeroDivisionError:
            return None
        return result if abs(result) <= _MOST else None

    def _origins(self, expr: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """Expressions that give a variable or attribute its value, and where each stands."""
        if isinstance(expr, ast.Attribute):
            return list(self._attribute(expr, scope))
        if not isinstance(expr, ast.Name):
            return []
        name = expr.id
        for around in scope.chain():
            if name in around.parameters():
                return list(self._parameter(name, around))
            values = self._program.assigned(name, around)
            if values:
                return [(value, around) for value, _ in values]
        origin = self._program.imports.origin(name, scope.source)
        if origin is None:
            return []
        module = origin[0].module
        return [(value, module) for value, _ in self._program.assigned(origin[1], module)]

    def _attribute(self, expr: ast.Attribute, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        types = self._program.types(expr.value, scope)
        for cls in self._program.lineage(types.classes):
            for piece in self._program.naming(cls.source, expr.attr):
                inside = piece.scope is cls or piece.scope.owner is cls
                for target, value, _ in bindings(piece.node) if inside else ():
                    if dotted(target).rpartition(".")[2] == expr.attr:
                        yield value, piece.scope

    def _parameter(self, name: str, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        given = False
        for call, piece in self._program.sites(scope):
            for parameter, value in bind(call, scope):
                if parameter == name:
                    given = True
                    yield value, piece.scope
        spec = scope.arguments
        if given or spec is None:
            return
        positional = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
        defaults = list(zip(reversed(positional), reversed(spec.defaults), strict=False))
        keywords = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        defaults += [(arg.arg, fallback) for arg, fallback in keywords if fallback is not None]
        yield from ((default, scope) for parameter, default in defaults if parameter == name)
