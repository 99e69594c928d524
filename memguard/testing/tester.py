"""`Tester`: what the `memguard` fixture gives a test."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memguard.alive import WhyAlive, why_alive
from memguard.errors import UsageError
from memguard.testing import asserting
from memguard.testing.options import Expected

if TYPE_CHECKING:
    from memguard.guard import Guard


class Tester:
    """Guards and assertions of one test; made by the `memguard` fixture.

    Attributes:
        expected: what is to be freed with the test, held weakly, and how the test calls it.
    """

    def __init__(self) -> None:
        self.expected: Expected = []
        self._guards: list[Guard] = []

    def watch(self, *objects: Any, **settings: Any) -> Guard:
        """Watch a loop inside the test; the guard closes with the test.

        Args:
            objects: as for `memguard.watch`.
            settings: as for `memguard.watch`; the action is `raise` unless it says otherwise.

        Raises:
            SettingsError: a setting cannot be read.
        """
        from memguard.watching import watch

        guard = watch(*objects, **{"action": "raise", **settings})
        self._guards.append(guard)
        return guard

    def expect_freed(self, obj: object, label: str = "") -> None:
        """Fail the test if an object is alive after it and its function-scoped fixtures.

        Args:
            obj: what is to be freed; held weakly.
            label: how to call it in the failure; its type when left out.

        Raises:
            UsageError: the object cannot be referred to weakly.
        """
        try:
            self.expected.append((weakref.ref(obj), label or f"this {type(obj).__name__}"))
        except TypeError:
            raise UsageError(
                f"expect_freed: a {type(obj).__name__} takes no weak reference; accepted: tensors, "
                "modules, optimizers and instances of most classes"
            ) from None

    def assert_freed(self, obj: object) -> None:
        """`memguard.assert_freed`."""
        asserting.assert_freed(obj)

    def assert_no_growth(self, fn: Callable[[], object], repeat: int = 5) -> None:
        """`memguard.assert_no_growth`."""
        asserting.assert_no_growth(fn, repeat)

    def why_alive(self, obj: object, limit: int = 3) -> WhyAlive:
        """`memguard.why_alive`."""
        return why_alive(obj, limit)

    def close(self) -> None:
        """Close the guards."""
        while self._guards:
            self._guards.pop().close()
