"""`%load_ext memguard` in a notebook's kernel: a process of its own that is asked by messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from programs import LOOP_CELL

pytest.importorskip("ipykernel")

LOOP = LOOP_CELL.replace("import torch", "import torch, time", 1)
CLEAN = LOOP + ".item()"
WAITS = (
    CLEAN.replace("20", "2000")
    + "\n    turn == 9 and print('going', flush=True)\n    time.sleep(0.01)"
)
LEFT = """\
import gc, signal, sys, threading
def is_ours(found):
    parts = (found, getattr(found, "func", None), getattr(found, "__self__", None))
    modules = [getattr(part, "__module__", "") or type(part).__module__ for part in parts]
    return any(str(module).startswith("memguard") for module in modules)
places = [*gc.callbacks, *sys.meta_path, sys.excepthook, sys.displayhook]
places += [signal.getsignal(signal.SIGURG), *model._forward_hooks.values()]
for name in ("torch.optim.optimizer", "torch.nn.modules.module"):
    for table, hooks in vars(sys.modules[name]).items():
        if table.startswith("_global_") and isinstance(hooks, dict):
            places += hooks.values()
threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("memguard")]
[*filter(is_ours, places), *threads]"""

Cell = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Cell]:
    """Runs a cell in a kernel of its own and gives how it ended, and all it showed."""
    from jupyter_client.manager import KernelManager

    folder = tmp_path_factory.mktemp("kernel")
    places = {"IPYTHONDIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder)}
    manager = KernelManager(connection_file=str(folder / "kernel.json"), transport="ipc")
    manager.start_kernel(env={**environment, **places, "NO_COLOR": "1"}, cwd=str(folder))
    client = manager.client()
    client.start_channels()

    def run_cell(code: str, interrupt_at: str | None = None) -> tuple[str, str]:
        shown: list[str] = []

        def see(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                shown.append(content["text"])
                if interrupt_at is not None and interrupt_at in content["text"]:
                    manager.interrupt_kernel()
            elif message["msg_type"] == "error":
                shown.append("\n".join(content["traceback"]))
            elif message["msg_type"] == "execute_result":
                shown.append(content["data"]["text/plain"])

        done = client.execute_interactive(code, output_hook=see, timeout=120)["content"]
        return done.get("ename", done["status"]), "".join(shown)

    try:
        client.wait_for_ready(timeout=120)
        yield run_cell
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_kernels_cells_are_guarded_and_nothing_stays(run: Cell) -> None:
    """Leaks are told each time a cell runs; interruptions end a cell and its guard as ever."""
    assert run("%load_ext memguard") == ("ok", "")
    assert run("%memguard") == ("ok", "memguard: nothing is guarded yet\n")
    ended, shown = run(f"%%memguard\n{CLEAN}")
    assert ended == "ok"
    assert re.fullmatch("memguard: clean: 20 steps, beat optimizer; .*\n", shown)
    for _ in range(2):
        ended, shown = run(f"%%memguard\n{LOOP}")
        assert ended == "LeakError"
        assert re.search(r"\d+\.py:10\n  >  10   total \+= loss\n", shown)
    assert run(f"%%memguard\n{WAITS}", interrupt_at="going")[0] == "KeyboardInterrupt"
    assert run("%memguard") == ("ok", "memguard: nothing is guarded yet\n")

    assert run("%memguard on") == ("ok", "")
    assert run(WAITS, interrupt_at="going")[0] == "KeyboardInterrupt"
    assert run("%memguard")[1].startswith("memguard: clean: ")
    assert run("import asyncio; await asyncio.sleep(0)") == ("ok", "")
    ended, shown = run("%%memguard\nawait asyncio.sleep(0)")
    assert ended == "UsageError"
    assert "put %memguard on and %memguard off into cells before and after it" in shown
    assert run("%unload_ext memguard") == ("ok", "")
    assert run(LEFT) == ("ok", "[]")
