"""The ledger of real models: checked against arithmetic, and against what it may not do."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models import Mlp, Recurrent
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import memguard
from memguard import _storage
from memguard.figures import environment
from memguard.guard import Guard
from memguard.ledgers import HOST, Account, Ledger
from memguard.records import Report
from memguard.report import data
from memguard.sensors import saved, touched
from memguard.sensors.canaries import Canaries
from memguard.sensors.dated import steps_reached
from memguard.sensors.states import kind_of_state
from memguard.sensors.unused import Sample

BATCH = 6


class Tied(nn.Module):
    """A small transformer whose head is its embedding."""

    def __init__(self, width: int = 16, words: int = 40) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.embedding(words)
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.head(hidden)
        return out


class Checkpointed(Mlp):
    """The same network, its body computed again in the backward."""

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(checkpoint(self.body, inputs, use_reentrant=False))
        return out


def words(batch: int = BATCH) -> Tensor:
    return torch.arange(batch * 5).reshape(batch, 5) % 40


def numbers(batch: int = BATCH) -> Tensor:
    return torch.ones(batch, 8)


def sequences(batch: int = BATCH) -> Tensor:
    return torch.ones(batch, 5, 8)


MODELS: list[tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = [
    (Mlp, numbers),
    (Tied, words),
    (Recurrent, sequences),
]


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    out = model(inputs)
    logits = out[0] if isinstance(out, tuple) else out
    return logits.float().pow(2).mean()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> None:
    """One step of training, its gradients kept."""
    optimizer.zero_grad()
    loss_of(model, inputs).backward()
    optimizer.step()


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def of_host(*objects: Any) -> Account:
    return memguard.ledger(*objects).account(HOST)


def moments(account: Account) -> int:
    kinds = {part.name: part.bytes for part in account.row("optimizer").parts}
    return sum(size for kind, size in kinds.items() if kind != "other")


def activations(model: nn.Module, inputs: Tensor) -> int:
    """Bytes that one forward keeps for its backward."""
    gc.collect()
    before = of_host(model).bytes_of("activations")
    loss = loss_of(model, inputs)
    after = of_host(model).bytes_of("activations")
    del loss
    return after - before


@pytest.mark.parametrize(("make", "inputs"), MODELS)
def test_adam_takes_sixteen_bytes_a_parameter(
    make: Callable[[], nn.Module], inputs: Callable[..., Tensor]
) -> None:
    """4 each for the parameter, its gradient and two moments; tied weights count once."""
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    trained(model, optimizer, inputs())

    account = of_host(model, optimizer)

    assert account.bytes_of("parameters") == 4 * count(model)
    assert account.bytes_of("parameters", "gradients") + moments(account) == 16 * count(model)
    kinds = {part.name for part in account.row("optimizer").parts}
    assert kinds == {"first moments", "second moments", "other"}  # the step counts


def test_momentum_takes_twelve_bytes_a_parameter() -> None:
    """SGD keeps one state; without momentum none."""
    model = Mlp()
    for momentum, each in [(0.9, 12), (0.0, 8)]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        trained(model, optimizer, numbers())
        account = of_host(model, optimizer)
        states = account.bytes_of("parameters", "gradients", "optimizer")
        assert states == each * count(model)


def test_masters_are_told_apart() -> None:
    """A float32 copy of bfloat16 parameters, stepped by the optimizer, is its master weights."""
    model = Mlp().to(torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(masters)
    loss_of(model, numbers().bfloat16()).backward()
    for parameter, master in zip(model.parameters(), masters, strict=True):
        assert parameter.grad is not None
        master.grad = parameter.grad.float()
    optimizer.step()

    account = of_host(model, optimizer)

    n = count(model)
    kinds = {part.name: part.bytes for part in account.row("optimizer").parts}
    assert account.row("parameters").dtypes == {"bfloat16": 2 * n}
    assert account.row("gradients").dtypes == {"float32": 4 * n, "bfloat16": 2 * n}
    assert kinds["master weights"] == kinds["first moments"] == kinds["second moments"] == 4 * n


@pytest.mark.parametrize(("make", "inputs"), MODELS)
def test_activations_are_linear_in_the_batch(
    make: Callable[[], nn.Module], inputs: Callable[..., Tensor]
) -> None:
    """Each further sample adds the same; nothing else weighs much."""
    model = make()
    one, two, three = (activations(model, inputs(batch * 64)) for batch in (1, 2, 3))

    assert two - one == three - two > 0
    assert one == pytest.approx(two - one, rel=0.02)


def test_activations_are_those_that_arithmetic_gives() -> None:
    """Of Linear, ReLU, Linear: the input and the hidden layer once, the output through its mean."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    gc.collect()
    before = {part.name: part.bytes for part in of_host(model).row("activations").parts}
    inputs = torch.ones(10, 8)
    out = model(inputs)
    account = of_host(model)
    parts = {part.name: part.bytes for part in account.row("activations").parts}

    assert not set(before) & {"0", "2"}
    assert parts["0"] == 4 * 10 * (8 + 32)  # what ReLU saves goes to the layer before it
    assert out.requires_grad


