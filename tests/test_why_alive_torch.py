"""`memguard.why_alive` of tensors and autograd nodes, of which C++ has a share."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from things import names

import memguard
from memguard import _kinds


def test_a_graph_that_saves_a_tensor_is_named() -> None:
    """C++ holds the reference, so it is found from the tensor whose graph it is."""
    weight = torch.ones(3, requires_grad=True)
    loss = ((weight * 2) ** 2).sum()
    hidden = loss.grad_fn.next_functions[0][0]._raw_saved_self.data  # type: ignore[union-attr]

    answer = memguard.why_alive(hidden)

    assert answer.holders[0].name == "loss"
    assert answer.holders[0].chain[-1] == (
        ".grad_fn … PowBackward0 saves: Tensor float32 [3] MulBackward0"
    )


def test_a_large_graph_of_before_hides_no_newer_holder() -> None:
    """The newest graphs are looked through first, and it is said when the nodes ran out."""
    weight = torch.ones(4, requires_grad=True)
    large = torch.ones(4, requires_grad=True)
    for _ in range(1500):
        large = large * 1.0
    gc.collect()
    hidden = torch.ones(4)
    loss = (weight * hidden).sum()
    (kept,) = memguard.why_alive(hidden).kept

    assert [holder.name for holder in kept.holders] == ["loss", "hidden"]
    assert not kept.complete
    assert "the search ended at its budget" in str(memguard.why_alive(hidden))
    assert loss is not None
    assert large is not None


def test_a_node_is_found_in_its_graph() -> None:
    """A node has no referrer in Python, but the tensors whose graph it is in."""
    losses = [(torch.ones(3, requires_grad=True) * 2).sum()]

    answer = memguard.why_alive(losses[0].grad_fn.next_functions[0][0])  # type: ignore[union-attr]

    assert answer.kept[0].type == "MulBackward0"
    assert answer.holders[0].name == "losses[...]"
    assert answer.holders[0].chain[-1] == ".grad_fn …: MulBackward0"


def test_a_gradient_and_a_base_are_held_by_their_tensors() -> None:
    """`.grad` and `._base` are fields that the collector does not see."""
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(2)).sum().backward()
    row = torch.ones(3, 3)[0]

    gradient = memguard.why_alive(layer.weight.grad)
    base = memguard.why_alive(row._base)

    assert gradient.holders[0].name == "layer.weight.grad"
    assert base.holders[0].name == "row._base"


class Keeping(torch.autograd.Function):
    """Keeps a tensor of its own as an attribute of ctx."""

    last: Any = None

    @staticmethod
    def forward(ctx: Any, inputs: Any) -> Any:
        ctx.copy = inputs + 1
        Keeping.last = weakref.ref(ctx.copy)
        return inputs * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def test_an_attribute_of_ctx_leads_on_to_the_tensor() -> None:
    """The ctx is an autograd node; the chain goes on through the graph to a variable."""
    apply: Any = Keeping.apply
    losses = [apply(torch.ones(2, requires_grad=True)).sum()]

    answer = memguard.why_alive(Keeping.last())

    assert len(losses) == 1
    assert names(answer)[0] == "ctx.copy, ctx of Keeping"
    assert "local losses: list" in answer.holders[0].chain
    assert answer.holders[0].line is not None


UNUSUAL: dict[str, Callable[[], Any]] = {
    "Tensor float32 [2, *]": lambda: torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)]),
    "NestedTensor float32 [2, j": lambda: torch.nested.as_nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "Tensor float32 [3, 4]": lambda: torch.ones(3, 4).to_sparse(),
    "Tensor float32 [4, 4]": lambda: torch.eye(4).to_sparse_csr(),
    "Tensor float16 [0, 2]": lambda: torch.empty(0, 2, dtype=torch.float16, device="meta"),
    "UninitializedParameter float32 [": lambda: torch.nn.LazyLinear(2).weight,
    "Tensor float32 [2, *] MulBackward0": lambda: (
        torch.nested.as_nested_tensor([torch.ones(2, requires_grad=True), torch.ones(3)]) * 2
    ),
}


@pytest.mark.filterwarnings("ignore:.*nested:UserWarning", "ignore:.*Sparse:UserWarning")
@pytest.mark.parametrize("told", UNUSUAL)
def test_a_tensor_of_unusual_layout_is_told(told: str) -> None:
    """Some have no shape as a whole, and some refuse to be asked for it."""
    tensors = [UNUSUAL[told]()]

    answer = memguard.why_alive(tensors[0])

    assert answer.kept[0].type.startswith(told)
    assert answer.holders[0].name == "tensors"


def test_a_tensor_nobody_shows_says_where_it_may_be() -> None:
    """Where Python shows no holder of a tensor, C++ is named as the place that cannot be seen."""
    told = str(memguard.why_alive(torch.ones(2)))

    assert told.startswith("memguard: nothing that Python shows, beside this question, keeps")
    assert "may be held where nobody can look" in told


def test_a_sparse_buffer_shows_how_many_entries_it_has() -> None:
    """Momentum over sparse gradients gains entries in place: only their number tells."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        embedding(torch.randint(20, (16,))).sum().backward()
        optimizer.step()
    entries = optimizer.state[embedding.weight]["momentum_buffer"]._nnz()

    answer = memguard.why_alive(optimizer.state[embedding.weight]["momentum_buffer"])

    assert entries > 20
    assert answer.subject == f"Tensor float32 [20, 4] with {entries} sparse entries"
    assert answer.holders[0].name == "optimizer.state"


def test_nothing_weighs_while_torch_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks what an object weighs must not be what imports torch."""
    one = torch.ones(4)
    assert _kinds.storage_of(one)[1] == 16
    monkeypatch.setattr(_kinds, "torch_door", lambda: None)
    assert _kinds.storage_of(one) == (0, 0)
