"""What closing takes out, who closes when nobody does, and what several guards do side by side."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from conftest import Python, residue
from models import TASKS, evaluate, hooks_of, train_step
from torch import Tensor, nn

import memguard
from memguard import LeakError, LeakWarning

MLP = TASKS[0]

HOOK_TABLES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)


def attributes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Names of everything on model and optimizer, and how many hooks each table holds."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        found[name] = list(vars(module)), [len(vars(module)[table]) for table in HOOK_TABLES]
    for name, parameter in model.named_parameters():
        hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
        found[name] = dir(parameter), hooks
    found["optimizer"] = (
        list(vars(optimizer)),
        [len(table) for name, table in vars(optimizer).items() if name.endswith("_hooks")],
    )
    return found


def process() -> dict[str, Any]:
    """Everything of the process that a guard might have left something in."""
    tables = [
        (name, len(table))
        for owner in ("torch.nn.modules.module", "torch.optim.optimizer")
        for name, table in vars(sys.modules[owner]).items()
        if name.startswith("_global_") and isinstance(table, dict)
    ]
    return {
        "collector": list(gc.callbacks),
        "collecting": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "threads": threading.enumerate(),
        "hooks": tables,
        "scripting": sys.modules["torch.jit._recursive"].create_script_module,
        "backward": torch.autograd.backward,
        "exceptions": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "anomaly": torch.is_anomaly_enabled(),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
        "ours": residue(),
    }


@pytest.mark.parametrize("steps", [0, 1, 3, 40])
def test_closing_takes_everything_out(steps: int) -> None:
    """Whether modules are being audited at that moment or not, nothing is left."""
    model, optimizer = MLP.set_up()
    train_step(MLP, model, optimizer, 0)
    before, around = attributes(model, optimizer), process()
    guard = memguard.watch(model, optimizer)
    for step in range(steps):
        train_step(MLP, model, optimizer, step)

    assert hooks_of(model) > 0
    assert process() != around
    guard.close()
    assert attributes(model, optimizer) == before
    assert process() == around


def test_closing_after_a_leak_takes_everything_out() -> None:
    """A run that was stopped and explained is as clean as one that was not."""
    model, optimizer = MLP.set_up()
    train_step(MLP, model, optimizer, 0)
    before, around = attributes(model, optimizer), process()
    kept: list[Tensor] = []
    with pytest.raises(LeakError), memguard.watch(model, optimizer):
        for step in range(40):
            kept.append(train_step(MLP, model, optimizer, step))

    assert attributes(model, optimizer) == before
    assert process() == around


def test_closing_twice_is_harmless() -> None:
    """The second time there is nothing to do, also for the context manager around it."""
    model, optimizer = MLP.set_up()
    around = process()
    with memguard.watch(model, optimizer) as guard:
        train_step(MLP, model, optimizer, 0)
        guard.close()
        guard.close()

    assert guard.closed
    assert process() == around
    assert guard.report().step == 1


def test_a_closed_guard_counts_nothing_more() -> None:
    """The report is that of the moment of closing; `step` and `pause` do nothing."""
    model, optimizer = MLP.set_up()
    guard = memguard.watch(model, optimizer)
    for step in range(5):
        train_step(MLP, model, optimizer, step)
    guard.close()
    train_step(MLP, model, optimizer, 5)
    guard.step()
    with guard.pause():
        train_step(MLP, model, optimizer, 6)

    assert guard.report().step == 5
    assert hooks_of(model) == 0


def test_hooks_of_the_user_stay_where_they_are() -> None:
    """Only ours are taken out, whichever were put in first."""
    model, optimizer = MLP.set_up()
    called: list[str] = []
    model.register_forward_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("step"))
    with memguard.watch(model, optimizer):
        model.register_forward_hook(lambda *_: called.append("after"))
        train_step(MLP, model, optimizer, 0)
    train_step(MLP, model, optimizer, 1)

    assert called == ["before", "after", "step"] * 2
    assert hooks_of(model) == 2


def test_the_body_of_the_context_manager_raises_what_it_raises() -> None:
    """An exception of the loop passes through, and the guard is closed."""
    model, optimizer = MLP.set_up()
    with pytest.raises(KeyError, match="mine"), memguard.watch(model, optimizer) as guard:
        raise KeyError("mine")

    assert guard.closed


# --- who closes when nobody does ---


def test_the_guard_closes_when_what_it_watches_is_collected() -> None:
    """`memguard.watch(model, optimizer)` may stand alone on its line."""
    around = process()
    model, optimizer = MLP.set_up()
    guard = memguard.watch(model, optimizer)
    for step in range(5):
        train_step(MLP, model, optimizer, step)
    del model, optimizer
    gc.collect()

    assert guard.closed
    assert process() == around


def test_model_and_optimizer_are_not_kept_alive() -> None:
    """Watching holds them weakly, at every moment of a run."""
    model, optimizer = MLP.set_up()
    guard = memguard.watch(model, optimizer)
    for step in range(20):
        train_step(MLP, model, optimizer, step)
    references = [weakref.ref(model), weakref.ref(optimizer), *map(weakref.ref, model.parameters())]
    del model, optimizer
    gc.collect()

    assert [reference() for reference in references] == [None] * len(references)
    assert guard.closed


def test_a_loop_that_replaces_its_model_is_watched_anew() -> None:
    """Folds, sweeps: the first model's guard has closed, the next one's begins."""
    around = residue()
    reports = []
    for _ in range(3):
        model, optimizer = MLP.set_up()
        guard = memguard.watch(model, optimizer)
        for step in range(20):
            train_step(MLP, model, optimizer, step)
        reports.append(guard.report())
        del model, optimizer, guard
        gc.collect()

    assert [(report.step, report.verdict) for report in reports] == [(20, "clean")] * 3
    assert residue() == around


def test_a_model_collected_in_the_middle_of_the_loop_ends_the_watching_only() -> None:
    """The loop itself goes on, with another model."""
    model, optimizer = MLP.set_up()
    other, other_optimizer = TASKS[1].set_up()
    guard = memguard.watch(model, optimizer)
    for step in range(20):
        if step == 10:
            del model, optimizer
            gc.collect()
        if step < 10:
            train_step(MLP, model, optimizer, step)
        train_step(TASKS[1], other, other_optimizer, step)

    assert guard.closed
    assert guard.report().step == 10


def test_the_model_may_go_before_its_optimizer() -> None:
    """As long as one of them lives there is something to watch."""
    model, optimizer = MLP.set_up()
    guard = memguard.watch(model, optimizer)
    train_step(MLP, model, optimizer, 0)
    del model
    gc.collect()
    for _ in range(10):
        optimizer.step()

    assert guard.report().step == 11
    assert not guard.closed
    guard.close()


REPORT_AT_EXIT = """\
import sys
sys.path.insert(0, sys.argv[1])
from models import TASKS, train_step
import memguard
model, optimizer = TASKS[0].set_up()
memguard.watch(model, optimizer, report=sys.argv[2])
for step in range(20):
    train_step(TASKS[0], model, optimizer, step)
