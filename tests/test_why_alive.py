"""`memguard.why_alive`: chains to any object, asked at any moment."""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from conftest import Python

import memguard
from memguard.explain import holders
from memguard.explain.search import Search
from memguard.records import Holder


class Thing:
    """Something to be kept alive."""


class Part(Thing):
    """A special thing."""


class Box:
    """Something that keeps others."""

    shared: ClassVar[list[Any]] = []
    __slots__ = ("content", "slot")

    def __init__(self) -> None:
        self.content: list[Any] = []

    def put(self, thing: Any) -> None:
        self.content.append(thing)  # puts


CACHE: dict[str, Any] = {}


def line_of(mark: str) -> int:
    """The line of this file that ends in a comment with the mark."""
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def names(answer: memguard.WhyAlive) -> list[str]:
    return [f"{holder.name}, {holder.where}" for holder in answer.holders]


def test_a_list_of_an_object_is_named_with_its_line() -> None:
    """What a user would write, where it stands, the statement and the chain from a root."""
    box = Box()
    box.put(Thing())

    answer = memguard.why_alive(box.content[0])

    assert names(answer) == ["box.content, attribute of Box"]
    holder = answer.holders[0]
    assert (holder.file, holder.line) == (__file__, line_of("puts"))
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


# --- classes ---


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
    first = [Kind()]
    collect()
    middle = [Kind() for _ in range(9)]
    collect()
    last = [Special()]

    answer = memguard.why_alive(Kind, limit=3)

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


# --- torch ---


def test_a_graph_that_saves_a_tensor_is_named() -> None:
    """C++ holds the reference, so it is found from the tensor whose graph it is."""
    weight = torch.ones(3, requires_grad=True)
    loss = ((weight * 2) ** 2).sum()
    hidden = loss.grad_fn.next_functions[0][0]._raw_saved_self.data  # type: ignore[union-attr]

    answer = memguard.why_alive(hidden)

    assert answer.holders[0].name == "loss"
    assert answer.holders[0].chain[-1] == (
        ".grad_fn … PowBackward0 saves: Tensor float32 [3] MulBackward0"
    )


def test_a_large_graph_of_before_hides_no_newer_holder() -> None:
    """The newest graphs are looked through first, and it is said when the nodes ran out."""
    weight = torch.ones(4, requires_grad=True)
    large = torch.ones(4, requires_grad=True)
    for _ in range(1500):
        large = large * 1.0
    gc.collect()
    hidden = torch.ones(4)
    loss = (weight * hidden).sum()
    (kept,) = memguard.why_alive(hidden).kept

    assert [holder.name for holder in kept.holders] == ["loss", "hidden"]
    assert not kept.complete
    assert "the search ended at its budget" in str(memguard.why_alive(hidden))
    assert loss is not None
    assert large is not None


def test_a_node_is_found_in_its_graph() -> None:
    """A node has no referrer in Python, but the tensors whose graph it is in."""
    losses = [(torch.ones(3, requires_grad=True) * 2).sum()]

    answer = memguard.why_alive(losses[0].grad_fn.next_functions[0][0])  # type: ignore[union-attr]

    assert answer.kept[0].type == "MulBackward0"
    assert answer.holders[0].name == "losses[...]"
    assert answer.holders[0].chain[-1] == ".grad_fn …: MulBackward0"


def test_a_gradient_and_a_base_are_held_by_their_tensors() -> None:
    """`.grad` and `._base` are fields that the collector does not see."""
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(2)).sum().backward()
    row = torch.ones(3, 3)[0]

    gradient = memguard.why_alive(layer.weight.grad)
    base = memguard.why_alive(row._base)

    assert gradient.holders[0].name == "layer.weight.grad"
    assert base.holders[0].name == "row._base"


