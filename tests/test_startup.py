"""Switched on by a variable: every way into a process, and silence everywhere else."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

import memguard

LINE = Path(memguard.__file__).parent / "startup" / "memguard_startup.pth"
HOME = str(Path(memguard.__file__).parents[1])

# Stands for all that begins with torch, so that a process takes a moment and not seconds.
STAND_IN = """\
import os, sys, types

class Guard:
    has_raised = False
    def finish(self, write=True):
        print("guard ends, writes" if write else "guard ends", flush=True)

    def report(self):
        from memguard.records import Report
        return Report("clean", 12)

def guard_process(settings, quiet=False):
    if os.environ.get("FAIL"):
        raise RuntimeError("no such\\nsensor")
    print("guarded:", settings.action, settings.report, quiet, flush=True)
    return Guard()

sys.modules["memguard.watching"] = types.SimpleNamespace(guard_process=guard_process)
"""


class Start(Protocol):
    """Runs `python WORDS` in an environment that has memguard installed."""

    def __call__(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]: ...


def make_environment(folder: Path, *paths: str) -> Path:
    """An environment with the start-up line as pip puts it there; returns its site-packages."""
    venv.EnvBuilder(symlinks=os.name != "nt", with_pip=False).create(folder)
    base = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=base))
    # Names in the order of a real one: what makes the package importable comes first.
    (site / "__editable__.pth").write_text("\n".join(paths) + "\n")
    (site / LINE.name).write_bytes(LINE.read_bytes())
    return site


def start_in(
    folder: Path, words: tuple[str, ...], cwd: Path, env: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    ours = ("MEMGUARD", "PYTHON", "COVERAGE")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return subprocess.run(
        [str(python), *words],
        cwd=cwd,
        env={**variables, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment whose torch and guard only say what is asked of them."""
    folder = tmp_path_factory.mktemp("environment")
    site = make_environment(folder, HOME)
    (site / "torch.py").write_text("print('torch loads', flush=True)\n")
    (site / "sitecustomize.py").write_text(STAND_IN)
    return folder


@pytest.fixture
def start(stand_in: Path, tmp_path: Path) -> Start:
    """Runs Python where torch and the guard are stand-ins."""
    (tmp_path / "script.py").write_text("import torch\nprint('done')\n")
    return lambda *words, env=None: start_in(stand_in, words, tmp_path, env)


GUARDED = "torch loads\nguarded: raise None True\ndone\n"

# --- the line ---


@pytest.mark.parametrize("value", [None, "", "0", "off", "OFF", "no", "false"])
def test_unset_or_off_nothing_of_memguard_is_loaded(start: Start, value: str | None) -> None:
    """The check itself is all that happens; no module of memguard's or torch's is there."""
    env = {} if value is None else {"MEMGUARD": value}
    program = (
        "import sys; print([m for m in sys.modules if m.split('.')[0] in ('memguard', 'torch')])"
    )
    ended = start(
        "-c", program.replace("'memguard', ", "'memguard.startup', 'memguard', "), env=env
    )

    # The stand-in is a module of that name which the environment's own sitecustomize puts there.
    assert (ended.stdout, ended.stderr) == ("['memguard.watching']\n", "")


def test_a_process_without_torch_hears_nothing(start: Start) -> None:
    """Tools and loaders wait for a torch that never comes, without anything heavy."""
    program = (
        "import sys; print([m for m in ('torch', 'dataclasses', 'inspect') if m in sys.modules])"
    )
    ended = start("-c", program, env={"MEMGUARD": "1", "MEMGUARD_REPORT": "report.json"})

    assert (ended.stdout, ended.stderr, ended.returncode) == ("[]\n", "", 0)


@pytest.mark.parametrize(
    "words",
    [
        ("script.py",),
        ("-m", "script"),
        ("-c", "import torch; print('done')"),
        ("-I", "script.py"),
        pytest.param(
            ("-P", "script.py"),
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="no such flag there"),
        ),
        ("-E", "-s", "-B", "script.py"),
        ("-X", "dev", "-W", "error", "script.py"),
        ("-B", "-OO", "script.py"),
    ],
    ids=" ".join,
)
def test_an_unmodified_program_is_guarded(start: Start, words: tuple[str, ...]) -> None:
    """However Python is started, from the moment torch is there."""
    ended = start(*words, env={"MEMGUARD": "1"})

    assert (ended.stdout, ended.stderr, ended.returncode) == (GUARDED, "", 0)


