"""Sensors: who is alive, seen without keeping anything alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from faults import collecting
from torch import nn

from memguard.clock.beats import Clock
from memguard.sensors import canaries as canary
from memguard.sensors import devices, marks
from memguard.sensors.audit import Audit, below, outermost
from memguard.sensors.canaries import Canaries, attached_outputs
from memguard.sensors.census import Census
from memguard.sensors.dated import Dating, steps_reached
from memguard.sensors.governor import FREE_STEPS, Governor
from memguard.sensors.marks import Cohorts, Mark


class Thing:
    """Something that can be marked."""


class Quarrelsome:
    """Something whose comparison and hash must never be asked for."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def __hash__(self) -> int:
        raise AssertionError("hashed")


def always() -> bool:
    """A budget that allows everything."""
    return True


# --- marks ---


def test_a_step_is_alive_while_one_of_its_things_is() -> None:
    """Births are the steps with survivors; the dead are told once, with their age."""
    cohorts, kept = Cohorts(window=2), Thing()
    cohorts.add(0, kept)
    cohorts.add(0, Thing())
    cohorts.add(1, Thing())
    assert cohorts.survey(5) == ([0], [4])
    assert cohorts.survey(6) == ([0], [])
    del kept
    assert cohorts.survey(7) == ([], [7])


def test_marks_hold_nothing() -> None:
    """A marked thing dies when its last user lets go."""
    cohorts, thing = Cohorts(2), Thing()
    alive = weakref.ref(thing)
    cohorts.add(0, thing)
    del thing
    assert alive() is None
    assert len(cohorts) == 0


def test_marks_never_compare_what_they_mark() -> None:
    """Two things with quarrelsome equality live in one step."""
    cohorts, things = Cohorts(2), [Quarrelsome(), Quarrelsome()]
    for thing in things:
        cohorts.add(0, thing)
    assert len(cohorts.living(0)) == 2


def test_a_step_has_a_limited_number_of_marks() -> None:
    """Beyond the limit things are counted only, and each mark stands for more of them."""
    cohorts, things = Cohorts(2), [Thing() for _ in range(2 * marks.MAX_MARKS)]
    for thing in things:
        if cohorts.admits(0):
            cohorts.add(0, thing)
    assert len(cohorts) == marks.MAX_MARKS
    assert cohorts.scale(0) == 2.0


def test_the_number_of_remembered_steps_is_bounded() -> None:
    """A leak that is only warned about may run for ever: old steps are thinned out."""
    cohorts, things = Cohorts(2), []
    for step in range(5 * marks.MAX_STEPS):
        things.append(Thing())
        cohorts.add(step, things[-1])
        cohorts.survey(step + 1)
    assert len(cohorts.births()) <= marks.MAX_STEPS + 1


def test_a_mark_has_its_label() -> None:
    """Labels of the living can be asked for."""
    cohorts, thing = Cohorts(2), Thing()
    cohorts.add(3, thing, "4:blocks.1")
    assert cohorts.labels(3) == ["4:blocks.1"]
    assert Mark(thing, print).label == ""


# --- canaries ---


def test_a_canary_dies_with_its_graph() -> None:
    """It lives while anything downstream of its node does, and no longer."""
    found, weight = Canaries(2), torch.ones(3, requires_grad=True)
    output = weight * 2
    found.place(0, [output])
    loss = (output * 3).sum()
    del output
    assert found.survey(5)[0] == [0]
    del loss
    assert found.survey(6) == ([], [6])


def test_a_node_has_one_canary() -> None:
    """Two modules may return the same tensor; the first label stays."""
    found, output = Canaries(2), torch.ones(3, requires_grad=True) * 2
    found.place(0, [output], "1:inner")
    found.place(0, [output], "2:outer")
    assert found.cohorts.labels(0) == ["1:inner"]


