"""Waiting for torch: called once, at the right moment, and invisible to everybody else."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
import types
import zipfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

from memguard.startup.torch_import import when_torch_is_imported


@pytest.fixture
def torch_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a small `torch` that nobody has imported yet."""
    # Set before it is deleted, so that whatever is there now comes back in any case.
    for name in ("torch", "torch.nn"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "torch.py"
    file.write_text("loaded = True\n")
    return file


def import_another(folder: Path) -> None:
    """Import a module that nobody has imported, and forget it again."""
    (folder / "torch_neighbour.py").write_text("")
    importlib.invalidate_caches()
    importlib.import_module("torch_neighbour")
    del sys.modules["torch_neighbour"]


class Calls(list[str]):
    """What happened, in order; each call of it notes whether torch had been loaded whole."""

    def __call__(self) -> None:
        torch = sys.modules.get("torch")
        self.append("called, torch whole" if getattr(torch, "loaded", False) else "called")


def test_a_torch_that_is_there_is_told_at_once(torch_file: Path) -> None:
    """Whoever comes after the import need not wait."""
    importlib.import_module("torch")
    calls = Calls()
    when_torch_is_imported(calls)

    assert calls == ["called, torch whole"]


def test_waiting_imports_nothing(torch_file: Path) -> None:
    """Scripts set variables that torch reads at import: memguard must not be first."""
    calls = Calls()
    stop = when_torch_is_imported(calls)
    import_another(torch_file.parent)
    stop()

    assert "torch" not in sys.modules
    assert calls == []


def test_the_end_of_the_import_is_told_once(torch_file: Path) -> None:
    """Right after torch's own code has run, and never again."""
    calls = Calls()
    before = list(sys.meta_path)
    when_torch_is_imported(calls)
    torch = importlib.import_module("torch")

    assert calls == ["called, torch whole"]
    assert sys.meta_path == before
    importlib.reload(torch)
    assert calls == ["called, torch whole"]


def test_a_package_that_imports_itself_is_told_at_its_end(tmp_path: Path, torch_file: Path) -> None:
    """While torch imports its own parts, which import torch, it is not finished."""
    torch_file.unlink()
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from torch import nn\nloaded = True\n")
    (package / "nn.py").write_text("import torch\nimport torch.nn\n")
    calls = Calls()
    when_torch_is_imported(calls)
    importlib.import_module("torch.nn")

    assert calls == ["called, torch whole"]


def test_the_callback_may_import_torch(torch_file: Path) -> None:
    """Which is what it is for."""
    seen: list[object] = []
    when_torch_is_imported(lambda: seen.append(importlib.import_module("torch")))
    torch = importlib.import_module("torch")

    assert seen == [torch]


def test_whoever_stops_waiting_is_not_called(torch_file: Path) -> None:
    """The undo takes everything back, and may be called twice."""
    calls = Calls()
    before = list(sys.meta_path)
    stop = when_torch_is_imported(calls)
    stop()
    stop()
    importlib.import_module("torch")

    assert calls == []
    assert sys.meta_path == before


def test_stopping_between_finding_and_loading_counts(torch_file: Path) -> None:
    """A loader marked before the undo does not call after it."""
    calls = Calls()
    stop = when_torch_is_imported(calls)
    spec = importlib.util.find_spec("torch")
    stop()
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))

    assert calls == []


def test_stopping_too_late_does_nothing(torch_file: Path) -> None:
    """The undo of a wait that has ended is harmless."""
    calls = Calls()
    stop = when_torch_is_imported(calls)
    importlib.import_module("torch")
    before = list(sys.meta_path)
    stop()

    assert sys.meta_path == before


def test_a_failing_import_fails_as_it_would_and_may_be_tried_again(torch_file: Path) -> None:
    """The error is torch's own, nobody is told, and a later success is."""
    torch_file.write_text("raise OSError('libtorch is missing')\n")
    calls = Calls()
    when_torch_is_imported(calls)
    with pytest.raises(OSError, match=r"^libtorch is missing$") as caught:
        importlib.import_module("torch")
    assert caught.value.__context__ is None
    assert "memguard/startup" not in "".join(traceback.format_exception(caught.value))
    assert calls == []
    assert "torch" not in sys.modules

    torch_file.write_text("loaded = True  # repaired\n")
    importlib.import_module("torch")
    assert calls == ["called, torch whole"]


def test_a_missing_torch_is_missing_as_it_would_be(torch_file: Path) -> None:
    """Waiting for what is not installed changes nothing about the error."""
    torch_file.unlink()
    calls = Calls()
    stop = when_torch_is_imported(calls)
    path, sys.path[:] = list(sys.path), [str(torch_file.parent)]
    try:
        importlib.invalidate_caches()
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'torch'$"):
            importlib.import_module("torch")
    finally:
        sys.path[:] = path
        stop()

    assert calls == []


