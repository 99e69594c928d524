"""Accounts add up, on back-ends too that are not at hand, and the lever fits what they say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sample_reports

from memguard.bookkeeping import device_figures
from memguard.judge.accounts import HostFigures, draw_up
from memguard.judge.levers import advise
from memguard.judge.sharding import shard
from memguard.ledgers import Account, Holding, Ledger, Row, RowName
from memguard.report import ledger as telling
from memguard.report import page, text
from memguard.sensors import devices

MIB = 2**20

# What torch.cuda.memory_stats_as_nested_dict answers, cut to what is read.
CUDA_STATISTICS = {
    "allocated_bytes": {"all": {"current": 700 * MIB, "peak": 900 * MIB, "allocated": 9000 * MIB}},
    "reserved_bytes": {"all": {"current": 1000 * MIB, "peak": 1000 * MIB}},
    "inactive_split_bytes": {"all": {"current": 120 * MIB, "peak": 300 * MIB}},
    "num_alloc_retries": 3,
    "num_ooms": 0,
}


def cuda() -> Any:
    return SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        memory_stats_as_nested_dict=lambda index: CUDA_STATISTICS,
        get_device_properties=lambda index: SimpleNamespace(total_memory=2000 * MIB),
    )


def xpu() -> Any:
    return SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_allocated=lambda index: 700 * MIB,
        memory_reserved=lambda index: 1000 * MIB,
        get_device_properties=lambda index: SimpleNamespace(total_memory=2000 * MIB),
    )


def mps() -> Any:
    return SimpleNamespace(
        current_allocated_memory=lambda: 700 * MIB,
        driver_allocated_memory=lambda: 1000 * MIB,
        recommended_max_memory=lambda: 2000 * MIB,
    )


def holding(row: RowName, mib: int, device: str = "cuda:0", **more: Any) -> Holding:
    return Holding(row, "", device, "float32", mib * MIB, **more)


@pytest.mark.parametrize(
    ("backend", "fake", "device"),
    [
        (devices.Cuda, cuda, "cuda:0"),
        (devices.Xpu, xpu, "xpu:0"),
        (devices.Mps, mps, "mps:0"),
    ],
)
def test_a_devices_rows_add_up_to_what_its_allocator_reserved(
    backend: type[devices.Backend],
    fake: Any,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What no tensor explains and what is not given out are rows of their own."""
    monkeypatch.setattr(devices.torch, device.partition(":")[0], fake())
    figures = device_figures([backend()])
    held = [holding("parameters", 100, device), holding("activations", 590, device)]

    account = draw_up(held, {}, figures, HostFigures())[0]

    assert account.device == device
    assert [row.name for row in account.rows] == [
        *("parameters", "activations", "unexplained", "cache")
    ]
    assert account.bytes_of("unexplained") == 10 * MIB
    assert account.bytes_of("cache") == 300 * MIB
    assert sum(row.bytes for row in account.rows) == account.total == 1000 * MIB
    assert (account.allocated, account.limit) == (700 * MIB, 2000 * MIB)
    if device == "cuda:0":
        assert (account.peak, account.retries, account.inactive) == (900 * MIB, 3, 120 * MIB)
        assert "300 MiB  120 MiB in free parts of blocks that are in use" in str(Ledger((account,)))
        [lever] = [one for one in advise(Ledger((account,))) if one.name == "expandable segments"]
        assert "(120 MiB in free parts of blocks that are in use)" in lever.reason


def test_memory_that_is_not_the_allocators_is_shown_below_zero() -> None:
    """More tensors than the allocator has given out: the rows still add up."""
    figures = [{"name": "cuda:0", "allocated": 100, "reserved": 150}]
    found = Holding("other", "", "cuda:0", "uint8", 130)

    account = draw_up([found], {}, figures, HostFigures())[0]

    assert account.row("unexplained").bytes == -30
    assert sum(row.bytes for row in account.rows) == account.total == 150
    assert "tensors lie outside this allocator" in str(Ledger((account,)))


def test_states_on_the_host_count_there() -> None:
    """What is offloaded is the host's; page-locked and shared memory are beside the private."""
    held = [
        holding("parameters", 100),
        holding("optimizer", 200, "cpu", pinned=200 * MIB),
        holding("pinned", 50, "cpu", pinned=50 * MIB),
        holding("shared", 30, "cpu", shared=30 * MIB),
        holding("other", 7, "cpu"),
    ]
    host = HostFigures(500 * MIB, [("python 12", 90 * MIB), ("python 13", 110 * MIB)], 9000 * MIB)

    device, account = draw_up(held, {"current graph": 1000}, [], host)

    assert device.total == 100 * MIB
    assert account.bytes_of("optimizer") == account.row("optimizer").pinned == 200 * MIB
    assert account.bytes_of("unexplained") == 493 * MIB - account.bytes_of("nodes")
    assert account.bytes_of("children") == 200 * MIB
    assert [part.name for part in account.row("children").parts] == ["python 13", "python 12"]
    total = (500 + 200 + 50 + 30 + 200) * MIB
    assert sum(row.bytes for row in account.rows) == account.total == total


