"""From dated looks to a suspicion: how far back the graphs of live tensors reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Looks in a row that must all reach back to the same or an older step.
LOOKS = 3


@dataclass(frozen=True, slots=True)
class Look:
    """One dated look: at `step`, the oldest step whose nodes live tensors reach."""

    step: int
    oldest: int | None


def keeps_reaching(looks: Sequence[Look], window: int, patience: int) -> bool:
    """Whether the last looks reach ever further back, past the window and the patience.

    A loop that lets go of its graphs reaches back a fixed number of steps; a chain reaches back
    to the same step however far the loop has gone on.
    """
    recent = looks[-LOOKS:]
    if len(recent) < LOOKS or recent[-1].oldest is None:
        return False
    # The first look may fall into the first turns of the loop, where everything is young.
    anchors = [look.oldest for look in recent]
    if any(anchor is None or anchor > recent[0].step for anchor in anchors):
        return False
    return recent[-1].step - recent[-1].oldest > window + patience and anchors[-1] == min(
        anchor for anchor in anchors if anchor is not None
    )
