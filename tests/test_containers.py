"""Plain containers that grow between two looks, objects that become more, one longer tensor."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from memguard.explain import containers, lengthening, loaders
from memguard.explain.accumulation import Question
from memguard.explain.containers import Grown, grown_since, more_than, snapshot

MIB = 1 << 20

# Containers that only this module's variable leads to; some of them the collector does not know.
KEPT: dict[str, Any] = {}


def growth_of(container: Any, grow: Any) -> Grown:
    KEPT["it"] = container
    before = snapshot()
    for step in range(10):
        grow(container, step)
    return next(one for one in grown_since(before) if one.container is container)


def block(step: int) -> bytes:
    return bytes([step]) * MIB


@pytest.mark.parametrize(
    ("container", "grow"),
    [
        pytest.param([None] * 20, lambda c, i: c.append(block(i)), id="list"),
        pytest.param(
            dict.fromkeys(range(20), 0), lambda c, i: c.update({i + 99: block(i)}), id="dict"
        ),
        pytest.param(
            defaultdict(list, {k: [] for k in range(20)}),
            lambda c, i: c[i + 99].append(block(i)),
            id="defaultdict",
        ),
        pytest.param(
            OrderedDict.fromkeys(range(20)), lambda c, i: c.update({i + 99: block(i)}), id="ordered"
        ),
        pytest.param(deque(range(20)), lambda c, i: c.append(block(i)), id="deque"),
        pytest.param(set(range(20)), lambda c, i: c.add(block(i)), id="set"),
        pytest.param(bytearray(20), lambda c, i: c.extend(block(i)), id="bytearray"),
    ],
)
def test_a_container_that_grows_is_seen_with_its_size(container: Any, grow: Any) -> None:
    """Ten entries of a megabyte each, wherever they are put."""
    sampled = isinstance(container, (set, OrderedDict))  # no order tells which are new
    grown = growth_of(container, grow)
    assert grown.added == (10 * MIB if isinstance(container, bytearray) else 10)
    assert sampled or grown.bytes == pytest.approx(10 * MIB, rel=0.1)


class Record:
    """An entry that holds its payload in attributes."""

    def __init__(self, step: int) -> None:
        self.pixels = numpy.full(MIB, step, numpy.uint8)
        self.self = self

    def __sizeof__(self) -> int:
        raise AssertionError("memguard runs no code of the user's")


class Strange(list[Any]):
    """A list that answers for itself."""

    def __len__(self) -> int:
        raise AssertionError("memguard runs no code of the user's")


def test_the_size_of_an_entry_is_what_it_leads_to() -> None:
    """Attributes, arrays and cycles count once; tensors do not, as others explain them."""
    rows: list[Any] = [None] * 20
    grown = growth_of(rows, lambda c, i: c.append({"a": Record(i), "t": torch.ones(MIB)}))
    assert grown.bytes == pytest.approx(10 * MIB, rel=0.1)
    assert grown.entry == "dict"


def test_no_code_of_a_container_runs() -> None:
    """A subclass's own length is passed by."""
    grown = growth_of(Strange([None] * 20), lambda c, i: c.append(block(i)))
    assert grown.added == 10


def test_a_container_that_stays_is_not_grown() -> None:
    """A ring that is full has as many entries as before."""
    ring: deque[bytes] = deque((block(0) for _ in range(16)), maxlen=16)
    KEPT["it"] = ring
    before = snapshot()
    ring.append(block(1))
    assert not [one for one in grown_since(before) if one.container is ring]


def test_objects_that_become_more_are_counted_by_type() -> None:
    """Where no container explains it, the types say what grew; too few to matter are left out."""
    before = snapshot()
    KEPT["it"] = [Record.__new__(Record) for _ in range(2000)]
    assert ("Record", 2000) in more_than(before, gained=MIB)
    assert more_than(before, gained=1000 * MIB) == []


# --- one longer tensor ---


def test_a_longer_tensor_is_told_from_those_that_stay() -> None:
    """Its storage is the one that has no equal before, whatever else is as large."""
    others = [torch.zeros(1 << 18) for _ in range(3)]
    cache = torch.zeros(1 << 18)
    before = lengthening.storages("cpu")
    cache = torch.cat([cache, torch.zeros(1 << 16)])
    longer = lengthening.longer_than(before, "cpu")
    assert longer is not None
    assert longer.tensor is cache
    assert longer.gained == 4 << 16
    del others


