"""What `memguard.watch` accepts and finds by itself, how it refuses, how it is switched off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import residue
from models import TASKS, evaluate, hooks_of, train_step
from torch import Tensor, nn

import memguard
from memguard import LeakError, LeakWarning, SettingsError, UsageError, settings
from memguard.guard import Guard
from memguard.settings import Settings
from memguard.watching import guard_process

MLP = TASKS[0]


class Wrapper:
    """A foreign optimizer, as libraries make them: it steps a torch optimizer inside."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()


WRONG = (
    (3, "argument 1 is of type int"),
    ("model", "argument 1 is a str ('model')"),
    (torch.ones(2), "argument 1 is of type Tensor"),
    (nn.Linear, "argument 1 is the class Linear (an instance is wanted)"),
    (torch.optim.SGD, "argument 1 is the class SGD (an instance is wanted)"),
    ([nn.Linear(1, 1), 3], "argument 1 is of type int"),
    ({"model": nn.Linear(1, 1)}, "argument 1 is of type dict"),
    (lambda: None, "argument 1 is of type function"),
    ([nn.Linear(1, 1).parameters()], "argument 1 is of type generator"),
)


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_object_is_refused_by_position_and_with_what_is_accepted(
    wrong: object, said: str
) -> None:
    """The message says which argument it was, what it is, and what would do."""
    with pytest.raises(UsageError) as caught:
        memguard.watch(wrong)

    assert said in str(caught.value)
    assert "torch.nn.Module, torch.optim.Optimizer, and lists of them" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_the_position_counts_from_one_and_nothing_is_left_behind() -> None:
    """Right objects before the wrong one are not half watched."""
    model, optimizer = MLP.set_up()
    around = residue()
    with pytest.raises(UsageError, match="argument 3 is of type float"):
        memguard.watch(model, optimizer, 0.1)

    assert hooks_of(model) == 0
    assert residue() == around


SETTINGS = (
    ({"action": "explode"}, "action is 'explode'"),
    ({"window": 0}, "window is 0"),
    ({"window": "two"}, "window is 'two'"),
    ({"patience": -1}, "patience is -1"),
    ({"max_growth": "12 potatoes"}, "max_growth is '12 potatoes'"),
    ({"limit": "10 MXB"}, "limit is '10 MXB'"),
    ({"overhead": 2}, "overhead is 2"),
    ({"overhead": "-1%"}, "overhead is '-1%'"),
    ({"report": "report.docx"}, "report is 'report.docx'"),
    ({"ignore": 3}, "ignore is 3"),
)


@pytest.mark.parametrize(("settings", "said"), SETTINGS, ids=[said for _, said in SETTINGS])
def test_a_wrong_setting_is_refused_by_name_value_and_what_is_accepted(
    settings: dict[str, Any], said: str
) -> None:
    """Keywords always raise, before anything is watched."""
    model, optimizer = MLP.set_up()
    with pytest.raises(SettingsError) as caught:
        memguard.watch(model, optimizer, **settings)

    assert said in str(caught.value)
    assert "accepted" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert hooks_of(model) == 0


@pytest.mark.parametrize("value", ["warn", None])
def test_an_unknown_keyword_is_refused_with_the_one_that_is_near(value: str | None) -> None:
    """As a variable is; for type checkers it is a wrong argument, as with any function."""
    with pytest.raises(SettingsError, match=r"^unknown setting 'acton'; did you mean action\?$"):
        memguard.watch(action="raise", acton=value)  # type: ignore[arg-type]


def test_other_settings_for_watched_objects_are_refused() -> None:
    """One loop has one guard; the same settings, or none, mean that guard."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer, action="warn", window=3) as guard:
        assert memguard.watch(model, optimizer) is guard
        assert memguard.watch(model, optimizer, action="warn", window=3) is guard
        with pytest.raises(SettingsError, match="already watched with other settings"):
            memguard.watch(model, optimizer, action="raise")


def test_a_function_written_in_the_call_is_no_other_setting() -> None:
    """A lambda is a new one at every turn of the loop; whether there is one still counts."""
    model, _ = MLP.set_up()
    with memguard.watch(model, on_leak=lambda report: None) as guard:
        assert memguard.watch(model, on_leak=lambda report: None) is guard
        with pytest.raises(SettingsError, match="already watched with other settings"):
            memguard.watch(model, on_step=lambda figures: None)


def test_a_call_inside_the_loop_reads_no_settings_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is watched already is found by the objects; keywords are compared by themselves."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer, window=3) as guard:
        monkeypatch.setattr(settings, "_from_environment", None)
        monkeypatch.setattr(settings, "nearest", None)
        assert memguard.watch(model, optimizer) is guard
        monkeypatch.undo()
        monkeypatch.setattr(settings, "nearest", None)
        assert memguard.watch(model, optimizer, window=3) is guard


def test_an_optimizer_of_another_library_is_accepted() -> None:
    """What steps and has parameter groups is an optimizer; its steps are the inner one's."""
    model, optimizer = MLP.set_up()
    wrapper = Wrapper(optimizer)
    with memguard.watch(model, wrapper) as guard:
        for step in range(20):
            MLP.loss(model, step).backward()
            wrapper.step()

        # Until the optimizer inside has stepped, a forward may have been taken for a step.
        assert guard.report().step in (20, 21)
        assert guard.report().clock["beat"] == "optimizer"


