"""The dated look: do live attached tensors reach autograd nodes of past steps?

It sees what no module's output betrays: parameter averages, running statistics and fast weights
chain from step to step without passing through a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from memguard import _torch

# Nodes touched in one look. Enough to cross a step of a mid-sized model; a graph this deep is
# still freed safely (see sensors.canaries.MAX_TOUCHED for what deep costs).
MAX_NODES = 1500

# Reaching further back than this many steps is old enough; the look ends there.
MAX_REACH = 512

# About 0.3 microseconds a node for reading its number and its edges.
SECONDS_PER_NODE = 3e-7


def oldest_step(
    tensors: Iterable[Any], step_of: Callable[[int], int], stop_before: int
) -> tuple[int | None, int]:
    """(oldest step reached, nodes looked at), stopping at the first node older than `stop_before`.

    Args:
        tensors: live attached tensors.
        step_of: dates a node by its creation number.
        stop_before: a node made before this step ends the look.
    """
    pending: list[Any] = []
    for tensor in tensors:
        node = _torch.grad_fn(tensor)
        if node is not None:
            pending.append(node)
    seen: set[Any] = set()
    oldest: int | None = None
    while pending and len(seen) < MAX_NODES:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        number = _torch.node_sequence(node)
        if number is not None:
            step = step_of(number)
            if oldest is None or step < oldest:
                oldest = step
            if step < stop_before:
                break
        pending.extend(_torch.next_nodes(node))
    return oldest, len(seen)