def test_entries_of_a_sparse_tensor_count() -> None:
    """Its values and indices are what grows; its shape never changes."""
    indices = torch.arange(1 << 16)[None]
    shape = (1 << 30,)
    seen = torch.sparse_coo_tensor(indices, torch.ones(1 << 16), shape, check_invariants=False)
    before = lengthening.storages("cpu")
    seen = seen + torch.sparse_coo_tensor(
        indices + (1 << 16), torch.ones(1 << 16), shape, check_invariants=False
    )
    longer = lengthening.longer_than(before, "cpu")
    assert longer is not None
    assert longer.tensor is seen
    assert longer.gained == (8 + 4) << 16


def test_a_slice_counts_with_all_it_was_cut_from() -> None:
    """Storages are compared, not elements."""
    before = lengthening.storages("cpu")
    row = torch.zeros(1 << 10, 1 << 8)[0]
    assert lengthening.storages("cpu").total - before.total == 4 << 18
    del row


# --- who started the workers ---


class Images(Dataset[Any]):
    """A dataset that puts away what it has decoded."""

    def __init__(self) -> None:
        self.names = [f"{n}.png" for n in range(100)]
        self.decoded: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.decoded:
            self.decoded[index] = self.names[index]  # grows
        return self.decoded[index]

    def __len__(self) -> int:
        return len(self.names)


def test_what_a_dataset_puts_away_is_named_then_its_loader() -> None:
    """The attribute to which the dataset's own code adds, and the variable the loader is in."""
    loader = DataLoader(Images(), num_workers=2)
    question = Question("worker", 9, range(9), lambda number: -1, 0)
    found = loaders.locate_loaders(question, [1, 2])
    named = [(one.place.name, one.place.owner or "") for one in found]
    assert ("decoded", "Images") in named
    assert ("loader", "") in named
    assert ("names", "Images") not in named
    first = found[0].statement
    assert first is not None
    assert first.code.startswith("self.decoded[index] =")
    assert found[0].finite  # an entry for each sample, of which the dataset says how many
    assert len(loader) == 100


def finite_in(epochs: int | None) -> bool:
    """Whether what `Images` puts away is taken to end in a loop of that many epochs."""
    loader: Any = DataLoader(Images(), batch_size=50)
    loader.num_workers = 2  # as far as the search knows; nothing is started
    question = Question("worker", 9, range(9), lambda number: -1, 0)

    def ask() -> bool:
        return loaders.locate_loaders(question, [1, 2])[0].finite

    batches = [0, 1]
    if epochs is None:
        for _ in enumerate(batches):
            found = ask()
        return found
    for _ in range(epochs):
        for _ in batches:
            found = ask()
    return found


def test_a_cache_by_index_ends_where_samples_come_again() -> None:
    """In a program that reads each sample once it only grows, and nobody is served by it."""
    assert finite_in(3)
    assert not finite_in(None)


def endless(batches: Any) -> Any:
    """Goes round for ever."""
    while True:
        yield from batches


def as_given(batches: Any) -> Any:
    """Returns what it was given."""
    return batches


def drawn(stream: Any, ask: Any) -> bool:
    """The same question, of what it is given."""
    for _, _ in zip(stream, range(2), strict=False):
        found: bool = ask()
    return found


def test_what_goes_round_for_ever_reads_no_sample_once() -> None:
    """Whatever it was called, and whoever was given it; a function that returns a loader may."""
    loader: Any = DataLoader(Images(), batch_size=50)
    loader.num_workers = 2
    question = Question("worker", 9, range(9), lambda number: -1, 0)

    def ask() -> bool:
        return loaders.locate_loaders(question, [1, 2])[0].finite

    batches = [0, 1]
    stream = endless(batches)
    for _ in stream:
        found = ask()
        break
    assert found
    assert drawn(endless(batches), ask)
    same = as_given(batches)
    for _ in same:
        found = ask()
    assert not found


def test_without_a_loader_nobody_is_named() -> None:
    """Loaders without workers have no child."""
    loader = DataLoader(Images(), num_workers=0)
    question = Question("worker", 9, range(9), lambda number: -1, 0)
    assert loaders.locate_loaders(question, [1]) == []
    assert len(loader) == 100


def test_looking_keeps_nothing() -> None:
    """A snapshot has numbers only."""
    shot = containers.snapshot()
    flat = [*shot.lengths, *shot.counts, *shot.counts.values()]
    assert {type(one) for one in flat} == {int}
