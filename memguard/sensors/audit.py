"""Audits: for one step, canaries on what every module returned.

They betray intermediate results that a hook or an attribute stashes although the step's loss is
let go, and the deepest survivor names the module.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from memguard import _events, _hooks, _modules, _torch
from memguard._torch import Undo
from memguard.parts import is_the_users
from memguard.sensors.canaries import Canaries, attached_outputs

# Hooking costs about 3 microseconds a module and call; larger models are audited in part.
MAX_MODULES = 400


class Audit:
    """Hooks on all modules below the roots, present only while a step is audited.

    Args:
        canaries: where they are placed.
        called: told of each call, by step and label, in the forward it happens in.

    Attributes:
        called: identities of the modules called since the audit began.
        muted: whether what is called now is not to be looked at.
    """

    __slots__ = (
        "_calls",
        "_canaries",
        "_compiled",
        "_failure",
        "_on_call",
        "_paths",
        "_resting",
        "_step",
        "_undo",
        "called",
        "muted",
    )

    def __init__(self, canaries: Canaries, called: Callable[[int, str], None]) -> None:
        self._canaries = canaries
        self._on_call = called
        self._undo: list[Undo] = []
        self._paths: dict[int, str] = {}
        self._step = 0
        self._calls = 0
        self._compiled = 0
        self._resting = False
        self._failure: Exception | None = None
        self.called: set[int] = set()
        self.muted = False

    @property
    def running(self) -> bool:
        """Whether a step is being audited."""
        return bool(self._undo) and not self._resting

    def begin(self, roots: Iterable[Any], step: int) -> None:
        """Put hooks on every module below `roots` that can carry one."""
        self._step = step
        self._calls = 0
        self.called = set()
        self._compiled = _modules.compiled_frames()
        if self._undo or self._compiled:
            # A hook that comes and goes makes compiled code compile anew, so it is left alone.
            return
        for path, module in below(roots):
            if len(self._undo) >= MAX_MODULES:
                break
            self._paths[id(module)] = path
            self._undo.append(_hooks.on_module_call(module, self._seen))

    def next_step(self, step: int) -> None:
        """Go on with the hooks in place for one more step.

        Raises:
            Exception: what a hook failed with; the hooks are out then.
        """
        self._step = step
        self._calls = 0
        if self._failure is not None:
            self.end()

    def _seen(self, module: Any, output: Any) -> None:
        if self._resting or self.muted or self._failure is not None:
            return
        self._calls += 1
        self.called.add(id(module))
        label = f"{self._calls}:{self._paths.get(id(module), '')}"
        try:
            with _torch.without_overrides():
                self._canaries.place(self._step, attached_outputs(output), label)
            self._on_call(self._step, label)
        except Exception as error:
            if is_the_users(error):
                raise
            # This is the user's forward: it is told when the step ends, not here. The traceback
            # would keep the forward's frames alive until then.
            self._failure = error.with_traceback(None)

    def rest(self) -> None:
        """Stop looking. Hooks that are part of compiled code by now stay, idle, until `end`.

        Raises:
            Exception: what a hook failed with; the hooks are out then.
        """
        if self._failure is None and _modules.compiled_frames() != self._compiled:
            self._resting = True
        else:
            self.end()

    def end(self) -> None:
        """Take every hook out again; harmless when none is there.

        Raises:
            Exception: what a hook failed with; the hooks are out then.
        """
        undos, self._undo = self._undo, []
        self._paths.clear()
        self._resting = False
        failure, self._failure = self._failure, None
        _events.undo_all(undos)
        if failure is not None:
            raise failure


def below(roots: Iterable[Any]) -> list[tuple[str, Any]]:
    """(path, module) for the modules under each root; compiled and scripted ones are left out."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()
    pending: list[tuple[str, Any, bool]] = [("", root, True) for root in roots]
    while pending:
        path, module, is_root = pending.pop(0)
        if id(module) in seen or _modules.is_scripted(module) or _modules.is_compiled(module):
            continue
        seen.add(id(module))
        if not is_root:
            found.append((path, module))
        for name, child in list(module._modules.items()):
            if child is not None:
                pending.append((f"{path}.{name}" if path else name, child, False))
    return found


def outermost(called: set[int], roots: Iterable[Any]) -> list[weakref.ref[Any]]:
    """The called modules that no other called module contains: what the loop calls itself."""
    result: list[weakref.ref[Any]] = []
    pending = list(roots)
    while pending:
        module = pending.pop(0)
        if id(module) in called:
            result.append(weakref.ref(module))
        else:
            pending.extend(child for child in module._modules.values() if child is not None)
    return result
