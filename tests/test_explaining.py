"""How explaining behaves: it keeps nothing, runs nothing of the user's, and says what it lacks."""

from __future__ import annotations

import gc
import runpy
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import PRELUDE, Run

from memguard import Report, investigation, watching
from memguard.case_words import Case
from memguard.explain import descent, graph, search
from memguard.explain.accumulation import Question
from memguard.explain.explain import explain
from memguard.figures import Figures
from memguard.investigation import Investigator
from memguard.sensors.canaries import Canaries
from memguard.sensors.census import Census
from memguard.settings import Settings

# name of the case: (loop that leaks, lines that let go of what it kept)
KEPT: dict[str, tuple[str, str]] = {
    "list of a running function": (
        """
        def work():
            losses = []
            for _ in range(20):
                losses.append(train_step(model, optimizer))
            assert guard.report().findings
            losses.clear()
            check()
        work()
        """,
        "",
    ),
    "running sum of a function that has returned": (
        """
        def work():
            total = 0.0
            for _ in range(20):
                total += train_step(model, optimizer)
            return total.item()
        work()
        """,
        "",
    ),
    "attribute": (
        """
        class Meter:
            def __init__(self):
                self.values = []
        meter = Meter()
        for _ in range(20):
            meter.values.append(train_step(model, optimizer))
        """,
        "del meter",
    ),
    "closure": (
        """
        def make():
            seen = []
            return seen.append
        keep = make()
        for _ in range(20):
            keep(train_step(model, optimizer))
        """,
        "del keep",
    ),
    "generator": (
        """
        def keep():
            seen = []
            while True:
                seen.append((yield))
        sink = keep()
        next(sink)
        for _ in range(20):
            sink.send(train_step(model, optimizer))
        """,
        "del sink",
    ),
    "frames of kept exceptions": (
        """
        errors = []
        def fail():
            loss = train_step(model, optimizer)
            raise ValueError
        for _ in range(20):
            try:
                fail()
            except ValueError as error:
                errors.append(error)
        """,
        "errors.clear()",
    ),
    "comprehension": (
        """
        losses = [train_step(model, optimizer) for _ in range(20)]
        """,
        "del losses",
    ),
    "array of objects": (
        """
        import numpy
        kept = numpy.empty(20, dtype=object)
        for step in range(20):
            kept[step] = train_step(model, optimizer)
        """,
        "del kept",
    ),
    "hooks": (
        """
        handles = []
        def make(loss):
            return lambda *args: loss and None
        for _ in range(20):
            loss = train_step(model, optimizer)
            handles.append(model.register_forward_hook(make(loss)))
        """,
        "del loss\nfor handle in handles: handle.remove()",
    ),
    "context variable": (
        """
        import contextvars
        LOSSES = contextvars.ContextVar("losses")
        def work():
            LOSSES.set([])
            for _ in range(20):
                LOSSES.get().append(train_step(model, optimizer))
        contextvars.copy_context().run(work)
        """,
        "",
    ),
}

CHECK = """
import gc
gc.collect()
gc.disable()
def attached():
    tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor]
    return [t for t in tensors if t.grad_fn is not None and id(t) not in before]
before = {}
before = {id(t) for t in attached()}  # what other tests' programs have left in C++ for good
def check():
    assert not attached(), attached()
guard = memguard.watch(model, optimizer, action="warn")
"""


