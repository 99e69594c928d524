"""All statements of the user's files that touch a holder: those that make it grow or empty it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from memguard.explain.calls import MAX_DEPTH, called
from memguard.explain.definitions import bind
from memguard.explain.program import Program
from memguard.explain.releases import Emptying, emptyings
from memguard.explain.subject import Keys, Subject, View
from memguard.explain.syntax import Piece, Scope, Source, bindings, dotted
from memguard.explain.verbs import Growth, growths

# Functions looked into for one holder; an object handed to everything is not followed further.
_MOST_VISITS = 200


@dataclass(slots=True)
class Candidates:
    """What was found about one holder.

    Attributes:
        growths: statements that make it grow, likely or not.
        emptyings: statements that empty it, wherever they stand.
        made: values it is set to where it begins anew, for what they say about its size.
    """

    program: Program
    growths: list[Growth] = field(default_factory=list)
    emptyings: list[Emptying] = field(default_factory=list)
    made: list[tuple[Piece, ast.expr]] = field(default_factory=list)
    _seen: set[tuple[int, Subject, Keys]] = field(default_factory=set)

    def look(self, subject: Subject, scopes: Iterable[Scope]) -> None:
        """Search the scopes, and the functions that the holder is handed to."""
        for scope in scopes:
            self._visit(View(subject, scope, self.program), MAX_DEPTH)

    def _visit(self, view: View, depth: int) -> None:
        key = (id(view.scope), view.subject, view.prefix)
        if key in self._seen or len(self._seen) >= _MOST_VISITS:
            return
        self._seen.add(key)
        for piece in list(view.pieces()):
            self.growths += growths(view, piece)
            self.emptyings += emptyings(view, piece)
            self.made += _made(view, piece)
            for other in _stored(view, piece):
                self.look(other, scopes_with(self.program, other.attribute or ""))
            if depth > 0:
                self._follow(view, piece, depth)

    def _follow(self, view: View, piece: Piece, depth: int) -> None:
        for call in piece.calls():
            inside = False
            for function, name, keys in _handed(view, call):
                inside = True
                subject = view.subject.called(name)
                calls = (*view.calls, piece)
                self._visit(View(subject, function, self.program, calls, keys), depth - 1)
            if not inside and _opaque(view, call):
                self.growths.append(Growth(piece, "call", None, (), view.calls, weak=True))


def _handed(view: View, call: ast.Call) -> Iterator[tuple[Scope, str, Keys]]:
    """Functions a call hands the holder to, the parameter's name there, and how deep in it."""
    func = call.func
    through = view.reached(func.value) if isinstance(func, ast.Attribute) else None
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    if through is None and all(view.reached(value) is None for value in given):
        return
    for function in called(view.program, call, view.scope):
        receiver = function.receiver()
        if through is not None and receiver is not None:
            yield function, receiver, through
        for name, value in bind(call, function):
            keys = view.reached(value)
            if keys is not None:
                yield function, name, keys


def _opaque(view: View, call: ast.Call) -> bool:
    """Whether a call is handed the holder itself and nothing tells what it does with it."""
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    if not any(view.is_holder(value) for value in given):
        return False
    return bool(dotted(call.func)) and not view.program.types(call.func, view.scope).known


def _stored(view: View, piece: Piece) -> Iterator[Subject]:
    """The holder as an attribute of the object that a statement puts it into."""
    for target, value, whole in bindings(piece.node):
        named = isinstance(value, ast.Name) and view.is_holder(value)
        if whole and named and not view.prefix and isinstance(target, ast.Attribute):
            owners = view.program.types(target.value, view.scope).classes
            if owners:
                yield attribute_subject(view, target.attr, owners)
    for call in piece.calls():
        target_class = view.program.lookup(dotted(call.func), view.scope) if call.keywords else None
        if target_class is None or "dataclass" not in target_class.marks:
            continue
        for keyword in call.keywords:
            if keyword.arg and view.is_holder(keyword.value):
                yield attribute_subject(view, keyword.arg, (target_class,))


def attribute_subject(view: View, name: str, owners: Iterable[Scope]) -> Subject:
    """The same holder as an attribute of objects of the classes."""
    family = frozenset(view.program.family(owners))
    return Subject(attribute=name, owners=family, container=view.subject.container)


def _made(view: View, piece: Piece) -> Iterator[tuple[Piece, ast.expr]]:
    for target, value, whole in bindings(piece.node):
        if whole and view.is_holder(target) and isinstance(value, ast.Call):
            yield piece, value


def scopes_with(program: Program, word: str, sources: Iterable[Source] = ()) -> list[Scope]:
    """Scopes of the user's files (or of some of them) with the word on a line of their own."""
    found: dict[Scope, None] = {}
    for source in list(sources or program.sources):
        for piece in program.naming(source, word):
            found[piece.scope] = None
    return list(found)


def scopes_seeing(program: Program, scope: Scope, name: str) -> list[Scope]:
    """Scopes in which a variable of one of them means the same and is written."""
    written = scopes_with(program, name, [scope.source])
    return [inner for inner in written if inner is scope or _sees(inner, scope, name)]


def _sees(inner: Scope, outer: Scope, name: str) -> bool:
    for around in inner.chain():
        if around is outer:
            return True
        if name in around.bound() and (around is inner or around.is_function):
            return False
    return False
