"""Looking at frames, and leaving nothing behind on them."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

from memguard.explain.edges import Edge
from memguard.explain.frames import Frames, is_library_file, is_user_file, read_locals
from memguard.explain.naming import Step, thread_of
from memguard.explain.search import Search


class Thing:
    """Something a variable may hold."""


def test_a_variable_is_found_by_its_value() -> None:
    """The user's frame that holds a value comes first, a parameter after who handed it over."""
    thing = Thing()

    def inner(argument: Thing) -> list[str]:
        with Frames() as frames:
            return [name for _, name in frames.holding(argument)]

    assert inner(thing)[:2] == ["thing", "argument"]


def test_nothing_stays_alive_after_a_look() -> None:
    """Deleting a variable after its frame was looked at frees what it held."""
    thing = Thing()
    alive = weakref.ref(thing)
    with Frames() as frames:
        assert frames.holding(thing)
    del thing
    assert alive() is None


def test_a_dict_somebody_else_holds_is_not_emptied() -> None:
    """`locals()` up to Python 3.12 is the frame's own dict; the user may keep it."""
    thing = Thing()
    mine = locals()
    read_locals(sys._getframe())
    assert mine["thing"] is thing


def test_other_threads_are_seen() -> None:
    """A variable of a function that runs in another thread is found, with the thread's name."""
    ready, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def work() -> None:
        secret = Thing()
        found.append(secret)
        ready.set()
        done.wait(10)

    thread = threading.Thread(target=work, name="trainer")
    thread.start()
    ready.wait(10)
    with Frames() as frames:
        places = [(frames.views[i].thread, name) for i, name in frames.holding(found[0])]
    done.set()
    thread.join()
    assert ("trainer", "secret") in places


def test_threads_of_one_name_are_told_apart() -> None:
    """Names need not be unique: the stack is that of the thread that asks, wherever another is."""
    ready, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        secret = Thing()
        found.append(secret)
        ready.set()
        done.wait(10)

    def asking() -> None:
        with Frames() as frames:
            found.append([spot.function.rpartition(".")[2] for spot in frames.stack()])
            index, name = frames.holding(found[0])[0]
            step = Step(Edge("local", name, name), index, found[0])
            found.append((thread_of(step, Search(frames)), threading.get_ident()))

    threads = [threading.Thread(target=work, name="worker") for work in (other, asking)]
    threads[0].start()
    ready.wait(10)
    threads[1].start()
    threads[1].join()
    done.set()
    threads[0].join()

    assert found[1] == ["asking"]
    holding, mine = found[2]
    assert holding == threads[0].ident != mine


def test_the_stack_is_the_users() -> None:
    """Frames of pytest and the standard library are left out; the innermost comes first."""
    with Frames() as frames:
        stack = frames.stack()
    assert stack[0].file == __file__
    assert stack[0].function.endswith("test_the_stack_is_the_users")
    assert all(is_user_file(spot.file) for spot in stack)


def test_library_code_is_told_from_the_users() -> None:
    """torch, the standard library and installed packages are library code."""
    import json

    import torch

    assert is_library_file(torch.__file__)
    assert is_library_file(json.__file__)
    assert is_library_file("/somewhere/site-packages/package/module.py")
    assert is_library_file("<frozen importlib._bootstrap>")
    assert is_user_file("/home/me/train.py")
    assert is_user_file("<ipython-input-3-abc>")
