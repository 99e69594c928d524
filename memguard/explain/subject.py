"""The holder as the text of one scope can name it, under its own name and others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from memguard.explain.program import Program
from memguard.explain.syntax import Piece, Scope, bindings, dotted

# What a subscript or attribute between holder and survivor is written as: `.name`, `'key'`, or
# this where the text does not say which.
ANY = "*"
Keys = tuple[str, ...]

_INNER = frozenset(("setdefault", "get", "__getitem__", "items", "values", "keys"))
_TENSORS = ("Tensor", "Parameter", "Buffer")


@dataclass(frozen=True, slots=True)
class Subject:
    """The holder, wherever it is.

    Attributes:
        names: variables that are the holder.
        attribute: the attribute of an object that is the holder; None for a plain variable.
        owners: classes whose objects have that attribute; empty when it may be anyone's.
        foreign: whether it is a library's class, so that no class of the user's has it.
        modules: names of modules whose attribute `member` is the holder.
        container: type of the object held, as far as known.
        plain: whether tensors without graph count, which a library function may have just made.
    """

    names: frozenset[str] = frozenset()
    attribute: str | None = None
    owners: frozenset[Scope] = frozenset()
    foreign: bool = False
    modules: frozenset[str] = frozenset()
    member: str | None = None
    container: str = ""
    plain: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether the holder is itself a tensor."""
        return self.container.endswith(_TENSORS)

    def called(self, name: str) -> Subject:
        """The same holder under the name of a parameter."""
        return replace(self, names=frozenset((name,)), modules=frozenset())

    def line_words(self) -> frozenset[str]:
        """Names one of which stands on every line that touches the holder directly."""
        return self.names | {word for word in (self.attribute, self.member) if word}


@dataclass(eq=False, slots=True)
class View:
    """A holder seen from one scope.

    Attributes:
        aliases: other variables through which it is reached here, and what they reach.
        calls: calls that handed the holder over to this scope, outermost first.
        prefix: the way from the holder to what this scope was handed.
    """

    subject: Subject
    scope: Scope
    program: Program
    calls: tuple[Piece, ...] = ()
    prefix: Keys = ()
    aliases: dict[str, Keys] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for _ in range(2):
            for piece in self.pieces():
                self.aliases.update(self._aliases_in(piece))

    def pieces(self) -> Iterator[Piece]:
        """Statements of the scope that have the holder, or another name of it, on their lines."""
        seen: set[int] = set()
        source = self.scope.source
        for word in (*sorted(self.subject.line_words()), *self.aliases):
            for piece in self.program.naming(source, word):
                if piece.scope is self.scope and id(piece) not in seen:
                    seen.add(id(piece))
                    yield piece

    def is_holder(self, expr: ast.AST) -> bool:
        """Whether an expression is the holder under a name of its own."""
        subject = self.subject
        if isinstance(expr, ast.Name):
            return expr.id in subject.names
        if isinstance(expr, ast.Call) and dotted(expr.func) == "getattr" and len(expr.args) > 1:
            name = expr.args[1]
            named = isinstance(name, ast.Constant) and name.value == subject.attribute is not None
            return named and self._belongs(expr.args[0])
        if not isinstance(expr, ast.Attribute):
            return False
        if expr.attr == subject.member and dotted(expr.value) in subject.modules:
            return True
        return expr.attr == subject.attribute and self._belongs(expr.value)

    def _belongs(self, base: ast.expr) -> bool:
        owners = self.subject.owners
        if not owners and not self.subject.foreign:
            return True
        types = self.program.types(base, self.scope)
        if self.subject.foreign:
            return not types.classes
        return bool(owners.intersection(types.classes)) if types.known else True

    def reached(self, expr: ast.AST) -> Keys | None:
        """The way from the holder to an expression that is it or lies in it; else None."""
        keys: list[str] = []
        while not self.is_holder(expr):
            if isinstance(expr, ast.Name):
                if expr.id not in self.aliases:
                    return None
                return (*self.aliases[expr.id], *reversed(keys))
            if isinstance(expr, ast.Subscript):
                if isinstance(expr.slice, ast.Slice) and not self.subject.is_tensor:
                    return None  # a copy
                keys.append(key_of(expr.slice))
                expr = expr.value
            elif isinstance(expr, ast.Attribute):
                keys.append(f".{expr.attr}")
                expr = expr.value
            elif isinstance(expr, ast.Call) and dotted(expr.func) == "vars" and expr.args:
                keys.append(".__dict__")
                expr = expr.args[0]
            elif isinstance(expr, ast.Call) and isinstance(expr.func, ast.Attribute):
                if expr.func.attr not in _INNER:
                    return None
                keys.append(key_of(expr.args[0]) if expr.args else ANY)
                expr = expr.func.value
            else:
                return None
        return (*self.prefix, *reversed(keys))

    def mentions(self, expr: ast.AST) -> bool:
        """Whether the holder itself is anywhere in an expression."""
        return any(self.is_holder(node) for node in ast.walk(expr))

    def _aliases_in(self, piece: Piece) -> Iterator[tuple[str, Keys]]:
        node = piece.node
        if isinstance(node, ast.Assign) and len(node.targets) > 1:
            held = [keys for target in node.targets if (keys := self.reached(target)) is not None]
            for target in node.targets if held else ():
                yield from self._alias(target, held[0])
        for target, value, whole in bindings(node):
            if isinstance(node, (ast.For, ast.AsyncFor)):
                keys = self._element(value)
            else:
                keys = self.reached(value) if whole else None
            if keys is not None:
                yield from self._alias(target, keys)

    def _alias(self, target: ast.expr, keys: Keys) -> Iterator[tuple[str, Keys]]:
        if isinstance(target, ast.Name) and target.id not in self.subject.names:
            yield target.id, keys

    def _element(self, iterated: ast.expr) -> Keys | None:
        """What the variable of a loop over the holder, or over several of it, reaches."""
        if isinstance(iterated, (ast.Tuple, ast.List)):
            found = [keys for item in iterated.elts if (keys := self.reached(item)) is not None]
            return None if not found else found[0] if len(found) == 1 else (ANY,)
        if isinstance(iterated, ast.Call) and dotted(iterated.func) in ("enumerate", "zip", "list"):
            inner = [keys for arg in iterated.args if (keys := self._element(arg)) is not None]
            return inner[0] if inner else None
        keys = self.reached(iterated)
        return None if keys is None else (*keys, ANY)


def key_of(index: ast.expr) -> str:
    """A subscript as text when it is a constant word or number; else `*`."""
    if isinstance(index, ast.Constant) and isinstance(index.value, str):
        return repr(index.value)
    return ANY


def fits(first: Keys, second: Keys) -> bool:
    """Whether two ways into the holder may lead to the same object, or one through the other."""
    return all(a == b or ANY in (a, b) for a, b in zip(first, second, strict=False))
