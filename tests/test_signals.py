"""What a user's signal handler raises reaches the user, wherever in memguard it struck."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from models import TASKS, train, train_step
from torch import nn

import memguard
from memguard import _hooks
from memguard.figures import Figures
from memguard.parts import Parts
from memguard.sensors.canaries import Canaries
from memguard.sensors.census import Census

MLP = TASKS[0]

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal there")


class Late(Exception):
    """What a time limit raises."""


def plain(number: int, frame: FrameType | None) -> None:
    raise Late("time is up")


def any_arguments(*_: Any) -> None:
    raise Late("time is up")


class Limit:
    """A handler with a state of its own, that says nothing itself."""

    def strike(self, number: int, frame: FrameType | None) -> None:
        self.give_up()

    def give_up(self) -> None:
        raise Late("time is up")


HANDLERS: dict[str, Callable[..., Any]] = {
    "function": plain,
    "any arguments": any_arguments,
    "method": Limit().strike,
    "partial": functools.partial(any_arguments, "job 7"),
}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handler that was there before is there afterwards."""
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def struck(*_: Any, **__: Any) -> Any:
    """A part that is at work when the signal comes."""
    os.kill(os.getpid(), signal.SIGUSR1)
    return 1 + 1  # a moment for the handler


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_a_handlers_exception_passes_through_a_part(handler: Callable[..., Any]) -> None:
    """The part that was at work has not failed."""
    signal.signal(signal.SIGUSR1, handler)
    parts = Parts(lambda: 1)
    with pytest.raises(Late, match="time is up"):
        parts.do("census", struck)

    assert parts.failures == {}


def test_a_part_that_raises_the_same_by_itself_has_failed() -> None:
    """Only the handler's own call tells the two apart."""
    parts = Parts(lambda: 1)

    assert parts.do("census", Limit().give_up) is None
    assert parts.failures["census"].error == "Late: time is up"


@pytest.mark.parametrize(
    ("cls", "method"), [(Census, "look"), (Canaries, "_place"), (Canaries, "survey")]
)
def test_a_handler_that_strikes_in_a_part_stops_the_loop_as_it_would_without(
    cls: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's except clause gets it, no part is switched off, and the guard goes on watching."""
    signal.signal(signal.SIGUSR1, plain)
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer) as guard:
        with monkeypatch.context() as patched:
            patched.setattr(cls, method, struck)
            with pytest.raises(Late):
                train_step(MLP, model, optimizer, 0)
        for step in range(20):
            train_step(MLP, model, optimizer, step)
        report = guard.report()

    assert report.failures == ()
    assert report.step >= 20


def test_a_handler_that_strikes_in_a_report_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it does where the user asked for something."""
    signal.signal(signal.SIGUSR1, plain)
    guard = train(MLP, 5, action="raise").guard
    monkeypatch.setattr(Figures, "memory", struck)

    assert guard is not None
    with pytest.raises(Late):
        guard.report()


def test_interrupting_a_part_interrupts_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is the user's, and the loop may be gone on with after it."""
    model, optimizer = MLP.set_up()

    def interrupted(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    with memguard.watch(model, optimizer) as guard:
        with monkeypatch.context() as patched:
            patched.setattr(Census, "look", interrupted)
            with pytest.raises(KeyboardInterrupt):
                train_step(MLP, model, optimizer, 0)
        for step in range(20):
            train_step(MLP, model, optimizer, step)

        assert guard.report().failures == ()
        assert guard.report().step >= 20


def test_a_handler_may_close_a_guard_while_another_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It interrupts the very thread that has the lock, which would wait for itself for ever."""
    models = nn.Linear(2, 2), nn.Linear(2, 2)
    first, second = map(memguard.watch, models)
    could_enter = []

    class Struck(set[Any]):
        def discard(self, hook: Any) -> None:
            could_enter.append(_hooks._placed._lock.acquire(blocking=False))
            if could_enter[-1]:
                _hooks._placed._lock.release()
                first.close()
            super().discard(hook)

    monkeypatch.setattr(_hooks._placed, "_hooks", Struck(_hooks._placed._hooks))
    second.close()

    assert could_enter == [True, True]
    assert first.closed
