"""`memguard.why_alive`: chains to any object, asked at any moment."""

from __future__ import annotations

import functools
import gc
import runpy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import things
import torch
from things import Box, Part, Thing, names

import memguard
from memguard.explain import holders
from memguard.explain.search import Search

CACHE: dict[str, Any] = {}


def line_of(mark: str) -> int:
    """The line of things.py that ends in a comment with the mark."""
    lines = Path(things.__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def test_a_list_of_an_object_is_named_with_its_line() -> None:
    """What a user would write, where it stands, the statement and the chain from a root."""
    box = Box()
    box.put(Thing())

    answer = memguard.why_alive(box.content[0])

    assert names(answer) == ["box.content, attribute of Box"]
    holder = answer.holders[0]
    assert (holder.file, holder.line) == (things.__file__, line_of("puts"))
    assert holder.code == "self.content.append(thing)"
    assert holder.chain[-3:] == ("local box: Box", ".content: list", "[...]: Thing")
    assert answer.kept[0].complete


def test_the_variable_that_was_handed_over_is_told_after_the_others() -> None:
    """It is a true holder, and the one that whoever asks knows of."""
    thing = Thing()
    box = Box()
    box.put(thing)

    answer = memguard.why_alive(thing)

    assert names(answer)[0] == "box.content, attribute of Box"
    assert names(answer)[1].startswith("thing, local of test_the_variable")


def test_a_scripts_own_variable_is_told_after_the_others(tmp_path: Path) -> None:
    """At module level, where the variable that is handed over is a global."""
    script = tmp_path / "asks.py"
    script.write_text(
        "import memguard\n"
        "from things import Box, Thing\n"
        "a_thing = Thing()\n"
        "box = Box()\n"
        "box.put(a_thing)\n"
        "answer = memguard.why_alive(a_thing)\n"
    )

    answer = runpy.run_path(str(script), run_name="asks")["answer"]

    assert names(answer)[0] == "box.content, attribute of Box"
    assert names(answer)[1].startswith("a_thing, global")


def test_a_second_variable_is_somebody_else_who_holds(tmp_path: Path) -> None:
    """In a function and in a script alike; a function further up may have its own."""
    script = tmp_path / "asks.py"
    script.write_text(
        "import memguard\n"
        "from things import Thing\n"
        "failed = []\n"
        "def failing(thing):\n"
        "    try:\n"
        "        memguard.assert_freed(thing)\n"
        "    except AssertionError:\n"
        "        return True\n"
        "    return False\n"
        "def ask(twice):\n"
        "    first = Thing()\n"
        "    second = first if twice else None\n"
        "    return failing(first)\n"
        "answers = ask(True), ask(False)\n"
        "a_thing = another = Thing()\n"
        "try:\n"
        "    memguard.assert_freed(a_thing)\n"
        "except AssertionError:\n"
        "    failed.append(1)\n"
        "del another\n"
        "memguard.assert_freed(a_thing)\n"
    )

    asked = runpy.run_path(str(script), run_name="asks")

    assert asked["answers"] == (True, False)
    assert asked["failed"] == [1]


def test_a_scripts_own_variable_may_hold_what_is_to_be_free(tmp_path: Path) -> None:
    """It is the one that is handed over, as a local is; who asks in a function has another."""
    script = tmp_path / "asks.py"
    script.write_text(
        "import memguard\n"
        "from things import Box, Thing\n"
        "a_thing, box, failed = Thing(), Box(), []\n"
        "def ask(thing):\n"
        "    memguard.assert_freed(thing)\n"
        "memguard.assert_freed(a_thing)\n"
        "for assertion in (ask, memguard.assert_freed):\n"
        "    try:\n"
        "        assertion(a_thing)\n"
        "    except AssertionError as error:\n"
        "        failed.append(str(error))\n"
        "    box.put(a_thing)\n"
    )

    by_function, by_box = runpy.run_path(str(script), run_name="asks")["failed"]

    assert "global a_thing" in by_function
    assert "box.content" not in by_function
    assert "box.content" in by_box


def test_the_question_itself_is_no_holder() -> None:
    """An object made for the call has nobody; neither argument nor memguard's own count."""
    answer = memguard.why_alive(Thing())

    assert answer.holders == ()
    assert str(answer) == (
        "memguard: nothing that Python shows, beside this question, keeps this Thing alive"
    )


def _generator(thing: Any) -> Iterator[int]:
    yield 1
    yield id(thing)


def _default(thing: Any, kept: list[Any] = []) -> None:  # noqa: B006
    kept.append(thing)


def _fail(thing: Any) -> None:
    raise ValueError(id(thing))


@functools.lru_cache(maxsize=4)
def _cached(thing: Any) -> None:
    return None


KEEPERS: dict[str, Callable[[Any], Any]] = {}


def keeper(told: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Enters a function that keeps its argument, by itself or by what it returns."""

    def enter(keep: Callable[[Any], Any]) -> Callable[[Any], Any]:
        KEEPERS[told] = keep
        return keep

    return enter


@keeper("CACHE, global of {module}")
def _by_global(thing: Any) -> Any:
    CACHE["entry"] = thing
    return None


@keeper("Box.shared, class attribute of Box")
def _by_class(thing: Any) -> Any:
    Box.shared.append(thing)
    return None


@keeper("kept.slot, attribute of Box")
def _by_slot(thing: Any) -> Any:
    box = Box()
    box.slot = thing
    return box


@keeper("thing, variable captured by _by_closure.<locals>.inner")
def _by_closure(thing: Any) -> Any:
    def inner() -> Any:
        return thing

    return inner


@keeper("kept, default argument of _default")
def _by_default(thing: Any) -> Any:
    _default(thing)
    return None


@keeper("thing, local of _generator")
def _by_generator(thing: Any) -> Any:
    generator = _generator(thing)
    next(generator)
    return generator


@keeper("thing, local of _fail")
def _by_exception(thing: Any) -> Any:
    try:
        _fail(thing)
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
        return error


@keeper("_cached(...), cache of _cached, 1 entry and at most 4")
def _by_cache(thing: Any) -> Any:
    _cached(thing)
    return None


@keeper("kept, local of {test}")
def _by_partial(thing: Any) -> Any:
    return functools.partial(print, thing)


@pytest.mark.parametrize("told", KEEPERS)
def test_each_kind_of_holder_is_named(told: str) -> None:
    """The holder's name and home, for every sort of variable that Python has."""
    thing = Thing()
    kept = KEEPERS[told](thing)
    try:
        answer = memguard.why_alive(thing)
    finally:
        CACHE.clear()
        Box.shared.clear()
        _default.__defaults__[0].clear()  # type: ignore[index]
        _cached.cache_clear()
        del kept

    test = "test_each_kind_of_holder_is_named"
    assert names(answer)[0] == told.format(module=__name__, test=test)


class Job:
    """Something that can be called with a keyword."""

    def __init__(self, x: Any = None) -> None:
        pass

    def __call__(self, x: Any = None) -> None:
        pass


CALLABLE = {"class": Job, "object": Job(), "method": Job().__call__, "type": dict, "C": torch.add}


@pytest.mark.parametrize("function", CALLABLE.values(), ids=CALLABLE)
@pytest.mark.parametrize("keyword", [True, False])
def test_a_partial_of_what_is_no_function_has_no_parameters(function: Any, keyword: bool) -> None:
    """A class, an object, a method or C code is bound to as well, by keyword or by place."""
    thing = Thing()
    bound = functools.partial(function, x=thing) if keyword else functools.partial(function, thing)

    answer = memguard.why_alive(thing)

    assert answer.holders[0].name == "bound"
    assert "bound argument: " in "\n".join(answer.holders[0].chain)
    assert bound


def test_another_threads_variable_is_named_with_its_thread() -> None:
    """The chain begins with the thread whose running function has the variable."""
    ready, done = threading.Event(), threading.Event()
    shown: list[Any] = []

    def work() -> None:
        mine = [Thing()]
        shown.append(mine[0])
        ready.set()
        done.wait()

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    ready.wait()
    try:
        answer = memguard.why_alive(shown.pop())
    finally:
        done.set()
        thread.join()

    assert len(answer.holders) == 1
    holder = answer.holders[0]
    assert holder.name == "mine"
    assert holder.chain[0] == "thread loader"


def test_a_cycle_is_told_as_one() -> None:
    """An object that only refers to itself is not given a holder, and what frees it is said."""
    answer = memguard.why_alive(_cycle())

    assert answer.holders == ()
    assert answer.kept[0].cycles == (
        ("itself: Part", ".parts: list", "[...]: Thing", ".whole: Part"),
    )
    told = str(answer)
    assert told.startswith("memguard: nothing but a reference cycle keeps this Part alive")
    assert "it waits for a collection" in told


def _cycle() -> Any:
    whole: Any = Part()
    part: Any = Thing()
    whole.parts = [part]
    part.whole = whole
    return whole


@pytest.mark.parametrize("with_dict", [False, True])
def test_an_object_that_refers_to_itself_is_a_cycle(with_dict: bool) -> None:
    """The shortest cycle there is, with and without a dict for the attributes."""
    thing: Any = Thing()
    thing.me = thing
    things = [thing]  # noqa: F841
    if with_dict:
        assert vars(thing)  # from now on there is a dict, which refers to the object as well

    [kept] = memguard.why_alive(thing).kept

    assert kept.cycles == (("itself: Thing", ".me: Thing"),)
    assert [holder.name for holder in kept.holders] == ["things", "thing"]


def test_parts_are_no_holders_where_there_are_others() -> None:
    """A cycle beside a true holder does not count among the references to cut."""
    box = Box()
    box.put(_cycle())

    answer = memguard.why_alive(box.content[0])

    assert names(answer) == ["box.content, attribute of Box"]
    assert len(answer.kept[0].cycles) == 1
    assert str(answer).startswith("memguard: 1 reference keeps this Part alive")


def test_further_references_get_a_line_each() -> None:
    """Beyond the limit they are named, beyond some more they are counted; none is lost."""
    thing = Thing()
    boxes = [Box() for _ in range(9)]
    for index, box in enumerate(boxes):
        box.put(thing)
        globals()[f"box{index}"] = box
    boxes.clear()
    del box
    try:
        answer = memguard.why_alive(thing, limit=2)
    finally:
        for index in range(9):
            del globals()[f"box{index}"]

    kept = answer.kept[0]
    assert names(answer) == ["box0.content, attribute of Box", "box1.content, attribute of Box"]
    assert kept.also[0] == "box2.content, attribute of Box"
    assert len(kept.also) == 5
    assert kept.others == 10 - 2 - 5
    assert str(answer).startswith("memguard: 10 references keep this Thing alive")
    assert "box2.content, attribute of Box" in str(answer)
    assert str(answer).endswith("and 3 more references")


def test_a_crowd_of_references_is_counted() -> None:
    """Of a hundred thousand, some are followed and the others counted, in less than seconds."""
    thing = Thing()
    crowd = [(thing,) for _ in range(100_000)]

    answer = memguard.why_alive(thing)

    assert answer.holders[0].name == "crowd"
    assert answer.kept[0].others > 99_000
    assert crowd


def test_of_a_crowd_only_some_are_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that know their parent are a crowd; the variable that stands in it is not lost."""
    parent: Any = Thing()
    parent.children = []
    for _ in range(30_000):
        child: Any = Thing()
        child.parent = parent
        parent.children.append(child)
    del child
    globals()["crowded"] = parent
    looked: list[int] = []
    real = Search.is_root

    def counted(search: Any, item: Any) -> bool:
        looked.append(id(item))
        return real(search, item)

    monkeypatch.setattr(Search, "is_root", counted)
    monkeypatch.setattr(holders, "MAX_REFERRERS", 100)
    monkeypatch.setattr(holders, "MAX_BELOW", 100)
    boxes = [parent]
    del parent
    try:
        (kept,) = memguard.why_alive(boxes[0]).kept
    finally:
        del globals()["crowded"]

    assert kept.holders[0].name == "crowded"
    assert kept.others > 29_000
    # The search itself has a budget of its own, in objects and in seconds.
    assert len(looked) < 25_000


def test_a_near_root_costs_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six references lie between variable and object; the heap is not gone through for each."""
    outer: Any = Thing()
    outer.a = Thing()
    outer.a.b = Thing()
    outer.a.b.c = {"things": [Thing()]}
    passes: list[int] = []
    real = gc.get_referrers

    def counted(*targets: Any) -> list[Any]:
        passes.append(len(targets))
        return real(*targets)

    monkeypatch.setattr(gc, "get_referrers", counted)

    answer = memguard.why_alive(outer.a.b.c["things"][0])

    assert answer.holders[0].name == "outer.a.b.c"
    assert answer.holders[0].chain[-2:] == ("['things']: list", "[...]: Thing")
    assert len(passes) <= 2


def test_a_root_that_is_far_is_found_all_the_same() -> None:
    """What the way down does not reach is found on the way up."""
    crowd = [Thing() for _ in range(50_000)]
    last: Any = crowd[-1]
    last.inner = Thing()
    last.inner.things = [Thing()]

    answer = memguard.why_alive(last.inner.things[0])
    del last
    crowded = memguard.why_alive(crowd[-1].inner.things[0])  # type: ignore[attr-defined]

    assert answer.holders[0].name == "last.inner.things"
    assert crowded.holders[0].chain[-5:] == (
        "local crowd: list",
        "[...]: Thing",
        ".inner: Thing",
        ".things: list",
        "[...]: Thing",
    )


# --- wrong use ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "obj is None, which Python makes once"),
        ((True,), "obj is True"),
        ((7,), "obj is 7"),
        ((int,), "the collector keeps no list of int objects"),
        ((Thing, 0), "limit is 0; accepted: a whole number, 1 or more"),
        ((Thing, True), "limit is True"),
        ((Thing, "3"), "limit is '3'"),
    ],
)
def test_wrong_use_is_one_clear_error(arguments: tuple[Any, ...], message: str) -> None:
    """What was asked, with what, what was found and what is accepted."""
    with pytest.raises(memguard.UsageError, match=r"^why_alive: ") as caught:
        memguard.why_alive(*arguments)

    assert message in str(caught.value)
    assert "accepted: " in str(caught.value)
    assert "\n" not in str(caught.value)
