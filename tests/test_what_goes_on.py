"""A long run: phases change, leaks begin late, and one that was told does not hide the next."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import memguard
from memguard.records import Finding

SETTLED = 300


class Loop:
    """A model that trains."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> Tensor:
        """One batch; its loss."""
        self.optimizer.zero_grad()
        loss: Tensor = self.model(torch.ones(2, 4)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss

    def run(self, steps: int) -> None:
        """Train without keeping anything."""
        for _ in range(steps):
            self.step()


def told_by(work: Callable[[], None]) -> Finding:
    """What the error that ends `work` tells of."""
    with pytest.raises(memguard.LeakError) as told:
        work()
    return told.value.report.findings[0]


# --- leaks that begin late, at the default budget ---


def test_a_running_sum_that_begins_late_counts_every_step() -> None:
    """Also the steps that nobody looked at, of whose losses no variable is left."""
    loop = Loop()
    total = torch.zeros(())

    def leak() -> None:
        nonlocal total
        for _ in range(200):
            total = total + loop.step()

    with memguard.watch(loop.model, loop.optimizer, overhead=1.0):
        loop.run(SETTLED)
        finding = told_by(leak)
    assert abs(finding.first_step - SETTLED) <= 1
    assert finding.summary.endswith("one more each step")
    assert finding.growth.total.graphs >= finding.step - SETTLED - 4


@pytest.mark.parametrize("forwards", [100, 220])
def test_a_phase_of_many_forwards_does_not_put_the_guard_to_sleep(forwards: int) -> None:
    """Rollouts of hundreds of forwards a step, then plain training, which is watched as ever."""
    loop = Loop()
    kept: list[Tensor] = []

    def leak() -> None:
        for _ in range(400):
            kept.append(loop.step())

    with memguard.watch(loop.model, loop.optimizer, overhead=1.0):
        for _ in range(SETTLED // 2):
            with torch.no_grad():
                for _ in range(forwards):
                    loop.model(torch.ones(2, 4))
            loop.step()
        told_by(leak)
    assert len(kept) < 160


def test_steps_of_uneven_length_leave_the_guard_awake() -> None:
    """A long step's tensors are not taken for old ones that died."""
    dice = random.Random(0)
    loop = Loop()
    kept: list[Tensor] = []

    def uneven() -> Tensor:
        hidden = loop.model(torch.ones(2, 4))
        seen = []
        for _ in range(dice.choice((3, 3, 3, 3, 3, 3, 400))):
            hidden = torch.tanh(hidden * 0.9)
            seen.append(hidden)
        loss = hidden.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        loop.optimizer.step()
        return loss

    def leak() -> None:
        for _ in range(200):
            kept.append(uneven())

    with memguard.watch(loop.model, loop.optimizer, overhead=1.0):
        for _ in range(2 * SETTLED):
            uneven()
        told_by(leak)
    assert len(kept) <= 45


# --- after something was told ---


@pytest.mark.filterwarnings("ignore::memguard.LeakWarning")
@pytest.mark.parametrize("settings", [{"action": "warn"}, {"ignore": ["holder:first"]}])
def test_a_leak_that_was_told_or_ignored_does_not_hide_the_next(
    settings: dict[str, object],
) -> None:
    """One list ends at thirty losses; another begins later and is named as well."""
    loop = Loop()
    first: list[Tensor] = []
    second: list[Tensor] = []
    with memguard.watch(loop.model, loop.optimizer, overhead=1.0, **settings) as guard:  # type: ignore[arg-type]
        try:
            for step in range(600):
                loss = loop.step()
                if step < 30:
                    first.append(loss)
                if step >= 100:
                    second.append(loss)
        except memguard.LeakError:
            pass
        names = {holder.name for found in guard.report().findings for holder in found.holders}
    assert "second" in names


def test_a_second_line_that_feeds_a_told_list_is_no_news() -> None:
    """Whoever has caught the error once is not stopped by the same list again."""
    loop = Loop()
    kept: list[Tensor] = []
    with memguard.watch(loop.model, loop.optimizer):
        with pytest.raises(memguard.LeakError):
            for _ in range(30):
                kept.append(loop.step())
        for _ in range(100):
            kept.append(loop.step())


def test_a_guard_that_only_logs_leaves_the_raising_to_the_other() -> None:
    """Two guards of one loop: each tells in its own way."""
    loop, other = Loop(), Loop()
    kept: list[Tensor] = []

    def leak() -> None:
        for _ in range(120):
            loop.run(1)
            kept.append(other.step())

    with (
        memguard.watch(loop.model, loop.optimizer, action="log"),
        memguard.watch(other.model, other.optimizer),
    ):
        told_by(leak)


def test_the_same_training_run_again_is_stopped_again() -> None:
    """In a notebook the guard of the first run is still open when the second begins."""
    guards = []
    try:
        for _ in range(3):
            loop = Loop()
            guards.append(memguard.watch(loop.model, loop.optimizer))
            history: list[Tensor] = []
            with pytest.raises(memguard.LeakError):
                for _ in range(60):
                    history.append(loop.step())
    finally:
        for guard in guards:
            guard.close()


# --- what ends, and what is passed over ---


def test_when_the_model_that_gave_the_beat_is_gone_the_others_give_it() -> None:
    """A loss module without parameters is all that is left of an evaluation."""
    model, norm = nn.Linear(4, 4).eval(), nn.Softmax(-1).eval()
    inputs = torch.ones(2, 4)
    with memguard.watch(model, norm) as guard, torch.no_grad():
        for _ in range(SETTLED):
            norm(model(inputs))
        before = guard.report().step
        del model
        gc.collect()
        for _ in range(SETTLED):
            norm(inputs)
        assert guard.report().step - before >= SETTLED - 4


def test_what_is_born_in_a_pause_is_passed_over_near_a_collection_too() -> None:
    """The look at the pause's end is put off then, and still passes over what it meets."""
    loop = Loop()
    kept: list[Tensor] = []
    with memguard.watch(loop.model, loop.optimizer, max_growth="1MiB", action="log") as guard:
        for _ in range(60):
            loop.step()
            with guard.pause():
                kept.append(torch.ones(2**18))
                filling: list[list[int]] = []
                while gc.get_count()[0] < gc.get_threshold()[0] - 10:
                    filling.append([])
            del filling
        assert guard.report().findings == ()


def test_a_thread_that_has_ended_is_no_other_loop() -> None:
    """Warm-up in a thread does not end the looks that find averages with a graph."""
    loop = Loop()
    warm_up = threading.Thread(target=loop.run, args=(20,))

    def leak() -> None:
        average = [p.detach().clone() for p in loop.model.parameters()]
        for _ in range(600):
            loop.step()
            pairs = zip(average, loop.model.parameters(), strict=True)
            average = [0.9 * old + 0.1 * new for old, new in pairs]

    with memguard.watch(loop.model, loop.optimizer, overhead=1.0):
        warm_up.start()
        warm_up.join()
        told_by(leak)
