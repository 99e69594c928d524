"""Values that the loss is made of are cleared, not detached; others are not mistaken for them."""

from __future__ import annotations

import linecache
from collections.abc import Iterator

import pytest
from snippets import Snippet

from memguard.explain.gradients import goes_backward
from memguard.explain.program import Program
from memguard.explain.syntax import Scope, forget_sources


@pytest.fixture(autouse=True)
def _no_sources_left() -> Iterator[None]:
    yield
    forget_sources()
    for file in [file for file in linecache.cache if file.startswith("<snippet")]:
        del linecache.cache[file]


def _told(code: str, *, attribute: bool, keys: tuple[str, ...] = ()) -> bool:
    """Whether backward goes through `aux`, into which the line marked `grows` puts something."""
    snippet = Snippet(code)
    program = Program([snippet.file])
    source = program.sources[0]
    pieces = [piece for scope in source.scopes for piece in scope.pieces]
    growth = next(piece for piece in pieces if piece.line == snippet.marked("grows"))
    home: Scope | None = None if attribute else growth.scope
    return goes_backward(program, home, "aux", growth, keys)


MODULE = """
class Block:
    def forward(self, x):
        self.aux.append(gate(x))  # grows
        return x
"""


@pytest.mark.parametrize(
    "after",
    [
        "loss = crit(net(x)) + 0.01 * net.block.aux[-1]\nloss.backward()",
        "(main + net.aux[-1].mean()).backward()",
        "def extra(net):\n    return sum(net.aux)\ntotal = main + extra(net)\ntotal.backward()",
        "def learn(terms):\n    terms.sum().backward()\nlearn(torch.stack(net.aux))",
        "parts = []\nfor term in net.aux:\n    parts.append(term)\nsum(parts).backward()",
        "loss = main\nloss += net.aux[-1]\naccelerator.backward(loss)",
        "grads = torch.autograd.grad(net.aux[-1], weights)",
        "class Lit:\n    def training_step(self, batch):\n        return self.net.aux[-1]",
    ],
)
def test_what_the_loss_is_made_of_is_seen(after: str) -> None:
    """Through other functions, attributes, sums and lists, up to what goes backward."""
    assert _told(f"{MODULE}{after}", attribute=True)


@pytest.mark.parametrize(
    "after",
    [
        "loss = crit(net(x))\nloss.backward()\nprint(net.aux[-1])",
        "loss = crit(net(x)) * net.aux[-1].item()\nloss.backward()",
        "loss = crit(net(x)) + net.aux[-1].detach()\nloss.backward()",
        "loss = crit(net(x)) / len(net.aux)\nloss.backward()",
        "batch = random.sample(net.aux, 8)\nloss = crit(batch)\nloss.backward()",
        "aux = net(x)\naux.backward()",
        "with torch.no_grad():\n    seen = sum(net.aux)\n(main + seen).backward()",
    ],
)
def test_what_is_only_read_may_be_detached(after: str) -> None:
    """Printed, weighed, drawn from a memory, or something else of the same name."""
    assert not _told(f"{MODULE}{after}", attribute=True)


def test_a_variable_is_not_that_of_another_function() -> None:
    """Names of local variables say nothing beyond their function."""
    train = """
def train():
    aux = []
    for x in data:
        aux.append(model(x))  # grows
"""
    other = "def other():\n    aux = model(x)\n    aux.backward()\n"

    assert not _told(f"{train}{other}", attribute=False)
    assert _told(f"{train}        aux[-1].backward()\n{other}", attribute=False)


@pytest.mark.parametrize(("made_with", "backward"), [("model", False), ("losses", True)])
def test_other_entries_of_the_holder_are_not_what_it_keeps(made_with: str, backward: bool) -> None:
    """A loss that is made with the model of the same dict says nothing of the losses in it."""
    code = f"""
aux = []
def step(run, x):
    loss = crit(run["{made_with}"], x)
    loss.backward()
for one in aux:
    step(one, x)
    one["losses"].append(x)  # grows
"""
    assert _told(code, attribute=False, keys=("losses",)) is backward