def test_without_site_there_is_no_start_up_line(start: Start) -> None:
    """-S leaves site-packages out altogether."""
    ended = start("-S", "-c", "print('done')", env={"MEMGUARD": "1"})

    assert (ended.stdout, ended.stderr) == ("done\n", "")


def test_site_packages_read_twice_guard_once(start: Start) -> None:
    """Tools that call site again execute the line again."""
    program = "import site, sys; site.addsitedir(sys.argv[1]); import torch; print('done')"
    ended = start("-c", program, str(LINE.parent), env={"MEMGUARD": "1"})

    assert (ended.stdout, ended.stderr) == (GUARDED, "")


def test_the_report_stays_where_the_job_was_started(start: Start, tmp_path: Path) -> None:
    """A script that changes folder before it imports torch does not take the report along."""
    program = "import os; os.chdir('/'); import torch"
    ended = start("-c", program, env={"MEMGUARD": "warn", "MEMGUARD_REPORT": "out.json"})

    assert f"guarded: warn {tmp_path / 'out.json'} True" in ended.stdout


@pytest.mark.parametrize("value", ["yse", "2", "raise,warn"])
def test_a_switch_that_cannot_be_read_is_one_line_and_no_guard(start: Start, value: str) -> None:
    """As if it had not been set; the job goes on."""
    ended = start("script.py", env={"MEMGUARD": value})

    assert (ended.stdout, ended.returncode) == ("torch loads\ndone\n", 0)
    assert ended.stderr.startswith(f"memguard: MEMGUARD is {value!r}; accepted: raise, warn, log")
    assert ended.stderr.count("\n") == 1


def test_a_guard_that_cannot_begin_is_one_line(start: Start) -> None:
    """memguard's own failure leaves the program alone."""
    ended = start("script.py", env={"MEMGUARD": "1", "FAIL": "1"})

    assert (ended.stdout, ended.returncode) == ("torch loads\ndone\n", 0)
    assert ended.stderr == (
        "memguard: could not start, going on without: RuntimeError: no such sensor\n"
    )


def test_a_package_that_is_gone_is_one_line(tmp_path: Path) -> None:
    """Half an uninstall leaves every Python process working."""
    make_environment(tmp_path / "environment")
    ended = start_in(tmp_path / "environment", ("-c", "print('done')"), tmp_path, {"MEMGUARD": "1"})

    assert (ended.stdout, ended.returncode) == ("done\n", 0)
    assert ended.stderr == (
        "memguard: could not start, going on without: "
        "ModuleNotFoundError: No module named 'memguard'\n"
    )


# --- memguard run ---


def test_memguard_run_takes_over_from_the_line(start: Start, tmp_path: Path) -> None:
    """With both there is one guard, that of the command, and its exit status."""
    ended = start("-m", "memguard", "run", "--window", "3", "script.py", env={"MEMGUARD": "1"})

    assert ended.stdout == "torch loads\nguarded: raise None False\ndone\nguard ends, writes\n"
    assert ended.returncode == 0


CHILD = """\
import subprocess, sys, os
child = "import sys, torch; print(sys.path[:3], sys.modules['sitecustomize'].__file__)"
print(sys.path[:3], sys.modules['sitecustomize'].__file__, flush=True)
subprocess.run([sys.executable, "-c", child])
subprocess.run([sys.executable, "-I", "-c", "import torch"])
"""


def test_children_of_memguard_run_are_guarded_without_a_start_up_line(
    stand_in: Path, tmp_path: Path
) -> None:
    """By a sitecustomize that leaves no trace and gives way to the environment's own."""
    line = next(stand_in.rglob(LINE.name))
    line.rename(line.with_suffix(".off"))
    (tmp_path / "script.py").write_text(CHILD)
    try:
        words = ("-m", "memguard", "run", "--action", "warn", "--report", "a.json", "script.py")
        ended = start_in(stand_in, words, tmp_path, {})
        plain = start_in(stand_in, ("script.py",), tmp_path, {})
    finally:
        line.with_suffix(".off").rename(line)

    guarded = ended.stdout.replace("guarded: warn None True\n", "")
    assert guarded == plain.stdout
    # The isolated child takes no notice of variables, and there is no line.
    assert ended.stdout.count("guarded: warn None True\n") == 1
    assert ended.returncode == plain.returncode == 0


