"""Parts: each may fail without the others; one that has failed is switched off and reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from memguard.records import Failure

_Result = TypeVar("_Result")

_MOST_TEXT = 300


class Parts:
    """Does the parts' work, so that nothing of it is raised into the user's loop.

    Attributes:
        failures: by part, what failed and was switched off.
    """

    __slots__ = ("_step", "failures")

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self.failures: dict[str, Failure] = {}

    def do(self, name: str, work: Callable[..., _Result], *args: Any) -> _Result | None:
        """Do a part's work; None when it fails, or has failed before."""
        if name in self.failures:
            return None
        try:
            return work(*args)
        except Exception as error:
            self.note(name, error)
            return None

    def note(self, name: str, error: Exception) -> None:
        """A part has failed; the first failure of each is kept."""
        text = f"{type(error).__name__}: {error}"[:_MOST_TEXT]
        self.failures.setdefault(name, Failure(name, text, self._step()))
