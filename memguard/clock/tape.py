"""The tape: events of a settled loop, put down in passing until the next look is due.

What watching costs a step is mostly the cold code it runs, not the work that code does. So between
looks an event is a number on a list, and the clock hears of them all together, in their order.
"""

from __future__ import annotations

from typing import Literal, cast

Event = Literal[0, 1, 2, 3, 4, 5, 6]

EVALUATION: Event = 0  # a forward of a root in evaluation mode
TRAINING: Event = 1  # one in training mode
OPTIMIZER: Event = 2
BACKWARD: Event = 3
GRADIENT: Event = 4
MANUAL: Event = 5
OTHER: Event = 6  # of no interest to the clock, but one more a step

# Events on the tape at the most. Hearing them costs about as much as a look, so more would save
# little; and a loop that goes on quite differently (an evaluation, another phase) is heard of soon.
MAX_EVENTS = 128

# What an event that is put down costs with its way from torch to here (a tenth of what hearing it
# at once costs; `benchmarks/overhead.py`). Two readings of a clock would double it.
SECONDS_PER_EVENT = 2e-6


def packed(event: Event, source: int) -> int:
    """An event and the identity of its source as one number."""
    return source << 3 | event


class Tape:
    """Takes events while there is room, from any thread; it has none until `open`.

    Args:
        most: most events it ever has room for; with 0 each is heard at once.

    Attributes:
        events: what is on it, `packed`; the hooks that every step calls do the same
            by themselves, since a function call costs more than all the rest.
        room: how many events may be on it.
    """

    __slots__ = ("_most", "events", "room")

    def __init__(self, most: int = MAX_EVENTS) -> None:
        self._most = most
        self.events: list[int] = []
        self.room = 0

    def takes(self, event: Event, source: int = 0) -> bool:
        """Put an event down; False when it has to be heard at once."""
        if len(self.events) >= self.room:
            return False
        # Numbers alone: the collector counts every other object.
        self.events.append(packed(event, source))
        return True

    def open(self, room: int) -> None:
        """Take the next `room` events."""
        self.room = min(room, self._most)

    def close(self) -> None:
        """Take no more events."""
        self.room = 0

    def take_off(self) -> list[tuple[Event, int]]:
        """(event, identity of its source) of all, oldest first.

        The tape is empty and closed afterwards.
        """
        self.room = 0
        # Another thread may be putting one down.
        count = len(self.events)
        taken = self.events[:count]
        del self.events[:count]
        return [(cast("Event", number & 7), number >> 3) for number in taken]
