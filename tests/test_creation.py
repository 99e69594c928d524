"""Where survivors were made: the user's frames, told of the step that came under suspicion."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memguard
from memguard import cli
from memguard.creation import MAX_FRAMES, Creation, user_stack
from memguard.records import Holder

HERE = Path(__file__).name


class Encoder(nn.Module):
    """A model with a module of the user's own within."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.head = nn.Linear(4, 1)
        self.kept: list[Tensor] = []
        self.stash = False

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.inner(inputs)
        if self.stash:
            self.kept.append(hidden)
        return self.head(hidden.detach() if self.stash else hidden)  # type: ignore[no-any-return]


class Inner(nn.Module):
    """What the encoder calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.first(inputs))


def found(model: Encoder, keep: bool, steps: int = 40) -> Holder:
    """The holder that a leak of so many steps is told with."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with memguard.watch(model, optimizer), pytest.raises(memguard.LeakError) as told:
        for _ in range(steps):
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
            if keep:
                losses.append(loss)
    return told.value.report.findings[0].holders[0]


def functions(holder: Holder) -> list[str]:
    """The functions of the stack, innermost first, with those of the test runner left out."""
    frames = [frame for frame in holder.created if HERE in frame]
    return [frame.partition(" in ")[2] for frame in frames]


def test_a_kept_loss_was_made_where_the_model_is_called() -> None:
    """The deepest survivor is the head; the frames around its call are the user's alone."""
    holder = found(Encoder(), keep=True)
    assert functions(holder)[:2] == ["Encoder.forward", "found"]
    assert not any("torch" in Path(frame.partition(":")[0]).parts for frame in holder.created)


def test_a_stashed_activation_was_made_in_the_module_that_returned_it() -> None:
    """Not where the root returned: only the inner module's output survives."""
    model = Encoder()
    model.stash = True
    holder = found(model, keep=False)
    line = next(
        i
        for i, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "hidden: Tensor = self.inner(inputs)" in text
    )
    assert holder.created[0].endswith(f"{HERE}:{line} in Encoder.forward")


def test_a_healthy_loop_has_no_stack_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up the stack is for suspicions only."""
    monkeypatch.setattr("memguard.creation.user_stack", lambda frame: pytest.fail("looked up"))
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with memguard.watch(model, optimizer) as guard:
        for _ in range(60):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert guard.report().failures == ()


def test_stacks_are_text_and_hold_no_frame() -> None:
    """What was in a noted frame dies with it."""
    creation = Creation()

    def noted() -> weakref.ref[nn.Module]:
        module = nn.Linear(1, 1)
        creation.want()
        creation.note(3, "1:inner")
        return weakref.ref(module)

    reference = noted()
    gc.collect()
    assert reference() is None
    assert creation.step == 3
    assert "noted" in creation.of("inner")[0]
    assert creation.of("elsewhere") == ()


def test_only_one_step_is_noted_and_forgotten_afterwards() -> None:
    """A later step does not mix with it; after the suspicion nothing is left."""
    creation = Creation()
    creation.want()
    creation.note(3, "1:a")
    creation.note(4, "1:b")
    assert creation.of("a")
    assert not creation.of("b")
    creation.forget()
    creation.note(5, "1:a")
    assert not creation.of("a")


def test_a_stack_is_no_longer_than_a_reader_wants() -> None:
    """Deep recursion gives the innermost frames."""

    def deep(levels: int) -> tuple[str, ...]:
        import sys

        return deep(levels - 1) if levels else user_stack(sys._getframe())

    stack = deep(50)
    assert len(stack) == MAX_FRAMES
    assert all("deep" in frame for frame in stack)


def test_the_command_that_runs_the_program_is_none_of_its_frames(tmp_path: Path) -> None:
    """Whatever the file is called that `memguard` was started from."""
    found: dict[str, Any] = {}
    program = "from memguard.creation import user_stack\nimport sys\n"
    program += "def made():\n    return user_stack(sys._getframe())\n"
    exec(compile(program, str(tmp_path / "train.py"), "exec"), found)
    command = compile("told = made()", str(Path(cli.__file__).with_name("run.py")), "exec")

    def start() -> None:
        exec(command, found)

    start()
    assert found["told"] == (f"{tmp_path / 'train.py'}:4 in made",)
