"""Estimates against arithmetic, and the commands that need no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sample_reports
import torch
from conftest import Python
from test_ledger import Tied, loss_of, words
from torch import nn

import memguard
from memguard import cli
from memguard.judge.estimates import STATES, estimate_of
from memguard.ledgers import HOST, Estimate
from memguard.report import data

N = 1000


def bytes_of(estimate: Estimate, name: str) -> int:
    return sum(row.bytes for row in estimate.rows if row.name == name)


@pytest.mark.parametrize(
    ("optimizer", "options", "each"),
    [
        ("adam", {}, 16),
        ("AdamW", {}, 16),
        ("sgd", {}, 8),
        ("sgd-momentum", {}, 12),
        ("amsgrad", {}, 20),
        ("adamw8bit", {}, 10),
        ("adamw", {"dtype": "bf16"}, 8),
        ("adamw", {"dtype": "bf16", "masters": "fp32"}, 16),
        ("adamw", {"dtype": "bf16", "states": "float32"}, 12),
        ("sgd-momentum", {"dtype": "float64"}, 24),
    ],
)
def test_bytes_a_parameter(optimizer: str, options: dict[str, Any], each: int) -> None:
    """The sums that every paper on the matter gives."""
    assert estimate_of(N, optimizer, **options).total == each * N


def test_stages_share_what_they_shard() -> None:
    """Seven billion parameters with masters on 64 ranks, as the ZeRO paper counts them."""
    found = memguard.estimate(7.5e9, "adam", dtype="fp16", masters="fp32", ranks=64)

    billions = [stage.total / 1e9 for stage in found.stages]
    # Table 1 of the paper: 120, 31.4, 16.6 and 1.88 GB.
    assert billions == pytest.approx([120, 31.4, 16.6, 1.88], rel=0.005)
    assert found.stages[0].saves == 0
    [third] = memguard.estimate(N, ranks=4, stages=[3]).stages
    assert (third.stage, third.total, third.saves) == (3, 4 * N, 12 * N)


def test_activations_are_on_every_rank() -> None:
    """No stage shards them."""
    found = memguard.estimate(N, "sgd", ranks=2, activations="1KiB")

    assert found.total == 8 * N + 1024
    assert found.stages[3].total == 4 * N + 1024
    assert not any("activations" in note for note in found.notes)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p),
        lambda p: torch.optim.AdamW(p, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.Adadelta(p),
        lambda p: torch.optim.Adamax(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.RAdam(p),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.ASGD(p),
    ],
)
def test_what_is_foretold_comes_true(make: Any) -> None:
    """The ledger after a step finds what the estimate said before it, but for step counts."""
    model = Tied()
    optimizer = make(model.parameters())
    foretold = memguard.estimate(model, optimizer)
    loss_of(model, words()).backward()
    optimizer.step()

    account = memguard.ledger(model, optimizer).account(HOST)

    for row in foretold.rows:
        slack = 200 * len(list(model.parameters())) if row.name == "optimizer" else 0
        assert 0 <= account.bytes_of(row.name) - row.bytes <= slack, row.name


def test_a_model_need_not_be_there_yet() -> None:
    """On the meta device it has sizes and no memory; frozen parameters have no gradients."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(100, 200, bias=False), nn.BatchNorm1d(200, affine=False))
        model.append(nn.Linear(200, 10, bias=False))
    model[0].weight.requires_grad_(False)

    found = memguard.estimate(model, "adam", dtype="bf16")

    assert found.parameters == 22_000
    assert bytes_of(found, "parameters") == 2 * 22_000
    assert bytes_of(found, "gradients") == 2 * 2_000
    assert bytes_of(found, "optimizer") == 2 * 2 * 2_000
    assert bytes_of(found, "buffers") == 2 * 4 * 200 + 8


