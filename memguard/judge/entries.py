"""Whether a container with more entries than there are survivors really gets longer."""

from __future__ import annotations

from memguard.judge.verdict import UNKNOWN_BOUND, Ruling

# Survivors that have to come between two counts of the entries.
_BETWEEN = 3


class Entries:
    """Counts of containers' entries, by holder; numbers only.

    Entries that are overwritten in no order (the last loss of each class) survive at first like
    those of a list that grows. But a container that had its entries before does not get longer.
    """

    def __init__(self) -> None:
        self._counted: dict[str, tuple[int, int]] = {}

    def doubt(self, holder: str, survivors: int, entries: int | None, window: int) -> Ruling | None:
        """A ruling that waits where the count does not bear out that the holder grows.

        Args:
            holder: whose entries they are.
            survivors: steps with survivors.
            entries: how many the container has now; None when it is no container.
            window: steps a graph may outlive its own.
        """
        if entries is None or entries <= survivors + window + 1 or survivors >= UNKNOWN_BOUND:
            return None
        known = self._counted.setdefault(holder, (survivors, entries))
        come, added = survivors - known[0], entries - known[1]
        if come < _BETWEEN:
            until = known[0] + _BETWEEN
            return Ruling("hold", "whether the holder gets longer is still to be seen", until)
        if 2 * added < come:
            return Ruling("hold", "the holder does not get longer", UNKNOWN_BOUND)
        return None
