"""`scope` and `expect_freed`: what must not outlive a block of a notebook or sweep."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from memguard import _kinds, reactions
from memguard.errors import LeakError, UsageError
from memguard.expectations import expect_later, finding_of, reference_to
from memguard.explain.frames import own_variables
from memguard.explain.latest import last_given
from memguard.explain.places import Spot
from memguard.explain.standing import user_spots
from memguard.parts import Parts
from memguard.records import Amount, Finding, Growth, Report, Severity, Verdict
from memguard.redaction import without_source
from memguard.report import tests, text
from memguard.sensors.births import Births
from memguard.sensors.contents import bytes_of, modules_of, stepped_by, tensors_of
from memguard.sensors.marks import Mark
from memguard.settings import Settings
from memguard.testing.leftovers import leftover
from memguard.testing.runs import Runs
from memguard.watching import open_guards

# Modules and optimizers that outlive a block of which the holders are looked for.
MOST_EXPLAINED = 3

_REASON = "born in the block, and alive"
_ACTIONS = ("raise", "warn", "log", "off")

# Scopes that are open around what runs now, outermost first; other threads have their own.
_open: ContextVar[tuple[Scope, ...]] = ContextVar("memguard_scopes", default=())
# Those of all threads.
_everywhere: list[Scope] = []


class Scope:
    """A block that is to leave nothing behind; made by `memguard.scope`.

    Attributes:
        name: what the user calls it.
        report: what outlived it, once it has ended; clean before. Whatever of memguard failed
            is in its `failures`.
    """

    def __init__(self, name: str, action: str, source: bool = True) -> None:
        self.name = name
        self.report = Report("clean", 0)
        self._action = action
        self._source = source
        self._parts = Parts(lambda: 0)
        self._births = Births()
        self._runs = Runs(self._births)
        self._thread = 0
        self._threads: set[int | None] = set()
        # What scopes of other threads have made.
        self._theirs: list[weakref.ref[Any]] = []
        self._kept: list[weakref.ref[Any]] = []
        self._expected: list[tuple[weakref.ref[Any], str]] = []

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What outlived the block, the heaviest first."""
        return self.report.findings

    def keep(self, *objects: Any) -> None:
        """Say what is meant to outlive the block: the best model, results; held weakly.

        Args:
            objects: modules, optimizers or tensors.

        Raises:
            UsageError: nothing can refer to one of them weakly.
        """
        self._kept += [reference_to(one, "what is kept", "scope.keep") for one in objects]

    def expect(self, reference: weakref.ref[Any], name: str) -> None:
        """Ask for this object when the block ends."""
        self._expected.append((reference, name))

    def __enter__(self) -> Scope:
        self._parts.do("scope", self._begin)
        self._thread = threading.get_ident()
        self._threads = {thread.ident for thread in threading.enumerate()}
        _open.set((*_open.get(), self))
        _everywhere.append(self)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        _open.set(tuple(one for one in _open.get() if one is not self))
        if self in _everywhere:
            _everywhere.remove(self)
        try:
            # An exception on its way holds the frames it has passed.
            findings = [] if error is not None else self._judge()
        finally:
            self._parts.do("scope removal", self._births.remove)
        severity: Severity = "leak" if self._action == "raise" else "warning"
        found = tuple(replace(finding, severity=severity) for finding in findings)
        verdict: Verdict = severity if severity == "leak" else "suspect"
        self.report = Report(
            verdict if found else "clean",
            0,
            found,
            failures=tuple(self._parts.failures.values()),
        )
        if not self._source:
            self.report = without_source(self.report)
        if found:
            self._react()

    def _begin(self) -> None:
        self._births.install()
        self._runs.begin()

    def _react(self) -> None:
        """Tell; the only place from which an exception may reach the user's block."""
        try:
            reactions.react(self._action, self.report)  # type: ignore[arg-type]
        except (LeakError, Warning):  # a warning, where the user makes errors of them
            raise
        except Exception as error:
            self._parts.note("reaction", error)
            self.report = replace(self.report, failures=tuple(self._parts.failures.values()))

    def __str__(self) -> str:
        if self.findings or self.report.failures:
            return text.render(self.report)
        return (
            f"memguard: {self.name} is not over yet"
            if self in _everywhere
            else (f"memguard: clean: {self.name} leaves nothing behind")
        )

    def _judge(self) -> list[Finding]:
        """What is left, each sort by itself; what fails leaves the rest."""
        do = self._parts.do
        left = do("scope", self._runs.end)
        found = [do("expectations", finding_of, *one, 0) for one in self._expected]
        if left:
            found += do("scope", self._look_at_survivors) or []
        return [finding for finding in found if finding is not None]

    def _look_at_survivors(self) -> list[Finding | None]:
        survivors = self._without_kept(self._without_theirs(self._runs.survivors()))
        whole = [one for one in survivors if _is_whole(one)]
        inside = _identities(whole)
        rest = [one for one in survivors if id(one) not in inside]
        survivors.clear()
        do, stack = self._parts.do, user_spots(sys._getframe())
        return [
            do("scope: modules", _of_whole, whole, self.name),
            do("scope: tensors", _of_tensors, rest, self.name, stack),
        ]

    def _without_theirs(self, survivors: list[Any]) -> list[Any]:
        """Without what another thread has made meanwhile, as far as that can be told.

        It has what is in variables of its own functions and in none of ours, and what a scope of
        its own was left with.
        """
        others = [one for one in _everywhere if one._thread != self._thread]
        if self._theirs or threading.active_count() > 1:
            # A thread that the block itself has started works for the block.
            idents = {*self._threads, *(one._thread for one in others)} - {self._thread}
            theirs = _identities(_countable(own_variables(i for i in idents if i is not None)))
            theirs -= _identities(_countable(own_variables([self._thread])))
            theirs |= {id(one) for mark in self._theirs if (one := mark()) is not None}
            survivors[:] = [one for one in survivors if id(one) not in theirs]
        for other in others:
            other._theirs += [Mark(one) for one in survivors]
        return survivors

    def _without_kept(self, survivors: list[Any]) -> list[Any]:
        kept = [one for reference in self._kept if (one := reference()) is not None]
        inside = _identities(kept)
        kept.clear()
        left = [one for one in survivors if id(one) not in inside]
        survivors.clear()
        return left


