"""What autograd graphs hold inside C++: nodes, what they save for backward, leaves.

The collector sees none of it, so it is looked for from the other end, from the live tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memguard import _kinds
from memguard._heap import family, objects_of
from memguard.explain.edges import Edge

# Nodes looked at in one search, over all tensors; see explain.graph.MAX_NODES.
MAX_NODES = 1000
# Tensors told that hold one thing: a graph saved by a thousand losses is one reference to cut.
MAX_CARRIERS = 8


@dataclass(frozen=True, slots=True)
class Carrier:
    """A live tensor that holds something through C++.

    Attributes:
        tensor: the tensor, to be let go of after the search.
        thing: what it holds.
        text: the reference as a chain shows it: `.grad_fn … MulBackward0 saves`.
    """

    tensor: Any
    thing: Any
    text: str

    @property
    def edge(self) -> Edge:
        """The reference, as chains are made of."""
        return Edge("graph", self.text)


def may_be_hidden(thing: Any) -> bool:
    """Whether C++ may refer to it: a tensor or an autograd node."""
    return _kinds.is_tensor_type(type(thing)) or _kinds.is_node(thing)


def live_tensors() -> list[Any]:
    """Every living tensor, roughly the oldest first (a heap pass); none without torch."""
    door = _kinds.torch_door()
    return objects_of(family(door.Tensor)) if door is not None else []


def carriers_of(things: Sequence[Any], tensors: Sequence[Any]) -> tuple[list[Carrier], bool]:
    """Those of the tensors whose graphs hold one of the things (some milliseconds).

    Also whether every graph was looked through: False when the nodes to be looked at ran out.
    """
    door = _kinds.torch_door()
    if door is None or not things:
        return [], True
    wanted = {id(thing) for thing in things}
    # The newest first: what a loop holds is likelier to be meant than what was there before it.
    newest = [tensor for tensor in reversed(tensors) if id(tensor) not in wanted]
    with door.without_overrides():
        found: list[Carrier] = []
        complete = _look_through(door, newest, wanted, found)
    newest.clear()
    return found[:MAX_CARRIERS], complete


def _look_through(
    door: Any, tensors: Sequence[Any], wanted: set[int], found: list[Carrier]
) -> bool:
    """Add the tensors whose graphs hold something that is wanted; False when the nodes ran out."""
    budget = MAX_NODES
    seen: set[Any] = set()
    for tensor in tensors:
        root = door.node_of(tensor) if door.is_attached(tensor) else None
        pending = [root] if root is not None and root not in seen else []
        seen.update(pending)
        while pending:
            if budget <= 0:
                return False
            node = pending.pop()
            budget -= 1
            for thing, how in _held_by_node(door, node, wanted):
                text = f".grad_fn{'' if node is root else ' …'}{how}"
                found.append(Carrier(tensor, thing, text))
            for following in door.next_nodes(node):
                if following not in seen:
                    seen.add(following)
                    pending.append(following)
    return True


def _held_by_node(door: Any, node: Any, wanted: set[int]) -> Iterator[tuple[Any, str]]:
    if id(node) in wanted:
        yield node, ""
    for saved in door.saved_tensors(node):
        if id(saved) in wanted:
            yield saved, f" {node.name()} saves"
            return
    leaf = door.leaf_of(node)
    if leaf is not None and id(leaf) in wanted:
        yield leaf, " AccumulateGrad of"