INJECTED = Path(memguard.__file__).parent / "startup" / "injected" / "sitecustomize.py"


def test_what_children_load_first_is_read_by_any_python_3() -> None:
    """A tool's own old interpreter inherits the path, too, and must not stumble over a line."""
    text = INJECTED.read_text()
    ast.parse(text, feature_version=(3, 4))

    assert "__future__" not in text


@pytest.mark.parametrize("error", [SyntaxError, RuntimeError, ImportError])
def test_the_sites_own_customization_runs_whatever_fails_before_it(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an old interpreter cannot read in memguard is no reason to leave the chain."""

    def fail() -> None:
        raise error("on purpose")

    (tmp_path / "customized_by_the_site.py").write_text("reached = True")
    monkeypatch.setattr("memguard.startup.boot.begin", fail)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [str(INJECTED.parent), *sys.path])
    monkeypatch.delitem(sys.modules, "customized_by_the_site", raising=False)
    variables = {"__name__": "customized_by_the_site", "__file__": str(INJECTED)}
    exec(compile(INJECTED.read_text(), str(INJECTED), "exec"), variables)

    assert sys.modules.pop("customized_by_the_site").reached
    assert str(INJECTED.parent) not in sys.path


def test_the_installed_package_lists_its_line() -> None:
    """So pip removes it with the package."""
    # What a build leaves in the source tree has no such list.
    found = importlib.metadata.distributions(name="torch-memguard")
    lists = [text for one in found if (text := one.read_text("RECORD")) is not None]
    installed = [text for text in lists if "memguard/__init__.py," in text]
    if not installed:
        pytest.skip("imported from its source tree, not installed")

    assert all(f"\n{LINE.name}," in f"\n{text}" for text in installed)


# --- with torch itself ---

TRAIN = """\
import asyncio, gc, sys
import torch

def turn(model, optimizer):
    loss = model(torch.randn(2, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

def train(leaky):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = 0.0
    for _ in range(20):
        total += turn(model, optimizer) if leaky else turn(model, optimizer).item()

class OtherLoop(asyncio.SelectorEventLoop):
    pass

async def train_in_a_task():
    await asyncio.create_task(asyncio.to_thread(int))
    train(leaky=True)

if __name__ == "__main__":
    if "task" in sys.argv:
        gc.disable()
        gc.freeze()
        asyncio.set_event_loop(loop := OtherLoop())
        try:
            loop.run_until_complete(train_in_a_task())
        except RuntimeError:
            pass
        finally:
            loop.close()
    elif "swallow" in sys.argv:
        try:
            train(leaky=True)
        except RuntimeError:
            pass
    else:
        train("leaky" in sys.argv)
    print("done")
"""
LEAK = "memguard.LeakError: 7 past steps' autograd graphs are still alive, one more each step"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torch itself."""
    import torch

    folder = tmp_path_factory.mktemp("torch")
    others = map(importlib.util.find_spec, ("accelerate", "deepspeed"))
    homes = [torch.__file__, *(spec.origin for spec in others if spec and spec.origin)]
    make_environment(folder, HOME, *(str(Path(file).parents[1]) for file in homes))
    return folder


@pytest.fixture
def train(real: Path, tmp_path: Path) -> Start:
    """Runs Python with torch itself beside a small training script."""
    (tmp_path / "train.py").write_text(TRAIN)
    return lambda *words, env=None: start_in(real, words, tmp_path, env)


def test_a_clean_job_is_silent_and_has_its_report(train: Start, tmp_path: Path) -> None:
    """Nothing on either stream that the script has not written; the file says clean."""
    ended = train("train.py", env={"MEMGUARD": "1", "MEMGUARD_REPORT": "report.json"})

    assert (ended.stdout, ended.stderr, ended.returncode) == ("done\n", "", 0)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"], report["step"]) == ("clean", 20)


def test_a_leaking_job_is_stopped_with_status_1(train: Start, tmp_path: Path) -> None:
    """The error comes out of the step, with a traceback; the report has no line of the source."""
    env = {"MEMGUARD": "1", "MEMGUARD_REPORT": "report.json", "MEMGUARD_SOURCE": "0"}
    ended = train("-I", "train.py", "leaky", env={**env, "MEMGUARD_SECRET": "hunter2"})

    assert (ended.stdout, ended.returncode) == ("", 1)
    assert LEAK in ended.stderr
    assert 'train.py", line 8, in turn\n' in ended.stderr
    assert "unknown environment variable MEMGUARD_SECRET" in ended.stderr
    written = (tmp_path / "report.json").read_text()
    holder = json.loads(written)["findings"][0]["holders"][0]
    assert (holder["name"], holder["line"], holder["code"]) == ("total", 16, None)
    assert "turn(model" not in written
    assert "turn(model" not in ended.stderr.partition(LEAK)[2]
    assert "hunter2" not in written


@pytest.mark.parametrize(("way", "ending"), [("task", ""), ("swallow", " (the program went on)")])
def test_a_leak_that_was_caught_is_told(train: Start, way: str, ending: str) -> None:
    """At the end; at once in a task, for which a program may wait for ever.

    Also in an event loop of another make, with the collector off and frozen.
    """
    ended = train("train.py", way, env={"MEMGUARD": "1"})

    assert (ended.stdout, ended.returncode) == ("done\n", 0)
    assert ended.stderr.startswith("memguard: leak: ")
    assert "total" in ended.stderr
    assert ended.stderr.endswith(f"of the time{ending}\n")
    assert ended.stderr.count("\n") == 1


def test_torchrun_guards_its_workers_and_not_itself(train: Start, tmp_path: Path) -> None:
    """The launcher imports torch and never steps; each worker has a report of its own."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "train.py"]
    env = {"MEMGUARD": "1", "MEMGUARD_REPORT": "report-{rank}.json", "OMP_NUM_THREADS": "1"}
    ended = train(*words, "leaky", env=env)

    assert ended.returncode == 1
    assert ended.stderr.count(LEAK) == 1
    assert [file.name for file in tmp_path.glob("*.json")] == ["report-0.json"]


ACCELERATED = """\
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(80, 4)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

total = 0.0
for (inputs,) in loader:
    loss = model(inputs).pow(2).mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    total += loss
"""


def test_accelerate_launch_guards_what_it_starts(train: Start, tmp_path: Path) -> None:
    """The launcher says nothing; an optimizer in a wrapper counts once a step."""
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(ACCELERATED)
    words = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    words += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    env = {"MEMGUARD": "1", "MEMGUARD_REPORT": "report-{pid}.json", "OMP_NUM_THREADS": "1"}
    ended = train(*words, "train.py", env={**env, "HF_HOME": str(tmp_path)})

    assert ended.returncode == 1
    assert ended.stderr.count(LEAK) == 1
    [file] = tmp_path.glob("report-*.json")
    report = json.loads(file.read_text())
    [holder] = report["findings"][0]["holders"]
    assert (holder["name"], holder["line"]) == ("total", 17)
    assert report["step"] == report["clock"]["optimizer_steps"] == 9


ENGINE = """\
import torch
import deepspeed

model = torch.nn.Linear(8, 1)
config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=config
)
total = 0.0
for _ in range(40):
    loss = engine(torch.randn(4, 8)).pow(2).mean()
    engine.backward(loss)
    engine.step()
    total += loss
"""


def test_deepspeed_guards_what_it_starts(train: Start, tmp_path: Path) -> None:
    """Its launcher says nothing; the engine's steps are the beat. It takes a compiler, and time."""
    pytest.importorskip("deepspeed")
    (tmp_path / "train.py").write_text(ENGINE)
    words = ["-m", "deepspeed.launcher.runner", "--num_gpus", "1", "train.py"]
    env = {"MEMGUARD": "1", "MEMGUARD_REPORT": "report-{pid}.json", "DS_ACCELERATOR": "cpu"}
    ended = train(*words, env=env)

    assert ended.returncode == 1
    assert LEAK in ended.stderr
    reports = [json.loads(file.read_text()) for file in tmp_path.glob("report-*.json")]
    [report] = [one for one in reports if one["findings"]]
    [holder] = report["findings"][0]["holders"]
    assert (holder["name"], holder["line"]) == ("total", 19)
    assert report["clock"]["beat"] == "optimizer"
