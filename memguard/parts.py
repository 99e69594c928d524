"""Parts: each may fail without the others; one that has failed is switched off and reported."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeVar

from memguard.failures import Failure

_Result = TypeVar("_Result")

_MOST_TEXT = 300

TOO_DEEP = "RecursionError: no room was left on the stack"
NO_MEMORY = "MemoryError: no memory was left"


class Parts:
    """Does the parts' work, so that nothing of it is raised into the user's loop.

    Attributes:
        exhausted: by part, what ran out in it. An entry is made without any call, since there may
            be no room for one: the user's own recursion may have left us a few frames.
    """

    __slots__ = ("_failures", "_step", "exhausted")

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._failures: dict[str, Failure] = {}
        self.exhausted: dict[str, str] = {}

    @property
    def failures(self) -> dict[str, Failure]:
        """By part, what failed and was switched off."""
        for name, error in list(self.exhausted.items()):
            self._failures.setdefault(name, Failure(name, error, self._step()))
        return self._failures

    def do(self, name: str, work: Callable[..., _Result], *args: Any) -> _Result | None:
        """Do a part's work; None when it fails, or has failed before.

        Raises:
            Exception: what a signal handler of the user's raised while the part was at work.
        """
        if name in self._failures or name in self.exhausted:
            return None
        try:
            return work(*args)
        except RecursionError:
            self.exhausted[name] = TOO_DEEP
        except MemoryError:
            self.exhausted[name] = NO_MEMORY
        except Exception as error:
            self.note(name, error)
        return None

    def note(self, name: str, error: Exception) -> None:
        """A part has failed; the first failure of each is kept.

        Raises:
            Exception: the error itself, where it is no failure of the part's.
        """
        if is_the_users(error):
            raise error
        self._failures.setdefault(name, Failure(name, _in_words(error), self._step()))


def is_the_users(error: BaseException) -> bool:
    """Whether a signal handler of the user's raised it.

    Python runs handlers wherever the main thread happens to be, so a time limit's or a
    scheduler's exception may strike in the midst of our own work. It is meant for the user.
    """
    # A frame among the arguments would not do: a function of the user's may be given frames, too.
    handlers = _handlers()
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _handlers() -> set[CodeType]:
    """The code of each function that is registered for a signal."""
    found = set()
    for number in signal.valid_signals():
        with suppress(ValueError):  # some systems name signals that nobody may ask about
            code = _code_of(signal.getsignal(number))
            if code is not None:
                found.add(code)
    return found


def _code_of(handler: Any) -> CodeType | None:
    if isinstance(handler, functools.partial):
        return _code_of(handler.func)
    if isinstance(handler, MethodType):
        return _code_of(handler.__func__)
    if isinstance(handler, FunctionType):
        return handler.__code__
    kinds = type(handler).__mro__
    called = next((vars(kind)["__call__"] for kind in kinds if "__call__" in vars(kind)), None)
    return called.__code__ if isinstance(called, FunctionType) else None


def _in_words(error: Exception) -> str:
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"[:_MOST_TEXT]
    except Exception:  # its own text may fail as it did
        return kind
