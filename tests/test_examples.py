"""The examples do what they are there to show."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from conftest import Python

EXAMPLES = Path(__file__).parents[1] / "examples"
# Threads that wait for each other on a busy machine take ten times as long.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def test_the_leaky_example_is_stopped_and_named_at_its_line(python: Python, tmp_path: Path) -> None:
    """The recurrent state that is carried undetached is found within its first steps."""
    script = EXAMPLES / "char_rnn_leaky.py"
    ended = python(
        "-m", "memguard", "run", "--report", "leak.json", script, cwd=tmp_path, env=ONE_THREAD
    )
    [finding] = json.loads((tmp_path / "leak.json").read_text())["findings"]
    holder = finding["holders"][0]

    assert ended.returncode == 23, ended.stderr
    assert (finding["kind"], finding["severity"]) == ("graph", "leak")
    assert finding["step"] <= 20
    assert holder["name"] == "state"
    assert holder["code"] == "logits, state = model(inputs, state)"
    assert "detach" in finding["advice"]
    assert holder["code"] in ended.stderr


def test_the_repaired_example_runs_to_its_end(python: Python, tmp_path: Path) -> None:
    """Its loss falls, and memguard has nothing to say but its closing line."""
    ended = python("-m", "memguard", "run", EXAMPLES / "char_rnn.py", cwd=tmp_path, env=ONE_THREAD)
    losses = [float(line.split()[-1]) for line in ended.stdout.splitlines() if "loss" in line]

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("memguard: clean: 300 steps, ")
    assert ended.stderr.count("\n") == 1
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 6


def test_the_pair_differs_by_the_repair_alone() -> None:
    """Apart from their docstrings, detaching is all there is between the two."""
    leaky, repaired = (
        (EXAMPLES / name).read_text().split('"""', 2)[2].splitlines()
        for name in ("char_rnn_leaky.py", "char_rnn.py")
    )
    changes = [line for line in difflib.ndiff(leaky, repaired) if line[0] in "-+"]

    assert [line[0] + line[1:].strip() for line in changes] == [
        "-loss.backward(retain_graph=True)",
        "+loss.backward()",
        "+state = state.detach()",
    ]
