"""Who a leaky test's survivors are held by, kind by kind, each with a healthy twin."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from plugin_runs import Run

BEGIN = """
import functools, logging, threading
from unittest import mock
import pytest, torch

KEPT = []

def loss_of(model):
    return model(torch.ones(2, 3)).sum()

@pytest.fixture(scope="session")
def model():
    return torch.nn.Linear(3, 1)
"""


@dataclass(frozen=True)
class Case:
    """A leaky test and its repaired twin.

    Attributes:
        leaky, healthy: what follows `BEGIN`; the test is called `test_it`.
        holder: name of the holder that is to be found.
        where: the beginning of where it lives.
        code: a part of the line that is to be named.
        kind: `graph` or `tensor`.
        root: the first entry of the chain.
        apart: whether the run needs a process of its own, since the pytest around it captures log
            records, too, or has variables through which everything of the run is reached.
    """

    leaky: str
    healthy: str
    holder: str
    where: str
    code: str
    kind: str = "graph"
    root: str = "module test_run"
    apart: bool = False


CASES = {
    "test body": Case(
        """
def test_it(model):
    loss = loss_of(model)
    KEPT.append(loss)
""",
        """
def test_it(model):
    kept = []
    loss = loss_of(model)
    kept.append(loss)
""",
        "KEPT",
        "global of test_run",
        "KEPT.append(loss)",
    ),
    "fixture": Case(
        """
@pytest.fixture
def batch():
    made = torch.ones(2, 3)
    KEPT.append(made)
    return made

def test_it(batch):
    assert batch.sum() == 6
""",
        """
@pytest.fixture
def batch():
    made = torch.ones(2, 3)
    KEPT.append(made)
    yield made
    KEPT.clear()

def test_it(batch):
    assert batch.sum() == 6
""",
        "KEPT",
        "global of test_run",
        "KEPT.append(made)",
        "tensor",
    ),
    "code under test": Case(
        """
class Trainer:
    def __init__(self, model):
        self.model, self.history = model, []
    def step(self):
        loss = loss_of(self.model)
        self.history.append(loss)
        return loss.item()

@pytest.fixture(scope="module")
def trainer(model):
    return Trainer(model)

def test_it(trainer):
    trainer.step()
""",
        """
class Trainer:
    def __init__(self, model):
        self.model, self.history = model, []
    def step(self):
        loss = loss_of(self.model)
        self.history.append(loss.item())
        return loss.item()

@pytest.fixture(scope="module")
def trainer(model):
    return Trainer(model)

def test_it(trainer):
    trainer.step()
""",
        "trainer.history",
        "attribute of Trainer",
        "self.history.append(loss)",
        root="fixture trainer: Trainer",
        apart=True,
    ),
    "module global that sums": Case(
        """
TOTAL = 0
def test_it(model):
    global TOTAL
    loss = loss_of(model)
    loss.backward()
    TOTAL = TOTAL + loss
""",
        """
LAST = 0
def test_it(model):
    global LAST
    LAST = loss_of(model)
""",
        "TOTAL",
        "global of test_run",
        "TOTAL = TOTAL + loss",
    ),
    "module global summed in place": Case(
        """
TOTAL = torch.zeros(())
def test_it(model):
    global TOTAL
    TOTAL += loss_of(model)
""",
        """
TOTAL = torch.zeros(())
def test_it(model):
    global TOTAL
    TOTAL += loss_of(model).item()
""",
        "TOTAL",
        "global of test_run",
        "TOTAL += loss_of(model)",
    ),
    "class attribute": Case(
        """
class Meter:
    seen = []
    def update(self, value):
        self.seen.append(value)

def test_it(model):
    Meter().update(loss_of(model))
""",
        """
class Meter:
    def __init__(self):
        self.seen = []
    def update(self, value):
        self.seen.append(value)

def test_it(model):
    Meter().update(loss_of(model))
""",
        "Meter.seen",
        "class attribute of Meter",
        "self.seen.append(value)",
        root="class Meter",
    ),
    "hook on a session-scoped model": Case(
        """
def test_it(model):
    outputs = []
    model.register_forward_hook(lambda m, i, output: outputs.append(output))
    loss_of(model)
""",
        """
def test_it(model):
    outputs = []
    handle = model.register_forward_hook(lambda m, i, output: outputs.append(output))
    loss_of(model)
    handle.remove()
""",
        "outputs",
        "variable captured by",
        "outputs.append(output)",
        root="fixture model: Linear",
        apart=True,
    ),
    "cached function": Case(
        """
@functools.cache
def embed(key):
    return torch.ones(3)

def test_it():
    embed(object())
""",
        """
