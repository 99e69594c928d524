"""Expectations: objects that the user declared dead, asked for some steps later."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from memguard.alive import why_alive
from memguard.errors import UsageError
from memguard.explain.fingerprint import fingerprint_of
from memguard.explain.latest import last_given
from memguard.explain.standing import user_spots
from memguard.parts import Parts
from memguard.records import Amount, Finding, Growth, Report
from memguard.redaction import without_source
from memguard.report import stale, text
from memguard.sensors.contents import bytes_of
from memguard.sensors.governor import Governor
from memguard.sensors.marks import Mark
from memguard.settings import Settings
from memguard.triage import Triage

# Steps beyond the window after which an object must be gone.
GRACE = 3

# Steps for which one that only a collection can free is waited for: collections come by themselves.
PATIENCE = 64

# Objects waited for at a time; a loop that declares one each step must not gather them.
MAX_EXPECTED = 256

# Objects that are asked for when a loop is over, and when the program ends.
MOST_AT_END = 3
MOST_AT_EXIT = 8

# Steps from one explanation to the next, at the most.
MAX_GAP = 512

_REASON = "declared dead, and alive"


def reference_to(obj: object, name: object, caller: str) -> weakref.ref[Any]:
    """A weak reference to what is expected to die.

    Args:
        obj: the object.
        name: what the user calls it.
        caller: the function it was given to, for the message.

    Raises:
        UsageError: nothing can refer to `obj` weakly, or `name` is no text.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"{caller}: name is {name!r}; accepted: text, such as 'fold 3 model'")
    if isinstance(obj, weakref.ref):
        return obj
    try:
        return Mark(obj)
    except TypeError:
        raise UsageError(
            f"{caller}: {name} is of type {type(obj).__name__}, to which nothing can refer weakly; "
            "accepted: a module, optimizer, tensor or other object with weak references (give the "
            "tensors of a list or dict one by one)"
        ) from None


# What a loop declares alike each time: its name, and its class by name.
_Key = tuple[str, str]


@dataclass(slots=True)
class _Told:
    """A finding that was told, and how many objects more it stands for."""

    finding: Finding
    more: int = 0


@dataclass(slots=True)
class _Expected:
    """What is waited for.

    Attributes:
        since: the step it was declared in.
        due: the step from which it is asked for.
        asked: the step it was last asked for in; -1 for never.
        unwatched: whether it was declared where no guard was open.
        settings: those of the guard that waited for it last; None for none.
    """

    reference: weakref.ref[Any]
    name: str
    since: int
    due: int
    asked: int = -1
    unwatched: bool = False
    settings: Settings | None = None

    def key(self) -> _Key | None:
        """What a loop declares alike each time; None when it is gone."""
        target = self.reference()
        if target is None:
            return None
        kind = type(target)
        return self.name, f"{kind.__module__}.{kind.__qualname__}"


# Declared outside of any loop, or left by one that is over: the next loop that steps takes them on.
_left: list[_Expected] = []


def expect_later(reference: weakref.ref[Any], name: str, unwatched: bool) -> None:
    """Wait for a death: the next loop that steps asks for it, else the end of the program does.

    Args:
        reference: to the object.
        name: what the user calls it.
        unwatched: whether no guard is open, so that its variable had until the end to go.
    """
    if len(_left) >= 2 * MAX_EXPECTED:
        _left[:] = [one for one in _left if one.reference() is not None][-MAX_EXPECTED:]
    _left.append(_Expected(reference, name, 0, 0, unwatched=unwatched))


