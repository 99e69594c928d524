"""What the start-up line costs a Python process, against the same one without it.

    python benchmarks/startup.py [--rounds 200]

Makes an environment with the line as pip installs it. Each round times the line itself (with the
variable unset, as `site` executes it), and starts bare interpreters with and without the file in
turn, so that a busy machine slows both. The medians of the differences are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

import memguard

LINE = Path(memguard.__file__).parent / "startup" / "memguard_startup.pth"
# As site does it: read, part into lines, execute those that begin with an import.
IN_PROCESS = """\
import os, time
def once():
    begun = time.perf_counter()
    with open({line!r}) as file:
        for line in file:
            exec(line)
    return time.perf_counter() - begun
once()
print(sorted(once() for _ in range(201))[100])
"""


def environment(folder: Path) -> tuple[str, Path]:
    """(its interpreter, its site-packages) of a new environment that can import memguard."""
    venv.EnvBuilder(symlinks=os.name != "nt", with_pip=False).create(folder)
    base = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=base))
    (site / "a_path.pth").write_text(f"{Path(memguard.__file__).parents[1]}\n")
    return str(folder / ("Scripts" if os.name == "nt" else "bin") / "python"), site


def seconds(python: str, variables: dict[str, str]) -> float:
    """How long an interpreter takes that does nothing."""
    begun = time.perf_counter()
    subprocess.run([python, "-c", ""], env=variables, check=True)
    return time.perf_counter() - begun


def paired(rounds: int, first: Callable[[], float], second: Callable[[], float]) -> str:
    """The median of second minus first, and its quartiles, in milliseconds."""
    differences = []
    for turn in range(rounds):
        # In turn first and second, since whoever comes second finds files cached.
        if turn % 2:
            late, early = second(), first()
        else:
            early, late = first(), second()
        differences.append(1000 * (late - early))
    low, middle, high = statistics.quantiles(differences, n=4)
    return f"{middle:+.3f} ms (quartiles {low:+.3f} … {high:+.3f})"


def main() -> None:
    """Print a line for each question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    unset = {key: value for key, value in os.environ.items() if not key.startswith("MEMGUARD")}
    unset.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        python, site = environment(Path(folder))
        line = site / LINE.name

        def bare() -> float:
            line.unlink(missing_ok=True)
            return seconds(python, unset)

        def with_line(variables: dict[str, str]) -> float:
            line.write_bytes(LINE.read_bytes())
            return seconds(python, variables)

        bare(), with_line({**unset, "MEMGUARD": "1"})  # compiles what is imported
        program = IN_PROCESS.format(line=str(line))
        said = subprocess.run(
            [python, "-c", program], env=unset, check=True, capture_output=True, text=True
        )
        print(f"the line by itself, variable unset   {1000 * float(said.stdout):.4f} ms")
        switched = {**unset, "MEMGUARD": "1"}
        told = {
            "a process, variable unset           ": lambda: with_line(unset),
            "a process without torch, MEMGUARD=1 ": lambda: with_line(switched),
            "noise: the same against itself      ": bare,
        }
        for words, second in told.items():
            print(f"{words} {paired(rounds, bare, second)}")


if __name__ == "__main__":
    main()
