"""What was born since some moment and is alive, and whether runs leave something each time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from faults import collecting

from memguard._heap import objects_of
from memguard.judge.repeats import grows
from memguard.sensors.births import MOST_CARRIERS, Births, alive
from memguard.testing.runs import Runs


@pytest.fixture
def births() -> Iterator[Births]:
    """A sensor at work."""
    sensor = Births()
    sensor.install()
    yield sensor
    sensor.remove()


def test_what_is_born_and_alive_is_met_once(births: Births) -> None:
    """Tensors, modules and optimizers; what was there before and what has died is not."""
    before = torch.ones(2)
    births.begin()
    model = torch.nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.ones(3)
    marks = births.end()
    after = torch.ones(2)

    assert {id(item) for item in alive(marks)} == {id(model), id(model.weight), id(optimizer)}
    assert before.sum() == after.sum()


def test_what_was_made_between_two_stretches_is_older(births: Births) -> None:
    """Also where no look came between it and the second beginning."""
    births.begin()
    births.end()
    between = torch.ones(2)
    births.begin()
    mine = torch.ones(2)
    marks = births.end()

    assert [id(item) for item in alive(marks)] == [id(mine)]
    assert id(between) in {id(item) for item in births.elders()}


def test_what_a_collection_moves_on_is_met_all_the_same(births: Births) -> None:
    """The collector's own start is a look."""
    births.begin()
    kept = torch.ones(2)
    gc.collect()
    marks = births.end()

    assert [id(item) for item in alive(marks)] == [id(kept)]


def test_instances_of_a_class_that_is_new_are_met(births: Births) -> None:
    """Before a collection and after."""
    births.begin()

    class Small(torch.nn.Module):
        pass

    first = Small()
    gc.collect()
    second = Small()
    marks = births.end()

    assert {id(item) for item in alive(marks)} == {id(first), id(second)}


def test_what_is_born_in_a_pause_is_older(births: Births) -> None:
    """It counts for nothing, and is one of the elders."""
    births.begin()
    births.pause()
    births.pause()
    theirs = torch.ones(2)
    births.resume()
    more = torch.ones(2)
    births.resume()
    mine = torch.ones(2)
    marks = births.end()

    assert [id(item) for item in alive(marks)] == [id(mine)]
    assert {id(theirs), id(more)} <= {id(item) for item in births.elders()}


def test_what_is_born_is_no_elder_though_those_are_looked_for_after_it(births: Births) -> None:
    """Neither what counts yet nor what a collection has moved on."""
    before = torch.ones(2)
    births.begin()
    first = torch.ones(2)
    gc.collect()
    second = torch.ones(2)
    births.end()
    elders = {id(item) for item in births.elders()}

    assert id(before) in elders
    assert not elders & {id(first), id(second)}