def test_checkpointing_lowers_activations() -> None:
    """What is computed again is not kept."""
    plain, frugal = Mlp(64), Checkpointed(64)

    assert activations(frugal, numbers(64)) < activations(plain, numbers(64)) / 2


def test_autocast_shows_in_the_data_types() -> None:
    """Under AMP parameters stay float32 and activations are bfloat16."""
    model = Mlp(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model, numbers(64))
        account = of_host(model)

    assert account.row("parameters").dtypes == {"float32": 4 * count(model)}
    assert account.row("activations").dtypes["bfloat16"] > 2 * 64 * 64
    assert loss.requires_grad


def test_a_compiled_model_is_counted_as_it_is() -> None:
    """Parameters once, and what its one node saves."""
    model = Mlp(64)
    compiled: Any = torch.compile(model, backend="aot_eager")

    kept = activations(compiled, numbers(64))

    assert of_host(compiled).bytes_of("parameters") == 4 * count(model)
    assert kept == pytest.approx(activations(model, numbers(64)), rel=0.5)
    loss = loss_of(compiled, numbers(64))
    parts = {part.name: part.bytes for part in of_host(compiled).row("activations").parts}
    assert parts["Mlp (compiled)"] >= 0.9 * kept
    assert loss.requires_grad


def test_sparse_gradients_count_what_they_hold() -> None:
    """Indices and rows of the words that came, not the whole table."""
    model = nn.Embedding(1000, 16, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    optimizer.zero_grad()
    loss = model(torch.tensor([1, 5, 9])).sum()
    loss.backward()
    optimizer.step()

    account = of_host(model, optimizer)

    assert account.bytes_of("parameters") == 4 * 16 * 1000
    assert account.row("gradients").dtypes == {"float32": 3 * 16 * 4, "int64": 3 * 8}
    assert moments(account) == 2 * 4 * 16 * 1000


def test_a_module_of_several_parts_is_told_by_its_parts() -> None:
    """Members of a list are parts of their own, the largest first."""
    model = Tied()
    loss = loss_of(model, words(64))

    parts = of_host(model).row("activations").parts

    named = {part.name for part in parts}
    assert {"blocks.0", "blocks.1", "embedding"} <= named
    assert [part.bytes for part in parts] == sorted((part.bytes for part in parts), reverse=True)
    assert loss.requires_grad


@pytest.fixture
def ranks() -> Iterator[int]:
    """A process group of four ranks, of which this process is the first."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield 4
    torch.distributed.destroy_process_group()


def test_a_shard_counts_as_what_this_rank_holds(ranks: int) -> None:
    """A parameter sharded over four ranks counts a quarter here, and so do its moments."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (ranks,))
    model = nn.Linear(16, 64, bias=False)
    whole = model.weight.detach()
    model.weight = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()

    account = of_host(model, optimizer)

    assert environment()["world_size"] == ranks
    for name in ("parameters", "gradients", "optimizer"):
        assert account.bytes_of(name) == 4 * 16 * 64 // ranks  # type: ignore[arg-type]


def test_views_count_their_whole_storage_once() -> None:
    """Rows cut from one tensor keep all of it."""
    gc.collect()
    before = of_host().bytes_of("other")
    rows = [torch.zeros(1000, 100)[i] for i in (3, 4)]
    again = [rows[0][:5], rows[0][5:]]

    assert of_host().bytes_of("other") - before == 2 * 1000 * 100 * 4
    assert len(again) == 2


def test_the_largest_other_tensors_have_a_name() -> None:
    """A list of tensors that nothing claims is told by the variable that holds it."""
    forgotten = [torch.zeros(3, 77, 1000) for _ in range(3)]

    parts = of_host().row("other").parts

    told = next(part for part in parts if "[3, 77, 1000]" in part.name)
    assert told.bytes == 3 * 4 * 3 * 77 * 1000
    assert told.count == len(forgotten)
    assert told.holder.startswith("forgotten, local of test_the_largest")


def test_shared_memory_stands_apart() -> None:
    """Tensors in shared memory are no private memory of this process."""
    shared = torch.zeros(50_000).share_memory_()

    account = of_host()

    assert account.row("shared").bytes >= 200_000
    assert sum(row.bytes for row in account.rows) == account.total
    assert shared.is_shared()


def test_the_rows_of_the_host_add_up() -> None:
    """To the process's private memory and what lies beside it."""
    model = Mlp(512)

    account = of_host(model)

    assert account.private is not None
    assert sum(row.bytes for row in account.rows) == account.total
    assert account.total >= account.private > account.bytes_of("parameters") > 0


def test_nothing_is_held_afterwards() -> None:
    """Counting keeps neither tensors nor graphs alive."""
    model = Mlp()
    loss = loss_of(model, numbers())
    reference = weakref.ref(loss)
    found = memguard.ledger(model)
    del loss

    assert reference() is None
    assert found.account(HOST).rows


def test_graphs_are_touched_no_deeper_than_is_safe() -> None:
    """A chain longer than the budget is cut, however often it is asked about; then all is new."""
    gc.collect()
    weight = torch.ones(1, requires_grad=True)
    chain = weight * 1
    length = touched.MOST_OF_LEDGERS * 2 // 3
    for _ in range(length):
        chain = chain * 1
    first = memguard.ledger()
    for _ in range(length):
        chain = chain * 1
    second, third = memguard.ledger(), memguard.ledger()

    assert first.complete
    assert not second.complete
    assert not third.complete
    assert sum(nodes for _, nodes in saved._walks) <= touched.MOST_OF_LEDGERS
    del chain
    assert memguard.ledger().complete


def test_what_was_not_walked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a guard that has found the leak, how many nodes of past steps are in no row."""
    gc.collect()
    weight = torch.ones(1, requires_grad=True)
    total = weight * 1
    model = nn.Linear(1, 1)
    steps = 40
    with memguard.watch(model, action="log", window=2, overhead=1.0) as guard:
        for step in range(steps):
            total = total * model(torch.ones(1)) + 1
            guard.step()
            if step == steps // 2:
                spent = sum(nodes for _, nodes in saved._walks)
                monkeypatch.setattr(touched, "MOST_OF_LEDGERS", spent + 25)
        found = guard.ledger()
        [finding] = guard.report().findings
    made = finding.growth.total.nodes
    [note] = [one for one in found.notes if "were walked" in one]
    told = re.match(r"(\d+) autograd nodes were walked; about (\d+) more of past steps", note)
    assert told is not None
    walked, more = map(int, told.groups())
    assert walked < made
    assert walked + more == pytest.approx(made, rel=0.3)
    del total


def test_states_that_serve_nobody_are_a_note() -> None:
    """Of parameters that the groups have lost, and of a model that is not trained here."""
    model, other = Mlp(), Mlp()
    optimizer = torch.optim.Adam(model.parameters())
    trained(model, optimizer, numbers())
    assert memguard.ledger(model, optimizer).notes == ()

    optimizer.add_param_group({"params": list(other.parameters())[:1]})
    [note] = memguard.ledger(other, optimizer).notes
    assert note.startswith("Adam keeps ")
    assert f"{count_of(model)} parameters that no module here has: make the optimizer anew" in note

    optimizer.param_groups[0]["params"] = list(other.parameters())
    trained(other, optimizer, numbers())
    [note] = memguard.ledger(other, optimizer).notes
    assert f"{count_of(model)} parameters that its groups do not have any more" in note
    assert "pop them from Adam.state" in note


def test_an_optimizer_of_parameters_of_its_own_keeps_no_strays() -> None:
    """One over a flat copy of all weights, as ZeRO makes it: made anew it would lose its state."""
    model = Mlp()
    flat = nn.Parameter(nn.utils.parameters_to_vector(model.parameters()).detach())
    optimizer = torch.optim.Adam([flat])
    flat.grad = torch.ones_like(flat)
    optimizer.step()
    assert memguard.ledger(model, optimizer).notes == ()


def count_of(model: nn.Module) -> int:
    return len(list(model.parameters()))


def test_a_ledger_makes_no_graph_deadly_in_a_thread_with_a_small_stack() -> None:
    """What was touched of a chain is freed recursively: a stack of 1 MiB must bear it."""
    gc.collect()
    complete: list[bool] = []
    most: list[int] = []

    def work() -> None:
        most.append(touched.most())
        chain = torch.zeros(1, requires_grad=True) * 1
        for _ in range(20_000):
            chain = chain * 1
        complete.append(memguard.ledger().complete)
        del chain

    before = threading.stack_size(1 << 20)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert complete == [False]
    assert most[0] < touched.most()


def test_ledgers_looks_and_samples_draw_on_one_account() -> None:
    """What one of them has touched, the others have less of; it is given back when it dies."""
    gc.collect()
    before = touched.room()
    chain = torch.ones(1, requires_grad=True) * 1
    for _ in range(500):
        chain = chain * 1
    canaries = Canaries(2)
    canaries.place(0, [chain])
    canaries.looked(0, 100)
    assert touched.room() == before - 101
    sample = Sample([chain.grad_fn])
    assert touched.room() == before - 101 - len(sample._handles)
    nodes = memguard.ledger().account(HOST).row("nodes").count
    assert touched.room() <= before - 101 - len(sample._handles) - 501
    assert nodes >= 501
    del chain
    sample.remove()
    canaries.survey(9)
    assert touched.room() == before


def test_where_nothing_may_be_touched_nobody_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a ledger nor a look, a sample nor a canary."""
    gc.collect()
    monkeypatch.setattr(touched, "MOST", 0)
    chain = torch.ones(1, requires_grad=True) * 1 * 1
    canaries = Canaries(2)
    canaries.looked(0, 0)
    assert canaries.full
    assert steps_reached([chain], lambda number: 0, 0) == ((), 0)
    assert not Sample([chain.grad_fn])._handles
    assert not memguard.ledger().complete


def test_a_graph_may_be_counted_again() -> None:
    """Nodes that were touched before use up no budget: all is met as the first time."""
    gc.collect()
    chain = torch.ones(1, requires_grad=True) * 1
    for _ in range(touched.MOST_OF_LEDGERS * 2 // 3):
        chain = chain * 1
    found = [memguard.ledger() for _ in range(3)]

    assert all(one.complete for one in found)
    assert len({one.account(HOST).row("nodes").count for one in found}) == 1
    assert chain.requires_grad


def test_past_graphs_are_retained_and_not_activations() -> None:
    """What a guard knows to be older than the window stands apart, and its nodes too."""
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    with memguard.watch(model, optimizer, action="off", window=2) as unwatched:
        # Graphs that other tests have left alive.
        others = unwatched.ledger().account(HOST).bytes_of("activations")
    with memguard.watch(model, optimizer, action="log", window=2) as guard:
        for _ in range(6):
            kept.append(loss_of(model, numbers(128)))
            guard.step()
        found = guard.ledger()

    account = found.account(HOST)
    assert found.step == guard.report().step
    # The window's two steps are not past yet, four are.
    retained, current = account.bytes_of("retained"), account.bytes_of("activations") - others
    assert retained == pytest.approx(2 * current, rel=0.01)
    assert len(kept) == 6
    assert {part.name for part in account.row("nodes").parts} == {"current graph", "past steps"}


@pytest.mark.parametrize("leaks", [False, True])
def test_asking_at_each_step_changes_no_verdict(leaks: bool) -> None:
    """The same leak is found, and a healthy loop stays clean."""
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total: Any = 0.0
    with memguard.watch(model, optimizer, action="log") as guard:
        for _ in range(16):
            loss = loss_of(model, numbers())
            guard.ledger()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss if leaks else loss.item()
        report = guard.report()

    assert report.verdict == ("leak" if leaks else "clean")
    assert [finding.kind for finding in report.findings] == ["graph"] * leaks


def growth_found(ask: Callable[[Guard], object]) -> list[Any]:
    """What a guard finds in a loop that keeps its losses and asks something at each step."""
    model = Mlp()
    kept = []
    with memguard.watch(model, action="log", max_growth="16KiB") as guard:
        for _ in range(12):
            kept.append(loss_of(model, numbers(64)))
            ask(guard)
            guard.step()
        report = guard.report()
    assert report.findings
    return [(found.kind, found.step, found.growth.per_step) for found in report.findings]


@pytest.mark.parametrize("ask", [Guard.ledger, lambda guard: memguard.ledger()])
def test_looking_at_saved_tensors_makes_none_that_count(ask: Callable[[Guard], Ledger]) -> None:
    """What a ledger reads out of graphs is nobody's growth: the findings are those without it."""
    assert growth_found(ask) == growth_found(lambda guard: None)


def test_a_report_has_a_ledger_when_there_is_something_to_tell(tmp_path: Path) -> None:
    """A finding brings one, a file that is written too; a clean report asked for does not."""
    file = tmp_path / "report.json"
    model = Mlp()
    optimizer = torch.optim.Adam(model.parameters())
    with memguard.watch(model, optimizer, report=file) as guard:
        for _ in range(3):
            trained(model, optimizer, numbers())
        assert guard.report().ledger == Ledger()
    report = data.loads(file.read_bytes())

    assert report.ledger.account(HOST).bytes_of("parameters") == 4 * count(model)
    total: Any = 0.0
    with pytest.raises(memguard.LeakError) as caught, memguard.watch(model, optimizer):
        for _ in range(30):
            loss = loss_of(model, numbers())
            loss.backward()
            optimizer.step()
            total = total + loss
    leaked = caught.value.report.ledger
    assert moments(leaked.account(HOST)) == 8 * count(model)
    assert leaked.step >= 5
    assert _reread(leaked) == leaked


def _reread(ledger: Ledger) -> Ledger:
    report = replace(Report("clean", 0), ledger=ledger)
    return data.loads(data.dumps(report)).ledger


def test_a_part_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is counted all the same."""

    def fail() -> list[Any]:
        raise RuntimeError("told so")

    monkeypatch.setattr("memguard.bookkeeping.exact_sizes", fail)
    model = Mlp()

    found = memguard.ledger(model)

    assert found.notes == ("host failed: RuntimeError: told so",)
    assert found.account(HOST).bytes_of("parameters") == 4 * count(model)
    assert "note: host failed: RuntimeError: told so" in str(found)


def test_what_is_neither_module_nor_optimizer_is_refused() -> None:
    """One clear error, as from `watch`."""
    with pytest.raises(memguard.UsageError, match=r"^memguard.ledger: argument 2 is of type int"):
        memguard.ledger(Mlp(), 3)


def test_states_are_known_by_their_names() -> None:
    """Every optimizer of torch.optim keeps states that are told by kind."""
    unknown = {"step", "func_evals", "n_iter", "eta", "mu", "ax", "mu_product", "prev", "step_size"}
    unknown |= {"d", "t", "old_dirs", "old_stps", "ro", "H_diag", "prev_flat_grad", "prev_loss"}
    unknown |= {"al"}
    for cls in (
        *(torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam),
        *(torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.RMSprop),
        *(torch.optim.ASGD, torch.optim.Rprop),
    ):
        model = nn.Linear(3, 3)
        optimizer: Any = cls(model.parameters())
        trained(model, optimizer, torch.ones(2, 3))
        names = {name for state in optimizer.state.values() for name in state}
        assert {name for name in names if kind_of_state(name) == "other"} <= unknown, cls


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    "layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr]
)
def test_a_sparse_tensor_weighs_its_entries_everywhere(layout: torch.layout) -> None:
    """And not what it would weigh when dense, for findings as for the ledger."""
    blocks = (2, 2) if layout is torch.sparse_bsr else None
    tensor = torch.eye(100).to_sparse(layout=layout, blocksize=blocks)

    counted = sum(one.bytes for one in _storage.storages_of(tensor))

    assert _storage.storage_of(tensor)[1] == counted
    assert 400 <= counted < 4 * 100 * 100
