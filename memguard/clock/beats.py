"""When a step ends: from optimizer steps, forwards, backwards and the user's own word.

An optimizer step is the best beat, the user's own `guard.step()` better still. A loop without
optimizer beats by its backwards, an evaluation loop by the forwards of its root module.
"""

from __future__ import annotations

import bisect
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Literal

from memguard.clock.tape import BACKWARD, EVALUATION, GRADIENT, MANUAL, OPTIMIZER, TRAINING, Event

Beat = Literal["none", "manual", "optimizer", "backward", "forward"]

# Forwards without an optimizer step that make a training loop with a known optimizer count as one
# that will not step again: four times what it ever needed, and more than any usual rollout. Before
# its first step nothing tells what it needs, and a cell called for each character of a long text is
# called thousands of times.
STRAY_FACTOR = 4
STRAY_FLOOR = 256
STRAY_BEFORE_FIRST = 4096

# An evaluation forward is a beat once this many came without an optimizer step, or twice as many as
# usual between steps: a teacher or a target network in evaluation mode is no evaluation loop.
EVALUATION_FLOOR = 3

# Forwards without the user's word after which it is waited for no longer, by how surely the text of
# the program says it: more than any request has, more than a usual one, a few, none.
WORD_AWAITED = {"always": 4096, "sometimes": 256, "perhaps": 24, "never": 0}

# Steps whose beginning is remembered: as far as a look into graphs follows back.
MAX_STARTS = 512

# Backwards without a single optimizer step after which an optimizer that exists counts as unused.
UNUSED_AFTER = 64

# Turns of another source after which the leading source is given up: a finished phase.
LEADER_PATIENCE = 3


class Leader:
    """One of several equal sources (two optimizers, two towers) chosen to give the beat.

    The first source leads. It loses the lead when another has turned `LEADER_PATIENCE` times
    since the leader's last turn, so a phase that only steps the other one still has a beat.
    """

    __slots__ = ("_leader", "_turns")

    def __init__(self) -> None:
        self._leader: int | None = None
        self._turns: dict[int, int] = {}

    def turn(self, source: int) -> bool:
        """Note a turn of `source`; whether it is the beat."""
        if self._leader is None or source == self._leader:
            self._leader = source
            self._turns.clear()
            return True
        turns = self._turns[source] = self._turns.get(source, 0) + 1
        if turns < LEADER_PATIENCE:
            return False
        self._leader = source
        self._turns.clear()
        return True