def test_canaries_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep chain must not be touched for ever: at the limit no more nodes are."""
    monkeypatch.setattr(canary, "MAX_TOUCHED", 10)
    found, total = Canaries(2), torch.ones((), requires_grad=True)
    for step in range(50):
        total = total + 1
        found.place(step, [total])
    assert len(found.cohorts) == 10
    assert found.full
    del total
    found.survey(60)
    assert not found.full


def test_the_deepest_survivor_is_the_module_called_last() -> None:
    """Call order decides, not the length of the path."""
    found, weight = Canaries(2), torch.ones(3, requires_grad=True)
    first, second = weight * 2, weight * 3
    found.place(0, [first], "9:a.very.deep.path")
    found.place(0, [second], "10:head")
    assert found.deepest(0) == "10:head"


def test_outputs_are_found_in_what_models_return() -> None:
    """Tuples, dicts, dataclasses and distributions are looked through; plain tensors are not."""
    one, two = (torch.ones(1, requires_grad=True) * n for n in (2, 3))
    wrapped = {"a": [one, torch.ones(1)], "b": (two, "text", None)}
    assert [id(t) for t in attached_outputs(wrapped)] == [id(one), id(two)]
    normal = torch.distributions.Normal(one, two.exp())
    assert any(t is one for t in attached_outputs(normal)) or list(attached_outputs(normal))
    assert list(attached_outputs("nothing")) == []


def test_a_huge_output_is_looked_through_in_part() -> None:
    """A list of a million numbers costs no more than its first entries."""
    values: list[Any] = [0] * 1_000_000
    values.append(torch.ones(1, requires_grad=True) * 2)
    assert list(attached_outputs(values)) == []


# --- census ---


@pytest.fixture
def census() -> Any:
    """A census that listens to the collector."""
    gc.collect()
    found = Census(2, always)
    found.install()
    yield found
    found.remove()


def test_the_census_sees_each_new_tensor_once(census: Census) -> None:
    """Plain tensors by the step of their birth, attached ones apart."""
    kept = [torch.ones(3) for _ in range(5)]
    attached = torch.ones(3, requires_grad=True) * 2
    census.look(0)
    census.look(1)
    assert len(census.plain.living(0)) == 6  # the leaf of `attached` is a plain one
    assert census.plain.births() == [0]
    assert [id(t) for t in census.take_fresh()] == [id(attached)]
    assert census.take_fresh() == []
    kept.clear()


def test_the_census_sees_what_the_collector_moves_on(census: Census) -> None:
    """Tensors that a collection promotes within a step belong to that step."""
    census.begin(7)
    kept = [torch.ones(3) for _ in range(3)]
    gc.collect()
    census.look(8)
    assert len(census.plain.living(7)) == 3
    del kept


def test_the_census_misses_none_in_a_thousand(census: Census) -> None:
    """With the collector running as it likes, every tensor is met."""
    kept: list[torch.Tensor] = []
    junk: list[Any] = []
    for step in range(50):
        census.begin(step)
        for _ in range(20):
            kept.append(torch.ones(1))
            junk.append([{} for _ in range(20)])
        census.look(step)
    met = sum(len(census.plain.living(step)) for step in range(50))
    assert met == len(kept)


@pytest.mark.parametrize("before", [False, True])
def test_a_collection_in_the_midst_of_a_census_hides_nothing(
    census: Census, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """A look makes objects, too; its own may set it off, and any other thread's."""
    monkeypatch.setattr("memguard.sensors.census.newest", collecting(before))
    census.begin(4)
    kept = [torch.ones(2) for _ in range(3)]
    census.look(3)

    assert sorted(map(id, census.plain.living(3))) == sorted(map(id, kept))


def test_a_census_waits_only_once_for_a_collection_that_is_near(
    census: Census, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small steps may be near one for long, and what waits is dated late."""
    monkeypatch.setattr("memguard.sensors.census.is_collection_near", lambda: True)
    kept = []
    for step in range(6):
        census.begin(step + 1)
        kept.append(torch.ones(2))
        census.look(step)

    assert len(census.plain.births()) == 3
    assert sum(len(census.plain.living(step)) for step in range(6)) == len(kept)


def test_the_census_holds_nothing(census: Census) -> None:
    """A tensor that was met dies at once."""
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    census.look(0)
    del tensor
    assert alive() is None


def test_unjudged_tensors_are_known_only(census: Census) -> None:
    """What was there before, or was born in a pause, never counts."""
    kept = torch.ones(3)
    census.look(0, judged=False)
    census.look(1)
    assert census.plain.births() == []
    del kept


def test_a_census_that_fails_in_the_collector_falls_silent(
    census: Census, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An exception in a collector's callback would be printed to the user's stderr."""

    def fail(step: int, judged: bool = True) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Census, "look", fail)
    gc.collect()
    assert capfd.readouterr().err == ""


def test_foreign_attributes_are_not_read(census: Census) -> None:
    """Objects that lie about their class are not asked."""

    class Liar:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise AssertionError("asked")

    kept = [Liar()]
    census.look(0)
    assert len(kept) == 1


# --- audits and dated looks ---


def test_an_audit_labels_inner_outputs() -> None:
    """A stashed intermediate result betrays its module."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    found = Canaries(2)
    audit = Audit(found, lambda step, label: None)
    audit.begin([model], 0)
    stashed = model[0](torch.ones(1, 2))
    model[2](stashed).sum()
    audit.end()
    assert [label.partition(":")[2] for label in found.cohorts.labels(0)] == ["0"]
    assert all(not module._forward_hooks for module in model)
    assert stashed.requires_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_audits_leave_scripted_modules_alone() -> None:
    """TorchScript's hooks are compiled: such modules and what is below are passed over."""
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    model = nn.Sequential(scripted, nn.ReLU())
    assert [path for path, _ in below([model])] == ["1"]