def run_with_warnings(folder: Path, source: str) -> dict[str, Any]:
    """The variables of a program that memguard only warned."""
    file = folder / "train.py"
    file.write_text(PRELUDE + source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return runpy.run_path(str(file), run_name="__main__")
    finally:
        gc.enable()
        for guard in list(watching._guards.values()):
            guard.close()


@pytest.mark.parametrize("case", KEPT)
def test_nothing_is_kept_alive(case: str, tmp_path: Path) -> None:
    """After a warning the holder's end is the end of all it kept, without any collection."""
    loop, ending = KEPT[case]
    told = "\nassert guard.report().findings\n"
    source = CHECK + textwrap.dedent(loop) + told + ending + "\ncheck()\n"
    run_with_warnings(tmp_path, source)


AWKWARD = """
class Hostile(Exception):
    pass

def refuse(*args, **kwargs):
    raise Hostile("nobody may run this")

class Meta(type):
    armed = False
    def __getattribute__(cls, name):
        if type.__getattribute__(Meta, "armed"):
            refuse()
        return type.__getattribute__(cls, name)
    __instancecheck__ = __subclasscheck__ = __eq__ = __repr__ = __call__ = refuse
    __hash__ = type.__hash__
    def __call__(cls, *args):
        return type.__call__(cls, *args)

class Awkward(metaclass=Meta):
    __eq__ = __repr__ = __str__ = __bool__ = __len__ = __iter__ = __getattr__ = refuse
    __hash__ = object.__hash__
    @property
    def __class__(self):
        refuse()

class Keeper(Awkward):
    def __init__(self):
        self.kept = []
        self.more = Awkward()

class Slotted(Awkward):
    __slots__ = ("kept", "unset")

"""


@pytest.mark.parametrize("making", ["Keeper()", "Slotted()"])
def test_no_code_of_the_users_is_run(making: str, tmp_path: Path) -> None:
    """Objects and classes that raise whatever is asked of them are looked at all the same."""
    program = f"""
keeper = {making}
object.__setattr__(keeper, "kept", rows := [])
del rows
rows = object.__getattribute__(keeper, "kept")
add = rows.append
del rows
Meta.armed = True
for _ in range(40):
    add((Awkward, train_step(model, optimizer)))
"""
    run = Run(tmp_path, AWKWARD + program)
    assert run.stopped
    assert not run.report.failures
    assert [holder.name for holder in run.report.findings[0].holders] == ["keeper.kept"]


def test_keys_that_refuse_to_be_compared(tmp_path: Path) -> None:
    """A dict's keys are told by identity."""
    program = """
cache = {}
for _ in range(40):
    cache[Awkward()] = train_step(model, optimizer)
"""
    run = Run(tmp_path, AWKWARD + program)
    assert run.stopped
    assert not run.report.failures
    assert run.report.findings[0].holders[0].name == "cache"


def test_several_holders_are_named(tmp_path: Path) -> None:
    """Survivors shared out among three lists: each list is named, at its own line."""
    run = Run(
        tmp_path,
        """
        class Log:
            def __init__(self):
                self.first, self.second, self.third = [], [], []
        log = Log()
        for step in range(60):
            loss = train_step(model, optimizer)
            if step % 3 == 0:
                log.first.append(loss)  # grows
            elif step % 3 == 1:
                log.second.append(loss)  # grows
            else:
                log.third.append(loss)  # grows
        """,
    )
    holders = run.report.findings[0].holders
    assert sorted(holder.name for holder in holders) == ["log.first", "log.second", "log.third"]
    assert sorted(holder.line or 0 for holder in holders) == run.marked


def test_all_who_hold_the_same_survivors_are_named(tmp_path: Path) -> None:
    """As long as one of them is left, the survivors are; each is said to hold all of them."""
    loop = """
    rows, table = [], {}
    for step in range(40):
        loss = train_step(model, optimizer)
        rows.append(loss)
        table[step] = loss
    """
    [finding] = Run(tmp_path, loop).report.findings
    assert sorted(holder.name for holder in finding.holders) == ["rows", "table"]
    assert len({holder.survivors for holder in finding.holders}) == 1


def test_a_memory_that_was_met_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn from it each step is no holder, and no further pass over the heap is made."""
    deeper: list[int] = []
    monkeypatch.setattr(search.Search, "deepen", lambda self, *keys: deeper.append(1))
    memory: list[Any] = []
    for step in range(8):
        memory.append(torch.zeros(4))
        batch = list(memory)
        survivors = {birth: [one] for birth, one in enumerate(memory)}
        if step == 7:
            question = Question("tensor", 12, range(8), lambda node: -1, 2, survivors=survivors)
            found = explain(question)
    assert [one.place.name for one in found.located] == ["memory"]
    assert not deeper
    assert len(batch) == 8


@pytest.mark.parametrize("first", [True, False])
def test_a_way_into_the_past_is_found_beside_a_wide_present(first: bool) -> None:
    """In whatever order a node names its branches: the budget goes to the oldest nodes."""
    weight = torch.ones((), requires_grad=True)
    past = weight * 2
    began = past.grad_fn._sequence_nr()
    branch = past * 3
    wide = branch.detach().requires_grad_()
    for _ in range(2 * graph.MAX_NODES):
        wide = wide + 1
    carrier = wide + branch if first else branch + wide

    found = graph.carriers([carrier], lambda node: int(node._sequence_nr() > began), newest_old=0)

    assert [tensor is carrier for tensor in found.young] == [True]


def test_survivors_are_counted_once_each(tmp_path: Path) -> None:
    """Of holders that share them out none is said to hold the others'."""
    loop = """
    north, east, south, west = [], [], [], []
    for step in range(80):
        [north, east, south, west][step % 4].append(train_step(model, optimizer))
    """
    watch = "guard = memguard.watch(model, optimizer, ignore=['north', 'east', 'south'])\n"
    [finding] = Run(tmp_path, loop, watch=watch).report.findings
    [holder] = finding.holders
    assert holder.name == "west"
    assert holder.survivors <= finding.growth.total.graphs / 2


def test_the_same_bug_reads_the_same(tmp_path: Path) -> None:
    """Two runs give the same holders, chains and words."""
    source = """
        class Trainer:
            def __init__(self):
                self.losses, self.outputs = [], {}
            def fit(self):
                for step in range(40):
                    loss = train_step(model, optimizer)
                    self.losses.append(loss)
                    self.outputs[step] = loss
        Trainer().fit()
        """
    first, second = (Run(tmp_path, source).report.findings[0] for _ in range(2))
    assert (first.holders, first.advice) == (second.holders, second.advice)


def test_nodes_are_dated_by_no_case_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps under suspicion are known better than those near them, as long as they are."""
    node = torch.ones(1, requires_grad=True).exp().grad_fn
    canaries, census, figures = Canaries(2), Census(2, lambda: False), Figures(Settings())
    steps: list[Any] = []
    monkeypatch.setattr(investigation, "explain", lambda asked: steps.append(asked.step_of(node)))
    investigator = Investigator(
        canaries, census, figures, lambda number: 5, lambda number: 9, list, 2
    )
    with pytest.raises(AttributeError):  # there is no explanation
        investigator.investigate(Case("graph", 9, (2, 4, 6), ""))
    steps.append(investigator.date(node))
    assert steps == [6, 5]


LEAK = """
        losses = []
        for _ in range(40):
            losses.append(train_step(model, optimizer))
        """


def unheld(report: Report) -> str:
    from memguard.report import words

    return words.unheld(report, report.findings[0]) or ""


def test_a_failed_explanation_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said of C++ when it is only that explaining failed."""

    def fail(*args: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Investigator, "investigate", fail)
    report = Run(tmp_path, LEAK).report
    assert report.failures
    assert report.findings
    assert "explaining failed" in unheld(report)
    assert "C++" not in unheld(report) + report.findings[0].advice


def test_the_search_ends_at_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too few objects to look at, nobody is named, and why is admitted."""
    monkeypatch.setattr(search, "MAX_OBJECTS", 2)
    monkeypatch.setattr(descent, "MAX_OBJECTS", 2)
    report = Run(tmp_path, LEAK).report
    assert report.findings
    assert not report.failures
    assert not report.findings[0].holders
    assert "cut short" in unheld(report)


def test_what_only_cpp_holds_is_said_to_be_held_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any reference and without an API that would keep it, nobody is blamed."""
    # Others, which an earlier test may have left, might hold it.
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    run = Run(
        tmp_path,
        """
        futures = []
        for _ in range(40):
            future = torch.futures.Future()
            future.set_result(train_step(model, optimizer))
            futures.append(future)
        """,
    )
    finding = run.report.findings[0]
    assert not finding.holders
    assert not finding.unnamed
    assert "inside C++" in unheld(run.report)