def test_devices_stand_in_the_order_of_their_memory() -> None:
    """The fullest first, the host last; data types and parts by size."""
    held = [
        Holding("parameters", "", "cuda:0", "float32", 10),
        Holding("parameters", "", "cuda:1", "bfloat16", 30),
        Holding("parameters", "", "cuda:1", "float32", 70),
        Holding("other", "cpu float32 [2]", "cpu", "float32", 8, count=2),
    ]

    accounts = draw_up(held, {}, [], HostFigures(), {"cpu float32 [2]": "kept, global"})

    assert [account.device for account in accounts] == ["cuda:1", "cuda:0", "cpu"]
    assert list(accounts[0].row("parameters").dtypes) == ["float32", "bfloat16"]
    [part] = accounts[2].row("other").parts
    assert (part.bytes, part.count, part.holder) == (8, 2, "kept, global")


# --- levers ---


def device(
    total: int, peak: int | None = None, retries: int = 0, name: str = "cuda:0", **rows: int
) -> Ledger:
    """A device with these rows, in MiB; what is left of the total is the allocator's cache."""
    free = 0 if name == "cpu" else total - sum(rows.values())
    named: Any = {**rows, "cache": free}
    found = tuple(
        Row(row, size * MIB, 4, {"float32": size * MIB}) for row, size in named.items() if size
    )
    allocated = None if name == "cpu" else (total - free) * MIB
    peak = None if peak is None else peak * MIB
    return Ledger((Account(name, found, total * MIB, allocated, peak, retries=retries),))


def names(ledger: Ledger, **more: Any) -> list[str]:
    return [lever.name for lever in advise(ledger, **more)]


def test_activations_ask_for_smaller_batches() -> None:
    """Where they weigh most; seen in the graph, or in the peak when the graph is gone."""
    wanted = ["smaller batch", "checkpointing", "attention"]
    inside = device(1000, parameters=100, gradients=100, optimizer=200, activations=550)
    between = device(1000, peak=950, parameters=100, gradients=100, optimizer=200)

    assert names(inside) == wanted
    assert names(between) == wanted
    [batch, *_] = advise(inside)
    assert batch.saves == 275 * MIB
    assert batch.numbers == {"activations": 550 * MIB, "total": 1000 * MIB}
    assert batch.reason == "activations take 550 MiB of 1,000 MiB on cuda:0, 55%"


def test_states_ask_for_narrower_types_shards_and_offload() -> None:
    """With the bytes that a rank would save at N ranks, stage by stage."""
    levers = advise(device(1000, parameters=200, gradients=200, optimizer=400, activations=100))

    assert {lever.name for lever in levers} == {"sharding", "bf16", "offload"}
    by_name = {lever.name: lever for lever in levers}
    assert by_name["bf16"].saves == by_name["offload"].saves == 400 * MIB
    numbers = by_name["sharding"].numbers
    assert numbers["stage 1, 8 ranks"] == 350 * MIB
    assert numbers["stage 3, 64 ranks"] == by_name["sharding"].saves == 787.5 * MIB
    assert "stage 1 saves 200 MiB at 2, 350 MiB at 8, 394 MiB at 64 ranks" in (
        by_name["sharding"].advice
    )
    host = advise(device(1000, name="cpu", parameters=200, gradients=200, optimizer=400))
    assert "offload" not in {lever.name for lever in host}


def test_sharding_is_told_for_the_ranks_that_there_are() -> None:
    """Where training is distributed only that number matters; a file may say anything."""
    ledger = device(1000, parameters=200, gradients=200, optimizer=400, activations=100)

    def told(ranks: object) -> set[str]:
        [lever] = [one for one in advise(ledger, ranks=ranks) if one.name == "sharding"]
        return {name for name in lever.numbers if "stage 1" in name}

    assert told(4) == {"stage 1, 4 ranks"}
    for unknown in (0, 1, None, "4"):
        assert told(unknown) == {f"stage 1, {n} ranks" for n in (2, 8, 64)}


