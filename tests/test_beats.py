"""When a step ends, told by every mixture of events that loops produce."""

from __future__ import annotations

import pytest

from memguard.clock.beats import (
    EVALUATION_FLOOR,
    STRAY_BEFORE_FIRST,
    STRAY_FLOOR,
    UNUSED_AFTER,
    Clock,
    Leader,
)


def play(clock: Clock, events: str) -> list[bool]:
    """Feed events by letter: F, G training, E evaluation forwards, B backward, O, P optimizers."""
    tell = {
        "F": lambda: clock.forward(1, training=True),
        "G": lambda: clock.forward(2, training=True),
        "E": lambda: clock.forward(1, training=False),
        "B": clock.backward,
        "O": lambda: clock.optimizer(1),
        "P": lambda: clock.optimizer(2),
        "M": clock.manual,
    }
    return [tell[event]() for event in events]


def test_optimizer_steps_end_steps() -> None:
    """With one optimizer each of its steps is a step, whatever forwards come between."""
    clock = Clock()
    clock.knows_optimizer()
    assert play(clock, "FBOFBO") == [False, False, True, False, False, True]
    assert clock.step == 2
    assert clock.beat == "optimizer"


def test_gradient_accumulation_is_one_step() -> None:
    """Eight forwards and backwards before one optimizer step are one step."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, ("FB" * 8 + "O") * 5)
    assert clock.step == 5


def test_two_optimizers_take_one_step_an_iteration() -> None:
    """A GAN steps two optimizers an iteration; one of them gives the beat."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, "FBOFBP" * 10)
    assert clock.step == 10


def test_a_finished_optimizer_loses_the_lead() -> None:
    """When only the other optimizer goes on stepping, its steps become the beat."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, "FBOFBP" * 3 + "FBP" * 10)
    assert clock.step >= 3 + 7


def test_closures_of_lbfgs_are_one_step() -> None:
    """LBFGS calls forward and backward many times within one step."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, ("FB" * 20 + "O") * 3)
    assert clock.step == 3


def test_evaluation_beats_by_forward() -> None:
    """Without optimizer and backward each forward of the root is a step."""
    clock = Clock()
    assert all(play(clock, "EEEE"))
    assert clock.beat == "forward"


def test_evaluation_between_optimizer_steps_beats_after_a_few() -> None:
    """A validation loop beats by forward soon after training paused."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, "FBO" * 4 + "E" * 20)
    assert clock.step == 4 + 20 - EVALUATION_FLOOR


def test_a_teacher_in_evaluation_mode_gives_no_beat() -> None:
    """One evaluation forward an iteration beside the training one adds no steps."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, "EFBO" * 30)
    assert clock.step == 30


def test_rollouts_in_evaluation_mode_give_no_beat_once_known() -> None:
    """Sixty evaluation forwards before each optimizer step are usual after the first rollouts."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, ("E" * 60 + "FBO") * 6)
    settled = clock.step
    play(clock, ("E" * 60 + "FBO") * 4)
    assert clock.step == settled + 4


def test_long_windows_before_the_first_step_are_one_step() -> None:
    """Twenty forwards before the first optimizer step are no steps when an optimizer exists."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, "F" * 20)
    assert clock.step == 0


def test_training_forwards_that_never_lead_to_a_step_become_the_beat() -> None:
    """A model left in training mode is evaluated: after long enough its forwards count."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, "FBO")
    play(clock, "F" * (STRAY_FLOOR + 10))
    assert clock.step == 1 + 10


def test_a_first_step_may_need_thousands_of_forwards() -> None:
    """A cell called for each character of a text: what no optimizer has measured is waited for."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, ("F" * 4_000 + "BO") * 2)
    assert clock.step == 2


def test_an_optimizer_that_never_steps_is_not_waited_for_for_ever() -> None:
    """A model loaded with its optimizer, in training mode, and only called."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, "F" * (STRAY_BEFORE_FIRST + 10))
    assert clock.step == 10


def test_backwards_beat_without_optimizer() -> None:
    """Manual SGD beats by backward, forwards of its windows do not count once one was seen."""
    clock = Clock()
    play(clock, "FB")
    assert clock.step == 1
    play(clock, ("F" * 5 + "B") * 4)
    assert clock.step == 1 + 4
    assert clock.beat == "backward"


def test_the_users_word_overrides_everything() -> None:
    """After the first `step()` nothing else ends a step."""
    clock = Clock()
    play(clock, "MFBOEFBO")
    assert clock.step == 1
    assert clock.beat == "manual"


@pytest.mark.parametrize("turns", [1, 2])
def test_the_lead_stays_while_the_leader_turns(turns: int) -> None:
    """Up to two turns of another source between the leader's do not move the lead."""
    leader = Leader()
    beats = [leader.turn(1) for _ in range(1)]
    for _ in range(5):
        beats += [leader.turn(2) for _ in range(turns)]
        beats.append(leader.turn(1))
    assert sum(beats) == 6


def test_nodes_are_dated_by_their_number() -> None:
    """A node belongs to the step whose first number is the last one not above its own."""
    clock = Clock()
    clock.note_sequence(100)
    clock.manual()
    clock.note_sequence(110)
    clock.manual()
    clock.note_sequence(130)
    assert [clock.step_of(n) for n in (99, 100, 109, 110, 129, 130, 500)] == [
        -1,
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def test_an_optimizer_that_never_steps_leaves_the_beat_to_backwards() -> None:
    """A script may make one and update by hand all the same."""
    clock = Clock()
    clock.knows_optimizer()
    play(clock, "FB" * (UNUSED_AFTER + 50))
    assert clock.step == 51
    assert clock.beat == "backward"
    play(clock, "FBO" * 20)
    assert clock.step == 51 + 1 + 20 or clock.step == 51 + 20