class Keeping(torch.autograd.Function):
    """Keeps a tensor of its own as an attribute of ctx."""

    last: Any = None

    @staticmethod
    def forward(ctx: Any, inputs: Any) -> Any:
        ctx.copy = inputs + 1
        Keeping.last = weakref.ref(ctx.copy)
        return inputs * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def test_an_attribute_of_ctx_leads_on_to_the_tensor() -> None:
    """The ctx is an autograd node; the chain goes on through the graph to a variable."""
    apply: Any = Keeping.apply
    losses = [apply(torch.ones(2, requires_grad=True)).sum()]

    answer = memguard.why_alive(Keeping.last())

    assert len(losses) == 1
    assert names(answer)[0] == "ctx.copy, ctx of Keeping"
    assert "local losses: list" in answer.holders[0].chain
    assert answer.holders[0].line is not None


UNUSUAL: dict[str, Callable[[], Any]] = {
    "Tensor float32 [2, *]": lambda: torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)]),
    "NestedTensor float32 [2, j": lambda: torch.nested.as_nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "Tensor float32 [3, 4]": lambda: torch.ones(3, 4).to_sparse(),
    "Tensor float32 [4, 4]": lambda: torch.eye(4).to_sparse_csr(),
    "Tensor float16 [0, 2]": lambda: torch.empty(0, 2, dtype=torch.float16, device="meta"),
    "UninitializedParameter float32 [": lambda: torch.nn.LazyLinear(2).weight,
    "Tensor float32 [2, *] MulBackward0": lambda: (
        torch.nested.as_nested_tensor([torch.ones(2, requires_grad=True), torch.ones(3)]) * 2
    ),
}


@pytest.mark.filterwarnings("ignore:.*nested:UserWarning", "ignore:.*Sparse:UserWarning")
@pytest.mark.parametrize("told", UNUSUAL)
def test_a_tensor_of_unusual_layout_is_told(told: str) -> None:
    """Some have no shape as a whole, and some refuse to be asked for it."""
    tensors = [UNUSUAL[told]()]

    answer = memguard.why_alive(tensors[0])

    assert answer.kept[0].type.startswith(told)
    assert answer.holders[0].name == "tensors"


def test_a_tensor_nobody_shows_says_where_it_may_be() -> None:
    """Where Python shows no holder of a tensor, C++ is named as the place that cannot be seen."""
    told = str(memguard.why_alive(torch.ones(2)))

    assert told.startswith("memguard: nothing that Python shows, beside this question, keeps")
    assert "may be held where nobody can look" in told


# --- manners ---


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


# --- pictures ---


def test_a_picture_as_text_needs_nothing(tmp_path: Path) -> None:
    """Graphviz's own language, what two chains have in common drawn once, quotes escaped."""
    box = {'"quoted"': [Thing()], "other": [Thing()]}

    memguard.why_alive(Thing).picture(tmp_path / "why.dot")

    drawn = (tmp_path / "why.dot").read_text()
    assert drawn.startswith("digraph memguard {")
    assert drawn.count('label="local box: dict"') == 1
    assert "['\\\"quoted\\\"']: list" in drawn
    assert box


def test_a_picture_without_graphviz_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what is missing and what to do, and leaves no file."""
    monkeypatch.setenv("PATH", str(tmp_path))
    thing = Thing()

    with pytest.raises(memguard.MemguardError, match="needs Graphviz") as caught:
        memguard.why_alive(thing).picture(tmp_path / "why.svg")

    assert "apt install graphviz" in str(caught.value)
    assert not (tmp_path / "why.svg").exists()


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_a_picture_is_drawn_by_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets the graph and the form; what it complains of is passed on."""
    program = tmp_path / "dot"
    program.write_text(
        f"#!{sys.executable}\nimport sys; open(sys.argv[3], 'w').write(sys.stdin.read())"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    thing = Thing()

    memguard.why_alive(thing).picture(tmp_path / "why.svg")
    program.write_text(f"#!{sys.executable}\nimport sys; sys.exit('out of ink')")

    assert (tmp_path / "why.svg").read_text().startswith("digraph")
    with pytest.raises(memguard.MemguardError, match="out of ink"):
        memguard.why_alive(thing).picture(tmp_path / "why.png")


def test_a_picture_of_no_known_form_is_refused(tmp_path: Path) -> None:
    """The message lists the endings there are."""
    with pytest.raises(memguard.UsageError, match=r"accepted: a name that ends in \.dot, \.gv"):
        memguard.why_alive(Thing()).picture(tmp_path / "why.bmp")
