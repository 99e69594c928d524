"""A watched model copies, pickles, traces and exports as if it were not watched."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import re
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import Python
from models import TASKS, Mlp, Watched, hooks_of, train_step
from programs import staying
from torch import Tensor, nn

import memguard

MLP = TASKS[0]

# What a user lists who loads whole models and nothing else.
SAFE = (Mlp, nn.Sequential, nn.Linear, nn.ReLU, nn.Tanh, nn.Dropout)

# Runs in a Python of its own, in which memguard cannot be imported.
LOAD = """\
import sys
import types

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "memguard":
            raise ImportError("memguard is not installed here")

sys.meta_path.insert(0, Blocker())
import torch
model = torch.load(sys.argv[1], weights_only=False)
expected = torch.load(sys.argv[2], weights_only=False)
model.eval()
assert torch.equal(model(expected["inputs"]), expected["outputs"])
assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(expected["inputs"]),
                   expected["outputs"])
torch.save(model, sys.argv[1])
assert "memguard" not in sys.modules
print("loaded", sum(len(m._forward_hooks) for m in model.modules()))
"""


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A watched model, all of whose modules carry a hook of ours."""
    found = Watched(MLP)
    try:
        assert hooks_of(found.model) > 5
        yield found
    finally:
        found.guard.close()


# --- deepcopy ---


def test_a_deep_copy_computes_the_same(watched: Watched) -> None:
    """A copy has the parameters and the behaviour of its original."""
    copied = copy.deepcopy(watched.model)

    assert torch.equal(watched.outputs(copied), watched.outputs(watched.model))


def test_a_deep_copy_has_no_hook_of_ours(watched: Watched) -> None:
    """What is copied of our hooks is gone when the copy is complete, and so in copies of copies."""
    copied = copy.deepcopy(watched.model)
    trained = [copied, watched.model]
    copies = copy.deepcopy(trained)

    assert hooks_of(copied) == 0
    assert hooks_of(copies[0]) == hooks_of(copies[1]) == 0
    assert hooks_of(copy.deepcopy(copied)) == 0


def test_a_copy_whose_memo_is_kept_has_no_hook_after_its_first_call(watched: Watched) -> None:
    """Even who copies by hand is rid of our hooks; copies made before that are as well."""
    memo: dict[int, object] = {}
    copied = copy.deepcopy(watched.model, memo)
    second = copy.deepcopy(copied)
    assert hooks_of(copied) > 0
    watched.outputs(copied)
    watched.outputs(second)

    assert hooks_of(copied) == hooks_of(second) == 0
    assert memo


def test_the_hooks_of_the_user_stay_in_the_copy(watched: Watched) -> None:
    """Only ours go; the user's are copied and called as ever, in their order."""
    called: list[int] = []
    watched.model.register_forward_hook(lambda *_: called.append(1))
    watched.model.head.register_forward_hook(lambda *_: called.append(2))
    copied = copy.deepcopy(watched.model)
    watched.outputs(copied)
    watched.outputs(copied)

    assert called == [2, 1, 2, 1]
    assert hooks_of(copied) == 2


def test_calls_of_a_copy_are_not_the_loops(watched: Watched) -> None:
    """A copy that is evaluated (an average of weights, a frozen teacher) ends no step."""
    before = watched.guard.report()
    copied = copy.deepcopy(watched.model)
    for _ in range(50):
        watched.outputs(copied)

    assert watched.guard.report().step == before.step
    assert watched.guard.report().clock["forwards"] == before.clock["forwards"]


def test_a_deep_copy_does_not_keep_the_guard_alive(watched: Watched) -> None:
    """Nothing of the guard lives on in the copy once the guard is closed."""
    copied = copy.deepcopy(watched.model)
    reference = weakref.ref(watched.guard)
    watched.guard.close()
    del watched.guard
    gc.collect()
    alive = reference()
    watched.guard = memguard.watch(copied)

    assert alive is None


def test_a_copy_can_be_watched_too(watched: Watched) -> None:
    """A copied model is as good as any other: its own guard sees its own steps."""
    copied = copy.deepcopy(watched.model)
    optimizer = MLP.optimizer(copied)
    with memguard.watch(copied, optimizer) as guard:
        for step in range(20):
            train_step(MLP, copied, optimizer, step)

        assert guard.report().step == 20
    assert watched.guard.report().step == 5
    assert hooks_of(copied) == 0


