"""The watchdog says that steps have stopped, once, and when they go on; it holds nothing up."""

from __future__ import annotations

import os
import threading
import time

import pytest
from models import TASKS, train_step

import memguard
from memguard.watchdog import Watchdog

MLP = TASKS[0]


class Loop:
    """A count of events, and the lines that were said about it."""

    def __init__(self) -> None:
        self.events = 0
        self.said: list[str] = []
        self.is_paused = False
        self.dog = Watchdog(
            60.0,
            lambda: self.events,
            lambda: self.events // 2,
            self.said.append,
            lambda: self.is_paused,
        )

    def look(self, *times: float) -> list[str]:
        for now in times:
            self.dog.look(now)
        return self.said


def test_steps_that_stop_are_told_once() -> None:
    """After so many seconds, with the main thread's line, and not again while nothing changes."""
    loop = Loop()
    loop.events = 10
    (line,) = loop.look(100.0, 130.0, 159.0, 161.0, 200.0, 5000.0)

    assert line.startswith("no step has ended for 1 min 1 s, 5 so far; the main thread is at ")
    assert "test_watchdog.py:" in line or "_pytest" in line


def test_steps_that_go_on_are_told_too() -> None:
    """Who saw the first line learns that it is over; a second stop is told as well."""
    loop = Loop()
    loop.events = 10
    loop.look(100.0, 170.0)
    loop.events = 12
    loop.look(400.0, 410.0, 500.0)

    assert [line.partition(",")[0] for line in loop.said] == [
        "no step has ended for 1 min 10 s",
        "steps go on after 5 min (step 6)",
        "no step has ended for 1 min 40 s",
    ]


def test_a_pause_does_not_count() -> None:
    """Where nothing is heard nothing has stopped; standing still before and after it adds up."""
    loop = Loop()
    loop.events = 10
    loop.look(100.0, 115.0, 130.0)
    loop.is_paused = True
    assert loop.look(145.0, 160.0, 1000.0) == []
    loop.is_paused = False
    assert loop.look(1015.0, 1025.0) == []
    (line,) = loop.look(1040.0)

    assert line.startswith("no step has ended for 1 min 10 s")


def test_a_guard_that_is_paused_is_not_spoken_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The watchdog is told of the guard's own pauses."""
    dogs: list[Watchdog] = []
    monkeypatch.setattr(Watchdog, "begin", lambda dog: dogs.append(dog) or dog.end)
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer, watchdog=60) as guard:
        train_step(MLP, model, optimizer, 0)
        dogs[0].look(100.0)
        with guard.pause():
            dogs[0].look(500.0)
        dogs[0].look(550.0)
        assert capsys.readouterr().err == ""
        dogs[0].look(570.0)

    assert capsys.readouterr().err.startswith("memguard: no step has ended for 1 min 10 s")


def test_before_the_first_event_nothing_is_amiss() -> None:
    """Data may take an hour to be prepared."""
    assert Loop().look(0.0, 1e4, 1e5) == []


def test_a_loop_at_its_pace_is_never_spoken_of() -> None:
    """Events now and then are enough."""
    loop = Loop()
    for now in range(0, 1000, 15):
        loop.events += now % 45 == 0
        loop.look(float(now))

    assert loop.said == []


def test_the_thread_is_there_only_where_it_is_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    """One thread with the setting, none without, none after close; closing twice is harmless."""
    model, optimizer = MLP.set_up()
    before = threading.active_count()
    with memguard.watch(model, optimizer):
        assert threading.active_count() == before
    guard = memguard.watch(model, optimizer, watchdog=3600)
    assert threading.active_count() == before + 1
    train_step(MLP, model, optimizer, 0)
    guard.close()
    guard.close()

    assert threading.active_count() == before
    assert capfd.readouterr().err == ""


def test_a_loop_that_stands_still_is_spoken_of(capfd: pytest.CaptureFixture[str]) -> None:
    """With a real thread and a real clock: one line on standard error."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer, watchdog=0.1):
        train_step(MLP, model, optimizer, 0)
        until = time.monotonic() + 20
        said = ""
        while "no step" not in said and time.monotonic() < until:
            time.sleep(0.02)  # this is what stands still
            said += capfd.readouterr().err

    assert said.startswith("memguard: no step has ended for ")
    assert "test_watchdog.py" in said
    assert said.count("\n") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forking is for POSIX systems")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_closes_a_guard_whose_watchdog_stayed_behind() -> None:
    """The thread is the parent's; nothing in the child waits for it."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer, watchdog=3600, ask=True) as guard:
        child = os.fork()
        if child == 0:
            guard.close()
            os._exit(threading.active_count())
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 1
