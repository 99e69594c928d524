"""What names in the user's files stand for: functions, classes, values; and who calls whom.

Nothing is run or imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from memguard.explain.imports import Imports
from memguard.explain.syntax import Piece, Scope, Source, bindings, dotted, read_source


class Definitions:
    """The user's files on a stack, and those they import from beside them."""

    def __init__(self, files: Iterable[str | None]) -> None:
        sources = [source for source in map(read_source, dict.fromkeys(files)) if source]
        self.imports = Imports(sources)
        self._based: dict[Scope, list[Scope]] = {}
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
        return None if module is None else self.imports.member(module, last)

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
