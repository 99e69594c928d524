"""Levels of memory under watch: what is told of them, and what is not; with a clock of our own."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from series import HEALTHY, MIB, Curve

from memguard import memory, memory_cases
from memguard.explain import containers, filling, lengthening
from memguard.explain.accumulation import Located
from memguard.explain.advice import Advice
from memguard.explain.places import Place
from memguard.judge.reserved import RETRIES
from memguard.memory import LEAST_GAP, MOST_GAP, Memory
from memguard.records import Finding
from memguard.sensors.allocator import Allocation
from memguard.sensors.host import InUse
from memguard.settings import Settings

LIMIT = 4096 * MIB
WORTH = 32 * MIB  # with a `max_growth` of four times that
STEP = 0.05


# A heap in which nothing grows, for tests of other things: looking into a real one takes a while.
NOTHING = SimpleNamespace(
    snapshot=containers.Snapshot,
    grown_since=lambda before: [],
    more_than=lambda before, gained: [],
    is_any_more=lambda before, fewest: True,
    storages=lambda device: lengthening.Storages(0, 0),
)


class FakeCases:
    """What the conductor knows of survivors, and what it is told."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self.explaining = 0.0
        self.in_doubt = False
        self.told = 0.0
        self.on_collect: Callable[[], bool] = lambda: True

    def add(self, finding: Finding) -> None:
        self.found.append(finding)

    def told_per_step(self, device: str, but: set[str]) -> float:
        return self.told

    def collect(self) -> bool:
        return self.on_collect()


class Loop:
    """A loop of which only the levels are real to `Memory`: all are curves.

    Attributes:
        now: the step that ended last.
        reads: how often the process was read.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, curve: Curve = lambda step: 500) -> None:
        self.curve = curve
        self.children: Callable[[int], dict[int, int]] = lambda step: {}
        self.devices: Callable[[int], list[Allocation]] = lambda step: []
        self.now, self.reads, self.seconds = 0, 0, 0.0
        self.training = True
        self.cases = FakeCases()
        host = SimpleNamespace(private=self._private, read=self._read)
        children = SimpleNamespace(private=self._children, find_all=lambda: None)
        for module in (memory, memory_cases):
            monkeypatch.setattr(module, "Host", lambda: host)
        monkeypatch.setattr(memory_cases, "trim", lambda: True)
        monkeypatch.setattr(memory, "Children", lambda: children)
        monkeypatch.setattr(memory, "used_backends", list)
        monkeypatch.setattr(memory, "allocations", lambda backends: self.devices(self.now))
        figures = SimpleNamespace(
            limit=lambda device: LIMIT,
            max_growth=lambda device: 4 * WORTH,
            used=self._used,
        )
        self.census = SimpleNamespace(collected_at=-1)
        module = SimpleNamespace(training=True)
        sources = SimpleNamespace(roots=lambda: [module])
        monkeypatch.setattr(memory.discovery, "is_training", lambda root: self.training)
        monkeypatch.setattr(memory_cases, "containers", NOTHING)
        monkeypatch.setattr(memory_cases, "lengthening", NOTHING)
        monkeypatch.setattr(memory_cases, "filling", SimpleNamespace(untouched=dict))
        parts: list[Any] = [Settings(), sources, self.census, figures, self.cases]
        self.memory = Memory(*parts, clock=lambda: self.seconds)

    def _private(self) -> int:
        self.reads += 1
        return int(self.curve(self.now) * MIB)

    def _read(self) -> InUse:
        size = self._private()
        return InUse(size, size, size)

    def _used(self, device: str) -> int:
        return int(self.curve(self.now) * MIB)

    def _children(self) -> dict[int, int]:
        return {pid: size * MIB for pid, size in self.children(self.now).items()}

    def run(self, steps: int, every: int = 4) -> list[Finding]:
        """So many steps more, of which some are looked at; all findings until then."""
        for _ in range(steps):
            self.now += 1
            self.seconds += STEP
            if self.now <= 16 or self.now % every == 0:
                self.memory.look(self.now)
        return self.cases.found


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


@pytest.fixture
def heap(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heap that is looked into is the real one."""
    monkeypatch.setattr(memory_cases, "containers", containers)
    monkeypatch.setattr(memory_cases, "lengthening", lengthening)


