"""Guarding a process that never mentions memguard, because a variable says so.

Called by the line that is installed beside the package (`memguard_startup.pth`), and by the
`sitecustomize` that `memguard run` hands to child processes. Every Python process that inherits
the variable comes by here: tools, loaders, tokenizers. So nothing but the wait for torch begins,
and nothing is said or written by a process that never ends a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from memguard._process import is_child
from memguard.startup import say
from memguard.startup.torch_import import when_torch_is_imported

if TYPE_CHECKING:
    from memguard.settings import Settings
    from memguard.startup.quietly import QuietGuard

_VARIABLE = "MEMGUARD"
# The words that the start-up line knows, too; what else means off shows once torch is there.
_OFF = ("", "0", "off", "false", "no")


def begin() -> None:
    """Guard this process from the moment it has imported torch, if the variable asks for it.

    Once, however often it is called; a failure is one line on standard error.
    """
    global _boot
    asked = os.environ.get(_VARIABLE, "").strip().lower() not in _OFF
    try:
        if asked and _boot is None:
            _boot = _Boot()
    except Exception as error:
        say(f"could not start, going on without: {type(error).__name__}: {error}")


def give_way() -> None:
    """`memguard run` guards this process itself: neither wait for torch nor guard beside it."""
    if _boot is not None:
        _boot.end()


class _Boot:
    """The wait for torch, and the guard that came of it."""

    def __init__(self) -> None:
        self._guard: QuietGuard | None = None
        self._leave_children_alone: Callable[[], None] | None = None
        try:
            # A script that changes folder must not move its report.
            self._folder = os.getcwd()
        except OSError:  # deleted under us
            self._folder = os.curdir
        self._stop: Callable[[], None] = when_torch_is_imported(self._start)

    def end(self) -> None:
        """Neither wait nor guard any more; harmless when done twice."""
        self._stop()
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.end()
        if self._leave_children_alone is not None:
            self._leave_children_alone()

    def _start(self) -> None:
        settings = self._settings()
        if settings is None or settings.off:
            return
        from memguard.startup import forked, quietly

        self._guard = quietly.QuietGuard(settings)
        self._leave_children_alone = forked.guard_children(settings)

    def _settings(self) -> Settings | None:
        """The settings; None when the switch has no value that is accepted, as if it were unset."""
        from memguard.settings import Settings

        settings, origins = Settings.read_with_origins({}, folder=self._folder)
        if origins.get("action") == _VARIABLE:
            return settings
        # Of a child, its parent says what there is to say.
        if os.environ.get(_VARIABLE, "").strip() and not is_child():
            wrong = [line for line in settings.problems if line.startswith(f"{_VARIABLE} ")]
            for line in wrong:
                say(line)
        return None


_boot: _Boot | None = None
