"""A process guarded as a whole: what steps is found, whoever wraps it; what never steps is not."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import memguard
from memguard import LeakError, _process, watching
from memguard.clock import discovery
from memguard.clock.searches import FREE_SEARCHES, Searches
from memguard.guard import Guard
from memguard.sensors.governor import Governor
from memguard.settings import Settings

Step = Callable[[torch.Tensor], None]


@pytest.fixture
def process() -> Iterator[Guard]:
    """The guard that MEMGUARD=1 begins once torch is there."""
    gc.collect()  # optimizers of other tests that are found alive would count as this one's
    guard = watching.guard_process(Settings(), quiet=True)
    yield guard
    guard.finish()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


# --- optimizers in the shapes that libraries give them ---


class AcceleratedLike(torch.optim.Optimizer):
    """An Optimizer by class that never ran its own __init__ and hands everything on."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner
        self.param_groups, self.defaults = inner.param_groups, inner.defaults
        self.state = inner.state

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


class ApexLike:
    """No Optimizer at all: it keeps masters of the weights and steps those."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


class ScheduleFreeLike(torch.optim.Optimizer):
    """Averages beside the steps of the optimizer within, and has modes of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__([p for group in inner.param_groups for p in group["params"]], {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = self.inner.step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].setdefault("z", p.clone()).lerp_(p, 0.1)
        return loss


class EightBitLike(torch.optim.Optimizer):
    """Keeps its state in bytes and updates the weights itself."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p].setdefault("m", torch.zeros(p.shape, dtype=torch.uint8))
                    state.add_(1)
                    p.sub_(p.grad, alpha=group["lr"])


class EngineLike(nn.Module):
    """DeepSpeed's shape: the engine is the module, and no torch optimizer ever steps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    @torch.no_grad()
    def step(self) -> None:
        for p in self.module.parameters():
            p.sub_(p.grad, alpha=0.01)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)


WRAPPERS: dict[str, Callable[[nn.Module], tuple[nn.Module, Any]]] = {
    "plain": lambda model: (model, sgd(model)),
    "accelerated": lambda model: (model, AcceleratedLike(sgd(model))),
    "apex": lambda model: (model, ApexLike(sgd(model))),
    "schedule-free": lambda model: (model, ScheduleFreeLike(sgd(model))),
    "8-bit": lambda model: (model, EightBitLike(model.parameters())),
    "engine": lambda model: (engine := EngineLike(model), engine),
}


