"""Where a finding names nobody: why, and what to advise all the same."""

from __future__ import annotations

import gc
import sys

from memguard.explain.explain import Explanation
from memguard.units import format_bytes

# Free memory that a search is not begun without: so much, and so much for each of the interpreter's
# blocks. Where memory is nearly full a list of a large heap would end the job before its leak does.
SEARCH_BYTES = 32 * 1024**2
SEARCH_BYTES_PER_BLOCK = 24

FAILED = "What holds them could not be found out: explaining failed."


def reason(explanation: Explanation) -> str:
    """Why nobody is named, as a sentence; empty where somebody is, or C++ alone holds them."""
    if explanation.located:
        return ""
    if not explanation.complete:
        return "What holds them could not be found out: the search was cut short."
    if explanation.rooted:
        return "Something in Python holds them, but under no name that could be found."
    frozen = gc.get_freeze_count()
    if frozen:
        return (
            f"What holds them could not be found out: gc.freeze() has taken {frozen:,} objects out "
            "of every search; without it, or after gc.unfreeze(), they can be searched."
        )
    return ""


def needed() -> int:
    """Bytes that a search of the heap may take: lists of what is in it, a few words each."""
    return SEARCH_BYTES + SEARCH_BYTES_PER_BLOCK * sys.getallocatedblocks()


def cramped(left: int) -> str:
    """The reason where only so many bytes of memory are left."""
    return (
        "What holds them could not be found out: "
        f"{format_bytes(left)} of free memory are too little for a search."
    )


def advice(kind: str, explanation: Explanation, why: str) -> str:
    """What to do: for the holder that is named, else for `why` nobody is."""
    if explanation.located:
        return explanation.located[0].advice.advice
    if why:
        return "put .detach() tensors or .item() numbers into whatever outlives the step"
    if kind == "graph":
        return (
            "nothing in Python refers to these graphs: look for a tensor, node or ctx hook that "
            "uses the tensor it hangs on, or outputs kept as attributes of ctx "
            "(use ctx.save_for_backward), and detach() what is kept"
        )
    if kind == "cycle":
        return "break the cycle (weakref.ref for one direction) or call gc.collect() now and then"
    return "keep only what is used: detach().cpu(), deque(maxlen=...), or clear it each epoch"
