"""`ledger`: where memory is, asked at once, with or without a guard."""

from __future__ import annotations

import contextlib
from typing import Any

from memguard.bookkeeping import MOST_NAMES, take
from memguard.clock import discovery
from memguard.figures import Figures
from memguard.given import sorted_out
from memguard.ledgers import Ledger
from memguard.parts import Parts
from memguard.settings import Settings
from memguard.watching import open_guards


def ledger(*objects: Any) -> Ledger:
    """Say where memory is: parameters, gradients, optimizer state, activations and the rest.

        >>> print(memguard.ledger(model, optimizer))

    Taken between a forward and its backward it has the activations, by part of the model: what has
    no parameters of its own (an activation function, dropout) goes to the part that ran before.

    Args:
        objects: modules and optimizers, in any order, singly or in lists; with none, all that are
            alive.

    Returns:
        One account a device, the host last, with rows that add up; prints as a table. It keeps
        nothing of what it looked at.

    Raises:
        UsageError: an object is neither module nor optimizer.

    Costs a pass over the heap (60 ms for a million objects), some ten microseconds for each
    autograd node and tensor, and a few passes more to name the holders of the largest tensors.
    """
    modules, optimizers = sorted_out(objects, "memguard.ledger")
    if not objects:
        modules, optimizers = discovery.find()
    figures = Figures(Settings())
    with contextlib.ExitStack() as paused:
        # Looking at what a graph saves makes tensors of it, which nobody's loop has made.
        for guard in open_guards():
            paused.enter_context(guard.pause())
        return take(modules, optimizers, Parts(lambda: 0), figures, names=MOST_NAMES)
