"""What a user's signal handler raises reaches the user, wherever in memguard it struck."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from models import TASKS, train, train_step
from torch import Tensor, nn

import memguard
from memguard import LeakError, _hooks
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


class Called:
    """A handler that is an object."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise Late("time is up")


HANDLERS: dict[str, Callable[..., Any]] = {
    "function": plain,
    "any arguments": any_arguments,
    "method": Limit().strike,
    "partial": functools.partial(any_arguments, "job 7"),
    "object": Called(),
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


def test_a_function_that_is_given_a_frame_is_no_handler() -> None:
    """What it raises is a failure like any other, and its frame's variables are not looked at."""

    def where(frame: FrameType) -> None:
        raise ValueError("no exporter there")

    def on_step(figures: dict[str, float]) -> None:
        where(sys._getframe())

    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer, on_step=on_step) as guard:
        for step in range(3):
            train_step(MLP, model, optimizer, step)

    (failure,) = guard.report().failures
    assert failure.error == "ValueError: no exporter there"


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

    # Whoever runs the tests in the background may have it ignored.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    with memguard.watch(model, optimizer) as guard:
        with monkeypatch.context() as patched:
            patched.setattr(Census, "look", interrupted)
            try:
                with pytest.raises(KeyboardInterrupt):
                    train_step(MLP, model, optimizer, 0)
            finally:
                signal.signal(signal.SIGINT, usual)
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


def test_a_handler_that_strikes_between_two_lines_leaves_no_guard_deaf() -> None:
    """The turn that was taken then, and never given back, is taken over by the next event."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    with memguard.watch(model, optimizer) as guard, pytest.raises(LeakError):
        guard._loop._busy.acquire()
        for step in range(40):
            kept.append(train_step(MLP, model, optimizer, step))

    assert guard.steps < 20


def test_the_turn_of_a_thread_that_is_at_work_is_not_taken_over() -> None:
    """What comes meanwhile is not the loop's."""
    model, optimizer = MLP.set_up()
    begun, done = threading.Event(), threading.Event()

    def works() -> bool:
        begun.set()
        return done.wait(20) and False

    with memguard.watch(model, optimizer) as guard:
        thread = threading.Thread(target=guard._loop._hear, args=(works,))
        thread.start()
        assert begun.wait(20)
        train_step(MLP, model, optimizer, 0)
        assert guard.steps == 0
        done.set()
        thread.join()
        train_step(MLP, model, optimizer, 1)
        assert guard.steps == 1