def line(per_step: float) -> Curve:
    return lambda step: 500 + per_step * step


def test_growth_outside_python_is_a_warning_that_says_so(loop: Loop) -> None:
    """Nothing in Python has grown: the process is told, with its forecast and no holder."""
    loop.curve = line(1.0)
    found = loop.run(80)[0]
    assert (found.kind, found.severity, found.holders) == ("host", "warning", ())
    assert found.growth.per_step.bytes == pytest.approx(MIB, rel=0.1)
    assert "outside Python" in found.unnamed
    assert "native" in found.advice
    assert found.forecast is not None
    left = (LIMIT / MIB - loop.curve(found.step)) / 1.0
    assert found.forecast.steps == pytest.approx(left, rel=0.1)
    assert found.forecast.seconds == pytest.approx(left * STEP, rel=0.1)


def test_growth_that_nobody_is_known_to_keep_stays_a_warning(loop: Loop) -> None:
    """It may be a buffer that fills: however much gathers, the job goes on."""
    loop.curve = line(1.0)
    assert {finding.severity for finding in loop.run(600)} == {"warning"}


def test_past_max_growth_it_is_a_leak(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was a warning becomes a leak as soon as enough has gathered, and not before."""
    loop.curve = line(1.0)
    trail = [b""] * 8
    grown_by = containers.Grown(trail, 12, 12 * MIB, "bytes")
    heap = SimpleNamespace(**{**vars(NOTHING), "grown_since": lambda before: [grown_by]})
    monkeypatch.setattr(memory_cases, "containers", heap)
    found = loop.run(400)
    grown = {finding.step: finding.growth.total.bytes for finding in found}
    assert (found[0].severity, found[-1].severity) == ("warning", "leak")
    first = next(f for f in found if f.severity == "leak")
    assert 4 * WORTH <= grown[first.step] <= 1.1 * 4 * WORTH


def test_near_the_limit_it_is_a_leak(loop: Loop) -> None:
    """Growth that fills the memory within a few steps is a leak whatever its size."""
    loop.curve = lambda step: 4096 - 70 + 1.5 * step
    assert loop.run(44)[-1].severity == "leak"


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_levels_are_silent(loop: Loop, name: str) -> None:
    """No healthy curve of the process is told."""
    loop.curve = HEALTHY[name]
    assert loop.run(1500) == []


@pytest.mark.parametrize("leaks", [False, True])
def test_epochs_that_get_longer_are_no_growth(loop: Loop, leaks: bool) -> None:
    """What an epoch gathers and lets go is known from the one before; what stays is told."""
    floor = 500.0
    for epoch in range(5):
        begun, steps = loop.now, 20 << epoch
        for training in (True, False):
            loop.training = training
            gathered = floor
            loop.curve = lambda step, begun=begun, at=gathered: at + 1.0 * (step - begun)
            loop.run(steps if training else 24)
        floor += leaks * steps
    assert bool(loop.cases.found) is leaks


def test_a_list_that_grows_with_the_process_is_named(loop: Loop, heap: None) -> None:
    """The container that explains the growth is the holder, with the statement that feeds it."""
    trail: list[bytes] = []

    def curve(step: int) -> float:
        return 500 + 1.0 * step

    loop.curve = curve
    for step in range(80):
        trail.append(bytes([step % 256]) * MIB)  # grows
        loop.run(1)
    [holder] = loop.cases.found[0].holders
    assert (holder.name, holder.type) == ("trail", "list")
    assert "trail.append" in str(holder.code)
    assert "entries of type bytes" in loop.cases.found[0].reason


def test_a_limit_in_entries_is_not_taken_for_steps(loop: Loop, heap: None) -> None:
    """A deque that takes ten entries a step is weighed by its entries, and fits."""
    replay: deque[bytes] = deque(maxlen=20_000)  # 2 GB at the most; as steps they would be 20
    loop.curve = line(1.0)
    for step in range(80):
        for number in range(10):
            replay.append(bytes([step % 256, number]) * (MIB // 20))
        loop.run(1)
    assert loop.cases.found == []


def test_what_survivors_explain_is_not_told_again(loop: Loop) -> None:
    """Growth that a finding about graphs or tensors accounts for is that finding's."""
    loop.curve = line(1.0)
    loop.cases.told = 0.8 * MIB
    assert loop.run(200) == []


def test_nothing_is_said_while_graphs_are_in_doubt(loop: Loop) -> None:
    """Whoever counts survivors goes first."""
    loop.curve = line(1.0)
    loop.cases.in_doubt = True
    assert loop.run(200) == []


@pytest.mark.parametrize("automatic", [True, False])
def test_what_a_collection_frees(loop: Loop, automatic: bool) -> None:
    """With the collector at work it is nothing; with it off it is told with the way out."""
    freed = [0.0]
    loop.curve = lambda step: 500 + 1.0 * step - freed[0]

    def collect() -> bool:
        freed[0] = 1.0 * loop.now
        return True

    loop.cases.on_collect = collect
    was = gc.isenabled()
    (gc.enable if automatic else gc.disable)()
    try:
        found = loop.run(60)
    finally:
        (gc.enable if was else gc.disable)()
    assert bool(found) is not automatic
    assert automatic or "gc.collect()" in found[0].advice


def test_growth_waits_for_the_collector_while_there_is_room(loop: Loop) -> None:
    """When the guard's one collection is spent the collector's own decides, or `max_growth`."""
    loop.curve = line(1.0)
    loop.cases.on_collect = lambda: False
    assert loop.run(100) == []
    assert loop.run(100)[0].severity == "warning"


def test_no_collection_is_spent_where_no_objects_gather(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cycles are objects: where there are no more of them than before it cannot be cycles."""
    few = SimpleNamespace(**{**vars(NOTHING), "is_any_more": lambda before, fewest: False})
    monkeypatch.setattr(memory_cases, "containers", few)
    collections: list[int] = []
    loop.cases.on_collect = lambda: bool(collections.append(loop.now)) or True
    loop.curve = line(1.0)
    assert loop.run(100)[0].severity == "warning"
    assert collections == []


def test_a_buffer_that_fills_is_silent_and_looked_into_seldom(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of a large array come as they are written: nothing new is kept, nothing is trimmed."""
    monkeypatch.setattr(memory_cases, "filling", filling)
    trims: list[int] = []
    monkeypatch.setattr(memory_cases, "trim", lambda: trims.append(loop.now))
    buffer = numpy.empty((256, 1 << 18), dtype=numpy.float32)  # 256 MiB
    loop.curve = line(1.0)
    for row in range(256):
        buffer[row] = row
        loop.run(1)
    assert loop.cases.found == []
    assert trims == []


def test_growth_beside_a_buffer_that_does_not_fill_is_told(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room in a buffer explains nothing by itself."""
    monkeypatch.setattr(memory_cases, "filling", filling)
    buffer = torch.empty(256, 1 << 18)
    loop.curve = line(1.0)
    assert loop.run(120)[0].kind == "host"
    assert buffer.shape[0] == 256


def test_looks_that_come_to_nothing_become_rarer(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fruitless look doubles the growth that the next one waits for."""
    looks: list[int] = []
    counted = SimpleNamespace(
        **{**vars(NOTHING), "snapshot": lambda: looks.append(loop.now) or containers.Snapshot()}
    )
    monkeypatch.setattr(memory_cases, "containers", counted)
    loop.curve = line(1.0)
    loop.cases.on_collect = lambda: False  # so that cycles are waited for
    monkeypatch.setattr(gc, "isenabled", lambda: True)
    monkeypatch.setattr(memory_cases.MemoryCases, "_tell", lambda *told: False)
    loop.run(2_000)
    assert 2 <= len(looks) <= 9


def test_growth_that_a_collection_did_not_free_is_told(loop: Loop) -> None:
    """The collector has been since it began, so it is no cycles."""
    loop.curve = line(1.0)
    loop.cases.on_collect = lambda: False
    loop.census.collected_at = 30
    assert loop.run(100)[0].severity == "warning"


def test_what_is_taken_in_a_pause_does_not_count(loop: Loop) -> None:
    """The level goes on from where it was, however much a pause has added."""
    paused: list[int] = []
    loop.curve = lambda step: 500 + 40 * len(paused)
    for _ in range(40):
        loop.run(4)
        loop.memory.pause()
        paused.append(loop.now)
        loop.memory.resume()
    assert loop.cases.found == []


def test_pauses_within_one_another_shift_once(loop: Loop) -> None:
    """What the inner pause has added is part of what the outer one has."""
    paused: list[int] = []
    loop.curve = lambda step: 500 + 40 * len(paused)
    loop.run(16)
    loop.memory.pause()
    loop.memory.pause()
    paused.append(loop.now)
    loop.memory.resume()
    paused.append(loop.now)
    loop.memory.resume()
    assert {one.bytes for one in loop.memory._host.level.readings} == {580 * MIB}


def test_readings_are_rare(loop: Loop) -> None:
    """In an hour of fast steps the process is read some hundred times, never every step."""
    monotone = 0.0
    for step in range(72_000):
        monotone += STEP
        loop.now, loop.seconds = step, monotone
        loop.memory.look(step)
    assert loop.reads < 3600 / MOST_GAP + 2_000
    assert LEAST_GAP < MOST_GAP


def test_what_was_read_is_handed_on(loop: Loop) -> None:
    """One reading serves the judge and the post-mortem; where it is not time there is none."""
    card = allocation()
    loop.devices = lambda step: [card]
    loop.now = 20
    seen = loop.memory.look(20)
    assert seen is not None
    assert (seen.host.resident, seen.devices) == (500 * MIB, (card,))
    assert loop.reads == 1
    assert loop.memory.look(21) is None


# --- children ---


def test_children_that_grow_are_told(loop: Loop) -> None:
    """Workers are judged together, by what they grow in all."""
    loop.children = lambda step: {7: int(300 + step), 8: int(300 + step)}
    found = loop.run(60)[0]
    assert (found.kind, found.severity) == ("worker", "warning")
    assert found.growth.per_step.bytes == pytest.approx(2 * MIB, rel=0.1)
    assert found.summary.startswith("2 child processes grow by")
    assert "num_workers" in found.advice


@pytest.mark.parametrize("finite", [False, True])
def test_a_cache_by_index_is_silent_and_one_that_only_grows_a_leak(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, finite: bool
) -> None:
    """The one is full when the first epoch is over; the other is told as `max_growth` is passed."""
    place = Place("attribute", "decoded", "self.decoded", "dict")
    cache = Located(place, None, Advice("", "", "", ""), (), "dict", finite=finite)
    monkeypatch.setattr(memory_cases, "locate_loaders", lambda question, pids: [cache])
    loop.children = lambda step: {7: 300 + (min(step, 400) if finite else step)}
    leaks = [found for found in loop.run(800) if finite or found.severity == "leak"]
    assert [found.growth.total.bytes < 6 * WORTH for found in leaks[:1]] == [True] * (not finite)


@pytest.mark.parametrize(
    "children",
    [
        pytest.param(lambda step: {step // 40: 300 + step % 40}, id="new workers each epoch"),
        pytest.param(lambda step: dict.fromkeys(range(1 + step // 30), 300), id="more workers"),
        pytest.param(lambda step: {1: 300, 100 + step: 50 + step % 7}, id="short commands"),
        pytest.param(lambda step: {1: 300 + min(step, 10) * 3}, id="a prefetch that fills"),
        pytest.param(lambda step: {1: 300} if step < 90 else {}, id="workers that end"),
    ],
)
def test_healthy_children_are_silent(loop: Loop, children: Callable[[int], dict[int, int]]) -> None:
    """Children that come and go are no growth of those that stay."""
    loop.children = children
    assert loop.run(400) == []


# --- devices ---


def allocation(**more: int) -> Allocation:
    return Allocation("cuda:0", 1 << 30, 2 << 30, peak=1 << 30, limit=8 << 30, **more)


def test_a_cache_that_keeps_being_given_back_is_told_once(loop: Loop) -> None:
    """Retries after the warm-up are a warning about fragmentation, told once a device."""
    loop.devices = lambda step: [allocation(retries=5 + max(0, step - 20) // 10)]
    found = loop.run(100)
    assert [(f.kind, f.severity) for f in found] == [("reserved", "warning")]
    assert found[0].step >= 20 + 10 * RETRIES
    assert "expandable_segments" in found[0].advice
    assert "cuda:0" in found[0].summary


@pytest.mark.parametrize(("inactive", "little"), [(512 * MIB, True), (500 * MIB, False)])
def test_what_emptying_gives_back_is_told(loop: Loop, inactive: int, little: bool) -> None:
    """Free parts of blocks that are in use cannot be given back."""
    loop.devices = lambda step: [allocation(retries=step, inactive=inactive)]
    found = loop.run(100)[0]
    assert f"{inactive // MIB} MiB are free parts of blocks that are in use" in found.reason
    assert ("empty_cache() gives back little" in found.advice) is little


def test_retries_of_the_warm_up_do_not_count(loop: Loop) -> None:
    """While the cache takes its shape it may be given back."""
    loop.devices = lambda step: [allocation(retries=min(step, 10))]
    assert loop.run(100) == []


def test_a_peak_that_somebody_resets_makes_no_fragmentation(loop: Loop) -> None:
    """Other monitors reset peaks; what was in use before was in use."""
    full = Allocation("cuda:0", 1 << 30, 7 << 30, peak=7 << 30, limit=8 << 30)
    reset = Allocation("cuda:0", 1 << 30, 7 << 30, peak=1 << 30, limit=8 << 30)
    loop.devices = lambda step: [full if step < 10 else reset]
    assert loop.run(100) == []


def test_a_sparse_buffer_is_not_to_be_cut(
    loop: Loop, heap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Momentum of sparse gradients gains entries: what is advised can be done."""
    monkeypatch.setattr(memory_cases, "_named", lambda device: device)
    table = torch.nn.Embedding(1 << 15, 64, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
    size = 0

    def read(step: int) -> list[Allocation]:
        return [Allocation("cpu", size, 1 << 40, limit=1 << 50, peak=1 << 40)]

    loop.devices = read
    for _ in range(60):
        optimizer.zero_grad()
        table(torch.randint(0, 1 << 15, (4096,))).sum().backward()
        optimizer.step()
        size = optimizer.state[table.weight]["momentum_buffer"]._values().numel() * 4
        if loop.run(1):
            break
    holder = loop.cases.found[0].holders[0]
    assert holder.fix is None
    assert "SparseAdam" in str(holder.alternative)
    assert "coalesce()" in str(holder.alternative)


def test_a_tensor_that_gets_longer_is_named(
    loop: Loop, heap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tensor, never two: its storage is what has grown, and its variable is told."""
    monkeypatch.setattr(memory_cases, "_named", lambda device: device)
    cache = torch.zeros(1, 1 << 18)
    loop.devices = lambda step: [
        Allocation("cpu", cache.untyped_storage().nbytes(), 1 << 40, limit=1 << 50, peak=1 << 40)
    ]
    for _ in range(60):
        cache = torch.cat([cache, torch.ones(1, 1 << 18)])  # grows
        loop.run(1)
    found = loop.cases.found[0]
    assert (found.kind, found.summary) == ("tensor", "one tensor gets longer, by 1 MiB each step")
    assert found.holders[0].name == "cache"
    assert "torch.cat" in str(found.holders[0].code)
    assert found.forecast is not None
    assert found.forecast.device == "cpu"


def test_a_level_climbs_where_it_only_rises_and_that_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then it is read more often; a slow rise, a jump and a level do not hurry anybody."""
    curves: dict[Curve, bool] = {
        lambda step: 500 + step: True,
        lambda step: 500 + step / 1000: False,
        lambda step: 900 if step > 180 else 500: False,
        lambda step: 500: False,
    }
    for curve, climbs in curves.items():
        loop = Loop(monkeypatch, curve)
        assert not loop.memory.climbs
        climbing = False
        for _ in range(20):
            loop.run(10)
            climbing = climbing or loop.memory.climbs
        assert climbing == climbs


def test_a_first_reading_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks whether memory climbs has an answer all the same."""
    loop = Loop(monkeypatch)
    monkeypatch.setattr(loop.memory._reads, "read", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        loop.memory.look(1)
    assert not loop.memory.climbs
