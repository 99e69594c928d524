"""The statement of the user's source that makes a holder grow, found by syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from memguard.explain import native, special
from memguard.explain.callers import may_be_number, threaded
from memguard.explain.candidates import Candidates, scopes_seeing, scopes_with
from memguard.explain.choosing import Chooser, path_keys
from memguard.explain.definitions import bind
from memguard.explain.frames import is_user_file
from memguard.explain.gradients import goes_backward, is_read
from memguard.explain.integers import Integers
from memguard.explain.loops import Region, own_region, running_regions
from memguard.explain.origins import is_single, origin_of
from memguard.explain.pending import pending_after
from memguard.explain.places import Place, Release, Spot, Statement
from memguard.explain.program import Program
from memguard.explain.subject import Subject
from memguard.explain.syntax import Piece, Scope, Source, dotted
from memguard.explain.text import code_of, context_of, read_line
from memguard.explain.unusual import is_session_variable
from memguard.explain.uses import begins_as_none, used_as_tensor
from memguard.explain.verbs import Growth

# Holders that no other statement empties: what bounds them stands elsewhere, or nothing does.
_UNBOUNDED = ("hook", "ctx", "cycle", "cache", "built", "native")

__all__ = ["find_statement", "read_line"]


def find_statement(
    place: Place, stack: Sequence[Spot], evaluation: bool = False, *, plain: bool = False
) -> Statement | None:
    """The statement that makes the holder at a place grow; None when the source does not tell.

    Args:
        place: the holder.
        stack: the user's frames when a step ended, innermost first; their loops tell which of
            several statements is running, and whether another one empties the holder in time.
        evaluation: whether the loop runs the model without going backward.
        plain: whether what gathers are tensors without graph.
    """
    try:
        files = [spot.file for spot in stack]
        if place.file is not None and not _is_strangers(place.file, files):
            files.insert(0, place.file)
        program = Program(files)
        if not program.sources:
            return None
        return _Finder(program, place, stack, evaluation, plain).find()
    except RecursionError:
        return None  # an expression nested deeper than anyone writes


def _is_strangers(file: str, files: Sequence[str]) -> bool:
    """Whether a file is a library's while the program is the user's own."""
    return not is_user_file(file) and any(map(is_user_file, files))


class _Finder:
    """One question about one place."""

    def __init__(
        self,
        program: Program,
        place: Place,
        stack: Sequence[Spot],
        evaluation: bool,
        plain: bool,
    ) -> None:
        self._program = program
        self._place = place
        self._stack = stack
        self._plain = plain
        self._evaluation = evaluation
        self._regions: list[Region] = running_regions(program, stack)
        self._home = self._home_scope()
        self._chooser = Chooser(program, place, self._regions, self._home, evaluation)
        self._candidates = Candidates(program)

    def find(self) -> Statement | None:
        """The statement, by what kind of place it is."""
        kind = self._place.kind
        if kind == "cache":
            return self._cache()
        finders: dict[str, Callable[[], Growth | None]] = {
            "hook": self._hook,
            "ctx": lambda: special.ctx_growth(self._program, self._place),
            "cycle": self._cycle,
            "built": lambda: special.built_growth(self._program, self._place, self._stack),
            "native": lambda: native.growth(self._program, self._place, self._regions),
            "closure": self._closure,
            "attribute": self._attribute,
            "buffer": self._attribute,
            "state": self._attribute,
            "class": self._attribute,
        }
        growth = special.library_growth(self._program, self._place, self._regions)
        growth = growth or finders.get(kind, self._variable)()
        return None if growth is None else self._statement(growth)

    def _home_scope(self) -> Scope | None:
        place = self._place
        if place.kind == "global":
            return self._module()
        if place.function is None and place.first_line is None:
            return None
        scope = self._program.find(place.file, place.function, place.first_line)
        for around in scope.chain() if scope is not None else ():
            if place.name in around.bound() or around.parent is None:
                return around
        return None

    def _subject(self, **fields: Any) -> Subject:
        return Subject(container=self._place.container, plain=self._plain, **fields)

    def _module(self) -> Scope | None:
        sources = self._program.sources
        own = [source for source in sources if source.file == self._place.file]
        naming = [source for source in sources if self._place.name in source.module.bound()]
        found = own or naming
        return found[0].module if found else None

    def _variable(self) -> Growth | None:
        """A local, a default argument, a global."""
        home, place = self._home, self._place
        if home is None:
            return self._library_variable() if place.kind == "global" else None
        if is_session_variable(place.name) and _is_cell(home.source.file):
            return special.shown(self._program, self._stack)
        path = path_keys(place.path)
        if place.name == home.receiver() and path and path[0].startswith(".") and home.owner:
            return self._grown_attribute(path[0][1:], [home.owner])
        subject = self._subject(names=frozenset((place.name,)))
        self._candidates.look(subject, scopes_seeing(self._program, home, place.name))
        if home.parent is None:
            self._look_elsewhere(subject, home.source)
        found = self._best()
        if (found is None or found.weak) and path and path[0].startswith("."):
            owners = self._program.name_types(place.name, home).classes
            found = self._grown_attribute(path[0][1:], owners) or found
        if found is None and home.parent is None:
            found = special.named_at_run_time(self._program, place)
        if (found is None or found.weak) and not subject.is_tensor:
            running = special.running_call(self._program, place.name, self._stack)
            found = running or found
        return found

    def _library_variable(self) -> Growth | None:
        """A variable of a library's module, as the user's files write it: `sys.last_value`."""
        module, name = self._place.module or "", self._place.name
        names = frozenset((module, module.rpartition(".")[2]))
        subject = self._subject(modules=names, member=name)
        self._candidates.look(subject, scopes_with(self._program, name))
        return self._best()

    def _look_elsewhere(self, subject: Subject, home: Source) -> None:
        """A module's variable as other files, or other cells of a notebook, call it."""
        imports = self._program.imports
        name = self._place.name
        for source in list(self._program.sources):
            if source is home:
                continue
            if _is_cell(source.file) and _is_cell(home.file):
                scopes = scopes_seeing(self._program, source.module, name)
                self._candidates.look(subject, scopes)
                continue
            renamed, modules = imports.aliases(source, home, name)
            other = replace(subject, names=renamed, modules=modules, member=name)
            for word in (*renamed, *([name] if modules else ())):
                self._candidates.look(other, scopes_with(self._program, word, [source]))

    def _attribute(self) -> Growth | None:
        owner = special.class_of(self._program, self._place)
        if owner is not None or self._place.owner is None:
            found = self._grown_attribute(self._place.name, [owner] if owner is not None else [])
            return self._summed_object() or found if found is None or found.weak else found
        found = self._grown_attribute(self._place.name, [], foreign=True)
        base = self._place.expression.rpartition(".")[0]
        while base and (found is None or found.weak):
            # Inside a library's object: what the user calls is the object itself.
            found = self._grown_object(base) or found
            base = base.rpartition(".")[0]
        return found

    def _summed_object(self) -> Growth | None:
        """`total += Metrics(loss, 1)`: each new object has the old one's tensors in its own."""
        base = self._place.expression.rpartition(".")[0]
        found = self._grown_object(base) if base and base != "self" else None
        summed = found is not None and found.verb in ("accumulate", "carry") and not found.keys
        return found if summed else None

    def _grown_object(self, expression: str) -> Growth | None:
        above, _, name = expression.rpartition(".")
        if above:
            subject = self._subject(attribute=name)
            self._candidates.look(subject, scopes_with(self._program, name))
        else:
            stack = (self._program.find(s.file, s.function, s.first_line) for s in self._stack)
            chains = [around for scope in stack if scope is not None for around in scope.chain()]
            home = next((around for around in chains if name in around.bound()), None)
            if home is None:
                return None
            subject = self._subject(names=frozenset((name,)))
            self._candidates.look(subject, scopes_seeing(self._program, home, name))
        return self._best()

    def _grown_attribute(
        self, name: str, owners: Iterable[Scope], *, foreign: bool = False
    ) -> Growth | None:
        family = frozenset(self._program.family(owners))
        subject = self._subject(attribute=name, owners=family, foreign=foreign)
        for word in (name, *special.properties(family, name)):
            other = replace(subject, attribute=word)
            self._candidates.look(other, scopes_with(self._program, word))
        found = self._best()
        if found is not None and found.weak:
            self._look_at_givers(found)
            found = self._best()
        return found

    def _look_at_givers(self, kept: Growth) -> None:
        """`self.history = history`: the list may grow under the name of whoever gave it."""
        function = kept.piece.scope
        if not isinstance(kept.value, ast.Name) or kept.value.id not in function.parameters():
            return
        for call, piece in self._program.sites(function):
            for parameter, value in bind(call, function):
                given = isinstance(value, ast.Name) and value.id != piece.scope.receiver()
                if parameter == kept.value.id and given and isinstance(value, ast.Name):
                    homes = [s for s in piece.scope.chain() if value.id in s.bound()]
                    subject = self._subject(names=frozenset((value.id,)))
                    for home in homes[:1]:
                        scopes = scopes_seeing(self._program, home, value.id)
                        self._candidates.look(subject, scopes)

    def _closure(self) -> Growth | None:
        found = self._variable()
        if (found is None or found.weak) and self._home is not None:
            return special.capturing(self._program, self._place, self._home) or found
        return found

    def _best(self) -> Growth | None:
        return self._chooser.best(self._candidates.growths, self._candidates.emptyings)

    def _hook(self) -> Growth | None:
        return special.hook_growth(self._program, self._place, self._regions)

    def _cycle(self) -> Growth | None:
        found = self._attribute()
        closing = [growth for growth in self._candidates.growths if special.closes_cycle(growth)]
        return self._chooser.best(closing) or found

    def _cache(self) -> Statement | None:
        found = special.cache_growth(self._program, self._place)
        if found is None:
            return None
        growth, maker = found
        statement = self._statement(growth)
        if maker is None:
            return statement
        source = growth.piece.scope.source
        limit = special.cache_limit(maker)
        if isinstance(limit, ast.expr):
            integers = Integers(self._program, self._place.numbers, self._home)
            limit = integers.value(limit, growth.piece.scope)
        if growth.value is None:  # a decorator, which stands above the definition
            code, line = f"@{code_of(source, maker)}", maker.lineno
            context = context_of(source.lines, line, growth.piece.line)
            statement = replace(statement, line=line, code=code, context=context)
        if limit is None:
            return statement
        release = Release(source.file, statement.line, statement.code, limit)
        return replace(statement, release=release)

    def _statement(self, growth: Growth) -> Statement:
        piece, source = growth.piece, growth.piece.scope.source
        bounded = not growth.weak and self._place.kind not in _UNBOUNDED
        return Statement(
            file=source.file,
            line=piece.line,
            code=code_of(source, piece.node),
            verb=growth.verb,
            value=code_of(source, growth.value) if growth.value is not None else None,
            function=_function_of(piece.scope),
            context=context_of(source.lines, piece.line, piece.last),
            release=self._chooser.release(growth, self._candidates) if bounded else None,
            pending=self._pending(growth),
            origin=origin_of(self._program, piece, growth.value),
            single=is_single(self._program, piece, growth.value),
            optional=begins_as_none(source, self._place.name),
            holder=_namespace_of(growth),
            as_tensor=special.is_finalizers(self._place)
            or used_as_tensor(source, self._place.name, piece.node, self._keys()),
            either=may_be_number(self._program, piece, growth.value),
            differentiated=self._differentiated(growth),
            saved=special.saved_beside(piece) if self._place.kind == "ctx" else "",
            depth=len(growth.keys),
            unread=not is_read(self._program, self._place.name, piece),
            threaded=self._threaded(piece) if self._evaluation else None,
        )

    def _threaded(self, piece: Piece) -> str | None:
        # Where threads call the model, the loop that starts them is on nobody's stack.
        own = own_region(self._program, piece)
        return threaded(self._program, [*self._regions, *([own] if own is not None else [])])

    def _differentiated(self, growth: Growth) -> bool:
        """Whether the program goes backward through what a container keeps."""
        if self._plain or growth.verb not in ("append", "extend", "item"):
            return False
        name = self._place.name
        variable = self._place.kind in ("local", "global", "closure", "default")
        home = self._home if variable else None
        return not (variable and home is None) and goes_backward(
            self._program, home, name, growth.piece, self._keys()
        )

    def _keys(self) -> list[str]:
        """Words that lead from the holder to what it keeps."""
        return re.findall(r"\['([^']*)'\]", self._place.path)

    def _pending(self, growth: Growth) -> str | None:
        if self._place.kind == "built":
            return pending_after(self._program, growth.piece)
        return self._chooser.pending(growth)


def _is_cell(file: str) -> bool:
    """Whether a file is a cell of a notebook or a line at a prompt: they share one namespace."""
    return file.startswith("<") or "ipykernel_" in file


def _namespace_of(growth: Growth) -> str | None:
    """`globals()` where a statement writes into the module's variables under a name it makes."""
    target = growth.piece.node.targets[0] if isinstance(growth.piece.node, ast.Assign) else None
    base = target.value if isinstance(target, ast.Subscript) else None
    if isinstance(base, ast.Call) and dotted(base.func) in ("globals", "locals", "vars"):
        return None if base.args else f"{dotted(base.func)}()"
    return None


def _function_of(scope: Scope) -> str | None:
    return next((around.qualname for around in scope.chain() if around.is_function), None)