"""


def test_an_open_guard_writes_its_report_when_python_ends(python: Python, tmp_path: Any) -> None:
    """Nobody has to call `close` for the report of a clean run."""
    program = tmp_path / "program.py"
    program.write_text(REPORT_AT_EXIT)
    done = python(program, __file__.rpartition("/")[0], tmp_path / "report.json")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert '"verdict": "clean"' in (tmp_path / "report.json").read_text()


# --- the same guard, and several ---


def test_watch_may_stand_inside_the_loop() -> None:
    """Called again for the same objects it is the same guard, with one hook on the model."""
    model, optimizer = MLP.set_up()
    guards, hooks = set(), set()
    for step in range(30):
        guards.add(memguard.watch(model, optimizer))
        hooks.add(len(model._forward_hooks))
        train_step(MLP, model, optimizer, step)
    (guard,) = guards

    assert hooks == {1}
    assert guard.report().step == 30
    guard.close()


def test_the_order_and_grouping_of_the_objects_do_not_matter() -> None:
    """It is the objects that say which guard is meant."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer) as guard:
        assert memguard.watch(optimizer, model) is guard
        assert memguard.watch([model], (optimizer,)) is guard
        assert memguard.watch(model, optimizer, None) is guard


def test_a_closed_guard_is_not_given_out_again() -> None:
    """Watching after closing begins anew."""
    model, optimizer = MLP.set_up()
    first = memguard.watch(model, optimizer)
    train_step(MLP, model, optimizer, 0)
    first.close()
    with memguard.watch(model, optimizer) as second:
        assert second is not first
        assert second.report().step == 0


def test_two_guards_watch_two_models() -> None:
    """Each counts its own steps and tells a leak in its own way; closing one leaves the other."""
    model, optimizer = MLP.set_up()
    other, other_optimizer = TASKS[1].set_up()
    kept: list[Tensor] = []
    with (
        memguard.watch(model, optimizer, action="log") as outer,
        memguard.watch(other, other_optimizer, action="warn") as inner,
    ):

        def loop() -> None:
            for step in range(40):
                train_step(MLP, model, optimizer, step)
                if step % 2 == 0:
                    kept.append(train_step(TASKS[1], other, other_optimizer, step))

        with pytest.warns(LeakWarning):
            loop()
        inner.close()
        for step in range(40, 50):
            train_step(MLP, model, optimizer, step)

        assert (outer.report().step, inner.report().step) == (50, 20)
        assert inner.report().verdict == "leak"
        assert inner.report().failures == outer.report().failures == ()


# --- pausing ---


def test_what_is_born_in_a_pause_is_not_judged() -> None:
    """Attached tensors kept on purpose, as many as steps: no suspicion."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    with memguard.watch(model, optimizer) as guard:
        for step in range(40):
            train_step(MLP, model, optimizer, step)
            with guard.pause():
                kept.append(MLP.loss(model, step))

        assert guard.report().verdict == "clean"
        assert guard.report().step == 40
    assert len(kept) == 40


def test_steps_in_a_pause_are_not_counted() -> None:
    """An inner loop of the same model and optimizer is not the watched one."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer) as guard:
        train_step(MLP, model, optimizer, 0)
        with guard.pause():
            train_step(MLP, model, optimizer, 1)
            with guard.pause():
                guard.step()
            evaluate(MLP, model)
        train_step(MLP, model, optimizer, 2)

        assert guard.report().step == 2


def test_an_exception_ends_the_pause() -> None:
    """The loop that catches it is watched again."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer) as guard:
        with pytest.raises(ValueError, match="inside"), guard.pause():
            raise ValueError("inside")
        train_step(MLP, model, optimizer, 0)

        assert guard.report().step == 1


def test_a_leak_that_begins_after_a_pause_is_found() -> None:
    """A pause is no switch: what comes after it is judged as ever."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    with memguard.watch(model, optimizer) as guard, pytest.raises(LeakError):
        with guard.pause():
            for step in range(20):
                train_step(MLP, model, optimizer, step)
        for step in range(40):
            kept.append(train_step(MLP, model, optimizer, step))

    assert len(kept) < 20