def test_what_the_loop_calls_itself_is_outermost() -> None:
    """Of a container that is never called, the called children are the roots."""
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2)), "b": nn.Linear(2, 2)})
    called = {id(model["a"]), id(model["a"][0])}
    assert [reference() for reference in outermost(called, [model])] == [model["a"]]


def test_a_dated_look_finds_how_far_back_a_chain_reaches() -> None:
    """Nodes are dated by number; the look ends at the first one that is old enough."""
    chain = torch.ones((), requires_grad=True)
    numbers = []
    for _ in range(6):
        chain = chain * 2
        numbers.append(chain.grad_fn._sequence_nr())  # type: ignore[union-attr]

    def step_of(number: int) -> int:
        return sum(1 for n in numbers if n <= number) - 1

    assert steps_reached([chain], step_of, 0)[0] == (0, 1, 2, 3, 4, 5)
    assert steps_reached([chain], step_of, 3)[0] == (2, 3, 4, 5)
    assert steps_reached([torch.ones(1)], step_of, 0) == ((), 0)


def test_a_graph_of_a_step_that_was_only_counted_is_dated_as_a_whole() -> None:
    """Between two numbers that are known: a graph across the edge is of one, others are not."""
    clock = Clock()
    leaf = torch.ones((), requires_grad=True)
    first = (leaf * 2).grad_fn._sequence_nr()  # type: ignore[union-attr]
    clock.note_sequence(first)
    nodes: list[Any] = []
    for _ in range(2):
        node: Any = (leaf * 2 * 2 * 2).grad_fn
        upstream = node.next_functions[0][0]
        nodes[:0] = [node, upstream, upstream.next_functions[0][0]]
    clock.step = 4
    clock.note_sequence(first + 12)  # three numbers a step, so that each graph lies across two
    dating = Dating(clock.step_of, clock.nodes_a_step)
    assert [clock.step_of(node._sequence_nr()) for node in nodes] == [2, 1, 1, 1, 0, 0]
    assert [dating.step_of(node._sequence_nr(), node) for node in nodes] == [2, 2, 2, 1, 1, 1]
    assert clock.nodes_a_step(first + 12) == clock.nodes_a_step(first - 1) == 0


# --- the governor ---


class Seconds:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_steps_are_free() -> None:
    """Until the free steps have ended everything is allowed."""
    governor = Governor(0.01, Seconds())
    governor.charge(100.0)
    for _ in range(FREE_STEPS):
        governor.end_step()
        assert governor.allows(1e9)


def test_then_watching_stays_within_its_share() -> None:
    """Below, at and above one percent of the time that has passed."""
    seconds = Seconds()
    governor = Governor(0.01, seconds)
    governor.charge(5.0)
    for _ in range(FREE_STEPS + 1):
        governor.end_step()
    assert not governor.allows(0.001)
    seconds.now += 100.0
    assert governor.allows(1.0)
    assert not governor.allows(1.01)
    governor.charge(1.0)
    assert not governor.allows(0.001)


def test_explanations_do_not_count_against_watching() -> None:
    """A finding explained for a second is no reason to look away afterwards."""
    seconds = Seconds()
    governor = Governor(0.01, seconds)
    for _ in range(FREE_STEPS + 1):
        governor.end_step()
    governor.charge(0.0, explaining=2.0)
    seconds.now += 1.0
    assert governor.allows(0.005)
    assert governor.spent == 2.0


def test_the_step_time_is_a_mean() -> None:
    """Building the model before the first step does not count."""
    seconds = Seconds()
    governor = Governor(0.01, seconds)
    seconds.now = 50.0
    governor.end_step()
    for _ in range(4):
        seconds.now += 0.5
        governor.end_step()
    assert governor.seconds_per_step == 0.5


def test_idleness_earns_nothing() -> None:
    """A prompt that waits for an hour pays for no looks, and makes no step a slow one."""
    seconds = Seconds()
    governor = Governor(0.01, seconds)
    for _ in range(FREE_STEPS + 10):
        seconds.now += 0.5
        governor.end_step()
    assert not governor.allows(1.0)
    usual = governor.usual_seconds_per_step
    seconds.now += 3600.0
    governor.end_step()
    assert governor.usual_seconds_per_step == usual == 0.5
    assert not governor.allows(1.0)


def test_an_explanation_is_no_part_of_the_step_time() -> None:
    """It takes many times what a small step does, and a forecast would be that much too late."""
    seconds = Seconds()
    governor = Governor(0.01, seconds)
    governor.end_step()
    seconds.now += 2.0
    governor.charge(0.0, explaining=2.0)
    for _ in range(4):
        seconds.now += 0.5
        governor.end_step()
    assert governor.seconds_per_step == 0.5


# --- figures ---


def test_a_cpu_run_uses_no_backend() -> None:
    """Without a device there is nothing to read."""
    if not torch.cuda.is_available():
        assert devices.used_backends() == []
