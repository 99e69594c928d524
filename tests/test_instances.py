"""`memguard.why_alive` of a class: which instances are told, and in what order."""

from __future__ import annotations

import gc
import types

import pytest
from things import Thing

import memguard


@pytest.mark.parametrize("generation", [None, 0, 1, 2])
def test_of_a_class_some_instances_are_told(generation: int | None) -> None:
    """As many as the limit says, evenly, subclasses included; roughly the oldest come first.

    Whether or not the collector has run in between.
    """

    class Kind:
        pass

    class Special(Kind):
        pass

    def collect() -> None:
        if generation is not None:
            gc.collect(generation)

    gc.collect()
    # One that begins by itself in the midst of this puts the first behind the others.
    gc.disable()
    try:
        first = [Kind()]
        collect()
        middle = [Kind() for _ in range(9)]
        collect()
        last = [Special()]
        answer = memguard.why_alive(Kind, limit=3)
    finally:
        gc.enable()

    assert answer.living == 11
    assert [one.type for one in answer.kept] == ["Kind", "Kind", "Special"]
    assert [holder.name for holder in answer.holders] == ["first", "middle", "last"]
    assert str(answer).startswith(
        f"memguard: 11 living instances of {Kind.__qualname__}; 3 of them, "
        "roughly from oldest to newest"
    )
    del first, middle, last


def test_instances_with_one_chain_are_told_once() -> None:
    """A thousand entries of one list are not told a thousand times."""

    class Kind:
        pass

    things = [Kind() for _ in range(50)]

    told = str(memguard.why_alive(Kind))

    assert told.count("things (list), local of") == 1
    assert told.count("by the same as 1") == 2
    assert things


@pytest.mark.parametrize("cls", [list, tuple, dict, set, type, types.FunctionType])
def test_of_builtin_classes_memguards_own_are_left_out(cls: type) -> None:
    """Neither what it has made for the question nor what it consists of."""
    answer = memguard.why_alive(cls, limit=3)

    assert answer.living
    lines = [line for holder in answer.holders for line in holder.chain]
    assert not [line for line in lines if line.startswith("module memguard")]
    assert "_of_class" not in str(answer)


def test_a_reference_without_a_name_is_told_as_one() -> None:
    """A class has its bases in a tuple, under no name that anybody would write."""

    class Kind(Thing):
        pass

    answer = memguard.why_alive(type.__dict__["__bases__"].__get__(Kind))

    lasts = {chain[-1] for chain in [*answer.kept[0].cycles, *(h.chain for h in answer.holders)]}
    assert "→: tuple" in lasts
    assert not [line for line in lasts if line.startswith(":")]


def test_a_class_without_instances_says_so() -> None:
    """Nothing alive is an answer, not an error."""

    class Kind:
        pass

    answer = memguard.why_alive(Kind)

    assert (answer.living, answer.kept) == (0, ())
    assert str(answer) == f"memguard: no instance of {Kind.__qualname__} is alive"
