"""Where a survivor was made: the user's frames at the module calls of one step under suspicion.

Anomaly detection would tell the same of every node, but it is a setting of the whole process and
keeps a text in each node. A look up the stack at the calls that get a canary anyway costs some five
microseconds each, in one step of a suspicion.
"""

from __future__ import annotations

import sys
from types import FrameType

from memguard.explain.frames import is_command_file, is_user_file, qualified_name

# Frames told of one stack; what calls the training loop says nothing of the leak.
MAX_FRAMES = 8

# Stacks kept of one step, and frames walked for each.
MAX_STACKS = 400
MAX_DEPTH = 200


class Creation:
    """The stacks of one step, by the label of the canary that was placed.

    Attributes:
        step: the step they are of; None while there are none.
    """

    __slots__ = ("_stacks", "_wanted", "step")

    def __init__(self) -> None:
        self.step: int | None = None
        self._stacks: dict[str, tuple[str, ...]] = {}
        self._wanted = False

    def want(self) -> None:
        """Have the stacks of the next step that is watched noted, and those before forgotten."""
        self._wanted = True

    def note(self, step: int, label: str) -> None:
        """Note the caller's stack, when `step` is the one whose stacks are wanted."""
        if self._wanted:
            self._wanted, self.step = False, step
            self._stacks.clear()
        if step == self.step and len(self._stacks) < MAX_STACKS:
            self._stacks[label] = user_stack(sys._getframe(1))

    def forget(self) -> None:
        """Let go of what was noted: the suspicion it was for has been looked into."""
        self._wanted, self.step = False, None
        self._stacks.clear()

    def of(self, module: str) -> tuple[str, ...]:
        """The stack at the last call of the module with this path; the root's without one."""
        found = self._stacks.get("", ())
        for label, stack in self._stacks.items():
            if label.partition(":")[2] == module:
                found = stack
        return found


def user_stack(frame: FrameType | None) -> tuple[str, ...]:
    """`train.py:55 in train_epoch`, ... for the frames of the user's code, innermost first."""
    found: list[str] = []
    for _ in range(MAX_DEPTH):
        if frame is None or len(found) >= MAX_FRAMES:
            break
        code = frame.f_code
        if is_command_file(code.co_filename):
            break
        if is_user_file(code.co_filename):
            line = frame.f_lineno or code.co_firstlineno
            found.append(f"{code.co_filename}:{line} in {qualified_name(code)}")
        frame = frame.f_back
    return tuple(found)
