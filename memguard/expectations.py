"""Expectations: objects that the user declared dead, asked for some steps later."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from memguard.alive import why_alive
from memguard.errors import UsageError
from memguard.explain.fingerprint import fingerprint_of
from memguard.records import Amount, Finding, Growth
from memguard.report import stale
from memguard.sensors.contents import bytes_of
from memguard.sensors.marks import Mark

# Steps beyond the window after which an object must be gone.
GRACE = 3

# Steps for which one that only a collection can free is waited for: collections come by themselves.
PATIENCE = 64

# Objects waited for at a time; a loop that declares one each step must not gather them.
MAX_EXPECTED = 256


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


class Expectations:
    """What was declared dead and is not known to be; everything is held weakly.

    Args:
        window: steps a graph may outlive its own.
        collected_at: says in which step garbage was last collected.
        tell: takes a finding, once an object.

    Attributes:
        explaining: seconds spent on explanations since somebody reset it.
    """

    def __init__(
        self, window: int, collected_at: Callable[[], int], tell: Callable[[Finding], None]
    ) -> None:
        self._grace = window + GRACE
        self._collected_at = collected_at
        self._tell = tell
        # (what, its name, the step it was declared in, the step from which it is asked for)
        self._waiting: list[tuple[weakref.ref[Any], str, int, int]] = []
        self.explaining = 0.0

    def expect(self, obj: object, name: object, now: int) -> None:
        """Wait for the death of `obj`, declared at step `now`.

        Raises:
            UsageError: nothing can refer to it weakly.
        """
        reference = reference_to(obj, name, "guard.expect_freed")
        self._waiting = [one for one in self._waiting if one[0]() is not None][-MAX_EXPECTED:]
        self._waiting.append((reference, str(name), now, now + self._grace))

    def look(self, now: int) -> None:
        """Ask for those whose time has come."""
        waiting, self._waiting = self._waiting, []
        for reference, name, since, due in waiting:
            if reference() is None:
                continue
            again = due if now < due else self._ask(reference, name, since, now)
            if again is not None:
                self._waiting.append((reference, name, since, again))

    def _ask(self, reference: weakref.ref[Any], name: str, since: int, now: int) -> int | None:
        """Tell of it, unless only a collection is awaited; the step to ask again, if any."""
        begun = time.perf_counter()
        found = finding_of(reference, name, now, now - since)
        self.explaining += time.perf_counter() - begun
        if found is None:
            return None
        is_collected = self._collected_at() > since
        if not found.holders and not is_collected and now - since < PATIENCE:
            return now + self._grace
        self._tell(found)
        return None


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
    holders = tuple(stale.with_advice(holder, name) for holder in kept.holders)
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
        reason="declared dead, and alive",
        unnamed="" if holders else stale.unnamed(kept),
    )
