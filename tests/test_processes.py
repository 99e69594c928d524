"""Private memory of this process and its children, and programs whose process grows."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Python

from memguard.sensors.host import Host
from memguard.sensors.workers import Children, exact_sizes

MIB = 1 << 20

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's figures")


@linux
def test_pages_of_a_mapped_file_are_no_growth(tmp_path: Path) -> None:
    """A file that is read through a map fills RAM, which the kernel takes back when it needs it."""
    file = tmp_path / "tokens.bin"
    file.write_bytes(bytes(64 * MIB))
    host = Host()
    resident, private = host.resident(), host.private()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert sum(data[at] for at in range(0, len(data), 4096)) == 0
        assert host.resident() - resident > 48 * MIB
        assert host.private() - private < 8 * MIB


@linux
def test_anonymous_memory_is_private() -> None:
    """What the program takes for itself counts."""
    host = Host()
    before = host.private()
    taken = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    taken.write(b"x" * (64 * MIB))
    assert host.private() - before > 56 * MIB
    taken.close()


@linux
def test_memory_that_a_fork_shares_counts_at_once() -> None:
    """So a worker that only reads what it was forked with, and un-shares it, does not grow."""
    context = multiprocessing.get_context("fork")
    mine = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mine.write(b"x" * (64 * MIB))
    here, there = context.Pipe()
    child = context.Process(target=_write_all, args=(mine, there))
    child.start()
    try:
        assert child.pid is not None
        assert here.recv() == "forked"
        before = Children().private()[child.pid]
        here.send("write")
        assert here.recv() == "written"
        assert before > 64 * MIB
        assert Children().private()[child.pid] - before < 16 * MIB
    finally:
        child.kill()
        child.join()
        mine.close()


def _write_all(shared: mmap.mmap, pipe: multiprocessing.connection.Connection) -> None:
    pipe.send("forked")
    pipe.recv()
    shared.seek(0)
    shared.write(b"y" * (64 * MIB))
    pipe.send("written")
    pipe.recv()


def test_children_of_any_kind_are_found_and_forgotten() -> None:
    """A command that runs beside the loop is a child until it has ended."""
    children = Children()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as command:
        children.find_all()
        assert children.private()[command.pid] > 0
        command.communicate(b"\n")
    assert command.pid not in children.private()


def test_exact_sizes_are_asked_for_a_short_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child with much memory takes long to ask: the ones after it count with what they share."""
    seconds = [0.0]

    class Child:
        pid = 1

        def name(self) -> str:
            return "worker"

        def memory_full_info(self) -> SimpleNamespace:
            seconds[0] += 0.06
            return SimpleNamespace(uss=1)

        def memory_info(self) -> SimpleNamespace:
            return SimpleNamespace(rss=9, shared=2)

    parent = SimpleNamespace(children=lambda recursive: [Child() for _ in range(5)])
    monkeypatch.setattr("psutil.Process", lambda pid: parent)
    assert [size for _, size in exact_sizes(lambda: seconds[0])] == [1, 1, 7, 7, 7]


PROGRAM = """\
import ctypes, json, sys
import torch
import memguard
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
guard = memguard.watch(model, optimizer, action="warn", max_growth="40MiB")
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
cache = torch.zeros(1, 1 << 18)

def outside():
    block = library.malloc(ctypes.c_size_t(1 << 20))
    ctypes.memset(block, 1, 1 << 20)

def longer():
    global cache
    cache = torch.cat([cache, torch.ones(1, 1 << 18)])

grow = {"outside": outside, "longer": longer}[sys.argv[1]]
for step in range(150):
    optimizer.zero_grad()
    model(torch.randn(64, 8)).sum().backward()
    optimizer.step()
    grow()
    if guard.report().verdict == "leak":
        break
json.dump(guard.report().to_dict(), sys.stdout)
"""


@linux
@pytest.mark.parametrize(
    ("way", "kind", "severity", "holder", "unnamed"),
    [
        ("outside", "host", "warning", None, "outside Python"),
        ("longer", "tensor", "leak", "cache", ""),
    ],
)
def test_a_process_that_grows_is_told(
    python: Python,
    tmp_path: Path,
    way: str,
    kind: str,
    severity: str,
    holder: str | None,
    unnamed: str,
) -> None:
    """What C++ keeps is told as such; one tensor that gets longer is named."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = python("-W", "ignore", str(program), way)
    report = json.loads(done.stdout)
    assert report["failures"] == []
    [found] = report["findings"]
    assert (found["kind"], found["severity"]) == (kind, severity)
    assert [one["name"] for one in found["holders"]] == ([holder] if holder else [])
    assert unnamed in found["unnamed"]
    assert found["growth"]["per_step"]["bytes"] == pytest.approx(MIB, rel=0.2)
    assert found["forecast"]["seconds"] > 0
