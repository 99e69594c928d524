"""Compilers see nothing of the guard: no graph break, no recompilation, the same results."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from models import TASKS, Mlp, Watched, hooks_of, train_step
from torch import Tensor, nn
from torch._dynamo.utils import counters

import memguard
from memguard.guard import Guard

MLP = TASKS[0]

# Past the free steps, in which modules are audited and hooks come and go.
STEPS = 30


@dataclass(frozen=True)
class Compiled:
    """What dynamo did during a run, and what came out.

    Attributes:
        graphs: graphs compiled; one more than usual is a recompilation.
        breaks: graph breaks by reason.
        frames: frames dynamo looked at, and how many of them it could compile.
    """

    graphs: int
    breaks: dict[str, int]
    frames: dict[str, int]
    losses: list[float]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Each test compiles anew and counts from zero."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def train(
    model: nn.Module,
    call: Callable[[Tensor], Tensor],
    guard: Callable[[nn.Module, torch.optim.Optimizer], Any] | None,
) -> Compiled:
    """Train `model` through `call` for 30 steps and an evaluation; what dynamo counted."""
    torch._dynamo.reset()
    counters.clear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = guard(model, optimizer) if guard is not None else contextlib.nullcontext()
    losses: list[float] = []
    with watching:
        for step in range(STEPS):
            inputs, labels = MLP.batch(step)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(call(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if isinstance(watching, Guard):
            report = watching.report()
            assert (report.step, report.verdict, report.failures) == (STEPS, "clean", ())
        with torch.no_grad():
            losses.append(call(MLP.batch(0)[0]).sum().item())
    return Compiled(
        counters["stats"]["unique_graphs"],
        dict(counters["graph_break"]),
        dict(counters["frames"]),
        losses,
    )


def model(dropout: float = 0.0) -> Mlp:
    """The same model each time; without dropout, whose random numbers a compiler may reorder."""
    torch.manual_seed(7)
    made = Mlp()
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    return made


def watch(watched: nn.Module, optimizer: torch.optim.Optimizer) -> Guard:
    return memguard.watch(watched, optimizer)


def compare(run: Callable[[Any], Compiled]) -> Compiled:
    """A bare and a watched run must be alike in every count; returns the watched one's."""
    bare, watched = run(None), run(watch)

    assert bare.graphs > 0
    assert watched == bare
    return watched


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_model_compiled_before_it_is_watched(backend: str, fullgraph: bool) -> None:
    """Watching the wrapper that torch.compile returns costs no graph and no break."""

    def run(guard: Any) -> Compiled:
        compiled: Any = torch.compile(model(), backend=backend, fullgraph=fullgraph)
        return train(compiled, compiled, guard)

    assert compare(run).breaks == {}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_original_of_a_compiled_model_is_watched(backend: str, fullgraph: bool) -> None:
    """Nor does watching the module inside the wrapper."""

    def run(guard: Any) -> Compiled:
        original = model()
        compiled: Any = torch.compile(original, backend=backend, fullgraph=fullgraph)
        return train(original, compiled, guard)

    assert compare(run).breaks == {}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_model_compiled_after_it_is_watched(backend: str, fullgraph: bool) -> None:
    """The hook that is there already compiles to nothing."""

    def run(guard: Any) -> Compiled:
        original = model()
        calls: list[Any] = []

        def call(inputs: Tensor) -> Tensor:
            if not calls:
                calls.append(torch.compile(original, backend=backend, fullgraph=fullgraph))
            out: Tensor = calls[0](inputs)
            return out

        return train(original, call, guard)

    assert compare(run).breaks == {}


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_a_model_compiled_in_the_middle_of_a_watched_run(steps: int) -> None:
    """Whether modules are being audited at that moment or not, the whole model is one graph."""

    def run(guard: Any) -> Compiled:
        original = model()
        compiled: list[Any] = []
        called = 0

        def call(inputs: Tensor) -> Tensor:
            nonlocal called
            called += 1
            if called == steps:
                compiled.append(torch.compile(original, backend="eager", fullgraph=True))
            out: Tensor = compiled[0](inputs) if compiled else original(inputs)
            return out

        return train(original, call, guard)

    assert compare(run).graphs <= 2


def test_a_model_compiled_in_place() -> None:
    """`model.compile()` before and after watching compiles what it would without."""

    def before(guard: Any) -> Compiled:
        made = model()
        made.compile(backend="aot_eager", fullgraph=True)
        return train(made, made, guard)

    def after(guard: Any) -> Compiled:
        made = model()

        def call(inputs: Tensor) -> Tensor:
            if made._compiled_call_impl is None:
                made.compile(backend="aot_eager", fullgraph=True)
            out: Tensor = made(inputs)
            return out

        return train(made, call, guard)

    assert compare(before).breaks == {}
    assert compare(after).breaks == {}