def test_the_heap_is_gone_through_once_and_only_for_graphs_and_survivors(
    births: Births, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suite that makes neither never pays for it."""
    passes: list[frozenset[int]] = []

    def counted(classes: frozenset[int]) -> list[object]:
        passes.append(classes)
        return objects_of(classes)

    monkeypatch.setattr("memguard.sensors.births.objects_of", counted)
    runs = Runs(births)
    for _ in range(3):
        runs.begin()
        torch.ones(2)
        assert not runs.end()
    assert not passes

    weight = torch.ones(2, requires_grad=True)
    kept = []
    for _ in range(3):
        runs.begin()
        kept.append((weight * 2).sum())
        assert runs.end()
    assert len(passes) == 1


def test_a_graph_from_before_is_not_taken_for_one_of_each_run(births: Births) -> None:
    """Another thread's nodes may have any number, also one that this thread has yet to reach."""
    made = []

    def features() -> None:
        weight = torch.ones(2, requires_grad=True)
        for _ in range(100 + births.since):  # more than this thread has made
            made[:] = [(weight * 2).sum()]

    births.begin()
    thread = threading.Thread(target=features)
    thread.start()
    thread.join()
    births.end()
    runs = Runs(births)
    for _ in range(2):
        runs.begin()
        (torch.ones(2, requires_grad=True) * 2).sum()
        runs.end()

    assert not runs.grow()


@pytest.mark.parametrize("is_judged", [False, True])
@pytest.mark.parametrize("is_surveyed", [False, True])
def test_what_one_run_has_left_may_be_given_graphs_by_the_next(
    births: Births, is_surveyed: bool, is_judged: bool
) -> None:
    """Whether or not the run was judged, and whatever has run before it."""
    weight = torch.ones(2, requires_grad=True)
    if is_surveyed:
        births.elders()
    runs = Runs(births)
    runs.begin()
    total = torch.zeros(())
    assert runs.end() if is_judged else not runs.abandon()
    runs.begin()
    total += (weight * 2).sum()

    assert runs.end()


def test_tensors_beyond_the_elders_may_be_given_graphs(
    births: Births, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many older objects there are."""
    monkeypatch.setattr("memguard.sensors.births.MOST_ELDERS", 3)
    total = torch.zeros(())

    assert any(tensor is total for tensor in births.carriers())


def test_a_look_that_fails_in_the_collector_is_told_by_the_next(births: Births) -> None:
    """Nothing may be raised there, and what was moved on is lost."""
    births.begin()
    births._metaclasses = None  # type: ignore[assignment]  # of this one alone: another judges us
    kept = torch.ones(2)
    gc.collect()

    with pytest.raises(TypeError, match="NoneType"):
        births.end()
    assert kept.sum() == 2


def test_a_graph_that_another_thread_gave_an_older_tensor_is_met(births: Births) -> None:
    """Though the thread of the test has made none, and nothing that was made is alive."""
    weight = torch.ones(2, requires_grad=True)
    total = torch.zeros(())
    runs = Runs(births)

    def apart(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def judged() -> None:  # in a thread, too, since each numbers its nodes from nought
        runs.begin()
        apart(lambda: total.add_((weight * 2).sum()))
        left.append(runs.end())

    left: list[bool] = []
    apart(judged)

    assert left == [True]


def test_the_newest_elders_are_asked_for_a_graph_given_in_place(births: Births) -> None:
    """However many tensors a long session has gathered before."""
    crowd = [torch.zeros(1) for _ in range(MOST_CARRIERS + 100)]
    total = torch.zeros(())
    births.begin()
    births.end()
    carriers = births.carriers()

    assert any(tensor is total for tensor in carriers)
    assert len(carriers) <= MOST_CARRIERS
    assert len(crowd) > MOST_CARRIERS


@pytest.mark.parametrize("before", [False, True])
def test_a_collection_in_the_midst_of_a_look_hides_nothing(
    births: Births, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """A look makes objects, too; its own may set it off, and any other thread's."""
    monkeypatch.setattr("memguard.sensors.births.newest", collecting(before))
    births.begin()

    class Small(torch.nn.Module):
        pass

    kept = [Small(), torch.ones(2)]
    marks = births.end()

    assert sorted(map(id, alive(marks))) == sorted(map(id, kept))


def test_nothing_is_held(births: Births) -> None:
    """The set shrinks as objects die."""
    births.begin()
    kept = torch.ones(2)
    marks = births.end()

    assert len(marks) == 1

    del kept

    assert not marks


@pytest.mark.parametrize(
    ("counts", "window", "expected"),
    [
        ((), 0, False),
        ((1,), 0, True),
        ((0,), 0, False),
        ((1, 1), 0, True),
        ((1, 0), 0, False),  # a cache that has been filled
        ((0, 1), 0, False),  # a variable that is overwritten
        ((0, 1), 1, False),
        ((1, 1, 0), 1, True),
        ((1,), 1, False),
    ],
)
def test_growth_is_something_of_every_run(
    counts: tuple[int, ...], window: int, expected: bool
) -> None:
    """What one run lacks is none."""
    assert grows(counts, window) is expected


def test_nodes_in_hand_are_met_once_and_watched_as_long_as_they_live(births: Births) -> None:
    """Only those made since: an older node that is looked at is none."""
    weight = torch.ones(2, requires_grad=True)
    before = (weight * 2).sum()
    births.begin()
    held = [(weight * 3).sum().grad_fn, before.grad_fn]
    gc.collect()
    births.end()
    nodes = births.nodes()

    assert [node is held[0] for node in births.nodes_of(nodes)] == [True]

    held.clear()

    assert not nodes