def test_masters_kept_by_hand_are_counted() -> None:
    """An optimizer of float32 copies: 2 + 2 for the model, 4 + 4 + 8 for the copies."""
    model = nn.Linear(10, 10, bias=False).bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]

    found = memguard.estimate(model, torch.optim.Adam(masters))

    assert found.total == (2 + 2 + 4 + 4 + 8) * 100


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("a model",), {}, "model is of type str; accepted: a torch.nn.Module or a number"),
        ((0,), {}, "parameters is 0; accepted: a whole number, 1 or more"),
        ((2.5,), {}, "parameters is 2.5"),
        ((float("nan"),), {}, "parameters is nan"),
        ((True,), {}, "parameters is True"),
        ((N, "adm"), {}, "optimizer is 'adm'; accepted: adam, "),
        ((N, "adam"), {"dtype": "int7"}, "data type is 'int7'; accepted: float64, "),
        ((N, "adam"), {"ranks": 0}, "ranks is 0"),
        ((N, "adam"), {"stages": [4]}, r"ZeRO stages are \(4,\); accepted: 0, 1, 2, 3"),
        ((N, "adam"), {"activations": "much"}, "activations: 'much' is no size"),
        ((N, "adam"), {"activations": -1}, "activations are -1; accepted: 0 bytes or more"),
        (
            (nn.Linear(2, 2), 3),
            {},
            "optimizer is of type int; accepted: an optimizer, its class, or",
        ),
        ((nn.LazyLinear(2), "adam"), {}, "the model has lazy parameters"),
    ],
)
def test_bad_input_is_one_clear_error(
    arguments: tuple[Any, ...], options: dict[str, Any], said: str
) -> None:
    """What was being done, with what, and what is accepted."""
    with pytest.raises(memguard.UsageError, match=f"^estimate: {said}"):
        memguard.estimate(*arguments, **options)


def test_an_estimate_prints_and_is_plain_data() -> None:
    """A table for people, dicts and numbers for programs."""
    found = memguard.estimate(7e9, "adamw", dtype="bf16", ranks=8)
    lines = str(found).splitlines()

    assert lines[0] == "7,000,000,000 parameters, 52.2 GiB in all"
    assert "  parameters               13 GiB  bfloat16" in lines
    assert any(line.startswith("  3          1.6 GiB") for line in lines)
    assert json.loads(json.dumps(found.to_dict()))["stages"][3]["stage"] == 3


# --- commands ---


def test_the_command_is_the_same_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON; stages as they are asked for."""
    words_of = ["estimate", "--params", "7e9", "--dtype", "bf16", "--masters", "fp32"]
    wanted = estimate_of(7e9, "adamw", "bf16", masters="fp32", ranks=4, stages=[1, 3])

    more = ["--ranks", "4", "--zero-stage", "1", "--zero-stage", "3"]
    assert cli.main([*words_of, *more]) == 0
    assert capsys.readouterr().out == f"{wanted}\n"
    assert cli.main([*words_of, *more, "--format", "json", "--activations", "1GiB"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["total"] == wanted.total + 2**30


def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the status of wrong usage."""
    assert cli.main(["estimate", "--params", "7e9", "--optimizer", "adm"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("memguard estimate: optimizer is 'adm'; accepted: ")
    assert told.err.count("\n") == 1
    with pytest.raises(SystemExit) as ended:
        cli.main(["estimate", "--params", "7e9", "--activations", "much"])
    assert ended.value.code == 2
    assert "'much' is no size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--params", "7x"], "--params: found '7x'; accepted: a whole number, 1 or more"),
        (["--params", "1e999"], "--params: found '1e999'; accepted: a whole number, 1 or more"),
        (["--ranks", "2.5"], "--ranks: found '2.5'; accepted: a whole number, 1 or more"),
        (["--zero-stage", "4"], "--zero-stage: found '4'; accepted: 0, 1, 2 or 3"),
    ],
)
def test_the_command_says_what_it_found_and_what_it_accepts(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an option's value that cannot be read, in one line."""
    with pytest.raises(SystemExit):
        cli.main(["estimate", "--params", "7e9", *words])
    assert capsys.readouterr().err.startswith(f"memguard estimate: argument {told}")


def test_a_saved_ledger_is_told_without_torch(python: Python, tmp_path: Path) -> None:
    """On a machine that has none, and so is an estimate."""
    file = tmp_path / "report.json"
    data.save(sample_reports.RUNNING_SUM, file)
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from memguard import cli\n"
        f"cli.main(['ledger', {str(file)!r}])\n"
        "cli.main(['estimate', '--params', '1e9', '--ranks', '2'])\n"
        "import memguard; memguard.estimate(1e9, 'adam')\n"
    )

    ended = python("-c", program)

    assert ended.stderr == ""
    assert "cuda:0: 5.8 GiB given out of 6 GiB reserved" in ended.stdout
    assert "lever: fix the leak" in ended.stdout
    assert "each of 2 ranks, by ZeRO stage" in ended.stdout


