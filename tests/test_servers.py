"""Inference servers: no optimizer, no backward, requests in a loop or in threads of their own."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import TextIO

import pytest
import torch
from models import TASKS, train_step
from programs import Run
from torch import nn

import memguard
from memguard import Report
from memguard.cli import ask

MLP = TASKS[0]

# What serves has no optimizer.
WATCH = "del optimizer\nguard = memguard.watch(model)\n"

LOOP = """
class Server:
    def __init__(self):
        self.answered = []

    def handle(self, request):
        %s

server = Server()
requests = queue.Queue()
for number in range(60):
    requests.put((number, batch()[0]))
while not requests.empty():
    server.handle(requests.get())
"""

# Each request in a thread that ends with it, as a threading HTTP server has it.
THREADS = """
class Server:
    def __init__(self):
        self.answered = []

    def handle(self, request):
        %s

server = Server()
for number in range(60):
    worker = threading.Thread(target=server.handle, args=((number, batch()[0]),))
    worker.start()
    worker.join()
"""

# Several at work at a time, as a pool has it.
POOL = """
from concurrent.futures import ThreadPoolExecutor

class Server:
    def __init__(self):
        self.answered = []

    def handle(self, request):
        %s

server = Server()
with ThreadPoolExecutor(3) as pool:
    for number in range(30):
        list(pool.map(server.handle, [(number, batch()[0])] * 3))
"""

KEEPS = "self.answered.append(model(request[1]))  # grows"
FORGETS = "self.answered.append(model(request[1]).detach().mean().item())"
GUARDED = """\
with torch.no_grad():
            self.latest = model(request[1])"""


def run(folder: Path, program: str, body: str, action: str = "raise") -> Run:
    watch = WATCH.replace("(model)", f"(model, action={action!r})")
    return Run(folder, program % body, "serve.py", watch)


@pytest.mark.parametrize("program", [LOOP, THREADS], ids=["loop", "thread a request"])
def test_what_a_server_keeps_of_its_answers_is_found(program: str, tmp_path: Path) -> None:
    """Evaluation without no_grad, kept by the server: named with its line, whatever thread ran."""
    served = run(tmp_path, program, KEEPS, "log")
    holders = [holder for finding in served.report.findings for holder in finding.holders]

    assert served.report.verdict == "leak"
    assert [holder.name for holder in holders] == ["self.answered"]
    assert [holder.line for holder in holders] == served.marked


@pytest.mark.parametrize("body", [FORGETS, GUARDED], ids=["numbers", "the last answer"])
@pytest.mark.parametrize("program", [LOOP, THREADS, POOL], ids=["loop", "threads", "pool"])
def test_a_healthy_server_hears_nothing(program: str, body: str, tmp_path: Path) -> None:
    """Numbers kept for statistics, and the last answer, are no leak."""
    served = run(tmp_path, program, body)

    assert not served.stopped
    assert (served.report.verdict, served.report.findings) == ("clean", ())
    assert served.report.failures == ()
    assert served.report.step > 25


def test_a_leak_of_a_pool_is_found(tmp_path: Path) -> None:
    """Requests that overlap are not all heard of; what stays of them is met all the same."""
    served = run(tmp_path, POOL, KEEPS, "log")

    assert served.report.verdict == "leak"
    names = {holder.name for finding in served.report.findings for holder in finding.holders}
    assert names == {"self.answered"}


def test_a_look_keeps_no_frame_of_the_loop_alive() -> None:
    """With loops in other threads as well, each step's tensors die with it, collector or not."""
    model, optimizer = MLP.set_up()
    elsewhere = threading.Thread(target=lambda: watched_steps(*MLP.set_up()))
    gc.disable()
    try:
        with memguard.watch(model, optimizer) as guard:
            elsewhere.start()
            references = [weakref.ref(train_step(MLP, model, optimizer, s)) for s in range(12)]
            elsewhere.join()
            references += [weakref.ref(train_step(MLP, model, optimizer, s)) for s in range(12)]
            assert guard.report().failures == ()
    finally:
        gc.enable()

    assert [reference() for reference in references] == [None] * 24


