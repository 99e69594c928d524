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

# A node's number and edges take 0.3 microseconds to read in a row, and up to ten times as much when
# the loop has just displaced the code for it. What took longer was interrupted.
MOST_SECONDS_PER_NODE = 3e-6


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