def scope(name: str = "the block", *, action: str = "warn", source: bool | None = None) -> Scope:
    """Report what a block leaves behind: a fold, a trial of a sweep, a cell of a notebook.

        with memguard.scope("fold 3") as fold:
            score = cross_validate(fold=3)
        print(fold)

    Tensors, graphs, modules and optimizers that were born in the block and are alive when it ends
    are told with who holds them; a variable of the block's own counts, too, as it lives on after
    it. What is meant to stay is named by `fold.keep(best_model)`.

    Args:
        name: what to call the block.
        action: what to do about what is left: `warn` (default), `raise`, `log` or `off`.
        source: whether the report shows lines of the program's source; default: as the settings
            say, and every open guard's.

    Returns:
        A context manager; its `report` is the whole report, `findings` what was found, and it
        prints as text. A block that is left by an exception is not judged.

    Raises:
        UsageError: `name` is no text, or there is no such action.
        SettingsError: `source` is neither True nor False.
        LeakError: on leaving the block, where the action is `raise` and something is left.

    Costs a pass over the heap at the beginning (60 ms for a million objects), and only where
    something is left a collection and a pass for each link of the chain.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"memguard.scope: name is {name!r}; accepted: text, such as 'fold 3'")
    if action not in _ACTIONS:
        raise UsageError(f"memguard.scope: action is {action!r}; accepted: {', '.join(_ACTIONS)}")
    return Scope(name, action, _shows_source(source))


def _shows_source(asked: bool | None = None) -> bool:
    """Whether lines of the program's source may be shown: no, where anybody has said so."""
    if asked is None and not all(guard.settings.source for guard in open_guards()):
        return False
    return Settings.read({"source": asked}).source