@functools.cache
def embed(key):
    return torch.ones(3)

def test_it():
    embed("cat")
""",
        "embed",
        "cache of embed",
        "@functools.cache",
        "tensor",
    ),
    "mock that records calls": Case(
        """
LOGGER = mock.Mock()
def test_it(model):
    LOGGER.log(loss_of(model))
""",
        """
def test_it(model):
    logger = mock.Mock()
    logger.log(loss_of(model))
    logger.log.assert_called_once()
""",
        "LOGGER",
        "a mock",
        "LOGGER.log(loss_of(model))",
    ),
    "records of a handler": Case(
        """
class Keeping(logging.Handler):
    records = []
    def emit(self, record):
        self.records.append(record)

logging.getLogger("leaky").addHandler(Keeping())

def test_it():
    logging.getLogger("leaky").warning("loss %s", torch.ones(2))
""",
        """
def test_it(caplog):
    logging.getLogger("healthy").warning("loss %s", torch.ones(2))
    assert "loss" in caplog.text
""",
        "Keeping.records",
        "class attribute of Keeping",
        'logging.getLogger("leaky").warning(',
        "tensor",
        root="class Keeping",
        apart=True,
    ),
    "caplog's records kept": Case(
        """
def test_it(caplog):
    logging.getLogger("x").warning("loss %s", torch.ones(2))
    KEPT.append(caplog.records[-1])
""",
        """
def test_it(caplog):
    logging.getLogger("x").warning("loss %s", torch.ones(2))
    assert caplog.records[-1].args
""",
        "KEPT",
        "global of test_run",
        'logging.getLogger("x").warning(',
        "tensor",
        apart=True,
    ),
    "parametrized data": Case(
        """
BATCHES = [torch.ones(2), torch.zeros(2)]
@pytest.mark.parametrize("batch", BATCHES[:1], ids=str)
def test_it(batch):
    BATCHES.append(batch + 1)
""",
        """
BATCHES = [torch.ones(2), torch.zeros(2)]
@pytest.mark.parametrize("batch", BATCHES[:1], ids=str)
def test_it(batch):
    assert batch.sum() == 2
""",
        "BATCHES",
        "global of test_run",
        "BATCHES.append(batch + 1)",
        "tensor",
    ),
    "exception kept as excinfo": Case(
        """
def test_it():
    with pytest.raises(ValueError) as excinfo:
        batch = torch.ones(2)
        raise ValueError(batch)
    KEPT.append(excinfo)
""",
        """
def test_it():
    with pytest.raises(ValueError) as excinfo:
        batch = torch.ones(2)
        raise ValueError(batch)
    assert excinfo.value.args
""",
        "KEPT",
        "global of test_run",
        "KEPT.append(excinfo)",
        "tensor",
    ),
    "thread": Case(
        """
END = threading.Event()
def work(held):
    batches = [torch.ones(2)]
    held.set()
    END.wait(20)
    del batches

@pytest.fixture(scope="session", autouse=True)
def ended():
    yield
    END.set()

def test_it():
    held = threading.Event()
    threading.Thread(target=work, args=(held,), daemon=True).start()
    held.wait()
""",
        """
def work(started):
    batches = [torch.ones(2)]
    started.set()
    del batches

def test_it():
    started = threading.Event()
    threading.Thread(target=work, args=(started,), daemon=True).start()
    started.wait()
""",
        "batches",
        "local of work",
        "",
        "tensor",
        root="thread",
    ),
    "unittest class": Case(
        """
import unittest
class TestCase(unittest.TestCase):
    seen = []
    def setUp(self):
        self.batch = torch.ones(2)
    def test_it(self):
        self.seen.append(self.batch)
""",
        """
import unittest
class TestCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.whole = torch.ones(2)
    def setUp(self):
        self.batch = torch.ones(2)
    def test_it(self):
        assert self.batch.sum() == self.whole.sum()
""",
        "TestCase.seen",
        "class attribute of TestCase",
        "self.seen.append(self.batch)",
        "tensor",
        root="class TestCase",
    ),
    "async": Case(
        """
import asyncio
async def serve(model):
    await asyncio.sleep(0)
    KEPT.append(loss_of(model))

def test_it(model):
    asyncio.run(serve(model))
""",
        """
import asyncio
async def serve(model):
    await asyncio.sleep(0)
    return loss_of(model)

def test_it(model):
    asyncio.run(serve(model))
""",
        "KEPT",
        "global of test_run",
        "KEPT.append(loss_of(model))",
    ),
    "autograd nodes": Case(
        """
def test_it(model):
    loss = loss_of(model)
    KEPT.append(loss.grad_fn)
""",
        """