class Clock:
    """Counts steps; each event method says whether it ended one."""

    def __init__(self) -> None:
        self.step = 0
        self.beat: Beat = "none"
        self.optimizer_steps = 0
        self.forwards = 0
        self.backwards = 0
        self.gradients = 0
        self._manual = False
        # Up to this many forwards the user's first word on the end of a step is waited for.
        self._word_due = 0
        self._optimizers = Leader()
        self._roots = Leader()
        self._forwards_since_step = 0
        self._most_forwards = 0
        self._forwards_since_backward = 0
        self.optimizer_known = False
        self._evaluations_since_step = 0
        self._usual_evaluations: deque[int] = deque(maxlen=4)
        # Where recent steps began in the numbering of autograd nodes, oldest first.
        self._starts: deque[tuple[int, int]] = deque(maxlen=MAX_STARTS)
        self._thread = 0

    def knows_optimizer(self) -> None:
        """An optimizer exists for what is watched: its training forwards are no beat."""
        self.optimizer_known = True

    def await_word(self, forwards: int) -> None:
        """The user may say when a step has ended: the next so many forwards are no beat."""
        self._word_due = max(self._word_due, self.forwards + forwards)

    def hear(self, event: Event, source: int = 0) -> bool:
        """An event of any sort, from the module or optimizer with this identity."""
        if event == OPTIMIZER:
            return self.optimizer(source)
        if event in (EVALUATION, TRAINING):
            return self.forward(source, event == TRAINING)
        if event == BACKWARD:
            return self.backward()
        if event == GRADIENT:
            return self.gradient()
        return event == MANUAL and self.manual()

    def hear_all(self, events: Sequence[tuple[Event, int]]) -> bool:
        """Events in their order; whether the last of them ended a step."""
        at, begun, is_end = 0, 0, False
        while at < len(events):
            is_end = self.hear(*events[at])
            at += 1
            if is_end:
                at += self._hear_again(events[begun:at], events, at)
                begun = at
        return is_end

    def _hear_again(
        self, step: Sequence[tuple[Event, int]], events: Sequence[tuple[Event, int]], at: int
    ) -> int:
        """Hear the same step at once as often as it comes again from `at` on; how many events.

        Only plain steps, training forwards and the optimizer that leads: another one of those
        changes nothing but the counts.
        """
        size, forwards = len(step), len(step) - 1
        if step[-1][0] != OPTIMIZER or self._manual or self.forwards <= self._word_due:
            return 0
        if any(event != TRAINING for event, _ in step[:-1]):
            return 0
        times = 0
        while events[at + times * size : at + (times + 1) * size] == step:
            times += 1
        self._most_forwards = max(self._most_forwards, forwards if times else 0)
        self._usual_evaluations.extend((0,) * times)
        self._forwards_since_backward += times * forwards
        self.forwards += times * forwards
        self.optimizer_steps += times
        self.step += times
        return times * size

    def manual(self) -> bool:
        """The user said that a step ended; from now on nothing else does."""
        self._manual = True
        return self._end("manual")

    def optimizer(self, source: int) -> bool:
        """The optimizer with identity `source` stepped."""
        self.optimizer_steps += 1
        self.optimizer_known = True
        if self._forwards_since_step > self._most_forwards:
            self._most_forwards = self._forwards_since_step
        self._forwards_since_step = 0
        self._usual_evaluations.append(self._evaluations_since_step)
        self._evaluations_since_step = 0
        if self._manual or not self._optimizers.turn(source):
            return False
        return self._end("optimizer")

    def forward(self, source: int, training: bool) -> bool:
        """The root module with identity `source` was called, in training mode or not."""
        self.forwards += 1
        self._forwards_since_backward += 1
        if self._manual or self.forwards <= self._word_due:
            return False
        if training:
            self._forwards_since_step += 1
            if self.optimizer_known and not self._is_stray():
                return False
            if self._backwards_lead():
                return False
        else:
            self._evaluations_since_step += 1
            if self.optimizer_known and self._is_side_network():
                return False
        if not self._roots.turn(source):
            return False
        return self._end("forward")

    def backward(self) -> bool:
        """A backward pass ended."""
        self.backwards += 1
        self._forwards_since_backward = 0
        if self._manual or self.forwards < self._word_due or self._optimizer_leads():
            return False
        if self.backwards == 1 and self.beat == "forward":
            # The forward that this backward follows has ended the step already.
            self.beat = "backward"
            return False
        return self._end("backward")

    def gradient(self) -> bool:
        """`torch.autograd.grad` was called; the beat only where nothing else is seen."""
        self.gradients += 1
        if self._manual or self.optimizer_known or self.backwards or self.forwards:
            return False
        return self._end("backward")

    def _optimizer_leads(self) -> bool:
        """An optimizer that exists gives the beat, unless it is never seen to step."""
        return self.optimizer_known and (self.optimizer_steps > 0 or self.backwards < UNUSED_AFTER)

    def _is_stray(self) -> bool:
        floor = STRAY_FLOOR if self.optimizer_steps else STRAY_BEFORE_FIRST
        limit = max(floor, STRAY_FACTOR * self._most_forwards)
        return self._forwards_since_step > limit

    def _is_side_network(self) -> bool:
        usual = min(self._usual_evaluations, default=0)
        return self._evaluations_since_step <= max(EVALUATION_FLOOR, 2 * usual)

    def _backwards_lead(self) -> bool:
        """A loop seen to go backward does so again, unless it has stopped doing it for long."""
        return self.backwards > 0 and self._forwards_since_backward <= STRAY_FLOOR

    def _end(self, beat: Beat) -> bool:
        self.step += 1
        self.beat = beat
        return True

    def note_sequence(self, number: int) -> None:
        """The step that begins now will number its autograd nodes from `number` on.

        Threads number by themselves, so what was noted in another one dates nothing here.
        """
        thread = threading.get_native_id()
        if thread != self._thread:
            self._thread = thread
            self._starts.clear()
        self._starts.append((number, self.step))

    def step_of(self, number: int) -> int:
        """The step in which the node with this number was made; -1 when before the first.

        Between two steps that were noted the numbers are taken to be spread evenly.
        """
        after = bisect.bisect_right(self._starts, (number, sys.maxsize))
        if after == 0:
            return -1
        first, step = self._starts[after - 1]
        if after < len(self._starts):
            end, later = self._starts[after]
            step += (number - first) * (later - step) // max(1, end - first)
        return step

    def nodes_a_step(self, number: int) -> int:
        """How many numbers each step has around this one; 0 where its step is certain.

        Beginnings of steps that were only counted are not known, so that a step is off by one here.
        """
        after = bisect.bisect_right(self._starts, (number, sys.maxsize))
        if not 0 < after < len(self._starts):
            return 0
        first, step = self._starts[after - 1]
        end, later = self._starts[after]
        return (end - first) // (later - step) if later - step > 1 else 0
