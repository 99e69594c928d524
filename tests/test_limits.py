"""What bounds the host's memory: RAM, cgroups of both versions, the address space."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil
import pytest

from memguard import figures
from memguard.sensors import devices
from memguard.sensors.limits import Bound, host_bound
from memguard.settings import Settings

MIB = 1 << 20


def group(folder: Path, **files: str) -> Path:
    """A cgroup's folder with its files; `__` in a name stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def bound(tmp_path: Path, membership: str) -> Bound:
    own = tmp_path / "own"
    own.write_text(membership)
    return host_bound(100 * MIB, 200 * MIB, tmp_path / "mount", own)


def test_each_card_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a small card a large one may still be filled; the least counts where none is named."""
    cards = devices.Cuda()
    told = [{"name": f"cuda:{at}", "total": size * MIB} for at, size in enumerate((80, 16))]
    monkeypatch.setattr(cards, "figures", lambda: told, raising=False)
    monkeypatch.setattr(cards, "usable", lambda figure: figure["total"], raising=False)
    monkeypatch.setattr(figures, "used_backends", lambda: [cards])
    asked = figures.Figures(Settings())
    limits = [asked.limit(name) // MIB for name in ("cuda:0", "cuda:1", "cuda")]
    assert limits == [80, 16, 16]


def test_the_ram_bounds_where_nothing_else_does(tmp_path: Path) -> None:
    """Without any limit the machine's memory is one, and other processes' share of it is used."""
    found = bound(tmp_path, "")
    assert (found.name, found.limit) == ("RAM", psutil.virtual_memory().total)
    assert 0 < found.room < found.limit


def test_a_group_of_version_2_bounds(tmp_path: Path) -> None:
    """Its limit counts, and cached files in it that the kernel would let go count as room."""
    folder = tmp_path / "mount" / "job" / "step"
    stat = f"anon 1\ninactive_file {20 * MIB}\n"
    group(folder, memory__max=f"{80 * MIB}\n", memory__current=f"{50 * MIB}", memory__stat=stat)
    found = bound(tmp_path, "0::/job/step\n")
    assert found == Bound("cgroup", 80 * MIB, 50 * MIB)


@pytest.mark.parametrize("text", ["max\n", f"{1 << 62}\n", "", "nonsense"])
def test_a_group_without_limit_does_not_bound(tmp_path: Path, text: str) -> None:
    """`max`, a number beyond all memory and what cannot be read are no limits."""
    group(tmp_path / "mount" / "job", memory__max=text)
    assert bound(tmp_path, "0::/job\n").name == "RAM"


def test_a_group_around_it_bounds_as_well(tmp_path: Path) -> None:
    """The tightest of the groups that the process is in is the one that ends it."""
    group(tmp_path / "mount" / "job", memory__max=f"{60 * MIB}", memory__current=f"{MIB}")
    group(tmp_path / "mount" / "job" / "step", memory__max="max")
    assert bound(tmp_path, "0::/job/step\n").limit == 60 * MIB


def test_a_group_of_version_1_bounds(tmp_path: Path) -> None:
    """The memory controller's own files, wherever it is among the others."""
    group(
        tmp_path / "mount" / "memory" / "docker" / "a1",
        memory__limit_in_bytes=f"{90 * MIB}",
        memory__usage_in_bytes=f"{30 * MIB}",
        memory__stat=f"total_inactive_file {10 * MIB}\n",
    )
    found = bound(tmp_path, "5:cpu:/docker/a1\n4:cpuset,memory:/docker/a1\n")
    assert found == Bound("cgroup", 90 * MIB, 70 * MIB)


def test_the_mount_itself_is_the_group_in_a_container(tmp_path: Path) -> None:
    """There the path is the host's, and leads nowhere."""
    group(tmp_path / "mount", memory__max=f"{70 * MIB}", memory__current="0")
    assert bound(tmp_path, "0::/kubepods/pod1\n").limit == 70 * MIB


def test_the_address_space_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`RLIMIT_AS` is about addresses: what is not in RAM of them is taken off."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (250 * MIB, -1))
    assert bound(tmp_path, "") == Bound("RLIMIT_AS", 150 * MIB, 50 * MIB)
