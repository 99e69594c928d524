"""Waiting for torch without importing it.

Scripts set thread counts and visible devices before they import torch, so memguard may neither
import it nor look into it sooner than they do.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any

from memguard.startup import say

_TORCH = "torch"
_IMPORT_SYSTEM = SourceFileLoader.exec_module.__code__.co_filename


def when_torch_is_imported(callback: Callable[[], object]) -> Callable[[], None]:
    """Call `callback` once, as soon as torch has been imported.

    It is called at once when torch is there already, else at the end of the first import of
    torch that succeeds. An exception out of it becomes one line on standard error and the
    import goes on.

    Args:
        callback: called without arguments, in the thread that imports torch.

    Returns:
        A function that stops waiting; calling it again, or too late, does nothing.
    """
    waiting = _Waiting(callback)
    if _is_imported():
        waiting.finish()
    else:
        # First in line: what a finder before us found, we would never be asked about.
        sys.meta_path.insert(0, waiting)
    return waiting.stop


def _is_imported() -> bool:
    module = sys.modules.get(_TORCH)
    # While its own code still runs, a module is in sys.modules and this flag is up.
    running = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return module is not None and not running


class _Waiting:
    """A finder that finds nothing itself: it lets the others find torch and marks their loader."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback
        # Then its loader runs already, and the next import after its end has to do.
        self._midway = _TORCH in sys.modules
        self._asking = threading.local()
        self._once = threading.Lock()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the finders after this one find, for torch; nothing for any other name."""
        if name != _TORCH:
            if self._midway and _is_imported():
                self.finish()
            return None
        if self._callback is None or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = self._ask_the_others(name, path, target)
        finally:
            self._asking.now = False
        if spec is not None and spec.loader is not None:
            self._mark(spec.loader)
        return spec

    def _ask_the_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        # Those before us were asked already, and the one that asks us may be among them.
        place = finders.index(self) if self in finders else -1
        for finder in finders[place + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                return spec
        return None

    def _mark(self, loader: Any) -> None:
        # An attribute of this one loader, gone again when used: its type, its other methods and
        # whatever a library reads off it stay as they were. Loaders that are classes are shared.
        if isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != _TORCH:
                original(module)
                return
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            original(module)
            self.finish()

        # Tracebacks leave out what lies in the import system's files: with its name on it, ours
        # does not show when torch fails to import.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORT_SYSTEM)
        with contextlib.suppress(AttributeError, TypeError):
            loader.exec_module = exec_module

    def finish(self) -> None:
        """Call back, unless that was done or given up."""
        with self._once:
            callback, self._callback = self._callback, None
        self.stop()
        if callback is None:
            return
        try:
            callback()
        except Exception as error:
            say(f"could not start, going on without: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """Stop waiting; harmless when that was done before."""
        self._callback = None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