def test_it(model):
    nodes = [loss_of(model).grad_fn]
    for node in nodes:
        nodes += [other for other, _ in node.next_functions if other is not None]
    KEPT.append([node.name() for node in nodes])
""",
        "KEPT",
        "global of test_run",
        "KEPT.append(loss.grad_fn)",
    ),
    "nodes of an own function": Case(
        """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

def test_it(model):
    loss = Double.apply(loss_of(model)).sum()
    KEPT.append(loss.grad_fn.next_functions)
""",
        """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

def test_it(model):
    loss = Double.apply(loss_of(model)).sum()
    loss.backward()
    assert loss.grad_fn.next_functions
    model.zero_grad()
""",
        "KEPT",
        "global of test_run",
        "KEPT.append(loss.grad_fn.next_functions)",
    ),
    "modules": Case(
        """
def test_it():
    KEPT.append(torch.nn.Linear(3, 3))
""",
        """
def test_it():
    net = torch.nn.Linear(3, 3)
    net.itself = [net]
""",
        "KEPT",
        "global of test_run",
        "KEPT.append(torch.nn.Linear(3, 3))",
        "tensor",
    ),
    "optimizers": Case(
        """
def test_it():
    net = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(net.parameters())
    loss_of(net).backward()
    optimizer.step()
    KEPT.append(optimizer)
""",
        """
@pytest.fixture(scope="session")
def optimizer(model):
    return torch.optim.Adam(model.parameters())

def test_it(model, optimizer):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
""",
        "KEPT",
        "global of test_run",
        "KEPT.append(optimizer)",
        "tensor",
        apart=True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_leaky_test_is_told_with_its_holder(
    run: Run, pytester: pytest.Pytester, name: str
) -> None:
    """The holder, where it lives, the line that makes it grow, and a chain from its root."""
    case = CASES[name]
    result = run(
        BEGIN + case.leaky, "--memguard", "--memguard-report", "found.json", apart=case.apart
    )
    (row,) = json.loads((pytester.path / "found.json").read_text())["tests"]

    assert (row["outcome"], row["kind"]) == ("leaked", case.kind)
    assert row["holder"].partition("[")[0].partition("(")[0] == case.holder, row
    assert row["where"].startswith(case.where), row
    assert row["chain"][0].startswith(case.root), row
    assert not case.code or any(
        line.startswith("  >  ") and case.code in line for line in result.outlines
    ), row
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize("name", CASES)
def test_its_healthy_twin_stays_silent(run: Run, name: str) -> None:
    """Twice in one session, since the first time may be the one that fills something."""
    case = CASES[name]
    twice = BEGIN + case.healthy + case.healthy.replace("test_it", "test_it_again")
    result = run(twice, "--memguard", "-v", apart=case.apart)

    assert "failed" not in result.parseoutcomes(), name
    result.stdout.fnmatch_lines(["* judged, none leaked"])


def test_doctests_are_judged(run: Run, pytester: pytest.Pytester) -> None:
    """A doctest that leaves something behind is a leaky test like any other."""
    (pytester.path / "library.py").write_text(
        "import torch\nKEPT = []\n\n"
        'def leaks():\n    """\n    >>> leaks()\n    """\n    KEPT.append(torch.ones(2))\n\n'
        'def clean():\n    """\n    >>> clean()\n    """\n    torch.ones(2)\n'
    )
    result = run("", "--memguard", "--doctest-modules", "library.py")

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*KEPT.append(torch.ones(2))*"])


def test_a_cache_with_a_bound_is_listed_and_does_not_fail(run: Run) -> None:
    """It grows, and not for ever."""
    source = """
@functools.lru_cache(maxsize=8)
def embed(key):
    return torch.ones(3)

def test_it():
    embed(object())
"""
    result = run(BEGIN + source, "--memguard")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_it*bounded*"])


def test_a_tensor_that_is_overwritten_in_place_keeps_one_graph(run: Run) -> None:
    """It is older than the test, and its graph is another one each time."""
    source = """
LAST = torch.zeros(())

def test_it(model):
    LAST.detach_().copy_(loss_of(model))
"""
    result = run(BEGIN + source, "--memguard", "-v")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["* judged, none leaked"])


def test_what_torch_compile_traces_with_is_no_leftover(run: Run) -> None:
    """Its stand-ins for tensors have no data, and torch keeps them as it likes."""
    source = """
from torch._subclasses.fake_tensor import FakeTensorMode

def test_it():
    with FakeTensorMode():
        KEPT.append(torch.ones(3))
"""
    result = run(BEGIN + source, "--memguard", "-v", apart=True)

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["* judged, none leaked"])
