"""Asking runs nothing foreign, keeps nothing, and answers the same each time."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Python
from things import Box, Part, Thing, names

import memguard
from memguard.records import Holder

RAN: list[str] = []


def _tell(name: str) -> Any:
    """A function that notes that it ran, and fails."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        RAN.append(name)
        raise AssertionError(f"{name} was run")

    return run


_SPECIAL = [
    *("__eq__", "__hash__", "__repr__", "__str__", "__len__", "__bool__", "__iter__"),
    *("__contains__", "__getitem__", "__call__", "__getattr__", "__getattribute__"),
    *("__instancecheck__", "__subclasscheck__", "__mro_entries__"),
]
_ASKED = ("__module__", "__name__", "__dict__", "__mro__", "__class__")


def hostile_class() -> Any:
    """A class that notes and refuses whatever it or one of its instances is asked.

    Made anew for each test: what collects the tests asks every class of a module.
    """
    of_class = {name: _tell(f"class {name}") for name in _SPECIAL}
    of_class |= {name: property(_tell(f"class {name}")) for name in _ASKED}
    of_class["mro"] = type.mro
    meta = type("Meta", (type,), of_class)
    of_instance = {name: _tell(name) for name in _SPECIAL}
    of_instance["__class__"] = property(_tell("__class__"))
    return type.__new__(meta, "Hostile", (), of_instance)


class HostileDict(dict):  # type: ignore[type-arg]
    """A dict that notes and refuses whatever it is asked."""


# Its `[...]` is what functions read their globals by.
for _name in (*_SPECIAL, "items", "keys", "values", "get", "copy", "__missing__"):
    if _name != "__getitem__":
        setattr(HostileDict, _name, _tell(f"dict {_name}"))


@pytest.fixture
def nothing_ran() -> Iterator[None]:
    """Nothing that is hostile was run, nor that was swallowed."""
    RAN.clear()
    yield
    assert RAN == []


@pytest.mark.usefixtures("nothing_ran")
def test_foreign_code_is_never_run() -> None:
    """Neither of the object asked about nor of those on the way to it, nor of their classes."""
    hostile: Any = object.__new__(hostile_class())
    object.__setattr__(hostile, "payload", Thing())
    box = [hostile]

    below = memguard.why_alive(object.__getattribute__(hostile, "payload"))
    itself = memguard.why_alive(box[0])

    assert below.holders[0].name in ("hostile.payload", "box[...].payload")
    assert [holder.name for holder in itself.holders] == ["box", "hostile"]
    # memguard's own functions, to which the question hands it, are not the user's statements.
    assert itself.holders[0].code == "box = [hostile]"


@pytest.mark.usefixtures("nothing_ran")
def test_instances_of_a_class_are_found_without_asking_it() -> None:
    """The class itself is asked for nothing either."""
    cls = hostile_class()
    kept = [object.__new__(cls)]

    answer = memguard.why_alive(cls)

    assert (answer.subject, answer.living) == ("Hostile", 1)
    assert names(answer)[0].startswith("kept, local of")
    assert len(kept) == 1


@pytest.mark.usefixtures("nothing_ran")
def test_a_dict_of_ones_own_as_attributes_is_not_asked() -> None:
    """An instance's `__dict__` may be of a class that defines what it likes."""
    thing: Any = Thing()
    box: Any = Part()
    values = HostileDict()
    dict.__setitem__(values, "content", thing)
    box.__dict__ = values
    del values

    assert "box.content, attribute of Part" in names(memguard.why_alive(thing))


@pytest.mark.usefixtures("nothing_ran")
def test_values_of_a_class_are_not_compared() -> None:
    """Whoever looks for methods among a class's values must not ask what they equal."""
    cls: Any = type("Holder", (), {"value": object.__new__(hostile_class()), "__slots__": ("it",)})
    holder = cls()
    holder.it = thing = Thing()

    assert "holder.it, attribute of Holder" in names(memguard.why_alive(thing))


@pytest.mark.usefixtures("nothing_ran")
def test_globals_and_defaults_of_ones_own_are_not_asked() -> None:
    """What code runs in, and what functions were given, may be dicts of any class as well."""
    variables: Any = HostileDict()
    told: list[str] = []
    for name, value in {
        "__builtins__": __builtins__,
        "ask": lambda thing: told.extend(names(memguard.why_alive(thing))),
        "Thing": Thing,
        "__name__": object.__new__(hostile_class()),
        "__file__": object.__new__(hostile_class()),
    }.items():
        dict.__setitem__(variables, name, value)
    thing = Thing()

    def keeps(*, it: Any = thing) -> Any:
        return it

    defaults = HostileDict()
    dict.__setitem__(defaults, "it", thing)
    keeps.__kwdefaults__ = defaults
    keeps.__module__ = object.__new__(hostile_class())
    del defaults

    exec(compile("def run(thing): ask(thing)", __file__, "exec"), {}, variables)
    run: Any = dict.__getitem__(variables, "run")
    run = type(run)(run.__code__, variables)
    run(thing)

    assert told[0].startswith("it, default argument of ")


def test_nothing_is_kept_by_the_answer() -> None:
    """The object dies with its last reference, also if that is a function's variable."""
    box = Box()
    box.put(Thing())
    thing = box.content[0]
    alive = weakref.ref(thing)

    answers = [memguard.why_alive(thing), memguard.why_alive(Thing)]
    box.content.clear()
    del thing

    assert alive() is None
    assert str(answers[0])


def test_the_same_question_has_the_same_answer() -> None:
    """Nothing in the text depends on addresses or on what was asked before."""
    box = Box()
    box.put(Thing())

    answers = {str(memguard.why_alive(box.content[0])) for _ in range(3)}

    assert len(answers) == 1


def test_what_libraries_keep_comes_last() -> None:
    """The user's own variables are what can be changed."""
    thing = Thing()
    json._kept = [thing]  # type: ignore[attr-defined]
    box = Box()
    box.put(thing)
    try:
        told = names(memguard.why_alive(thing))
    finally:
        del json._kept  # type: ignore[attr-defined]

    assert told[0] == "box.content, attribute of Box"
    assert told[-1] == "json._kept, global of json"


def test_the_records_are_plain_data() -> None:
    """They go through JSON, and the holders are those of a report."""
    thing = Thing()

    answer = memguard.why_alive(thing)
    plain = json.loads(json.dumps(answer.to_dict()))

    assert plain["subject"] == "Thing"
    assert plain["living"] is None
    assert plain["kept"][0]["holders"][0]["name"] == "thing"
    assert isinstance(answer.holders[0], Holder)


def test_at_a_prompt_the_text_is_shown(python: Python) -> None:
    """The bare call prints the chains, the variable's own name among them."""
    lines = (
        "import memguard\nclass Thing: pass\n\nthings = [Thing()]\nmemguard.why_alive(things[0])\n"
    )

    ended = python("-i", "-q", stdin=lines)

    assert "memguard: 1 reference keeps this Thing alive" in ended.stdout
    assert "things (list), global of this script" in ended.stdout


def test_plain_objects_are_told_without_torch(python: Python) -> None:
    """A program without torch need not wait for it."""
    program = (
        "import memguard, sys\nclass Thing: pass\n\nthings = [Thing()]\n"
        "print(memguard.why_alive(things[0]).holders[0].name, 'torch' in sys.modules)"
    )

    ended = python("-c", program)

    assert ended.stdout.split() == ["things", "False"]
    assert ended.stderr == ""