def watched_steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with memguard.watch(model, optimizer):
        for step in range(12):
            train_step(MLP, model, optimizer, step)


@pytest.mark.filterwarnings("ignore::memguard.LeakWarning")
def test_what_grows_in_another_threads_loop_stops_nobody(tmp_path: Path) -> None:
    """A long rollout there is some steps of its own; an exception here would end the wrong loop."""
    run = Run(
        tmp_path,
        """
        turn, done = threading.Semaphore(0), threading.Semaphore(0)
        def play():
            losses = []
            for _ in range(150):
                turn.acquire()
                losses.append(player(torch.ones(2, 8)).sum())  # grows
                done.release()
            learner.zero_grad(); torch.stack(losses).sum().backward(); learner.step()
        thread = threading.Thread(target=play)
        thread.start()
        try:
            for _ in range(150):
                turn.release(); done.acquire()
                train_step(model, optimizer)
        finally:
            for _ in range(150): turn.release()
            thread.join()
        """,
        watch="""
player = nn.Linear(8, 1)
learner = torch.optim.SGD(player.parameters(), lr=0.1)
guard = memguard.watch(model, optimizer, player, learner)
""",
    )
    assert not run.stopped
    [finding] = run.report.findings
    assert (finding.severity, finding.holders[0].name) == ("warning", "losses")


# Workers that are forked once the model is loaded, on a loop that handles signals in C.
FORKED = """\
import asyncio, os, signal
from memguard.startup import boot
boot.begin()
import torch, uvloop

model = torch.nn.Linear(16, 4).eval()
cache = {}

def keep(number, x):
    cache[number] = model(x)  # grows

def answer(number, x):
    with torch.no_grad():
        cache[0] = model(x)

async def serve(handle, number):
    async def client(reader, writer):
        for asked in range(30):
            line = await reader.readline()
            try:
                handle(int(line), torch.randn(2, 16))
                writer.write(b"fine\\n")
            except RuntimeError:
                writer.write(b"failed\\n")
        writer.close()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(client, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(os.getpid(), port, type(loop).__module__, flush=True)
    await stop.wait()

for number, handle in enumerate((keep, answer)):
    if os.fork() == 0:
        uvloop.run(serve(handle, number))
        raise SystemExit(number)
print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)))
"""


def test_forked_servers_on_uvloop_are_guarded_and_answer_while_they_serve(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The one that caches with graphs fails one request and is told; its twin hears nothing."""
    pytest.importorskip("uvloop")
    (tmp_path / "serve.py").write_text(FORKED)
    with subprocess.Popen(
        [sys.executable, "serve.py"],
        cwd=tmp_path,
        env={**environment, "MEMGUARD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as served:
        assert served.stdout is not None
        workers = [served.stdout.readline().split() for _ in range(2)]
        told: dict[str, Report] = {}
        failed: dict[str, int] = {}
        try:
            for pid, port, _ in workers:
                with socket.create_connection(("127.0.0.1", int(port))) as connection:
                    client = connection.makefile("rw")
                    answers = [_answer(client, number) for number in range(20)]
                    [report] = ask.ask(int(pid), timeout=20)
                    answers += [_answer(client, number) for number in range(20, 30)]
                told[report.verdict], failed[report.verdict] = report, answers.count("failed\n")
        finally:
            for pid, _, _ in workers:
                os.kill(int(pid), signal.SIGTERM)
        said, errors = served.communicate(timeout=60)

    assert [loop for _, _, loop in workers] == ["uvloop"] * 2
    assert failed == {"leak": 1, "clean": 0}
    [holder] = told["leak"].findings[0].holders
    assert (holder.name, holder.code) == ("cache", "cache[number] = model(x)")
    assert told["clean"].findings == ()
    assert said == "[0, 1]\n"
    assert errors.count("\n") == 1
    assert errors.startswith("memguard: leak: ")


def _answer(client: TextIO, number: int) -> str:
    client.write(f"{number}\n")
    client.flush()
    return client.readline()