@pytest.mark.parametrize("make", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_whatever_wraps_the_optimizer_each_turn_is_a_step(
    process: Guard, make: Callable[[nn.Module], tuple[nn.Module, Any]]
) -> None:
    """A healthy loop is clean and counted turn by turn; its leaking twin is stopped."""
    model, optimizer = make(Net())

    def turn() -> torch.Tensor:
        loss = model(torch.randn(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(30):
        turn()
    report = process.report()
    assert (report.verdict, 28 <= report.step <= 31) == ("clean", True)

    total = torch.zeros(())
    with pytest.raises(LeakError) as caught:
        for _ in range(80):
            total = total + turn()
    assert caught.value.report.findings[0].holders[0].name == "total"


def test_an_evaluation_phase_is_judged_by_its_forwards(process: Guard) -> None:
    """Training goes on for a while; then predictions are gathered with their graphs."""
    model = Net()
    optimizer = sgd(model)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).mean().backward()
        optimizer.step()
    model.eval()
    predictions = []
    with pytest.raises(LeakError) as caught:
        for _ in range(200):
            predictions.append(model(torch.randn(2, 4)))

    assert caught.value.report.findings[0].holders[0].name == "predictions"


# --- servers ---


def test_a_request_loop_without_optimizer_is_judged(process: Guard) -> None:
    """Each request is a step by its forward; what a cache keeps of them is named."""
    model, answers = Net().eval(), {}

    def handle(number: int) -> float:
        answers[number] = model(torch.randn(1, 4))
        return answers[number].item()

    with pytest.raises(LeakError) as caught:
        for number in range(60):
            handle(number)

    assert caught.value.report.findings[0].holders[0].name == "answers"
    assert caught.value.report.clock["beat"] == "forward"


class Server:
    """Answers each request in a thread of its own.

    Attributes:
        raised: what its handlers raised.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.answers: dict[int, torch.Tensor] = {}
        self.raised: list[Exception] = []

    def handle(self, number: int) -> None:
        self.model(torch.randn(1, 4))

    def answer(self, number: int) -> None:
        try:
            self.handle(number)
        except Exception as error:
            self.raised.append(error)

    def serve(self, requests: int) -> None:
        for number in range(requests):
            thread = threading.Thread(target=self.answer, args=(number,))
            thread.start()
            thread.join()
            if self.raised:
                break


class KeepingServer(Server):
    def handle(self, number: int) -> None:
        self.answers[number] = self.model(torch.randn(1, 4))


def test_a_server_with_a_thread_for_each_request_is_judged(process: Guard) -> None:
    """The threads are gone, what they left in the server is not; the healthy twin is silent."""
    model = Net().eval()
    healthy = Server(model)
    healthy.serve(60)
    assert healthy.raised == []
    assert process.report().verdict == "clean"

    leaky = KeepingServer(model)
    leaky.serve(200)
    assert isinstance(leaky.raised[0], LeakError)
    assert leaky.raised[0].report.findings[0].holders[0].name == "self.answers"


def test_a_model_that_takes_anothers_place_is_judged(process: Guard) -> None:
    """A server lets go of its model and loads the next; hooks of torch's are as they were."""
    server, answers = {"model": Net().eval()}, []
    for _ in range(30):
        server["model"](torch.randn(1, 4))
    del server["model"]
    server["model"] = Net().eval()
    with pytest.raises(LeakError) as caught:
        for _ in range(120):
            answers.append(server["model"](torch.randn(1, 4)))

    assert caught.value.report.findings[0].holders[0].name == "answers"
    assert not torch.nn.modules.module._global_forward_hooks


# --- what a search of the heap costs ---


def attack() -> None:
    """One optimizer for a sample, as adversarial attacks and meta-learning make them."""
    delta = torch.zeros(2, 4, requires_grad=True)
    optimizer = torch.optim.SGD([delta], lr=0.1)
    delta.sum().backward()
    optimizer.step()


def trial() -> None:
    """One model for a request, without any optimizer."""
    model = Net().eval()
    with torch.no_grad():
        model(torch.randn(2, 4))


@pytest.mark.parametrize("turn", [attack, trial])
def test_a_sweep_is_not_searched_turn_by_turn(
    process: Guard, turn: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is new at every turn makes a few searches; any other, time has to pay for."""
    searches: list[int] = []
    monkeypatch.setattr(discovery, "find", lambda: searches.append(1) or ([], []))
    monkeypatch.setattr(Governor, "earns", lambda *_: False)
    for _ in range(50):
        turn()

    assert len(searches) == FREE_SEARCHES


def test_an_optimizer_is_heard_though_its_model_waits_for_a_search(
    process: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps count at once; the search is made up for when it can be afforded."""
    searches: list[int] = []
    affordable = False
    monkeypatch.setattr(Searches, "are_affordable", lambda _: affordable)
    monkeypatch.setattr(discovery, "find", lambda: searches.append(1) or ([], []))
    model = nn.Linear(4, 1)
    optimizer = sgd(model)
    for turn in range(4):
        affordable = turn == 3
        assert (process.report().clock["optimizer_steps"], searches) == (turn, [])
        model.weight.sum().backward()
        optimizer.step()

    assert searches == [1]


def test_a_search_waits_until_time_has_paid_for_it() -> None:
    """After the free ones each needs a hundred times what the last one took."""
    now = [0.0]
    governor = Governor(0.01, clock=lambda: now[0])
    searches = Searches(governor, clock=lambda: now[0])

    def search() -> None:
        now[0] += 0.5

    for _ in range(FREE_SEARCHES):
        assert searches.are_affordable()
        searches.make(search)
    now[0] += 49.0
    assert not searches.are_affordable()
    now[0] += 1.0
    assert searches.are_affordable()
    assert governor.sensing == pytest.approx(0.5 * FREE_SEARCHES)


# --- one process, one guard ---


def test_several_models_have_one_guard(process: Guard) -> None:
    """Two models with optimizers of their own in turn: one beat, and a leak of either is found."""
    first, second = Net(), Net()
    optimizers = {first: sgd(first), second: sgd(second)}

    def turn(model: nn.Module) -> torch.Tensor:
        loss = model(torch.randn(2, 4)).pow(2).mean()
        optimizers[model].zero_grad()
        loss.backward()
        optimizers[model].step()
        return loss

    for _ in range(20):
        turn(first), turn(second)
    assert (process.report().verdict, process.report().step) == ("clean", 20)
    losses = []
    with pytest.raises(LeakError):
        for _ in range(40):
            turn(first)
            losses.append(turn(second))


def test_a_watch_in_the_program_is_the_same_guard(process: Guard) -> None:
    """So nothing is told twice, and closing it does not end the process's guard."""
    model = Net()
    with memguard.watch(model) as guard:
        assert guard is process
    assert not process.closed


def test_a_watch_inside_the_loop_costs_no_search(
    process: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the guard has met is not met again, so no optimizer is judged a second time."""
    searches: list[int] = []
    monkeypatch.setattr(discovery, "find", lambda: searches.append(1) or ([], []))
    model = Net()
    optimizer = sgd(model)
    made = []
    for _ in range(4):
        assert memguard.watch(model, optimizer) is process
        model(torch.randn(2, 4)).mean().backward()
        optimizer.step()
        made.append(len(searches))

    assert process.report().clock["optimizer_steps"] == 4
    assert made == [made[0]] * 4


def test_a_watch_inside_the_loop_is_judged_though_the_guard_goes_elsewhere(process: Guard) -> None:
    """It waits for the loop's own word once, not at every turn anew."""
    model, kept = nn.Linear(4, 1).eval(), []
    with pytest.raises(LeakError):
        for _ in range(400):
            guard = memguard.watch(model)
            str(guard)
            kept.append(model(torch.randn(1, 4)))


def test_a_watch_without_objects_waits_for_the_loops_word_once(process: Guard) -> None:
    """Inside a loop that never says it, forwards are judged after all."""
    model, kept = nn.Linear(4, 1).eval(), []
    with pytest.raises(LeakError):
        for _ in range(400):
            guard = memguard.watch()
            str(guard)
            kept.append(model(torch.randn(1, 4)))


@pytest.mark.parametrize("action", ["warn", "off"])
def test_a_watch_with_settings_of_its_own_comes_first(process: Guard, action: str) -> None:
    """A keyword wins over the environment: the guard that only a variable began gives way."""
    model = Net()
    guard = memguard.watch(model, action=action)

    assert guard is not process
    assert process.closed
    guard.close()


def test_what_never_steps_is_not_judged_and_writes_nothing(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """A loader that only makes tensors has nothing to say, not even of wrong settings."""
    problem = "MEMGUARD_WINDOW is 'x'; it is passed over"
    settings = Settings(report=str(tmp_path / "report.json"), problems=(problem,))
    guard = watching.guard_process(settings, quiet=True)
    kept = [torch.randn(4) for _ in range(1000)]
    guard.finish()

    assert len(kept) == 1000
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_what_steps_says_what_was_passed_over_and_writes(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """The job itself is told of a wrong variable once, and its report is there at the end."""
    problem = "MEMGUARD_WINDOW is 'x'; it is passed over"
    settings = Settings(report=str(tmp_path / "report.json"), problems=(problem,))
    guard = watching.guard_process(settings, quiet=True)
    model = Net()
    for _ in range(3):
        model(torch.randn(1, 4))
    guard.finish()

    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    assert capfd.readouterr().err == f"memguard: {problem}\n"


class Halve(nn.Module):
    """A transform, as torchvision's are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


@pytest.mark.parametrize(("model", "steps"), [(Halve(), 0), (nn.Linear(4, 1), 40)])
def test_a_loaders_worker_takes_no_transform_for_a_loop(
    model: nn.Module, steps: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that multiprocessing made, only what has parameters is evaluated there."""
    monkeypatch.setattr("multiprocessing.process.parent_process", lambda: object())
    settings = Settings(report=str(tmp_path / "report.json"))
    guard = watching.guard_process(settings, quiet=True)
    kept = [nn.Sequential(model).eval()]
    for _ in range(40):
        kept[0](torch.randn(4))
    guard.finish()

    assert guard.steps == steps
    assert len(list(tmp_path.iterdir())) == bool(steps)


def test_a_spawned_process_is_known_while_it_imports_its_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guard begins with torch, which is before multiprocessing says who its parent is."""
    assert not _process.is_child()
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    assert _process.is_child()


def test_an_optimizer_of_another_model_says_nothing_of_the_watched_one() -> None:
    """A server that keeps a trained model beside the one it serves is judged by its forwards."""
    trained = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    served = nn.Linear(4, 4)
    kept = []
    with memguard.watch(served) as guard, pytest.raises(memguard.LeakError):
        for _ in range(40):
            kept.append(served(torch.ones(2, 4)))

    assert guard.steps < 20
    assert optimizer.param_groups


@pytest.mark.parametrize("keeps", [False, True])
def test_a_server_whose_model_is_frozen_is_found(keeps: bool, process: Guard) -> None:
    """`gc.freeze()` before the fork hides the model from searches; its call tells which it is."""
    model = nn.Sequential(nn.Flatten(), Net(), nn.Tanh()).eval()
    gc.freeze()
    kept: list[torch.Tensor] = []
    try:
        for _ in range(20):
            answer = model(torch.randn(2, 4))
            if keeps:
                kept.append(answer)
        report = process.report()
    except LeakError as error:
        report = error.report
    finally:
        gc.unfreeze()

    assert report.verdict == ("leak" if keeps else "clean")
    assert report.clock["beat"] == "forward"
    assert report.step == report.clock["forwards"] == (9 if keeps else 20)
    if keeps:
        assert [holder.name for holder in report.findings[0].holders] == ["kept"]
