"""Devices' allocators by a recorded fake of their statistics: no device was at hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from memguard import _torch
from memguard.judge.reserved import RETRIES, Cache, fragmented
from memguard.sensors import devices
from memguard.sensors.allocator import Allocation, allocations

GIB = 1 << 30

# The part that is read of what `torch.cuda.memory_stats_as_nested_dict` gives, with its neighbours.
RECORDED: dict[str, Any] = {
    "allocated_bytes": {
        "all": {"current": 3 * GIB, "peak": 5 * GIB, "allocated": 90 * GIB, "freed": 87 * GIB},
        "large_pool": {"current": 3 * GIB, "peak": 5 * GIB, "allocated": 90 * GIB, "freed": 0},
    },
    "reserved_bytes": {"all": {"current": 9 * GIB, "peak": 9 * GIB}},
    "active_bytes": {"all": {"current": 4 * GIB, "peak": 6 * GIB}},
    "inactive_split_bytes": {"all": {"current": 2 * GIB, "peak": 2 * GIB}},
    "num_alloc_retries": 4,
    "num_ooms": 1,
}


class Device(SimpleNamespace):
    """A fake of `torch.cuda` or `torch.xpu` that knows no call which changes anything."""

    def __init__(self, **more: Any) -> None:
        super().__init__(
            is_initialized=lambda: True,
            device_count=lambda: 2,
            current_device=lambda: 0,
            memory_allocated=lambda index: 3 * GIB,
            memory_reserved=lambda index: 9 * GIB,
            get_device_properties=lambda index: SimpleNamespace(total_memory=16 * GIB),
            **more,
        )


def fake(monkeypatch: pytest.MonkeyPatch, family: str, device: Any) -> None:
    for torch in (devices.torch, _torch.torch):
        monkeypatch.setattr(torch, family, device)


def test_cuda_is_read_through_the_nested_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """All figures of each device in use come from one call that flattens nothing."""
    fake(monkeypatch, "cuda", Device(memory_stats_as_nested_dict=lambda index: RECORDED))
    told = allocations([devices.Cuda()])
    assert [one.device for one in told] == ["cuda:0", "cuda:1"]
    assert told[0] == Allocation(
        "cuda:0", 3 * GIB, 9 * GIB, 4 * GIB, 2 * GIB, 5 * GIB, 4, 1, 16 * GIB
    )


def test_the_share_of_a_device_is_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """`set_per_process_memory_fraction` ends the job before the device is full."""
    device = Device(
        memory_stats_as_nested_dict=lambda index: RECORDED,
        get_per_process_memory_fraction=lambda index: 0.25,
    )
    fake(monkeypatch, "cuda", device)
    assert devices.Cuda().limit() == 4 * GIB
    assert allocations([devices.Cuda()])[0].limit == 4 * GIB


def test_without_statistics_the_two_sums_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that lacks the nested call still tells what is allocated and reserved."""
    fake(monkeypatch, "cuda", Device())
    told = allocations([devices.Cuda()])[0]
    assert (told.allocated, told.reserved, told.retries) == (3 * GIB, 9 * GIB, 0)
    assert (told.peak, told.active) == (0, 3 * GIB)


def test_xpu_is_read_like_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intel's allocator has the same statistics where torch gives them."""
    fake(monkeypatch, "xpu", Device(memory_stats_as_nested_dict=lambda index: RECORDED))
    told = allocations([devices.Xpu()])
    assert told[1].device == "xpu:1"
    assert (told[1].allocated, told[1].retries, told[1].limit) == (3 * GIB, 4, 16 * GIB)


def test_mps_has_two_sums_and_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's allocator tells what tensors have, what the driver gave, and what is recommended."""
    device = SimpleNamespace(
        current_allocated_memory=lambda: GIB,
        driver_allocated_memory=lambda: 2 * GIB,
        recommended_max_memory=lambda: 8 * GIB,
    )
    fake(monkeypatch, "mps", device)
    told = allocations([devices.Mps()])[0]
    assert told == Allocation("mps:0", GIB, 2 * GIB, GIB, 0, 0, 0, 0, 8 * GIB)


CACHE = Cache(reserved=9 * GIB, peak=5 * GIB, retries=0, limit=16 * GIB)


def test_a_cache_that_was_in_use_is_healthy() -> None:
    """What is free when a step ends is taken again in the next one."""
    assert fragmented(Cache(reserved=9 * GIB, peak=8 * GIB, retries=0, limit=16 * GIB)) is None


def test_much_that_was_never_in_use_is_fragmentation() -> None:
    """A tenth of a device that is half reserved."""
    reason = fragmented(CACHE)
    assert reason is not None
    assert "4,096 MiB of 9,216 MiB reserved" in reason


def test_a_small_cache_does_not_matter() -> None:
    """While less than half of the device is reserved there is room for any block."""
    assert fragmented(Cache(reserved=7 * GIB, peak=1 * GIB, retries=0, limit=16 * GIB)) is None


@pytest.mark.parametrize(("retries", "speaks"), [(RETRIES - 1, False), (RETRIES, True)])
def test_retries_are_trouble(retries: int, speaks: bool) -> None:
    """Once or twice may be an accident."""
    told = fragmented(Cache(reserved=9 * GIB, peak=9 * GIB, retries=retries, limit=16 * GIB))
    assert (told is not None) is speaks


def test_an_unknown_peak_says_nothing() -> None:
    """MPS tells no peak: what is free between steps may be what the next step takes."""
    assert fragmented(Cache(reserved=12 * GIB, peak=0, retries=0, limit=16 * GIB)) is None


def test_an_unknown_limit_says_nothing() -> None:
    """Shares of an unknown whole are not judged."""
    assert fragmented(Cache(reserved=9 * GIB, peak=1 * GIB, retries=0, limit=0)) is None
