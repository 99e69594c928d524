"""`memguard run`: a program runs as it does under `python`, and a leak stops it with 23."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Protocol

import pytest
from conftest import Python

DESCRIBE = """\
import json, sys
main = sys.modules["__main__"]
print(json.dumps({
    "globals": sorted(globals()),
    "name": __name__, "file": __file__, "package": __package__, "doc": __doc__,
    "cached": __cached__,
    "spec": __spec__ and [__spec__.name, __spec__.origin, __spec__.parent],
    "loader": [type(__loader__).__name__, getattr(__loader__, "name", None)],
    "builtins": type(__builtins__).__name__,
    "is main": vars(main) is globals(),
    "argv": sys.argv, "path": sys.path[:2], "length": len(sys.path),
}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program that describes itself in every form there is."""
    (tmp_path / "script.py").write_text('"""A program."""\n' + DESCRIBE)
    package = tmp_path / "package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "sibling.py").write_text("word = 'relative'\n")
    (package / "__init__.py").write_text("import sys\nprint(sys.argv)\n")
    (package / "module.py").write_text("from ..sibling import word\nprint(word)\n" + DESCRIBE)
    (package / "__main__.py").write_text(DESCRIBE)
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as archive:
        archive.writestr("__main__.py", DESCRIBE)
    return tmp_path


def both(
    python: Python, words: list[str], cwd: Path, stdin: str = ""
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """What `python WORDS` does, and what `memguard run WORDS` does."""
    return (
        python(*words, cwd=cwd, stdin=stdin),
        python("-m", "memguard", "run", *words, cwd=cwd, stdin=stdin),
    )


def alike(python: Python, words: list[str], cwd: Path, stdin: str = "") -> str:
    """Both ways end alike; returns what they wrote to standard output and standard error."""
    plain, guarded = both(python, words, cwd, stdin)

    assert guarded.stdout == plain.stdout
    assert guarded.stderr == plain.stderr
    assert guarded.returncode == plain.returncode
    return plain.stdout + plain.stderr


# --- as python would ---


@pytest.mark.parametrize(
    "words",
    [
        ["script.py"],
        ["./script.py", "one", "--window", "3", "-m", "--", "--report", "x"],
        ["package/../script.py"],
        ["package", "-h"],
        ["package/inner/", "one"],
        ["program.zip", "one"],
        ["-m", "package.inner.module", "--action", "warn"],
        ["-m", "package.inner", "one"],
        ["-mpackage.inner.module"],
        ["-m", "script"],
    ],
)
def test_a_program_sees_what_it_sees_under_python(
    python: Python, folder: Path, words: list[str]
) -> None:
    """Its variables, arguments and path are those of a plain run, in every form of naming it."""
    if words[0] == "package":
        (folder / "package" / "__main__.py").write_text(DESCRIBE)
    said = alike(python, words, folder)

    assert '"is main": true' in said
    assert '"argv": ' in said


def test_an_absolute_path_and_a_link_are_followed_as_python_does(
    python: Python, folder: Path
) -> None:
    """sys.path starts with the folder the script really lies in."""
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "link.py").symlink_to(folder / "script.py")
    said = alike(python, ["elsewhere/link.py"], folder)

    assert json.loads(said)["path"][0] == str(folder)
    assert alike(python, [str(folder / "script.py")], folder)


def test_a_compiled_script_runs(python: Python, folder: Path) -> None:
    """A .pyc is a program too."""
    import py_compile

    py_compile.compile(str(folder / "script.py"), str(folder / "compiled.pyc"))
    python_says, ours = both(python, ["compiled.pyc"], folder)

    assert json.loads(ours.stdout)["file"] == json.loads(python_says.stdout)["file"]
    assert ours.returncode == 0


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
@pytest.mark.parametrize("words", [["script.py"], ["program.zip"], ["-m", "json.tool", "-h"]])
def test_a_safe_path_stays_safe(
    python: Python, folder: Path, environment: dict[str, str], words: list[str]
) -> None:
    """With -P nothing unsafe comes into sys.path, as python has it."""
    plain = python("-P", *words, cwd=folder)
    guarded = python("-P", "-m", "memguard", "run", *words, cwd=folder)

    assert guarded.stdout.replace("python -m ", "") == plain.stdout.replace("python -m ", "")
    assert guarded.returncode == plain.returncode == 0


STATUSES = {
    "falls off its end": "print('done')",
    "exits with None": "import sys; sys.exit()",
    "exits with 0": "import sys; sys.exit(0)",
    "exits with 3": "import sys; sys.exit(3)",
    "exits with 23": "import sys; sys.exit(23)",
    "exits with text": "import sys; sys.exit('not today')",
    "exits with an object": "import sys; sys.exit([1])",
    "raises SystemExit": "raise SystemExit(4)",
    "leaves at once": "import os; os._exit(5)",
    "kills itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "is interrupted": "raise KeyboardInterrupt",
    "raises": "def f():\n    return 1 / 0\n\nf()\n",
    "raises from another": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError from e",
    "raises while handling": "try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('x')",
    "raises an own class": "class Mine(Exception): pass\nraise Mine('x')",
    "fails to import": "import no_such_module",
    "fails to import torch": "import sys; sys.path.insert(0, 'broken')\nimport torch",
    "is no Python": "def f(:\n    pass\n",
    "has a recursion": "def f(): f()\ntry:\n    f()\nexcept RecursionError:\n    print('deep')",
    "warns": "import warnings; warnings.warn('x')",
    "has its own exception hook": (
        "import sys, traceback\n"
        "def hook(kind, value, tb):\n"
        "    print('hook', kind.__name__, [f.name for f in traceback.extract_tb(tb)])\n"
        "    print(value.__traceback__ is tb, sys.last_traceback is tb)\n"
        "sys.excepthook = hook\n"
        "def f(): 1 / 0\n"
        "f()\n"
    ),
    "has an exit handler": (
        "import atexit, sys\n"
        "atexit.register(lambda: print(sys.argv, sys.modules['__main__'].x))\n"
        "x = 'still here'\n"
    ),
    "has a thread that outlives it": (
        "import sys, threading\n"
        "gate = threading.Event()\n"
        "def late():\n"
        "    gate.wait()\n"
        "    print(sys.argv, sys.modules['__main__'].value, value)\n"
        "threading.Thread(target=late).start()\n"
        "value = 'still here'\n"
        "gate.set()\n"
    ),
    "leaves a pool open": (
        "import concurrent.futures as f\n"
        "pool = f.ThreadPoolExecutor(1)\n"
        "pool.submit(print, 'from the pool')\n"
    ),
    "fails in a thread": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()\n"
    ),
    "pickles its own classes": (
        "import pickle\n"
        "class Thing: pass\n"
        "print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, Thing.__module__)\n"
    ),
    "changes folder": "import os; os.chdir('/'); print(__file__)\n1/0",
    "reads its input": "print(input().upper())\nimport sys; print(sys.stdin.read())",
    "has future imports of its own": "def f(x: 1 + 1): pass\nprint(f.__annotations__)",
    "asks for what it imports": "import sys; print('torch' in sys.modules, 'rich' in sys.modules)",
    "forks": (
        "import os, sys\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    ),
}


@pytest.mark.parametrize("text", STATUSES.values(), ids=STATUSES.keys())
def test_a_program_ends_as_it_does_under_python(python: Python, tmp_path: Path, text: str) -> None:
    """Same output, same errors to the letter, same exit status."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("def f(): raise OSError('no libtorch')\nf()\n")
    (tmp_path / "script.py").write_text(text)

    alike(python, ["script.py"], tmp_path, stdin="first\nsecond\n")


@pytest.mark.parametrize("text", ["1/0", "import sys; sys.exit(3)", "def f(:"])
def test_a_module_ends_as_it_does_under_python(python: Python, tmp_path: Path, text: str) -> None:
    """Same status and output; python's own frames for -m are not imitated."""
    (tmp_path / "module.py").write_text(f"print('here')\n{text}\n")
    plain, guarded = both(python, ["-m", "module"], tmp_path)

    assert guarded.returncode == plain.returncode
    assert guarded.stdout == plain.stdout
    assert guarded.stderr.splitlines()[-3:] == plain.stderr.splitlines()[-3:]
    assert "memguard" not in guarded.stderr
    assert "importlib" not in guarded.stderr


@pytest.mark.parametrize(
    ("init", "last"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:", "SyntaxError: invalid syntax"),
    ],
)
def test_a_package_that_fails_on_the_way_shows_its_own_failure(
    python: Python, tmp_path: Path, init: str, last: str
) -> None:
    """What goes wrong in a containing package is a traceback of the program's, not wrong usage."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text(init)
    (tmp_path / "broken" / "module.py").write_text("")
    guarded = python("-m", "memguard", "run", "-m", "broken.module", cwd=tmp_path)

    assert guarded.returncode == 1
    assert guarded.stderr.splitlines()[-1] == last
    assert "memguard" not in guarded.stderr


def test_the_encoding_line_of_a_script_counts(python: Python, tmp_path: Path) -> None:
    """Source that is not UTF-8 is read as it says."""
    (tmp_path / "script.py").write_bytes(b"# -*- coding: latin-1 -*-\nprint(ascii('caf\xe9'))\n")

    assert alike(python, ["script.py"], tmp_path) == "'caf\\xe9'\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_import_the_program_and_inherit_the_settings(
    python: Python, tmp_path: Path, method: str
) -> None:
    """multiprocessing finds the program's functions; a child without torch hears nothing."""
    (tmp_path / "script.py").write_text(
        "import multiprocessing, os, sys\n"
        "def work(x):\n"
        "    return x + 1, __name__ != '__main__' or sys.argv[1:] in (['one'], ['tell'])\n"
        "def settings():\n"
        "    return sorted(v for v in os.environ.items() if v[0].startswith('MEMGUARD'))\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context('{method}').Pool(1) as pool:\n"
        "        print(pool.apply(work, (1,)))\n"
        "        sys.argv[1:] == ['tell'] and print(pool.apply(settings))\n"
    )
    words = ["-m", "memguard", "run", "--window", "3", "--report", "r.json", "script.py", "tell"]
    told = python(*words, cwd=tmp_path).stdout

    assert alike(python, ["script.py", "one"], tmp_path) == "(2, True)\n"
    # The parent's own report is not overwritten by a child's.
    inherited = [("MEMGUARD", "raise"), ("MEMGUARD_REPORT", ""), ("MEMGUARD_WINDOW", "3")]
    assert told == f"(2, True)\n{inherited}\n"


def test_a_module_with_spawned_children(python: Python, tmp_path: Path) -> None:
    """With -m children find the module by its name."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text(
        "import multiprocessing\n"
        "def work(x):\n"
        "    return x + 1, __name__\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(work, (1,)))\n"
    )

    assert alike(python, ["-m", "package.train"], tmp_path) == "(2, '__mp_main__')\n"


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)]
)
def test_signals_reach_the_program(
    tmp_path: Path, environment: dict[str, str], number: signal.Signals, status: int
) -> None:
    """A signal from outside ends it as it ends python."""
    (tmp_path / "script.py").write_text(
        "import signal\nprint('ready', flush=True)\nsignal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "memguard", "run", "script.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background may have it ignored, and children inherit that.
        preexec_fn=functools.partial(signal.signal, number, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()  # else leaving the block would wait for ever

    assert process.returncode == status
    assert "memguard" not in errors


# --- wrong usage ---


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "no program given; name a script, or a module after -m"),
        (["--window", "3"], "no program given; name a script, or a module after -m"),
        (["missing.py"], "cannot open 'missing.py': No such file or directory"),
        (["-"], "cannot run a program from standard input; name a file"),
        (["empty"], "cannot run 'empty': it has no __main__.py"),
        (["-m"], "-m needs the name of a module"),
        (["-m", "missing"], "no module named 'missing'"),
        (["-m", "missing.inner"], "no module named 'missing.inner'"),
        (["-m", ".relative"], "no module named '.relative'"),
        (["-m", "empty"], "cannot run 'empty': the package has no __main__ module"),
        (["-m", "math"], "cannot run 'math': it has no Python code"),
        (
            ["--window", "0", "script.py"],
            "--window is '0'; accepted: a whole number of steps, 1 or more",
        ),
        (
            ["--report=leak.pdf", "script.py"],
            "--report is 'leak.pdf'; accepted: a file name ending in .json, .html or .txt,"
            " in which {rank}, {pid} and {step} may stand",
        ),
        (
            ["--windw", "script.py"],
            "unrecognized arguments: --windw (see memguard run --help)",
        ),
        (["--window"], "argument --window: expected one argument (see memguard run --help)"),
    ],
)
def test_wrong_usage_is_one_line_and_2(
    python: Python, tmp_path: Path, words: list[str], line: str
) -> None:
    """Nothing runs, and the one line says what is wrong."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "script.py").write_text("print('ran')")
    ended = python("-m", "memguard", "run", *words, cwd=tmp_path)

    assert ended.stderr == f"memguard run: {line}\n"
    assert ended.returncode == 2
    assert ended.stdout == ""


@pytest.mark.parametrize("words", [[], ["walk"]])
def test_wrong_commands_are_one_line_and_2(python: Python, words: list[str]) -> None:
    """No command, or none we know."""
    ended = python("-m", "memguard", *words)

    assert ended.returncode == 2
    assert ended.stderr.startswith("memguard: ")
    assert ended.stderr.count("\n") == 1


def test_help_and_version_are_told(python: Python) -> None:
    """Each setting is an option with its words."""
    said = python("-m", "memguard", "run", "--help")
    assert said.returncode == 0
    for flag in ("action", "window", "patience", "max-growth", "limit", "overhead", "report"):
        assert f"--{flag} " in said.stdout
    assert "10%" in said.stdout
    assert python("-m", "memguard", "--version").stdout.startswith("memguard 0.")


def test_a_double_dash_ends_our_options(python: Python, tmp_path: Path) -> None:
    """A script may have any name."""
    (tmp_path / "-odd.py").write_text("import sys; print(sys.argv)")
    ended = python("-m", "memguard", "run", "--window", "3", "--", "-odd.py", "--x", cwd=tmp_path)

    assert ended.stdout == "['-odd.py', '--x']\n"


# --- guarding, with a guard and a torch of the test's own ---

STAND_IN = """\
import json, os, sys, types
from memguard.errors import LeakError
from memguard.records import Finding, Report

def note(*said):
    print("guard:", *said, flush=True)

class Guard:
    def __init__(self, settings):
        self.settings = settings
        note("begins", settings.action, settings.window, settings.ignore, settings.problems)
    def report(self):
        return Report("clean", 12, clock={"beat": "optimizer"})
    def finish(self):
        note("closes")
        if os.environ.get("FAIL") == "close":
            raise OSError("disk full")
        if self.settings.report:
            with open(self.settings.report, "w") as file:
                json.dump(self.report().to_dict(), file)

def guard_process(settings):
    if os.environ.get("FAIL") == "begin":
        raise RuntimeError("no such sensor")
    return Guard(settings)

finding = Finding("graph", "leak", "3 past steps' graphs are alive", "abc", 3, 12)
leak = LeakError("short", Report("leak", 12, (finding,)))
module = types.ModuleType("memguard.watching")
module.guard_process = guard_process
sys.modules["memguard.watching"] = module
sys.modules["stand_in"] = types.SimpleNamespace(leak=leak)

from memguard.cli import main
sys.exit(main())
"""


class Guarded(Protocol):
    """Runs a script's text under a guard that only says what is asked of it."""

    def __call__(
        self, text: str, *options: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def guarded(tmp_path: Path, python: Python) -> Guarded:
    """A run with a guard and a torch of the test's own."""
    (tmp_path / "stand_in_memguard.py").write_text(STAND_IN)
    (tmp_path / "torch.py").write_text("print('torch loads', flush=True)\n")

    def run(
        text: str, *options: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "script.py").write_text(text)
        words = ("stand_in_memguard.py", "run", *options, "script.py")
        return python(*words, cwd=tmp_path, env=env)

    return run


BEGINS = "torch loads\nguard: begins raise 2 () ()\n"
CLOSES = "guard: closes\n"
LINE = "memguard: clean: 12 steps, beat optimizer\n"


def test_the_guard_begins_with_torch_and_ends_with_the_process(guarded: Guarded) -> None:
    """Not before torch is imported, not before threads and exit handlers have ended."""
    ended = guarded(
        "import atexit, threading\n"
        "print('script')\n"
        "import torch\n"
        "gate = threading.Event()\n"
        "threading.Thread(target=lambda: (gate.wait(), print('thread'))).start()\n"
        "atexit.register(print, 'exit handler')\n"
        "print('end')\n"
        "gate.set()\n"
    )
    said = ended.stdout.splitlines()

    assert said[:3] == ["script", *BEGINS.splitlines()]
    assert said[-2:] == ["exit handler", "guard: closes"]
    assert sorted(said[3:-2]) == ["end", "thread"]
    assert (ended.stderr, ended.returncode) == (LINE, 0)


@pytest.mark.parametrize(
    ("text", "status", "last"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("raise ValueError('x')", 1, "ValueError: x\n"),
        ("import sys; sys.exit(23)", 23, ""),
    ],
)
def test_the_guard_is_closed_however_the_program_ends(
    guarded: Guarded, text: str, status: int, last: str
) -> None:
    """The closing line comes last, after what the program itself had to say."""
    ended = guarded(f"import torch\n{text}")

    assert ended.stdout == BEGINS + CLOSES
    assert ended.stderr.endswith(last + LINE)
    assert ended.returncode == status


def test_a_program_without_torch_hears_nothing(guarded: Guarded) -> None:
    """No guard, no line."""
    ended = guarded("print('hello')")

    assert (ended.stdout, ended.stderr, ended.returncode) == ("hello\n", "", 0)


def test_a_program_without_torch_still_has_its_report(guarded: Guarded, tmp_path: Path) -> None:
    """Asked for a report, a run writes one, in the folder it was started in."""
    ended = guarded("import os; os.chdir('/')", "--report", "out.json")
    report = json.loads((tmp_path / "out.json").read_text())

    assert (ended.stderr, ended.returncode) == ("", 0)
    assert (report["verdict"], report["step"]) == ("clean", 0)
    assert report["clock"] == {"beat": "none"}


def test_wrong_usage_writes_no_report(guarded: Guarded, tmp_path: Path, python: Python) -> None:
    """Where nothing ran there is nothing to report."""
    python("-m", "memguard", "run", "--report", "out.json", "missing.py", cwd=tmp_path)

    assert not (tmp_path / "out.json").exists()


def test_options_reach_the_guard_and_beat_the_environment(guarded: Guarded) -> None:
    """Keyword, environment, pyproject.toml: options are keywords."""
    ended = guarded(
        "import torch",
        *("--action=warn", "--window", "3", "--ignore", "a", "--ignore", "b,c"),
        env={"MEMGUARD_WINDOW": "4", "MEMGUARD_PATIENCE": "x", "MEMGUARD": "1"},
    )

    assert "guard: begins warn 3 ('a', 'b', 'c') (\"MEMGUARD_PATIENCE is 'x'; " in ended.stdout


def test_a_report_is_written_where_the_run_was_started(guarded: Guarded, tmp_path: Path) -> None:
    """A script that changes folder does not take the report along."""
    guarded("import torch, os; os.chdir('/')", "--report", "out.json")

    assert json.loads((tmp_path / "out.json").read_text())["step"] == 12


@pytest.mark.parametrize("env", [{"MEMGUARD": "0"}, {"MEMGUARD": "off"}])
def test_switched_off_in_the_environment_nothing_is_guarded(
    guarded: Guarded, env: dict[str, str]
) -> None:
    """MEMGUARD=0 is stronger than the command."""
    ended = guarded("import torch", "--action", "raise", env=env)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("torch loads\n", "", 0)


LEAKS = {
    "raises it": "raise leak",
    "raises from it": "try:\n    raise leak\nexcept Exception as e:\n    raise ValueError from e",
    "fails while handling": "try:\n    raise leak\nfinally:\n    {}['missing']",
    "raises from what came of it": (
        "try:\n"
        "    try:\n"
        "        raise leak\n"
        "    except Exception:\n"
        "        raise KeyError\n"
        "except KeyError as e:\n"
        "    raise ValueError from e\n"
    ),
}


@pytest.mark.parametrize("text", LEAKS.values(), ids=LEAKS.keys())
def test_a_leak_ends_the_run_with_its_report_and_23(guarded: Guarded, text: str) -> None:
    """The report takes the traceback's place; the guard is closed all the same."""
    ended = guarded(f"import torch\nfrom stand_in import leak\n{text}")

    assert ended.returncode == 23
    assert ended.stdout == BEGINS + CLOSES
    assert "memguard: leak: 3 past steps' graphs are alive" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert LINE not in ended.stderr


NO_LEAKS = {
    "chose another status": (
        "try:\n    raise leak\nexcept Exception:\n    import sys; sys.exit(3)",
        3,
    ),
    "caught it": ("try:\n    raise leak\nexcept Exception:\n    pass", 0),
    "says it was not the cause": (
        "try:\n    raise leak\nexcept Exception:\n    raise ValueError from None",
        1,
    ),
    "failed later": ("try:\n    raise leak\nexcept Exception:\n    pass\nraise ValueError", 1),
}


@pytest.mark.parametrize(("text", "status"), NO_LEAKS.values(), ids=NO_LEAKS.keys())
def test_a_leak_that_the_program_dealt_with_is_its_own_affair(
    guarded: Guarded, text: str, status: int
) -> None:
    """The status is the program's own."""
    ended = guarded(f"import torch\nfrom stand_in import leak\n{text}")

    assert ended.returncode == status
    assert "memguard: leak" not in ended.stderr
    assert ended.stderr.endswith(LINE)


def test_a_guard_that_cannot_begin_is_one_line(guarded: Guarded) -> None:
    """memguard's own failure leaves the program alone."""
    ended = guarded("import torch\nprint('goes on')", env={"FAIL": "begin"})

    assert ended.stdout == "torch loads\ngoes on\n"
    assert ended.stderr == (
        "memguard: could not start, going on without: RuntimeError: no such sensor\n"
    )
    assert ended.returncode == 0


def test_a_guard_that_cannot_close_is_one_line(guarded: Guarded) -> None:
    """Not even at the end does it change the program's status."""
    ended = guarded("import torch, sys\nsys.exit(3)", env={"FAIL": "close"})

    assert ended.stderr == "memguard: could not finish its report: OSError: disk full\n"
    assert ended.returncode == 3


def test_an_interrupted_program_still_closes_its_guard(guarded: Guarded) -> None:
    """Ctrl-C: closed, told, and dead by the signal as any Python program."""
    ended = guarded("import torch\nraise KeyboardInterrupt")

    assert ended.returncode == -signal.SIGINT
    assert ended.stdout == BEGINS + CLOSES
    assert ended.stderr.endswith("KeyboardInterrupt\n" + LINE)


def test_a_forked_child_does_not_close_its_parents_guard(guarded: Guarded) -> None:
    """A child that leaves through the program's end writes nothing of memguard's."""
    ended = guarded(
        "import os, sys, torch\n"
        "pid = os.fork()\n"
        "if pid:\n"
        "    os.waitpid(pid, 0)\n"
        "    print('parent')\n"
    )

    assert ended.stdout == BEGINS + "parent\n" + CLOSES
    assert ended.stderr == LINE


def test_without_standard_error_nothing_goes_to_standard_output(guarded: Guarded) -> None:
    """The closing line is dropped rather than mixed into the program's output."""
    ended = guarded("import torch, sys\nsys.stderr = None")

    assert ended.stdout == BEGINS + CLOSES


def test_a_torch_that_fails_to_import_is_not_guarded(guarded: Guarded, tmp_path: Path) -> None:
    """A program that copes without torch is left alone."""
    (tmp_path / "torch.py").write_text("raise OSError('no libtorch')")
    ended = guarded("try:\n    import torch\nexcept OSError:\n    print('copes')")

    assert (ended.stdout, ended.stderr, ended.returncode) == ("copes\n", "", 0)


def test_torch_is_not_imported_before_the_program_does(guarded: Guarded) -> None:
    """What a program sets before its import still counts for torch."""
    ended = guarded(
        "import sys\n"
        "print([name for name in ('torch', 'psutil', 'rich', 'numpy') if name in sys.modules])\n"
    )

    assert ended.stdout == "[]\n"