class Expectations:
    """What was declared dead and is not known to be; everything is held weakly.

    To ask who holds an object takes passes over the heap. So one object is asked for at a look at
    most, and after each the gap to the next doubles; what dies meanwhile costs nothing. Of those
    declared under the same name, or held by the same variable, one is told and the others counted.

    Args:
        window: steps a graph may outlive its own.
        collected_at: says in which step garbage was last collected.
        tell: takes a finding, once an object.
        governor: pays for all explanations but the first, which is one of a finding.

    Attributes:
        explaining: seconds spent on explanations since somebody reset it.
    """

    def __init__(
        self,
        window: int,
        collected_at: Callable[[], int],
        tell: Callable[[Finding], None],
        governor: Governor | None = None,
    ) -> None:
        self._grace = window + GRACE
        self._collected_at = collected_at
        self._tell = tell
        self._governor = governor
        self._waiting: list[_Expected] = []
        # What was told: by name and type, and by type and holder. What only a collection frees.
        self._told: dict[_Key, _Told] = {}
        self._holders: dict[tuple[object, ...], _Told] = {}
        self._cyclic: set[_Key] = set()
        self._cost = 0.0
        self._gap, self._not_before = 1, 0
        self.explaining = 0.0

    def expect(self, obj: object, name: object, now: int) -> None:
        """Wait for the death of `obj`, declared at step `now`.

        Raises:
            UsageError: nothing can refer to it weakly.
        """
        reference = reference_to(obj, name, "guard.expect_freed")
        if len(self._waiting) >= 2 * MAX_EXPECTED:
            living = [one for one in self._waiting if one.reference() is not None]
            self._waiting = living[-MAX_EXPECTED:]
        self._waiting.append(_Expected(reference, str(name), now, now + self._grace))

    def look(self, now: int) -> None:
        """Ask for one of those whose time has come."""
        while _left:
            self._take_over(_left.pop(0), now)
        if not self._waiting:
            return
        due = []
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if now < one.due or not self._is_ripe(one, now):
                if one.reference() is not None:
                    self._waiting.append(one)
            elif not self._is_told(one):
                due.append(one)
        if due and now >= self._not_before and self._may_ask():
            self._not_before = now + self._gap
            self._gap = min(MAX_GAP, 2 * self._gap)
            first = due.pop(0)
            if not self._ask(first, now):
                self._waiting.append(first)
        self._waiting += due

    def _take_over(self, one: _Expected, now: int) -> None:
        # Declared before the step that has ended just now was over.
        one.since, one.asked = now - 1, -1
        one.due = one.since + self._grace
        if one.reference() is not None:
            self._waiting.append(one)

    def settle(self, now: int) -> None:
        """The loop is over: ask for a few of those that are left, the longest awaited first."""
        waiting, self._waiting = self._waiting, []
        tried: set[_Key] = set()
        for one in waiting:
            key = one.key()
            if key is None or self._is_told(one):
                continue
            may = key not in tried and len(tried) < MOST_AT_END and self._is_ripe(one, now)
            tried |= {key} if may else set()
            if not may or not self._ask(one, now, is_last=True):
                self._waiting.append(one)

    def hand_on(self, settings: Settings) -> None:
        """Leave what is still waited for to the next loop, or to the end of the program.

        Args:
            settings: say how it is to be told.
        """
        for one in self._waiting:
            one.settings = settings
        _left.extend(one for one in self._waiting if one.reference() is not None)
        del _left[:-MAX_EXPECTED]
        self._waiting = []

    def _may_ask(self) -> bool:
        return not self._cost or self._governor is None or self._governor.allows(self._cost)

    def _is_ripe(self, one: _Expected, now: int) -> bool:
        """Whether asking may tell anything: a cycle is waited for until a collection has run."""
        if now - one.since >= PATIENCE:
            return True
        if one.asked < 0 and one.key() not in self._cyclic:
            return True
        return self._collected_at() > max(one.since, one.asked)

    def _is_told(self, one: _Expected) -> bool:
        """Whether it is gone, or another like it was told; then it is counted."""
        key = one.key()
        if key is None:
            return True
        told = self._told.get(key)
        if told is None:
            return False
        self._count(told)
        return True

    def _count(self, told: _Told) -> None:
        """One more like what was told; the report hears of it when they are twice as many."""
        told.more += 1
        if told.more & (told.more - 1) == 0:
            self._tell(replace(told.finding, reason=f"{_REASON}, and {told.more} more like it"))

    def _ask(self, one: _Expected, now: int, is_last: bool = False) -> bool:
        """Tell of it, unless only a collection is awaited; whether nothing is left to ask.

        With `is_last` no step comes any more that would be late enough.
        """
        key = one.key()
        begun = time.perf_counter()
        found = finding_of(one.reference, one.name, now, now - one.since)
        self._pay(time.perf_counter() - begun)
        if found is None or key is None:
            return True
        if not found.holders:
            self._cyclic.add(key)
            if self._collected_at() <= one.since and now - one.since < PATIENCE:
                one.asked, one.due = now, now + self._grace
                return False
        if is_last and now < one.due and not _is_kept(found):
            return False
        self._put(key, found)
        return True

    def _put(self, key: _Key, found: Finding) -> None:
        """Tell of a finding, or count it where its holder was told for such an object."""
        holders = [(key[1], one.name, one.where, one.file, one.line) for one in found.holders]
        known = self._holders.get(holders[0]) if holders else None
        told = self._told[key] = known or _Told(found)
        if known is not None:
            self._count(known)
            return
        self._holders.update(dict.fromkeys(holders, told))
        self._tell(found)

    def _pay(self, seconds: float) -> None:
        self.explaining += seconds
        if self._cost and self._governor is not None:
            # From one account to the other: what is taken as explaining is no reason to look less.
            self._governor.charge(seconds, -seconds)
        self._cost = max(self._cost / 2, seconds)