def test_a_shallow_copy_of_a_module_works(watched: Watched) -> None:
    """`copy.copy` shares the hooks' table; calls of it are not the loop's."""
    copied = copy.copy(watched.model)
    before = watched.guard.report().clock["forwards"]

    assert torch.equal(watched.outputs(copied), watched.outputs(watched.model))
    assert watched.guard.report().clock["forwards"] == before + 1


def test_an_average_of_weights_works(watched: Watched) -> None:
    """swa_utils copies the model deeply and updates the copy along the way."""
    average = torch.optim.swa_utils.AveragedModel(watched.model)
    for step in range(20):
        train_step(MLP, watched.model, watched.optimizer, step)
        average.update_parameters(watched.model)
    watched.outputs(average)

    assert hooks_of(average) == 0
    assert watched.guard.report().verdict == "clean"


# --- pickles ---


def test_a_saved_model_loads_where_memguard_is_not_installed(
    watched: Watched, python: Python, tmp_path: Path
) -> None:
    """`torch.save(model)` names nothing of ours; what is loaded works, compiles and saves again."""
    expected = {"inputs": MLP.batch(0)[0], "outputs": watched.outputs(watched.model)}
    torch.save(watched.model, tmp_path / "model.pt")
    torch.save(expected, tmp_path / "expected.pt")
    folder = Path(__file__).parent
    program = tmp_path / "load.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(folder)!r})\n" + STAND_IN + LOAD)
    done = python(program, tmp_path / "model.pt", tmp_path / "expected.pt")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loaded")


# `models` itself imports memguard, so the loading process is given the class by itself.
STAND_IN = """\
import types, torch
models = types.ModuleType("models")
class Mlp(torch.nn.Module):
    def forward(self, inputs):
        return self.head(self.body(inputs))
Mlp.__module__ = "models"
models.Mlp = Mlp
sys.modules["models"] = models
"""


def test_no_name_of_ours_is_in_a_pickle(watched: Watched) -> None:
    """Neither a saved model nor a pickled one mentions memguard."""
    buffer = io.BytesIO()
    torch.save(watched.model, buffer)

    assert b"memguard" not in buffer.getvalue()
    assert b"memguard" not in pickle.dumps(watched.model)
    assert b"memguard" not in pickle.dumps(watched.optimizer)


def test_a_saved_model_loads_where_only_listed_classes_may(watched: Watched) -> None:
    """`torch.load(weights_only=True)` finds nothing of ours to refuse; the watch goes on."""
    hooks, forwards = hooks_of(watched.model), watched.guard.report().clock["forwards"]
    buffer = io.BytesIO()
    torch.save(watched.model, buffer)
    buffer.seek(0)
    with torch.serialization.safe_globals(list(SAFE)):
        loaded = torch.load(buffer, weights_only=True)

    assert hooks_of(loaded) == 0
    assert hooks_of(watched.model) == hooks
    assert torch.equal(watched.outputs(loaded), watched.outputs(watched.model))
    assert watched.guard.report().clock["forwards"] == forwards + 1


def test_saving_is_as_it_was_once_nobody_watches(watched: Watched) -> None:
    """The function of torch that was wrapped is torch's own again."""
    assert hasattr(torch.serialization._save, "__wrapped__")
    watched.guard.close()

    assert not hasattr(torch.serialization._save, "__wrapped__")


def test_an_unpickled_model_computes_the_same_and_ends_no_step(watched: Watched) -> None:
    """What comes back is a model of its own."""
    loaded = pickle.loads(pickle.dumps(watched.model))
    forwards = watched.guard.report().clock["forwards"]

    assert torch.equal(watched.outputs(loaded), watched.outputs(watched.model))
    assert watched.guard.report().clock["forwards"] == forwards + 1


