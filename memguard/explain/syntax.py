"""The user's source as scopes and statements, and text cut out of it."""

from __future__ import annotations

import ast
import bisect
import itertools
import linecache
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode: TypeAlias = ast.Module | ast.ClassDef | FunctionNode

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_CACHE_SIZE = 24


@dataclass(eq=False, slots=True)
class Piece:
    """One statement and where it stands.

    Attributes:
        scope: module, class or function it stands in directly.
        parents: compound statements of that scope around it, outermost first.
    """

    node: ast.stmt
    scope: Scope
    parents: tuple[ast.stmt, ...]
    _nodes: tuple[ast.AST, ...] | None = None

    @property
    def line(self) -> int:
        """First line, decorators left out."""
        return self.node.lineno

    @property
    def top(self) -> int:
        """First line, that of a decorator if there is one."""
        marks: list[ast.expr] = getattr(self.node, "decorator_list", [])
        return min([self.node.lineno, *(mark.lineno for mark in marks)])

    @property
    def last(self) -> int:
        """Last line; of a compound statement, the last of its header."""
        body: list[ast.stmt] = getattr(self.node, "body", [])
        if body:
            return max(self.node.lineno, body[0].lineno - 1)
        return self.node.end_lineno or self.node.lineno

    @property
    def loops(self) -> tuple[ast.stmt, ...]:
        """Loops of the same scope around it, outermost first."""
        return tuple(parent for parent in self.parents if isinstance(parent, LOOPS))

    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the statement's own expressions; for a compound one, of its header."""
        if self._nodes is None:
            roots = own_expressions(self.node)
            self._nodes = tuple(node for root in roots for node in ast.walk(root))
        return self._nodes

    def calls(self) -> Iterator[ast.Call]:
        """Calls among the statement's own expressions."""
        return (node for node in self.nodes() if isinstance(node, ast.Call))

    def inside(self, parent: ast.stmt) -> bool:
        """Whether the statement stands in the body of a compound one of the same scope."""
        return any(around is parent for around in self.parents)