def test_a_cache_that_was_never_needed_is_fragmented() -> None:
    """Far more reserved than the peak ever took; a cache that the peak fills is none."""
    assert names(device(1000, peak=520, parameters=100, other=400)) == ["expandable segments"]
    assert names(device(1000, peak=950, parameters=100, other=800)) == []
    assert "expandable segments" not in names(device(1000, peak=950, parameters=100, other=400))
    [lever] = advise(device(1000, peak=950, retries=3, parameters=100, other=800))
    assert lever.name == "expandable segments"
    assert lever.numbers["retries"] == 3
    assert "had to empty its cache 3 times" in lever.reason


def test_the_hosts_levers_are_workers_and_pinned_memory() -> None:
    """Each from a quarter of the host's memory on."""
    assert names(device(1000, name="cpu", unexplained=600, children=400)) == ["workers"]
    assert names(device(1000, name="cpu", unexplained=900, children=100)) == []
    pinned = Row("pinned", 400 * MIB, 3, {"uint8": 400 * MIB}, 400 * MIB)
    account = Account("cpu", (pinned, Row("unexplained", 600 * MIB)), 1000 * MIB)
    assert names(Ledger((account,))) == ["pinned memory"]


def test_no_lever_helps_against_a_leak() -> None:
    """Where past steps' graphs weigh much, or one was found, that is all that is said."""
    leaking = device(1000, parameters=100, activations=500, retained=300)
    healthy = device(1000, parameters=100, activations=600)

    assert names(leaking) == ["fix the leak"]
    assert names(healthy, leaking=True) == ["fix the leak"]
    assert names(healthy) != ["fix the leak"]
    [lever] = advise(leaking)
    assert lever.saves == 300 * MIB


def test_a_leak_hides_the_levers_of_its_own_device_only() -> None:
    """The host's leak is fixed first, and what fills the card is still told."""
    [card] = device(1000, parameters=100, activations=600).accounts
    both = Ledger((card, Account("cpu", (Row("other", 300 * MIB),), 300 * MIB)))
    assert names(both, leaking=True) == ["fix the leak"]
    told = advise(both, leaking=True, devices={"cpu"})
    assert (told[0].name, told[0].device) == ("fix the leak", "cpu")
    assert "smaller batch" in {lever.name for lever in told}


def test_without_a_peak_no_cache_is_called_fragmented() -> None:
    """MPS tells none; and no setting of CUDA's is advised to others."""
    assert names(device(1000, name="mps:0", parameters=100, other=300)) == []
    [lever] = advise(device(1000, name="xpu:0", peak=520, parameters=100, other=400))
    assert "CUDA" not in lever.advice


def test_nothing_stands_out_in_nothing() -> None:
    """An empty ledger asks for no lever."""
    assert advise(Ledger()) == ()
    assert names(device(1000, parameters=30, other=950)) == []


def test_a_shard_is_never_smaller_than_its_part() -> None:
    """Sizes that do not divide are padded, as the ranks' shards are of one size."""
    stage = shard(10, 10, 10, ranks=4, stage=2, rest=5)

    assert (stage.parameters, stage.gradients, stage.optimizer) == (10, 3, 3)
    assert (stage.total, stage.saves) == (21, 14)


# --- telling ---


def test_the_table_tells_every_row() -> None:
    """Devices with their whole, rows with types and parts, notes and levers."""
    told = telling.render(sample_reports.LEDGER, advise(sample_reports.LEDGER))

    assert told.splitlines()[0] == (
        "cuda:0: 5.8 GiB given out of 6 GiB reserved; peak 5.8 GiB; 2 retries; limit 8 GiB"
    )
    assert "  optimizer state         2.4 GiB  float32\n    first moments" in told
    assert "bfloat16 500 MiB, float32 114 MiB" in told
    assert "3 tensors, held by batches, global" in told
    assert "note: not everything was met before the budget for counting ended" in told
    assert "lever: sharding (saves about 4.7 GiB)" in told


def test_the_report_has_the_shares_in_one_line() -> None:
    """With several devices by name, the host only where it is alone."""
    [device_account, host] = sample_reports.LEDGER.accounts
    line = telling.one_line(sample_reports.LEDGER)

    assert line.startswith("parameters 1.2 GiB · gradients 1.2 GiB · optimizer 2.4 GiB · ")
    assert telling.one_line(Ledger((host,))).startswith("nodes 4.4 MiB · rest ")
    several = telling.one_line(Ledger((device_account, device_account, host)))
    assert several.count("cuda:0: parameters") == 2
    assert "memory    parameters 1.2 GiB" in text.render(sample_reports.RUNNING_SUM)


def test_the_page_has_the_table() -> None:
    """Only where a ledger was taken."""
    assert "<h2>Where memory is</h2>" in page.render(sample_reports.RUNNING_SUM)
    assert "first moments" in page.render(sample_reports.RUNNING_SUM)
    assert "Where memory is" not in page.render(sample_reports.LIST_OF_LOSSES)