def test_a_report_without_a_ledger_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was counted there, so nothing can be told; nor of what is no report."""
    file = tmp_path / "report.json"
    data.save(sample_reports.LIST_OF_LOSSES, file)

    assert cli.main(["ledger", str(file)]) == 2
    assert capsys.readouterr().err.endswith("report.json has no ledger\n")
    assert cli.main(["ledger", str(tmp_path / "none.json")]) == 2
    assert "memguard ledger: cannot read " in capsys.readouterr().err
    data.save(sample_reports.RUNNING_SUM, file)
    assert cli.main(["ledger", str(file), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["accounts"][0]["device"] == "cuda:0"


def test_every_known_optimizer_is_estimated() -> None:
    """Each name stands for some number of states."""
    for name, states in STATES.items():
        each = 1 if name.endswith("8bit") else 4
        assert estimate_of(N, name).total == (8 + each * len(states)) * N


@pytest.mark.parametrize(
    "cls", [cls for cls in vars(torch.optim).values() if isinstance(cls, type)]
)
def test_every_optimizer_of_torch_is_estimated_or_refused(cls: type) -> None:
    """By its class and by its name alike; refused are those whose states no factor gives."""
    name = cls.__name__
    if name in ("Optimizer", "Adafactor", "LBFGS"):
        for given in (cls, name):
            with pytest.raises(
                memguard.UsageError, match=f"^estimate: optimizer is '{name}'; accepted: adam, "
            ):
                memguard.estimate(N, given)
        return
    model = nn.Linear(10, 10, bias=False)
    assert memguard.estimate(100, cls).total == memguard.estimate(model, cls).total
    assert memguard.estimate(100, cls).total == memguard.estimate(100, name).total


def test_data_types_may_be_those_of_torch() -> None:
    """As well as their names."""
    types: dict[str, Any] = {"dtype": torch.bfloat16, "masters": torch.float32}
    named = {"dtype": "bf16", "masters": "fp32"}
    assert memguard.estimate(N, **types) == memguard.estimate(N, **named)
    model = nn.Linear(10, 10)
    assert memguard.estimate(model, **types) == memguard.estimate(model, **named)


@pytest.mark.parametrize("name", ["PagedAdamW8bit", "paged_adamw_8bit", "AdamW8bit"])
def test_states_of_eight_bits_are_unsigned(name: str) -> None:
    """As the ledger finds them."""
    for model in (N, nn.Linear(10, 10)):
        [row] = [row for row in memguard.estimate(model, name).rows if row.name == "optimizer"]
        assert list(row.dtypes) == ["uint8"]


def test_one_number_for_all_of_a_parameter_is_no_moment() -> None:
    """ASGD calls one of its numbers as others call their first moments."""
    model = nn.Linear(10, 10)
    optimizer = torch.optim.ASGD(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    row = memguard.ledger(model, optimizer).account(HOST).row("optimizer")
    assert [part.name for part in row.parts] == ["other"]