@dataclass(eq=False, slots=True)
class Scope:
    """A module, class or function with the statements that stand directly in it."""

    node: ScopeNode
    name: str
    qualname: str
    parent: Scope | None
    source: Source
    pieces: list[Piece] = field(default_factory=list)
    children: dict[str, Scope] = field(default_factory=dict)
    _bound: frozenset[str] | None = None

    @property
    def is_function(self) -> bool:
        """Whether it is a function, not a class or module."""
        return isinstance(self.node, FUNCTIONS)

    @property
    def first(self) -> int:
        """The line `co_firstlineno` names: that of the first decorator, if any."""
        if isinstance(self.node, ast.Module):
            return 1
        return min([self.node.lineno, *(mark.lineno for mark in self.node.decorator_list)])

    @property
    def last(self) -> int:
        """Last line of its text."""
        if isinstance(self.node, ast.Module):
            return len(self.source.lines)
        return self.node.end_lineno or self.node.lineno

    @property
    def owner(self) -> Scope | None:
        """The class whose method this function is; None otherwise."""
        parent = self.parent
        return parent if parent is not None and isinstance(parent.node, ast.ClassDef) else None

    @property
    def arguments(self) -> ast.arguments | None:
        """The parameters as Python parsed them; None for a module or class."""
        return self.node.args if isinstance(self.node, FUNCTIONS) else None

    @property
    def marks(self) -> frozenset[str]:
        """Last names of its decorators: `staticmethod`, `lru_cache`."""
        if isinstance(self.node, ast.Module):
            return frozenset()
        marks = (dotted(m.func if isinstance(m, ast.Call) else m) for m in self.node.decorator_list)
        return frozenset(mark.rpartition(".")[2] for mark in marks)

    def parameters(self) -> tuple[str, ...]:
        """Names of positional and keyword parameters, without `*args` and `**kwargs`."""
        spec = self.arguments
        if spec is None:
            return ()
        return tuple(arg.arg for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs))

    def receiver(self) -> str | None:
        """The name its object has in a method: usually `self` or `cls`."""
        names = self.parameters() if self.owner is not None else ()
        return names[0] if names and "staticmethod" not in self.marks else None

    def bound(self) -> frozenset[str]:
        """Variables that live in this scope itself, as Python decides it."""
        if self._bound is None:
            self._bound = frozenset(_bound_names(self))
        return self._bound

    def chain(self) -> Iterator[Scope]:
        """This scope and those around it, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


@dataclass(eq=False, slots=True)
class Source:
    """One file: its lines, its scopes (the module first), and where a name is written."""

    file: str
    lines: Sequence[str]
    scopes: list[Scope] = field(default_factory=list)
    text: str = ""
    _starts: list[int] = field(default_factory=list)
    _by_line: dict[int, list[Piece]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.text = "".join(self.lines)
        self._starts = list(itertools.accumulate(map(len, self.lines), initial=0))

    @property
    def module(self) -> Scope:
        """The top level of the file."""
        return self.scopes[0]

    def lines_naming(self, word: str) -> list[int]:
        """Lines on which `word` stands as a whole word, in order."""
        found: dict[int, None] = {}
        at = self.text.find(word) if word else -1
        while at >= 0:
            end = at + len(word)
            before, after = self.text[at - 1 : at], self.text[end : end + 1]
            if not (_is_word(before) or _is_word(after)):
                found[bisect.bisect_right(self._starts, at)] = None
            at = self.text.find(word, end)
        return list(found)

    def pieces_naming(self, word: str) -> list[Piece]:
        """Statements whose own lines have `word` on them, in order."""
        if not self._by_line:
            for scope in self.scopes:
                for piece in scope.pieces:
                    for line in range(piece.top, piece.last + 1):
                        self._by_line.setdefault(line, []).append(piece)
        lines = self.lines_naming(word)
        return list(dict.fromkeys(p for line in lines for p in self._by_line.get(line, ())))

    def scope_at(self, line: int) -> Scope:
        """The innermost function, class or module whose text has the line in it."""
        best = self.module
        for scope in self.scopes:
            if best.first <= scope.first <= line <= scope.last:
                best = scope
        return best


_sources: dict[str, Source | None] = {}


def read_source(file: str | None) -> Source | None:
    """The file as `linecache` has it, parsed; None when there is no source or it is not Python.

    Args:
        file: the file's name as code objects have it; notebook cells have one too.
    """
    lines = linecache.getlines(file) if file else []
    if file is None or not lines:
        return None
    known = _sources.get(file)
    if file in _sources and (known is None or known.lines is lines):
        return known
    if len(_sources) >= _CACHE_SIZE:
        _sources.clear()
    _sources[file] = source = _parse(file, lines)
    return source


def forget_sources() -> None:
    """Drop all parsed files; they are parsed anew when next asked for."""
    _sources.clear()


def _parse(file: str, lines: list[str]) -> Source | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user has seen those of this file already
            tree = ast.parse("".join(lines))
    except UNPARSABLE:
        return None
    source = Source(file, lines)
    module = Scope(tree, "<module>", "<module>", None, source)
    source.scopes.append(module)
    # An explicit stack: a long chain of `elif` nests as deep as it is long.
    todo: list[tuple[ast.stmt, Scope, tuple[ast.stmt, ...]]]
    todo = [(node, module, ()) for node in reversed(tree.body)]
    while todo:
        node, scope, parents = todo.pop()
        scope.pieces.append(Piece(node, scope, parents))
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            inner_scope = Scope(node, node.name, _qualname(scope, node.name), scope, source)
            scope.children[node.name] = inner_scope
            source.scopes.append(inner_scope)
            scope = inner_scope
            todo.extend((inner, scope, ()) for inner in reversed(node.body))
        else:
            around = (*parents, node)
            todo.extend((inner, scope, around) for inner in reversed(list(blocks_of(node))))
    return source


def _qualname(parent: Scope, name: str) -> str:
    if parent.parent is None:
        return name
    return f"{parent.qualname}.{'<locals>.' if parent.is_function else ''}{name}"


def blocks_of(node: ast.stmt) -> Iterator[ast.stmt]:
    """The statements standing directly inside a compound statement, in order."""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for inner in getattr(node, part, ()):
            if isinstance(inner, (ast.ExceptHandler, ast.match_case)):
                yield from inner.body
            else:
                yield inner


def own_expressions(node: ast.stmt) -> list[ast.AST]:
    """What of a statement is not inside another statement: all of it, or its header."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return [node.iter, node.target]
    if isinstance(node, (ast.While, ast.If)):
        return [node.test]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return list(node.items)
    if isinstance(node, ast.Match):
        return [node.subject, *(case.guard for case in node.cases if case.guard)]
    if isinstance(node, FUNCTIONS):
        defaults = [default for default in node.args.kw_defaults if default]
        return [*node.decorator_list, *node.args.defaults, *defaults]
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    return [] if hasattr(node, "body") else [node]