@pytest.mark.parametrize("several", [list, tuple, set, frozenset])
def test_objects_may_come_in_any_plain_container(several: type) -> None:
    """Lists, tuples and sets of modules and optimizers, mixed."""
    model, optimizer = MLP.set_up()
    other, other_optimizer = TASKS[1].set_up()
    with memguard.watch(several([model, other]), several([optimizer, other_optimizer])) as guard:
        for step in range(20):
            train_step(MLP, model, optimizer, step)
            train_step(TASKS[1], other, other_optimizer, step)

        # Two optimizers that step in turn make one step of the loop.
        assert guard.report().step == 20
        assert guard.report().verdict == "clean"


@pytest.mark.parametrize("value", ["0", "off"])
def test_the_environment_switches_explicit_calls_off(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`MEMGUARD=0` makes `watch` do nothing at all, leak or not, and no call fails."""
    monkeypatch.setenv("MEMGUARD", value)
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    around = residue()
    with memguard.watch(model, optimizer, report="/nowhere/report.json") as guard:
        assert hooks_of(model) == 0
        assert residue() == around
        for step in range(40):
            kept.append(train_step(MLP, model, optimizer, step))
            guard.step()
            with guard.pause():
                pass

        assert guard.report().verdict == "clean"
        assert guard.report().step == 0


def test_an_action_given_in_code_wins_over_one_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only switching off wins over the keyword."""
    monkeypatch.setenv("MEMGUARD", "raise")
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer, action="warn"), pytest.warns(LeakWarning):
        kept = [train_step(MLP, model, optimizer, step) for step in range(40)]
    assert len(kept) == 40


def test_a_wrong_value_in_the_environment_is_one_line_and_nothing_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in a job script must not break the job."""
    monkeypatch.setenv("MEMGUARD_WINDOW", "many")
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer) as guard:
        train_step(MLP, model, optimizer, 0)

        assert guard.settings.window == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memguard: MEMGUARD_WINDOW is 'many'; accepted:")


# --- finding what was not named ---


Watch = Callable[[nn.Module, torch.optim.Optimizer], Guard]

NAMED: dict[str, Watch] = {
    "both": lambda m, o: memguard.watch(m, o),
    "lists": lambda m, o: memguard.watch([m], [o]),
    "model": lambda m, o: memguard.watch(m),
    "optimizer": lambda m, o: memguard.watch(o),
    "none": lambda m, o: memguard.watch(m, None),
    "dict": lambda m, o: memguard.watch(nn.ModuleDict({"a": m})),
    "list": lambda m, o: memguard.watch(nn.ModuleList([m]), o),
}


@pytest.mark.parametrize("named", NAMED)
def test_a_loop_is_watched_whichever_part_of_it_is_named(named: str) -> None:
    """The optimizer of a named model is found by itself, and so is its leak."""
    model, optimizer = MLP.set_up()
    kept: list[Tensor] = []
    guard = NAMED[named](model, optimizer)
    with guard, pytest.raises(LeakError) as caught:
        for step in range(40):
            kept.append(train_step(MLP, model, optimizer, step))

    assert caught.value.report.clock["beat"] == "optimizer"
    assert len(kept) <= 15


@pytest.mark.parametrize("named", NAMED)
def test_a_healthy_loop_is_clean_whichever_part_of_it_is_named(named: str) -> None:
    """Each optimizer step is one step, evaluations between them are none.

    Before the first step of an optimizer nobody named, a forward may have been taken for one.
    """
    model, optimizer = MLP.set_up()
    with NAMED[named](model, optimizer) as guard:
        for step in range(40):
            train_step(MLP, model, optimizer, step)
            if step % 10 == 9:
                evaluate(MLP, model)

        assert guard.report().step - 40 in ((0, 1) if named in ("model", "none", "dict") else (0,))
        assert guard.report().verdict == "clean"
        assert guard.report().failures == ()


# --- the user's own clock ---


def test_a_loop_without_model_says_itself_when_a_step_has_ended() -> None:
    """`memguard.watch()` with `guard.step()` sees a leak of plain autograd code."""
    weight = torch.ones(4, requires_grad=True)
    total = torch.zeros(())
    with memguard.watch() as guard, pytest.raises(LeakError) as caught:
        for _ in range(60):
            total = total + (weight * 2).sum()
            guard.step()

    assert caught.value.report.clock["beat"] == "manual"
    assert caught.value.report.step < 60


def test_after_the_users_word_nothing_else_ends_a_step() -> None:
    """An optimizer that steps twice a turn does not count while `guard.step()` is called."""
    model, optimizer = MLP.set_up()
    with memguard.watch(model, optimizer) as guard:
        for step in range(10):
            guard.step()
            train_step(MLP, model, optimizer, step)
            train_step(MLP, model, optimizer, step)

        assert guard.report().step == 10
        assert guard.report().clock["optimizer_steps"] == 20


def test_two_guards_without_objects_are_two() -> None:
    """With nothing to tell them apart each call makes a guard."""
    with memguard.watch() as first, memguard.watch() as second:
        first.step()

        assert first is not second
        assert (first.report().step, second.report().step) == (1, 0)


def test_settings_that_stand_back_behind_memguard_run_are_named() -> None:
    """Nobody thinks that a limit holds which does not; said once, in a loop as well."""
    model, optimizer = MLP.set_up()
    whole = guard_process(Settings.read({}, environ={}, pyproject=None))
    try:
        with pytest.warns(memguard.MemguardWarning, match=r"\(max_growth\) stand back"):
            assert memguard.watch(model, optimizer, max_growth="40MiB") is whole
        # Once: a second warning would be an error here.
        assert memguard.watch(model, optimizer, max_growth="40MiB") is whole
    finally:
        whole.finish()