class Outer(nn.Module):
    """An eager model around one that may be compiled."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Linear(8, 8)
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.inner(self.scale(inputs))
        return out


# Dynamo looks at the gradient of what it is given, which an eager layer made.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_part_of_an_eager_model(in_place: bool) -> None:
    """A root that runs eagerly may contain compiled blocks; what is in them is left alone."""

    def run(guard: Any) -> Compiled:
        inner: Any = model()
        if in_place:
            inner.compile(backend="aot_eager", fullgraph=True)
        else:
            inner = torch.compile(inner, backend="aot_eager", fullgraph=True)
        outer = Outer(inner)
        return train(outer, outer, guard)

    assert compare(run).breaks == {}


def test_a_compiled_step_around_a_watched_model() -> None:
    """A compiled function that calls the model, loss and all."""

    def run(guard: Any) -> Compiled:
        made = model()

        @torch.compile(backend="aot_eager", fullgraph=True)
        def forward(inputs: Tensor) -> Tensor:
            out: Tensor = made(inputs)
            return out

        return train(made, forward, guard)

    assert compare(run).breaks == {}


def test_varying_shapes_compile_as_often_as_without_the_guard() -> None:
    """Batches of new sizes make dynamo specialise once more, watched or not."""

    def run(guard: Any) -> Compiled:
        original = model()
        compiled: Any = torch.compile(original, backend="eager")
        sizes = iter(range(2, 100))

        def call(inputs: Tensor) -> Tensor:
            compiled(torch.ones(next(sizes), 8))
            out: Tensor = compiled(inputs)
            return out

        return train(original, call, guard)

    compare(run)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_evaluation_loop_of_a_compiled_model_is_watched(in_place: bool) -> None:
    """The hook around compiled code is called, so forwards give the beat."""
    original = model().eval()
    compiled: Any = original
    if in_place:
        original.compile(backend="eager")
    else:
        compiled = torch.compile(original, backend="eager")
    kept: list[Tensor] = []
    with memguard.watch(compiled) as guard, pytest.raises(memguard.LeakError):
        for step in range(STEPS):
            kept.append(compiled(MLP.batch(step)[0]))

    assert guard.report().clock["forwards"] == guard.report().step == len(kept) + 1


def test_a_leak_of_a_compiled_model_is_found() -> None:
    """Being unseen by the compiler does not make the guard blind."""
    compiled: Any = torch.compile(model(), backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    kept: list[Tensor] = []
    with memguard.watch(compiled, optimizer), pytest.raises(memguard.LeakError):
        for step in range(STEPS):
            inputs, labels = MLP.batch(step)
            loss = nn.functional.cross_entropy(compiled(inputs), labels)
            loss.backward()
            optimizer.step()
            kept.append(loss)
    assert len(kept) < STEPS


# --- TorchScript ---


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A watched model, all of whose modules carry a hook of ours."""
    found = Watched(MLP)
    try:
        assert hooks_of(found.model) > 5
        yield found
    finally:
        found.guard.close()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_watched_model_is_scripted(watched: Watched) -> None:
    """torch.jit.script compiles hooks; it is not shown ours."""
    watched.model.eval()
    before = [list(module._forward_hooks) for module in watched.model.modules()]
    scripted = torch.jit.script(watched.model)

    assert torch.equal(scripted(MLP.batch(0)[0]), watched.outputs(watched.model))
    assert hooks_of(scripted) == 0
    assert [list(module._forward_hooks) for module in watched.model.modules()] == before


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripting_still_refuses_what_it_would_refuse_unwatched(watched: Watched) -> None:
    """A model that cannot be scripted fails in the same words, and stays watched."""
    with pytest.raises(RuntimeError, match="builtin <built-in function eval>") as bare:
        torch.jit.script(unscriptable())
    model = unscriptable()
    with memguard.watch(model):
        with pytest.raises(RuntimeError) as caught:
            torch.jit.script(model)

        assert str(caught.value) == str(bare.value)
        assert hooks_of(model) == 1


def unscriptable() -> nn.Module:
    """A model of a class of its own: TorchScript remembers those it failed at."""

    class Unscriptable(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return eval("inputs + 1")  # type: ignore[no-any-return]

    return Unscriptable()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_hook_of_the_users_own_is_scripted_as_ever(watched: Watched) -> None:
    """Only ours are hidden, and each is back in its place in the order of hooks."""

    def double(self: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output * 2

    watched.model.eval()
    before = watched.outputs(watched.model)
    watched.model.register_forward_hook(double)
    keys = list(watched.model._forward_hooks)
    scripted = torch.jit.script(watched.model)

    assert torch.equal(scripted(MLP.batch(0)[0]), before * 2)
    assert list(watched.model._forward_hooks) == keys


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_copy_is_scripted_when_the_guard_is_long_gone(watched: Watched) -> None:
    """A copy kept for later needs no guard to be clean."""
    copied = copy.deepcopy(watched.model)
    watched.guard.close()

    assert torch.equal(torch.jit.script(copied.eval())(MLP.batch(0)[0]), watched.outputs(copied))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_is_watched_by_its_optimizer() -> None:
    """TorchScript modules carry no Python hooks; their loop is watched all the same."""
    model = torch.jit.script(MLP.set_up()[0])
    optimizer = MLP.optimizer(model)
    with memguard.watch(model, optimizer) as guard:
        for step in range(20):
            train_step(MLP, model, optimizer, step)

        assert guard.report().step == 20
        assert guard.report().verdict == "clean"
        assert guard.report().failures == ()
