"""Whether code that was run several times leaves something more behind each time."""

from __future__ import annotations

from collections.abc import Sequence


def grows(alive: Sequence[int], window: int = 0) -> bool:
    """Whether each run still has survivors.

    A cache that fills once has none of later runs, a variable that is overwritten none of earlier
    ones.

    Args:
        alive: by run, oldest first: how much of what it made is alive now.
        window: the youngest runs, whose survivors may still be in use; they do not count.
    """
    judged = alive[: len(alive) - window]
    return bool(judged) and all(count > 0 for count in judged)