def test_state_dicts_are_those_of_an_unwatched_model(watched: Watched) -> None:
    """No key is added, and model and optimizer load their own state back."""
    bare, bare_optimizer = MLP.set_up()
    for step in range(5):
        train_step(MLP, bare, bare_optimizer, step)
    state, optimizer_state = watched.model.state_dict(), watched.optimizer.state_dict()

    assert state.keys() == bare.state_dict().keys()
    assert optimizer_state.keys() == bare_optimizer.state_dict().keys()
    watched.model.load_state_dict(bare.state_dict())
    bare_optimizer.load_state_dict(optimizer_state)
    watched.optimizer.load_state_dict(bare_optimizer.state_dict())


# --- tracing, exporting ---


def test_a_watched_model_traces_symbolically(watched: Watched) -> None:
    """torch.fx sees the model's operations and nothing else."""
    bare = MLP.set_up()[0]
    traced = torch.fx.symbolic_trace(watched.model)

    assert [node.target for node in traced.graph.nodes] == [
        node.target for node in torch.fx.symbolic_trace(bare).graph.nodes
    ]
    assert torch.equal(watched.outputs(traced), watched.outputs(watched.model))
    assert watched.guard.report().failures == ()


def operations(graph: torch.fx.Graph) -> list[str]:
    return [f"{node.op} {node.target}" for node in graph.nodes]


@pytest.mark.parametrize("strict", [False, staying(True, "torch keeps it in a global of dynamo")])
def test_a_watched_model_exports(watched: Watched, strict: bool) -> None:
    """torch.export gives the graph an unwatched model gives."""
    bare, example = MLP.set_up()[0].eval(), (MLP.batch(0)[0],)
    watched.model.eval()
    exported = torch.export.export(watched.model, example, strict=strict)
    expected = torch.export.export(bare, example, strict=strict)

    assert operations(exported.graph) == operations(expected.graph)
    assert torch.equal(exported.module()(*example), watched.outputs(watched.model))
    assert watched.guard.report().failures == ()


def without_numbers(graph: object) -> str:
    """A TorchScript graph as text, without the numbers that tell types of one name apart."""
    return re.sub(r"___torch_mangle_\d+\.|%[\w.]+|#.*", "", str(graph))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_watched_model_is_traced_by_torchscript(watched: Watched) -> None:
    """torch.jit.trace runs the model and records its operations only."""
    watched.model.eval()
    traced = torch.jit.trace(watched.model, MLP.batch(0)[0])
    bare = torch.jit.trace(MLP.set_up()[0].eval(), MLP.batch(0)[0])

    assert without_numbers(traced.graph) == without_numbers(bare.graph)
    assert torch.equal(traced(MLP.batch(0)[0]), watched.outputs(watched.model))
    assert watched.guard.report().failures == ()


def test_functional_calls_of_a_watched_model_work(watched: Watched) -> None:
    """torch.func swaps parameters under the module and calls it, hooks and all."""
    parameters = dict(watched.model.named_parameters())
    watched.model.eval()
    inputs = MLP.batch(0)[0]

    def loss(values: dict[str, Tensor], inputs: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(watched.model, values, (inputs,))
        return out.sum()

    bare = MLP.set_up()[0].eval()
    bare.load_state_dict(watched.model.state_dict())
    expected = torch.func.grad(
        lambda values: torch.func.functional_call(bare, values, (inputs,)).sum()
    )(dict(bare.named_parameters()))
    found = torch.func.grad(loss)(parameters, inputs)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)

    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert each["head.bias"].shape == (6, 4)
    assert watched.guard.report().failures == ()


def test_checkpointing_and_reentrant_calls_work(watched: Watched) -> None:
    """A block that is computed again in backward calls the hooks again, without harm."""
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        for step in range(12):
            watched.optimizer.zero_grad()
            inputs = MLP.batch(step)[0].requires_grad_()
            hidden = checkpoint(watched.model.body, inputs, use_reentrant=reentrant)
            watched.model.head(hidden).sum().backward()
            watched.optimizer.step()

    assert watched.guard.report().verdict == "clean"
    assert watched.guard.report().failures == ()


def test_a_watched_model_goes_to_another_device_and_type_and_back(watched: Watched) -> None:
    """`to`, `half`, `share_memory` and `requires_grad_` act on a watched model as on any."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched.model.double().float().to("meta").to_empty(device="cpu")
        watched.model.share_memory()
        watched.model.requires_grad_(False)

    assert isinstance(watched.model, Mlp)
    assert watched.guard.report().failures == ()
