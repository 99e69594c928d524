"""The dated look: do live attached tensors reach autograd nodes of past steps?

It sees what no module's output betrays: parameter averages, running statistics and fast weights
chain from step to step without passing through a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from memguard import _torch
from memguard.sensors import touched

# Nodes touched in one look. Enough to cross a step of a mid-sized model; a graph this deep is
# still freed safely (see sensors.touched for what deep costs).
MAX_NODES = 1500

# Reaching further back than this many steps is old enough; the look ends there.
MAX_REACH = 512

# Of two nodes with more numbers between them nobody looks whether one hangs on the other.
MOST_APART = 64

# A node's number and edges take 0.3 microseconds to read in a row, and up to ten times as much when
# the loop has just displaced the code for it. What took longer was interrupted.
MOST_SECONDS_PER_NODE = 3e-6


class Dating:
    """Steps of nodes, given the newest first, so that one graph is of one step.

    Where the beginnings of steps are not known, numbers are spread over them evenly, and a graph
    may lie across two. Then what hangs on a node of the later step is of that step, too.

    Args:
        step_of: dates a node by its creation number; negative when it cannot be told.
        nodes_a_step: how many numbers a step has around one; 0 where `step_of` is certain.

    Attributes:
        looked: nodes that were touched to see whether they hang together.
    """

    __slots__ = ("_nodes_a_step", "_roots", "_step", "_step_of", "looked")

    def __init__(self, step_of: Callable[[int], int], nodes_a_step: Callable[[int], int]) -> None:
        self._step_of = step_of
        self._nodes_a_step = nodes_a_step
        self._step = -1
        # Numbers and nodes of the step that do not hang on one another.
        self._roots: list[tuple[int, Any]] = []
        self.looked = 0

    def step_of(self, number: int, node: Any) -> int:
        """The step of the next node."""
        step = self._step_of(number)
        is_beside = step == self._step - 1 and self._nodes_a_step(number) > 0
        if is_beside and any(self._hangs_on(root, number, node) for root in self._roots):
            return self._step
        if step != self._step:
            self._step = step
            self._roots.clear()
        self._roots.append((number, node))
        return step

    def _hangs_on(self, root: tuple[int, Any], number: int, node: Any) -> bool:
        newest, top = root
        if newest - number > MOST_APART:
            return False
        pending, seen = [top], {top}
        while pending:
            for below in _torch.next_nodes(pending.pop()):
                made = _torch.node_sequence(below)
                # What is upstream was made before; accumulators have no number.
                if below not in seen and made is not None and made >= number:
                    seen.add(below)
                    pending.append(below)
        self.looked += len(seen)
        return node in seen


def steps_reached(
    tensors: Iterable[Any], step_of: Callable[[int], int], not_before: int
) -> tuple[tuple[int, ...], int]:
    """(steps reached, oldest first; nodes looked at).

    Args:
        tensors: live attached tensors.
        step_of: dates a node by its creation number; negative when it cannot be told.
        not_before: nodes made before this step are not followed any further.
    """
    pending = [node for tensor in tensors if (node := _torch.node_of(tensor)) is not None]
    seen: set[Any] = set()
    steps: set[int] = set()
    budget = min(MAX_NODES, touched.room())
    while pending and len(seen) < budget:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        number = _torch.node_sequence(node)
        step = -1 if number is None else step_of(number)
        if step >= 0:
            steps.add(step)
            if step < not_before:
                continue
        pending.extend(_torch.next_nodes(node))
    return tuple(sorted(steps)), len(seen)


def numbered(tensors: Iterable[Any]) -> list[tuple[int, Any, Any]]:
    """(creation number of its node, the node, the tensor), the newest first.

    The number is -1 where there is none.
    """
    found = []
    for tensor in tensors:
        node = _torch.node_of(tensor)
        number = None if node is None else _torch.node_sequence(node)
        found.append((-1 if number is None else number, node, tensor))
    found.sort(key=lambda one: one[0], reverse=True)
    return found