def test_a_callback_that_raises_is_one_line_and_the_import_goes_on(
    torch_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """memguard's failure is not the job's."""

    def fail() -> None:
        raise ValueError("two\nlines")

    when_torch_is_imported(fail)
    torch = importlib.import_module("torch")

    assert torch.loaded
    assert capsys.readouterr().err == (
        "memguard: could not start, going on without: ValueError: two lines\n"
    )


def test_without_standard_error_a_failure_is_silent(
    torch_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program without a standard error does not find the line on its standard output."""
    when_torch_is_imported(lambda: 1 / 0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        importlib.import_module("torch")

    assert capsys.readouterr().out == ""


def test_looking_for_torch_sees_what_it_would_see(torch_file: Path) -> None:
    """Libraries probe with find_spec; that neither tells nor shows anything of ours."""
    calls = Calls()
    without = importlib.util.find_spec("torch")
    stop = when_torch_is_imported(calls)
    spec = importlib.util.find_spec("torch")

    assert without is not None
    assert spec is not None
    assert type(spec.loader) is SourceFileLoader
    assert (spec.name, spec.origin, spec.parent) == (without.name, without.origin, without.parent)
    assert spec.loader.path == str(torch_file)
    assert calls == []
    assert "torch" not in sys.modules
    stop()


def test_nothing_of_ours_stays_on_the_module(torch_file: Path) -> None:
    """Afterwards the loader is as the finder made it."""
    when_torch_is_imported(lambda: None)
    torch = importlib.import_module("torch")
    plain = PathFinder.find_spec("torch")

    assert torch.__spec__ is not None
    assert plain is not None
    assert type(torch.__spec__.loader) is SourceFileLoader
    assert torch.__spec__.loader is torch.__loader__
    assert vars(torch.__loader__) == vars(plain.loader)


def test_two_may_wait(torch_file: Path) -> None:
    """Each is told once."""
    first, second = Calls(), Calls()
    before = list(sys.meta_path)
    when_torch_is_imported(first)
    when_torch_is_imported(second)
    importlib.import_module("torch")

    assert first == second == ["called, torch whole"]
    assert sys.meta_path == before


def test_who_waits_from_within_torch_is_told_at_the_next_import(
    torch_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun in the middle of the import: its loader runs already, the next import has to do."""
    torch_file.write_text(
        "import begin_to_wait\nbegin_to_wait.now()\nbegin_to_wait.import_another()\nloaded = True\n"
    )
    calls = Calls()
    begin_to_wait: Any = types.ModuleType("begin_to_wait")
    begin_to_wait.now = lambda: when_torch_is_imported(calls)
    begin_to_wait.import_another = lambda: import_another(torch_file.parent)
    monkeypatch.setitem(sys.modules, "begin_to_wait", begin_to_wait)
    importlib.import_module("torch")
    assert calls == []
    import_another(torch_file.parent)

    assert calls == ["called, torch whole"]


def test_a_lazily_loaded_torch_is_told_when_it_loads(torch_file: Path) -> None:
    """With a lazy loader the import is the first attribute read, not the import statement."""
    calls = Calls()
    when_torch_is_imported(calls)
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    torch = importlib.util.module_from_spec(spec)
    sys.modules["torch"] = torch
    spec.loader.exec_module(torch)
    import_another(torch_file.parent)
    assert calls == []

    assert torch.loaded
    assert len(calls) == 1


class _Delegating:
    """An import hook that asks all other finders, as instrumenting libraries do."""

    def __init__(self) -> None:
        self.asked = 0

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        self.asked += 1
        assert self.asked < 10
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


@pytest.mark.parametrize("place", [0, 1], ids=["before us", "after us"])
def test_other_import_hooks_still_work(
    torch_file: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """A hook that asks every finder, ours included, leads to no endless asking."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    hook, calls = _Delegating(), Calls()
    when_torch_is_imported(calls)
    sys.meta_path.insert(place, hook)
    importlib.import_module("torch")

    assert hook.asked == 1
    assert calls == ["called, torch whole"]


def test_a_torch_in_a_zip_is_told(tmp_path: Path, torch_file: Path) -> None:
    """One zip loader serves all its modules; only torch's end is told, and all load."""
    torch_file.unlink()
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("torch.py", "import zipped_neighbour\nloaded = True\n")
        archive.writestr("zipped_neighbour.py", "loaded = True\n")
    sys.path.insert(0, str(tmp_path / "all.zip"))
    calls = Calls()
    when_torch_is_imported(calls)
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    neighbour = importlib.import_module("zipped_neighbour")
    assert calls == []
    importlib.import_module("torch")
    sys.path.remove(str(tmp_path / "all.zip"))
    del sys.modules["zipped_neighbour"]

    assert neighbour.loaded
    assert calls == ["called, torch whole"]
