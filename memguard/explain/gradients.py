"""Whether a program goes backward through what a holder keeps, so that detaching would hurt."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from memguard.explain.calls import called
from memguard.explain.definitions import bind
from memguard.explain.program import Program
from memguard.explain.syntax import Piece, Scope, bindings, dotted, words

# Names followed for one holder; a value that goes everywhere is not followed further.
_MOST_WORDS = 60
_CUTTING = words("detach item tolist numpy data size numel dim shape keys")
_PLAIN = words("len float int bool str repr print min max sorted range isinstance")
# What is drawn from a memory of past steps has no graph that is still wanted.
_DRAWING = words("sample choice choices randint")
_PUTTING = words("append extend add insert update")
_BACKWARD = words("backward manual_backward")
# Functions of which a library takes the loss to go backward itself.
_GIVING_LOSS = words("training_step compute_loss closure")

# A variable by the scope that binds it, an attribute (None), or a function's result.
_Word = tuple[object, str]


def goes_backward(
    program: Program, home: Scope | None, name: str, growth: Piece, keys: Collection[str] = ()
) -> bool:
    """Whether a value that the holder keeps gets into what `backward` is called on.

    Args:
        program: the user's files.
        home: the scope whose variable the holder is; None for an attribute, whoever has it.
        name: the variable or attribute.
        growth: the statement that puts the value in, which reads nothing.
        keys: words that lead to the value, where the holder is known to have other things too:
            of `run["losses"]` its model is no part.
    """
    flow = _Flow(program, (home, name), growth, keys)
    return flow.reaches_backward()


def is_read(program: Program, name: str, growth: Piece) -> bool:
    """Whether anything but its growth reads a variable or attribute of that name."""
    pieces = (p for source in list(program.sources) for p in program.naming(source, name))
    return any(
        _reads(node, name) for piece in pieces if piece is not growth for node in piece.nodes()
    )


def _reads(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == name  # getattr(net, "outputs")
    named = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return named == name and isinstance(getattr(node, "ctx", None), ast.Load)


class _Flow:
    """The words that values of the holder go by, each found by one before it."""

    def __init__(
        self, program: Program, first: _Word, growth: Piece, keys: Collection[str]
    ) -> None:
        self._program = program
        self._words: set[_Word] = {first}
        self._same: set[_Word] = {first}  # other names of the holder, or of an entry of it
        self._new: list[_Word] = [first]
        self._growth = growth
        self._keys = frozenset(keys)

    def reaches_backward(self) -> bool:
        """Whether any of the words gets into what goes backward."""
        while self._new and len(self._words) < _MOST_WORDS:
            _, name = self._new.pop(0)
            for source in list(self._program.sources):
                for piece in self._program.naming(source, name):
                    if piece is self._growth or _without_grad(piece):
                        continue
                    if self._ends_in(piece):
                        return True
                    self._add(self._handed_on(piece))
        return False

    def _add(self, found: Iterator[_Word]) -> None:
        for word in list(found):
            if word not in self._words:
                self._words.add(word)
                self._new.append(word)

    def _handed_on(self, piece: Piece) -> Iterator[_Word]:
        node, scope = piece.node, piece.scope
        pairs: list[tuple[ast.expr, ast.expr]] = [(t, v) for t, v, _ in bindings(node)]
        if isinstance(node, ast.AugAssign):
            pairs.append((node.target, node.value))
        for target, value in pairs:
            if self._carries(value, scope):
                found = list(_word_of(target, scope))
                self._same.update(found if self._is_same(value, scope) else ())
                yield from found
        returned = node.value if isinstance(node, ast.Return) else None
        if returned is not None and self._carries(returned, scope):
            yield "result", scope.name
        for call in piece.calls():
            yield from self._handed_over(call, scope)

    def _handed_over(self, call: ast.Call, scope: Scope) -> Iterator[_Word]:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not any(self._carries(value, scope) for value in given):
            return
        if isinstance(call.func, ast.Attribute) and call.func.attr in _PUTTING:
            yield from _word_of(call.func.value, scope)
        for function in called(self._program, call, scope):
            for parameter, value in bind(call, function):
                if self._carries(value, scope):
                    if self._is_same(value, scope):
                        self._same.add((function, parameter))
                    yield function, parameter

    def _is_same(self, value: ast.AST, scope: Scope) -> bool:
        """Whether a value is the holder or an entry of it, and nothing computed from one."""
        while True:
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                if value.func.attr not in ("values", "items"):
                    return False
                value = value.func.value
            elif isinstance(value, ast.Call):
                if dotted(value.func) not in ("enumerate", "reversed", "list") or not value.args:
                    return False
                value = value.args[0]
            elif isinstance(value, ast.Subscript) and not isinstance(value.slice, ast.Constant):
                value = value.value
            else:
                break
        if isinstance(value, ast.Attribute):
            return (None, value.attr) in self._same
        return isinstance(value, ast.Name) and (_home(value.id, scope), value.id) in self._same

    def _is_other_entry(self, value: ast.AST, scope: Scope) -> bool:
        """Whether a value is an entry of the holder under a word that does not lead to it."""
        if not self._keys or not isinstance(value, ast.Subscript):
            return False
        key = value.slice.value if isinstance(value.slice, ast.Constant) else None
        other = isinstance(key, str) and key not in self._keys
        return other and self._is_same(value.value, scope)

    def _carries(self, value: ast.AST, scope: Scope) -> bool:
        """Whether a value has a graph from the holder."""
        if isinstance(value, ast.Name):
            return (_home(value.id, scope), value.id) in self._words
        if self._is_other_entry(value, scope):
            return False
        if isinstance(value, ast.Attribute):
            if value.attr in _CUTTING:
                return False
            return (None, value.attr) in self._words or self._carries(value.value, scope)
        if isinstance(value, ast.Call):
            name = _name_of(value)
            if name in _CUTTING | _PLAIN | _DRAWING:
                return False
            if ("result", name) in self._words:
                return True
        if isinstance(value, (ast.Lambda, ast.Compare)):
            return False
        return any(self._carries(child, scope) for child in ast.iter_child_nodes(value))

    def _ends_in(self, piece: Piece) -> bool:
        node, scope = piece.node, piece.scope
        if isinstance(node, ast.Return) and node.value is not None and scope.name in _GIVING_LOSS:
            return self._carries(node.value, scope)
        for call in piece.calls():
            func, name = call.func, _name_of(call)
            if name not in _BACKWARD and not dotted(func).endswith("autograd.grad"):
                continue
            parts: Sequence[ast.expr] = call.args[:1]
            if isinstance(func, ast.Attribute) and name == "backward":
                parts = [func.value, *parts]
            if any(self._carries(part, scope) for part in parts):
                return True
        return False


def _word_of(target: ast.expr, scope: Scope) -> Iterator[_Word]:
    """The word that a target's value goes by: of `parts["aux"]` that is `parts`."""
    while isinstance(target, (ast.Subscript, ast.Starred)):
        target = target.value
    if isinstance(target, ast.Name):
        yield _home(target.id, scope), target.id
    elif isinstance(target, ast.Attribute):
        yield None, target.attr


def _home(name: str, scope: Scope) -> Scope:
    """The scope whose variable a name is."""
    chain = list(scope.chain())
    for around in chain:
        skipped = around is not scope and isinstance(around.node, ast.ClassDef)
        if not skipped and name in around.bound():
            return around
    return chain[-1]


def _name_of(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else dotted(func)


def _without_grad(piece: Piece) -> bool:
    """Whether a statement stands in `with torch.no_grad():`."""
    items = [i for p in piece.parents if isinstance(p, (ast.With, ast.AsyncWith)) for i in p.items]
    return any("no_grad" in ast.unparse(item.context_expr) for item in items)