def _is_kept(found: Finding) -> bool:
    """Whether more than a variable, which the user may be about to delete, holds the object."""
    return any(
        not holder.chain[-1].startswith(("local ", "global "))
        for holder in found.holders
        if holder.chain
    )


def tell_left() -> None:
    """The program ends: say on standard error which of those left are still alive.

    Nothing is raised. Costs passes over the heap for a few objects at most.
    """
    left, _left[:] = list(_left), []
    parts = Parts(lambda: 0)
    own = parts.do("settings", Settings.read, {}) or Settings()
    found = parts.do("expectations", _found_at_exit, left, own) or []
    failures = tuple(parts.failures.values())
    if not (found or failures) or sys.stderr is None:
        return
    report = Report("suspect" if found else "clean", 0, tuple(found), failures=failures)
    with suppress(Exception):  # closed, or its reader gone: nobody is left to be told
        if not all((one.settings or own).source for one in left):
            report = without_source(report)
        text.print_report(report, sys.stderr)


def _found_at_exit(left: list[_Expected], own: Settings) -> list[Finding]:
    told: list[Finding] = []
    tried: set[_Key] = set()
    for one in left:
        key, settings = one.key(), one.settings or own
        if key is None or key in tried or len(tried) >= MOST_AT_EXIT or settings.action == "off":
            continue
        tried.add(key)
        found = finding_of(one.reference, one.name, 0)
        if found is not None and (one.unwatched or _is_kept(found)):
            found = Triage(settings.ignore).sort(found)
            told += [found] if found is not None else []
    return told


# What the parent of a forked child expects is the parent's to ask for.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_left.clear)


def finding_of(
    reference: weakref.ref[Any], name: str, step: int, steps: int | None = None
) -> Finding | None:
    """The finding about an object that was to be freed; None when it is.

    Args:
        reference: to the object.
        name: what the user called it.
        step: steps ended so far.
        steps: steps since it was declared dead; None where no steps are counted.

    Costs a pass over the heap for each link of the chain.
    """
    target = reference()
    if target is None:
        return None
    size = bytes_of(target)
    kept = why_alive(target).kept[0]
    del target
    stack = user_spots(sys._getframe())
    given = (last_given(holder, stack) for holder in kept.holders)
    holders = tuple(stale.with_advice(holder, name) for holder in given)
    first = holders[0] if holders else None
    advice = stale.advice(kept)
    if first is not None:
        advice = "; ".join(filter(None, (first.fix, first.alternative))) or advice
    where = (first.name, first.where, first.code or "") if first is not None else ()
    return Finding(
        "stale",
        "warning",
        stale.summary(name, size, steps),
        fingerprint_of("stale", name, *where),
        step - (steps or 0),
        step,
        growth=Growth(total=Amount(1, bytes=size)),
        holders=holders,
        advice=advice,
        reason=_REASON,
        unnamed="" if holders else stale.unnamed(kept),
    )
