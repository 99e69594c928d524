"""What is said of rising memory: summaries, what grew, and ways out that fit no line of code."""

from __future__ import annotations

from collections.abc import Sequence

from memguard.units import format_bytes, plural

HOST_ADVICE = (
    "the growth is native: leave out library calls of the loop one at a time (decoding, tracing, "
    "tokenizing, a profiler that is never stopped) until it ends, and upgrade the one that caused "
    "it; with pin_memory and varying sizes the pinned cache grows: pad to few sizes; if it goes "
    "with malloc_trim(0) (through ctypes) it is fragmentation: set MALLOC_ARENA_MAX=2, or preload "
    "jemalloc"
)
CYCLES_ADVICE = (
    "automatic collection is off: call gc.collect() now and then, or break the cycles with "
    "weakref.ref"
)
IN_CYCLES = "Nothing in the program refers to it: a collection frees it."
WORKER_ADVICE = (
    "bound what the dataset keeps (lru_cache with a maxsize), lower num_workers, or let workers "
    "end with the epoch (persistent_workers=False); large lists of Python objects belong into a "
    "numpy array or a tensor, which workers share as long as nobody writes to them"
)
UNKNOWN_CHILDREN = "These are no workers of a DataLoader that this process knows of."


def host(per_step: float) -> str:
    """The headline for a process that grows."""
    return f"the process grows by {format_bytes(per_step)} each step, and no tensor explains it"


def workers(per_step: float, count: int) -> str:
    """The headline for children that grow."""
    grow = "grows" if count == 1 else "grow"
    each = "" if count == 1 else " in all"
    return (
        f"{plural(count, 'child process', 'child processes')} {grow} by {format_bytes(per_step)} "
        f"each step{each}"
    )


def longer(per_step: float) -> str:
    """The headline for one tensor that gets longer."""
    return f"one tensor gets longer, by {format_bytes(per_step)} each step"


def reserved(device: str, unused: int, retries: int) -> str:
    """The headline for an allocator whose cache is fragmented."""
    often = f", and its cache was given back {plural(retries, 'time')}" if retries else ""
    return f"{device} has {format_bytes(unused)} reserved that tensors never used at once{often}"


def reserved_advice(device: str, is_split: bool) -> str:
    """What helps against a fragmented cache; only CUDA's allocator has the setting.

    Args:
        device: as torch writes it.
        is_split: whether emptying the cache would give back little.
    """
    setting = (
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before torch is imported; "
        if device.startswith("cuda")
        else ""
    )
    emptying = (
        "empty_cache() gives back little of it, as each block is in use in part"
        if is_split
        else "call empty_cache() after validation at the most"
    )
    return f"{setting}keep batch shapes the same or pad them to a few sizes; {emptying}"


def gathered(grown: Sequence[tuple[str, int, int]], more: Sequence[tuple[str, int]]) -> str:
    """What grew between two looks, as evidence; empty where nothing did.

    Args:
        grown: of each container that grew: type of its entries, how many came, their bytes.
        more: types of which there are more objects, and how many more.
    """
    said = [
        f"{plural(count, 'entry', 'entries')} of type {kind}, {format_bytes(size)}, came to one "
        "container"
        for kind, count, size in grown
    ]
    said += [f"{count:,} more {kind}" for kind, count in more]
    return ", ".join(said) + (" between two looks" if said else "")


def unnamed(more: Sequence[tuple[str, int]]) -> str:
    """Why nobody is named."""
    if not more:
        return "No object that Python knows of has grown: the memory is outside Python."
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in more)
    return (
        f"No container that Python knows of has grown enough to explain it. More objects than "
        f"before: {kinds}."
    )