def expect_freed(obj: object, name: str) -> None:
    """Say that an object is done with and must be gone soon; who still holds it then is told.

        memguard.expect_freed(model, "fold 3 model")
        del model, optimizer

    Inside a `memguard.scope` it is asked for when the block ends. Else the next watched loop that
    steps asks for it some steps later, as `guard.expect_freed` does; where none does, it is asked
    for when the program ends.

    Args:
        obj: a model, an optimizer, a batch; anything that can be referred to weakly. It is held
            weakly, and may be a weak reference already.
        name: what to call it.

    Raises:
        UsageError: nothing can refer to `obj` weakly (a list, a dict, a number).
    """
    reference = reference_to(obj, name, "memguard.expect_freed")
    around = [one for one in _open.get() if one in _everywhere]
    if around:
        around[-1].expect(reference, name)
    else:
        expect_later(reference, name, unwatched=not open_guards())


# A forked child's blocks are its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_everywhere.clear)


def _is_whole(item: Any) -> bool:
    return _kinds.is_module(item) or _kinds.is_optimizer(item)


def _countable(items: list[Any]) -> list[Any]:
    return [one for one in items if _kinds.is_tensor_type(type(one)) or _is_whole(one)]


def _identities(items: Iterable[Any]) -> set[int]:
    """Identities of what lies inside of modules and optimizers, or is one of the tensors."""
    found: set[int] = set()
    with _kinds.without_overrides():
        for item in items:
            found |= {id(tensor) for tensor in tensors_of(item)}
            found.add(id(item))
            if _kinds.is_module(item):
                found |= {id(module) for module in modules_of(item)}
            elif _kinds.is_optimizer(item):
                found |= {id(tensor) for tensor in stepped_by(item)}
    return found


def _of_whole(whole: list[Any], name: str) -> Finding | None:
    """The modules and optimizers that are left, those inside of others left out; empties the list.

    The heaviest few are explained, each by itself.
    """
    inner: set[int] = set()
    for one in whole:
        inner |= _identities([one]) - {id(one)}
    outer = sorted((one for one in whole if id(one) not in inner), key=bytes_of, reverse=True)
    marks = [Mark(one) for one in outer]
    modules, size = sum(map(_kinds.is_module, outer)), sum(map(bytes_of, outer))
    # Nothing of ours may hold what is asked for.
    whole.clear()
    outer.clear()
    headline = tests.summary(name, 0, 0, modules, len(marks) - modules, size=size)
    found = [finding_of(mark, f"what {name} has made", 0) for mark in marks[:MOST_EXPLAINED]]
    told = [finding for finding in found if finding is not None]
    if not told:
        return None
    holders = tuple(holder for finding in told for holder in finding.holders[:1])
    grown = Growth(total=Amount(len(marks), bytes=size))
    return replace(told[0], summary=headline, growth=grown, holders=holders, reason=_REASON)


def _of_tensors(rest: list[Any], name: str, stack: list[Spot]) -> Finding | None:
    """The tensors that are left; empties the list."""
    if not rest:
        return None
    if len(rest) == 1 and not _is_attached(rest[0]):
        mark = Mark(rest.pop())
        finding = finding_of(mark, f"what {name} has made", 0)
        if finding is None:
            return None
        size = finding.growth.total.bytes
        return replace(finding, summary=tests.summary(name, 0, 1, 0, 0, size=size), reason=_REASON)
    finding, _ = leftover(rest, [], name, stack)
    holders = tuple(
        replace(one, why=one.why.replace("every step", "every block").replace("each step", "it"))
        for one in (last_given(holder, stack) for holder in finding.holders)
    )
    return replace(finding, kind="stale", holders=holders, reason=_REASON)


def _is_attached(item: Any) -> bool:
    with _kinds.without_overrides():
        return _kinds.is_attached(item)
