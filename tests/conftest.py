"""What every test shares: nothing of memguard may stay behind, and Python in a fresh process."""

from __future__ import annotations

import gc
import os
import signal
import site
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
from plugin_runs import Run, runner

import memguard

pytest_plugins = ["pytester"]


class Python(Protocol):
    """Runs `python WORDS` in a process of its own and waits for its end."""

    def __call__(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]: ...


def _environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables without memguard's own, and with this memguard importable."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("MEMGUARD")}
    home = str(Path(memguard.__file__).parents[1])
    if home not in (*site.getsitepackages(), sysconfig.get_path("purelib")):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [home, env.get("PYTHONPATH")]))
    return {**env, **(extra or {})}


@pytest.fixture(scope="session")
def python() -> Python:
    """A function that runs Python in a process of its own."""

    def run(
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=cwd,
            env=_environment(env),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Variables for a process that a test starts by itself."""
    return _environment()


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Runs pytest on a small test file under memguard's plugin."""
    return runner(pytester)


@pytest.fixture(autouse=True)
def no_residue() -> Iterator[None]:
    """Whatever a test did, memguard has let go of the process afterwards."""
    before, variables = residue(), _variables()
    yield
    if "torch._dynamo" in sys.modules:
        # What one test compiled must not keep the audits of the next ones at rest.
        import torch._dynamo.utils

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    left = [said for key, said in residue().items() if key not in before]

    assert not left, f"memguard left behind: {'; '.join(left)}"
    assert variables == _variables()


def residue() -> dict[tuple[str, int], str]:
    """Everything in this process through which memguard would still be called, in words."""
    places: list[tuple[str, Any]] = [("gc callback", found) for found in gc.callbacks]
    places += [("import finder", found) for found in sys.meta_path]
    places += [("exception hook", sys.excepthook)]
    places += [("signal handler", signal.getsignal(number)) for number in signal.valid_signals()]
    places += [("thread", found) for found in threading.enumerate()]
    if "torch" in sys.modules:
        places += _torch_hooks()
    ours = {(kind, id(found)): f"{kind} {found!r}" for kind, found in places if _is_ours(found)}
    if "torch" in sys.modules and sys.modules["torch"].is_anomaly_enabled():
        ours["anomaly mode", 0] = "anomaly mode"
    return ours


def _torch_hooks() -> Iterator[tuple[str, Any]]:
    for name in ("torch.optim.optimizer", "torch.nn.modules.module"):
        for table, hooks in vars(sys.modules[name]).items():
            if table.startswith("_global_") and isinstance(hooks, dict):
                yield from ((table, hook) for hook in hooks.values())


def _is_ours(found: Any) -> bool:
    found = getattr(found, "func", found)
    owner = getattr(found, "__self__", None)
    modules = (getattr(found, "__module__", None), type(found).__module__, type(owner).__module__)
    if isinstance(found, threading.Thread) and found.name.startswith("memguard"):
        return True
    return any(str(module).partition(".")[0] == "memguard" for module in modules)


def _variables() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key.startswith("MEMGUARD")}
