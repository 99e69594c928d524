"""Picking objects out of the collector's lists, without holding on to the others."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from memguard._heap import family, newest, objects_of


class Wanted:
    """What is looked for."""


class Special(Wanted):
    """A subclass of it."""


class Meta(type):
    """A metaclass whose classes must not be asked to hash or compare themselves."""

    def __hash__(cls) -> int:
        raise AssertionError("hashed")

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("compared")


class Difficult(metaclass=Meta):
    """A class of that metaclass."""


@pytest.mark.parametrize("generation", [None, 0, 1, 2])
def test_objects_come_in_order_of_birth(generation: int | None) -> None:
    """Exactly those of the types asked for, the oldest first, in whichever generation they are."""
    classes = family(Wanted)
    things: list[Wanted] = []
    for cls in (Wanted, Special, Wanted):
        things.append(cls())
        if generation is not None:
            gc.collect(generation)
    other = Difficult()
    assert [id(item) for item in objects_of(classes)] == list(map(id, things))
    assert [type(item) for item in objects_of(family(Special))] == [Special]
    assert other is not None


def test_the_newest_are_those_made_after_a_mark() -> None:
    """The newest first; all that is young once a collection has moved the mark on."""
    classes = family(Wanted)
    gc.collect()
    older, mark = Wanted(), [1]
    younger = [Wanted(), Special()]
    other = Difficult()
    assert list(map(id, newest(classes, mark))) == [id(younger[1]), id(younger[0])]
    assert list(map(id, newest(family(Special), mark))) == [id(younger[1])]
    gc.collect(0)
    last = Wanted()
    assert list(map(id, newest(classes, mark))) == [id(last)]
    assert older is not other


def test_subclasses_are_found_all_the_way_down() -> None:
    """Subclasses are part of the family, others are not; no metaclass is asked anything."""
    assert family(Wanted) == {id(Wanted), id(Special)}
    assert family(Difficult) == {id(Difficult)}


def test_nothing_stays_held() -> None:
    """Other objects have as many references afterwards as before."""
    mark = Wanted()
    other = (Wanted(), [1])
    before = sys.getrefcount(other)
    newest(family(Special), mark)
    newest(family(Special), other)
    objects_of(family(Special), 0)
    objects_of(family(Special))
    assert sys.getrefcount(other) == before


def test_other_threads_can_finish_their_tuples() -> None:
    """A tuple that is still being built fails with a SystemError when somebody refers to it."""
    classes = family(Wanted)
    errors: list[BaseException] = []
    done = threading.Event()

    def rows() -> Iterator[Any]:
        while True:
            yield [1], 2

    def build() -> None:
        source = rows()
        while not done.is_set():
            try:
                tuple(zip(*itertools.islice(source, 48), strict=True))
            except SystemError as error:
                errors.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        objects_of(classes, 0)
        newest(classes, done)
        newest(classes, None)
        objects_of(classes)
        sum(range(500))
    done.set()
    thread.join()
    assert not errors
