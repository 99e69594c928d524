"""Taking a ledger: asks the sensors in turn and has the judge add up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from memguard import _torch, alive
from memguard.figures import Figures
from memguard.judge.accounts import HostFigures, draw_up, is_worth_a_note
from memguard.ledgers import Account, Ledger, Stray
from memguard.parts import Parts
from memguard.records import Amount
from memguard.report import ledger as words
from memguard.sensors.allocator import allocations
from memguard.sensors.devices import Backend, used_backends
from memguard.sensors.holdings import Holdings
from memguard.sensors.host import Host
from memguard.sensors.others import claim_others, living_tensors
from memguard.sensors.saved import Graphs, claim_saved, parts_of
from memguard.sensors.states import claim_states, stray_states
from memguard.sensors.workers import exact_sizes

# Of the other tensors, the largest whose holders are named.
MOST_NAMES = 3

# Tensors of fewer bytes are not worth the passes over the heap.
WORTH_A_NAME = 1 << 20

# Seconds after which no further holder is looked for.
MOST_SECONDS_NAMING = 2.0

# Seconds after which the other tensors are left uncounted where nobody asked for the ledger
# itself, and where somebody did.
MOST_SECONDS, MOST_SECONDS_ASKED = 0.3, 5.0


def take(
    modules: Sequence[Any],
    optimizers: Sequence[Any],
    parts: Parts,
    figures: Figures,
    *,
    is_past: Callable[[int], bool] = lambda number: False,
    kept: Amount | None = None,
    names: int = 0,
    step: int = 0,
) -> Ledger:
    """The ledger of this moment; what cannot be counted is a note in it.

    Args:
        modules: whose parameters and buffers to tell.
        optimizers: whose states to tell.
        parts: does the work, so that nothing of it is raised.
        figures: knows the limits.
        is_past: whether a node with this creation number was made in a step that is over.
        kept: what past steps' graphs are known to have, for those that are too deep to be walked.
        names: of how many of the largest other tensors the holders are named.
        step: steps ended.
    """
    backends = parts.do("ledger: devices", used_backends) or []
    counting = _Counting(Holdings(bool(backends)), parts, is_past)
    with _torch.without_overrides():
        counting.count(modules, optimizers, names)
    told = parts.do("ledger: allocators", device_figures, backends) or []
    host = parts.do("ledger: host", _host, figures) or HostFigures()
    graphs = counting.graphs
    nodes = {"current graph": graphs.nodes, "past steps": graphs.retained}
    accounts = draw_up(counting.holdings.found(), nodes, told, host, counting.holders)
    failed = (one for one in parts.failures.values() if one.part.startswith("ledger: "))
    notes = [f"{one.part.partition(': ')[2]} failed: {one.error}" for one in failed]
    notes += [words.strays(one) for one in counting.strays if is_worth_a_note(one)]
    if graphs.left:
        walked = graphs.nodes + graphs.retained
        notes.append(words.unwalked(walked, graphs.left, _beyond(kept, graphs, accounts)))
    return Ledger(accounts, counting.complete and graphs.complete, tuple(notes), step)


def _beyond(kept: Amount | None, graphs: Graphs, accounts: Sequence[Account]) -> Amount:
    """What of past steps' graphs was not walked."""
    if kept is None:
        return Amount()
    counted = sum(account.bytes_of("retained") for account in accounts)
    return Amount(nodes=max(0, kept.nodes - graphs.retained), bytes=max(0, kept.bytes - counted))


class _Counting:
    """Counts one kind after the other; a storage belongs to the first that claims it.

    Attributes:
        holders: by part of the other tensors, who holds the largest.
        strays: states of optimizers for parameters that are not trained.
    """

    def __init__(self, holdings: Holdings, parts: Parts, is_past: Callable[[int], bool]) -> None:
        self.holdings = holdings
        self.graphs = Graphs()
        self.complete = True
        self.holders: dict[str, str] = {}
        self.strays: list[Stray] = []
        self._parts = parts
        self._is_past = is_past

    def count(self, modules: Sequence[Any], optimizers: Sequence[Any], names: int) -> None:
        """Count everything; nothing of the user's is held afterwards."""
        do = self._parts.do
        do("ledger: states", claim_states, self.holdings, modules, optimizers)
        self.strays = do("ledger: stray states", stray_states, modules, optimizers) or []
        tensors = do("ledger: living tensors", living_tensors) or []
        try:
            do("ledger: graphs", self._count_graphs, tensors, modules)
            largest = do("ledger: other tensors", self._count_others, tensors, bool(names)) or {}
        finally:
            tensors.clear()
        do("ledger: holders", self._name, largest, names)

    def _count_graphs(self, tensors: list[Any], modules: Iterable[Any]) -> None:
        attached = (one for one in tensors if _torch.is_attached(one))
        self.graphs = claim_saved(self.holdings, attached, parts_of(modules), self._is_past)

    def _count_others(self, tensors: list[Any], asked: bool) -> dict[str, tuple[int, Any]]:
        until = time.perf_counter() + (MOST_SECONDS_ASKED if asked else MOST_SECONDS)
        largest, self.complete = claim_others(self.holdings, tensors, until)
        return largest

    def _name(self, largest: dict[str, tuple[int, Any]], names: int) -> None:
        order = sorted(largest, key=lambda part: -largest[part][0])[:names]
        until = time.perf_counter() + MOST_SECONDS_NAMING
        for part in order:
            size, tensor = largest.pop(part)
            if size >= WORTH_A_NAME and time.perf_counter() < until:
                asked = [tensor]
                del tensor
                self.holders[part] = alive.holder_names(asked)[0]
        largest.clear()


def device_figures(backends: Sequence[Backend]) -> list[dict[str, Any]]:
    """What each device's allocator says, as the judge adds it up."""
    return [
        {
            "name": one.device,
            "allocated": one.allocated,
            "reserved": one.reserved,
            "total": one.limit,
            "peak": one.peak or None,  # MPS's allocator does not tell
            "retries": one.retries,
            "inactive": one.inactive,
        }
        for one in allocations(backends)
    ]


def _host(figures: Figures) -> HostFigures:
    return HostFigures(Host().private(), exact_sizes(), figures.limit())
