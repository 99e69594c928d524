"""The residue check itself: each kind of thing left behind is seen."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest
from conftest import residue


class _Left:
    """Looks as though memguard had made it."""

    def __call__(self, *arguments: Any) -> None:
        raise AssertionError("only looked at")

    def find_spec(self, *arguments: Any) -> None:
        return None


_Left.__module__ = "memguard.somewhere"


@pytest.mark.parametrize("found", [_Left(), _Left().find_spec], ids=["object", "method"])
def test_an_import_finder_left_behind_is_seen(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finder of memguard's in sys.meta_path counts, be it an object or a method."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, found])

    assert any("import finder" in said for said in residue().values())


def test_a_gc_callback_left_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback of memguard's in gc.callbacks counts."""
    monkeypatch.setattr(gc, "callbacks", [_Left()])

    assert any("gc callback" in said for said in residue().values())


def test_a_thread_left_behind_is_seen() -> None:
    """A running thread named after memguard counts until it ends."""
    before, end = residue(), threading.Event()
    thread = threading.Thread(target=end.wait, name="memguard-watcher")
    thread.start()
    seen = residue()
    end.set()
    thread.join()

    assert any("memguard-watcher" in said for said in seen.values())
    assert residue() == before


def test_an_optimizer_hook_left_behind_is_seen() -> None:
    """A global optimizer hook of memguard's counts until it is removed."""
    optimizer = pytest.importorskip("torch.optim.optimizer")
    before = residue()
    handle = optimizer.register_optimizer_step_post_hook(_Left())
    seen = residue()
    handle.remove()

    assert any("optimizer" in said for said in seen.values())
    assert residue() == before
