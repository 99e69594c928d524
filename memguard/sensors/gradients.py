"""Gradients: whether anything clears them between two steps of an optimizer.

One parameter of each optimizer is asked. A tensor has a number that each change in place raises.
Where a gradient is the same object with the same number when the next one arrives as it was after
the optimizer's step, nobody has cleared it. A hook in the node that adds gradients up, placed in a
forward and gone with its graph, tells of the arrival; and only where the gradient outlived a step
at all, which it does not where it is set to None.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from memguard import _hooks, _torch

# Living optimizers that are asked; a program with more makes them in a loop.
MAX_OPTIMIZERS = 8

# Parameters of an optimizer that are looked at to choose the smallest.
MAX_PARAMETERS = 1000

# Steps in which an optimizer may have no gradient that can be asked before it is left alone.
MAX_TRIES = 8

# Steps that are waited for an arrival; where none is seen, the forward is none that is heard of.
MAX_STEPS = 64


class Asked:
    """One optimizer, and what became of one gradient of its.

    Attributes:
        optimizer: held weakly.
        parameter: whose gradient is asked; held weakly.
        uncleared: steps into which the gradient came as the step before had left it.
        settled: whether it was seen to be cleared, or cannot be asked.
    """

    __slots__ = (
        "_armed",
        "_arrivals",
        "_cleared",
        "_expected",
        "_gradient",
        "_here",
        "_steps",
        "_tries",
        "optimizer",
        "parameter",
        "settled",
        "uncleared",
    )

    def __init__(self, optimizer: Any) -> None:
        self.optimizer: weakref.ref[Any] = weakref.ref(optimizer)
        self.parameter: weakref.ref[Any] | None = None
        self.uncleared = 0
        self.settled = False
        self._gradient: weakref.ref[Any] | None = None
        self._expected = 0
        self._armed = False
        self._arrivals = 0
        self._cleared = False
        self._tries = 0
        self._steps = 0
        self._here = _hooks.here

    @property
    def armed(self) -> bool:
        """Whether the arrival of the next gradient is to be seen."""
        return self._armed and not self.settled

    @property
    def is_over(self) -> bool:
        """Whether the optimizer is gone."""
        return self.optimizer() is None

    def stepped(self, optimizer: Any) -> None:
        """The optimizer has just stepped."""
        gradient = self._gradient_of(optimizer)
        if gradient is None:
            self._tries += 1
            self.settled = self._tries >= MAX_TRIES
            self._gradient = None
            return
        self._steps += 1
        same = self._gradient is not None and self._gradient() is gradient
        if self._cleared or (self._gradient is not None and not same):
            self.settled = True
        elif self._armed:
            self.uncleared += bool(self._arrivals)
        elif same:
            self._armed = True
        self.settled = self.settled or self._steps > MAX_STEPS
        self._gradient = weakref.ref(gradient)
        self._expected = gradient._version
        self._arrivals = 0

    def _gradient_of(self, optimizer: Any) -> Any:
        parameter = self.parameter() if self.parameter is not None else None
        if parameter is None:
            parameter = _smallest(optimizer)
            if parameter is None:
                return None
            self.parameter = weakref.ref(parameter)
            self._gradient = None
        return _plain_gradient(parameter)

    def arrives(self, _: Any) -> None:
        """A gradient is about to be added to that of the parameter; called within the backward."""
        if self.settled or self._gradient is None or self._here is not _hooks.here:
            return
        try:
            with _torch.without_overrides():
                self._note_arrival()
        except Exception:  # the user's backward must not hear of it
            self.settled = True

    def _note_arrival(self) -> None:
        parameter = self.parameter() if self.parameter is not None else None
        gradient = _plain_gradient(parameter) if parameter is not None else None
        same = gradient is not None and self._gradient is not None and self._gradient() is gradient
        if gradient is None or not same or gradient._version != self._expected:
            self._cleared = True
        elif not self._arrivals and _is_all_zero(gradient):
            self._cleared = True  # through `.data` or NumPy, which no version shows
        self._arrivals += 1
        self._expected += 1


class Gradients:
    """Asks the optimizers that step; holds parameters, gradients and optimizers weakly."""

    __slots__ = ("_asked", "_handles")

    def __init__(self) -> None:
        self._asked: dict[int, Asked] = {}
        self._handles: list[Any] = []

    @property
    def curious(self) -> bool:
        """Whether steps and forwards are worth telling of."""
        return len(self._asked) < MAX_OPTIMIZERS or any(
            asked.is_over or not asked.settled for asked in self._asked.values()
        )

    def stepped(self, optimizer: Any) -> Asked | None:
        """An optimizer has just stepped; what is known of it, None where it is not asked."""
        asked = self._asked.get(id(optimizer))
        if asked is None or asked.optimizer() is not optimizer:
            if len(self._asked) >= MAX_OPTIMIZERS:
                self._asked = {k: one for k, one in self._asked.items() if not one.is_over}
            if asked is None and len(self._asked) >= MAX_OPTIMIZERS:
                return None
            asked = self._asked[id(optimizer)] = Asked(optimizer)
        if not asked.settled:
            with _torch.without_overrides():
                asked.stepped(optimizer)
        return asked

    def forward(self) -> None:
        """A model has been called: the graph may lead to the parameters that are asked."""
        armed = [asked for asked in self._asked.values() if asked.armed]
        for asked in armed:
            parameter = asked.parameter() if asked.parameter is not None else None
            node = _accumulator_of(parameter) if parameter is not None else None
            # Each marks the nodes it has a hook in as its own: some outlive the guard that placed
            # it, since distributed training holds the nodes that add up its gradients.
            if node is not None and asked not in _torch.node_metadata(node):
                _torch.node_metadata(node)[asked] = True
                self._handles.append(node.register_prehook(asked.arrives))
                del self._handles[:-MAX_OPTIMIZERS]

    def remove(self) -> None:
        """Take the hooks out and forget everything; harmless when done twice."""
        for asked in self._asked.values():
            asked.settled = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._asked.clear()


def _smallest(optimizer: Any) -> Any:
    """The smallest parameter with a gradient that can be asked; None when there is none."""
    best, size = None, 0
    for parameter in _parameters(optimizer):
        if _plain_gradient(parameter) is None:
            continue
        count = parameter.numel()
        if best is None or count < size:
            best, size = parameter, count
    return best


def _parameters(optimizer: Any) -> Iterable[Any]:
    left = MAX_PARAMETERS
    for group in list(getattr(optimizer, "param_groups", ())):
        for parameter in list(group["params"])[:left]:
            left -= 1
            yield parameter


def _plain_gradient(parameter: Any) -> Any:
    """The parameter's gradient where it is a plain dense tensor, else None."""
    gradient = _torch.gradient_of(parameter)
    plain = type(gradient) is torch.Tensor and gradient.layout is torch.strided
    return gradient if plain else None


def _accumulator_of(parameter: Any) -> Any:
    """The node that adds up the leaf's gradient; lives as long as some graph leads to it.

    None for what is no leaf that wants a gradient.
    """
    if not (parameter.requires_grad and parameter.is_leaf):
        return None
    with torch.enable_grad(), _torch.without_overrides():
        node = parameter.view_as(parameter).grad_fn
    return node.next_functions[0][0] if node is not None else None


def _is_all_zero(gradient: Any) -> bool:
    """Whether it is nothing but zeros; False where asking would wait for a device."""
    return gradient.device.type == "cpu" and not bool(gradient.detach().any())
