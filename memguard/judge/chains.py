"""From dated looks to a suspicion: how far back the graphs of live tensors reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Looks in a row over which the reach must grow.
LOOKS = 3


@dataclass(frozen=True, slots=True)
class Look:
    """One dated look: at `step`, the steps whose nodes live tensors reach, oldest first."""

    step: int
    reached: tuple[int, ...] = ()


def keeps_reaching(looks: Sequence[Look], window: int, patience: int) -> bool:
    """Whether the last looks reach ever more past steps, beyond the window and the patience.

    A loop that lets go of its graphs reaches a fixed number of steps; one old graph that is used
    again and again stays one step. A chain reaches one step more with each step of the loop.
    """
    recent = looks[-LOOKS:]
    if len(recent) < LOOKS or not all(look.reached for look in recent):
        return False
    first, last = recent[0], recent[-1]
    passed = last.step - first.step
    gained = len(last.reached) - len(first.reached)
    # The first look may fall into the first turns of the loop, where everything is young.
    anchored = all(look.reached[0] <= first.step for look in recent)
    return anchored and len(last.reached) > window + patience and 2 * gained >= passed
