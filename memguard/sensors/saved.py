"""What living autograd graphs save for their backward, by the module that ran last before."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from memguard import _computing, _storage, _torch
from memguard.ledgers import RowName
from memguard.sensors import touched
from memguard.sensors.holdings import Holdings

# Names that wrappers put before a parameter's own.
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")

SEVERAL = "several modules"


class _Mark(touched.Life):
    """Put into every node of one walk, so that it lives as long as any of them does."""

    __slots__ = ()


# Walks some of whose nodes were alive when last asked, each with the nodes it touched.
_walks: list[tuple[weakref.ref[_Mark], int]] = []


class Owner(NamedTuple):
    """Whose a parameter is.

    Attributes:
        part: the top-level part of the model: `blocks.3`.
        model: the model's class.
    """

    part: str
    model: str


class _Met(NamedTuple):
    number: int
    part: str
    row: RowName
    kept: list[tuple[list[_storage.Storage], bool, bool]]


@dataclass(slots=True)
class Graphs:
    """What was walked.

    Attributes:
        nodes: autograd nodes of the current graph.
        retained: autograd nodes of past steps.
        complete: False when the budget ended before every node was met.
        left: tensors and nodes whose graphs were not followed any more.
    """

    nodes: int = 0
    retained: int = 0
    complete: bool = True
    left: int = 0


def claim_saved(
    holdings: Holdings,
    tensors: Iterable[Any],
    parts: dict[int, Owner],
    is_past: Callable[[int], bool],
) -> Graphs:
    """Count what the graphs behind `tensors` save, those of past steps as `retained`.

    Args:
        holdings: where to.
        tensors: living tensors that hang on a graph, newest first.
        parts: by identity of a parameter, whose it is.
        is_past: whether a node with this creation number was made in a step that is over.

    Where other threads compute nothing is counted, and the graphs are not complete.

    Costs some ten microseconds a node.
    """
    walk = _Walk(holdings, parts, is_past)
    if _computing.others():
        walk.graphs.complete = False
        return walk.graphs
    walk.follow(tensors)
    walk.claim()
    return walk.graphs


class _Walk:
    """One walk through graphs; holds nodes until it ends, and storages only by number."""

    def __init__(
        self, holdings: Holdings, parts: dict[int, Owner], is_past: Callable[[int], bool]
    ) -> None:
        self.graphs = Graphs()
        self._holdings = holdings
        self._parts = parts
        self._is_past = is_past
        self._found: list[_Met] = []
        self._seen: set[Any] = set()
        self._mark = _Mark()
        self._touched = 0

    def follow(self, tensors: Iterable[Any]) -> None:
        """Meet every node behind the tensors, as far as the budget reaches."""
        budget = _room()
        left = iter(tensors)
        for tensor in left:
            # Without a budget not even the first node may be touched.
            pending = self._begin(tensor) if budget else [tensor]
            while pending and self._touched < budget:
                pending += self._meet(pending.pop())
            if pending:
                self.graphs.complete = False
                self.graphs.left = len(pending) + sum(1 for _ in left)
                break
        self._seen.clear()
        if self._touched:
            _walks.append((weakref.ref(self._mark), self._touched))
            touched.note(self._mark, self._touched)

    def _begin(self, tensor: Any) -> list[Any]:
        """Note the tensor itself, as its node's output; returns the node when it is new."""
        node = _torch.node_of(tensor)
        if node is not None:
            self._note(node, "", [tensor])
        return self._new([node])

    def _note(self, node: Any, part: str, tensors: Iterable[Any]) -> None:
        number = _torch.node_sequence(node)
        past = number is not None and self._is_past(number)
        kept = [(_storage.storages_of(one), *self._holdings.place_of(one)) for one in tensors]
        self._found.append(_Met(number or 0, part, "retained" if past else "activations", kept))

    def _new(self, nodes: Iterable[Any]) -> list[Any]:
        new = [node for node in nodes if node is not None and node not in self._seen]
        self._seen.update(new)
        # Leaves end every chain and live as long as their parameter: they count for nothing.
        return [node for node in new if _torch.leaf_of(node) is None]

    def _meet(self, node: Any) -> list[Any]:
        """Note what the node saves; returns the nodes behind it."""
        metadata = _torch.node_metadata(node)
        if _Mark not in metadata:  # met by an earlier walk, it is counted there
            metadata[_Mark] = self._mark
            self._touched += 1
        following = _torch.next_nodes(node)
        leaves = (_torch.leaf_of(one) for one in following)
        owners = {self._parts[id(leaf)] for leaf in leaves if id(leaf) in self._parts}
        part = _together(owners, _torch.is_compiled_node(node))
        self._note(node, part, (*_torch.saved_tensors(node), *_torch.tensors_on_context(node)))
        past = self._found[-1].row == "retained"
        self.graphs.nodes += not past
        self.graphs.retained += past
        return self._new(following)

    def claim(self) -> None:
        """Count in the order of the forward pass: what has no parameter goes to the part before."""
        latest = ""
        for met in sorted(self._found, key=lambda met: met.number):
            latest = met.part or latest
            for storages, pinned, shared in met.kept:
                self._holdings.add(met.row, latest, storages, pinned, shared)


def _together(owners: Collection[Owner], compiled: bool) -> str:
    """The part of the model that a node belongs to which has parameters of these.

    What torch.compile has made one node of is told as the least part that has all of it.
    """
    parts = sorted({owner.part for owner in owners})
    if len(parts) < 2:
        return next(iter(parts), "")
    if not compiled:
        return SEVERAL
    both = zip(parts[0].split("."), parts[-1].split("."), strict=False)
    common = ".".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))
    models = sorted({owner.model for owner in owners})
    return f"{common or ' and '.join(models[:2])} (compiled)"


def _room() -> int:
    _walks[:] = [(mark, nodes) for mark, nodes in _walks if mark() is not None]
    # Half of what a small stack allows: looks for leaks need the rest.
    share = min(touched.MOST_OF_LEDGERS, touched.most() // 2)
    return max(0, min(touched.room(), share - sum(nodes for _, nodes in _walks)))


def parts_of(modules: Iterable[Any]) -> dict[int, Owner]:
    """By identity of each parameter, whose it is."""
    modules = list(modules)
    found: dict[int, Owner] = {}
    for module in modules:
        model = type(module._modules.get("_orig_mod") or module).__name__  # torch.compile's
        prefix = f"{model}." if len(modules) > 1 else ""
        for name, parameter in module.named_parameters():
            found.setdefault(id(parameter), Owner(prefix + top_level(name), model))
    return found


def top_level(name: str) -> str:
    """The part of the model a parameter's name begins with, members of lists apart.

    `head.weight` is of `head`, `module.blocks.3.mlp.bias` of `blocks.3`.
    """
    while name.startswith(_WRAPPERS):
        name = name.partition(".")[2]
    words = name.split(".")[:-1]
    depth = 2 if len(words) > 1 and words[1].isdigit() else 1
    return ".".join(words[:depth])