def _bound_names(scope: Scope) -> Iterator[str]:
    spec = scope.arguments
    if spec is not None:
        yield from scope.parameters()
        yield from (arg.arg for arg in (spec.vararg, spec.kwarg) if arg is not None)
    elsewhere: set[str] = set()
    found: set[str] = set()
    for piece in scope.pieces:
        if isinstance(piece.node, (ast.Global, ast.Nonlocal)):
            elsewhere.update(piece.node.names)
        elif isinstance(piece.node, (*FUNCTIONS, ast.ClassDef)):
            found.add(piece.node.name)
        elif isinstance(piece.node, (ast.Import, ast.ImportFrom)):
            found.update((n.asname or n.name).partition(".")[0] for n in piece.node.names)
        # Comprehensions have variables of their own; taking them for the scope's does no harm.
        stores = (n for n in piece.nodes() if isinstance(n, ast.Name))
        found.update(n.id for n in stores if not isinstance(n.ctx, ast.Load))
    yield from found - elsewhere


def _is_word(character: str) -> bool:
    return character == "_" or character.isalnum()


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """What a statement or walrus binds: target, value, and whether the target is all of it.

    `a, b = f(x)` gives `a` and `b` with the same call, neither being all of it.
    """
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _unpack(target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value, True
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        yield from ((target, node.iter, False) for target in _flat(node.target))
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            if item.optional_vars is not None:
                yield from _unpack(item.optional_vars, item.context_expr)


def _unpack(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, value, True
        return
    sides = (*target.elts, *value.elts) if isinstance(value, (ast.Tuple, ast.List)) else ()
    starred = any(isinstance(side, ast.Starred) for side in sides)
    if sides and len(sides) == 2 * len(target.elts) and not starred:
        for left, right in zip(target.elts, sides[len(target.elts) :], strict=True):
            yield from _unpack(left, right)
        return
    yield from ((inner, value, False) for inner in _flat(target))


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for inner in target.elts:
            yield from _flat(inner)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def words(text: str) -> frozenset[str]:
    """The words of a text, for asking whether a name is one of them."""
    return frozenset(text.split())


def dotted(node: ast.AST | None) -> str:
    """`a.b.c` for a name with attributes; an empty text for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((node.id, *reversed(names)))


def exclusive(first: Piece, second: Piece) -> bool:
    """Whether of two statements each turn runs one: the branches of an `if`, and what follows it.

    What follows is left out where a branch leaves the turn, by `return` or `continue`.
    """
    return _parted(first, second) or _parted(second, first)


def _parted(first: Piece, second: Piece) -> bool:
    for parent in first.parents:
        if not isinstance(parent, ast.If):
            continue
        otherwise = parent.orelse[0].lineno if parent.orelse else (parent.end_lineno or 0) + 1
        if any(outer is parent for outer in second.parents):
            if (first.line >= otherwise) != (second.line >= otherwise):
                return True
        elif second.line > first.line:
            branch = parent.orelse if first.line >= otherwise else parent.body
            if isinstance(branch[-1], (ast.Return, ast.Continue, ast.Break, ast.Raise)):
                return True
    return False


def same(first: ast.AST, second: ast.AST) -> bool:
    """Whether two expressions are written the same, load or store."""
    return ast.unparse(first) == ast.unparse(second)
