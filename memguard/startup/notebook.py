"""`%load_ext memguard`: a line magic and a cell magic for IPython and Jupyter."""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from memguard.errors import SettingsError, UsageError
from memguard.settings import OPTIONS, Settings
from memguard.startup.torch_import import when_torch_is_imported

if TYPE_CHECKING:
    from memguard.guard import Guard

_MAGIC = "memguard"
_COMMANDS = ("on", "off", "report")


def load_ipython_extension(shell: Any) -> None:
    """Offer the magics; IPython calls it for `%load_ext memguard`.

    Args:
        shell: IPython's shell.
    """
    magics = _Magics(shell)
    # Older ones know no semicolon behind a magic's cell.
    with suppress(ImportError, AttributeError):
        importlib.import_module("IPython.core.magic").output_can_be_silenced(_Magics.cell)
    shell.register_magic_function(magics.line, magic_kind="line", magic_name=_MAGIC)
    shell.register_magic_function(magics.cell, magic_kind="cell", magic_name=_MAGIC)
    _loaded[id(shell)] = magics


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics out again and stop guarding; IPython calls it for `%unload_ext memguard`."""
    magics = _loaded.pop(id(shell), None)
    if magics is not None:
        magics.off()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(_MAGIC, None)


_loaded: dict[int, _Magics] = {}


class _Magics:
    """The two magics and the guard of theirs, if one is open."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._guarding: _Guarding | None = None

    def line(self, words: str) -> None:
        """Guard the cells that follow, stop it, or tell what is known.

        `%memguard on [--action warn ...]`, `%memguard off`, `%memguard report`; alone it says in
        one line how things stand.
        """
        given = shlex.split(words)
        command, options = (given[0], given[1:]) if given else ("", [])
        if command == "on":
            settings = _settings(options)
            self.off()
            self._guarding = _Guarding(settings)
        elif command and (options or command not in _COMMANDS):
            raise UsageError(
                f"%memguard {words.strip()}: accepted are {', '.join(_COMMANDS)}, or nothing"
            )
        elif command == "off":
            self.off()
        else:
            _tell(_open_guard(), whole=command == "report")

    def cell(self, words: str, cell: str) -> Any:
        """Guard what the cell runs, and say at its end what came of it; gives the cell's value.

        `%%memguard [--action warn ...]`: the options are those of `memguard run`.

        Raises:
            BaseException: whatever the cell ends with, so that it counts as failed.
        """
        if _open_guard() is not None or self._guarding is not None:
            # Guarded already; its own settings stand.
            value = self._run(cell)
            _tell(_open_guard())
            return value
        guarding = _Guarding(_settings(shlex.split(words)))
        try:
            value = self._run(cell)
        finally:
            guarding.end()
        _tell(guarding.guard)
        return value

    def _run(self, cell: str) -> Any:
        """Run a cell within the cell; value and error are left for the outer one to show, once."""
        self._refuse_awaiting(cell)
        with _left_to_the_outer_cell(self._shell) as last:
            result = self._shell.run_cell(cell)
        result.raise_error()
        return result.result if last.value is None else last.value

    def _refuse_awaiting(self, cell: str) -> None:
        """A kernel's loop runs the outer cell already, and cannot run the inner one meanwhile."""
        asyncio = sys.modules.get("asyncio")
        if asyncio is None or asyncio._get_running_loop() is None:
            return
        if self._shell.should_run_async(cell, transformed_cell=self._shell.transform_cell(cell)):
            raise UsageError(
                "%%memguard: a cell with `await` outside functions cannot run within another; "
                "put %memguard on and %memguard off into cells before and after it"
            )

    def off(self) -> None:
        """Stop guarding; harmless when nothing is guarded."""
        guarding, self._guarding = self._guarding, None
        if guarding is not None:
            guarding.end()


class _LastShown:
    """Shows what a cell shows, but for the last of it."""

    def __init__(self, hook: Callable[[object], object]) -> None:
        self.hook = hook
        self.value: object = None

    def __call__(self, value: object) -> None:
        if value is not None:
            if self.value is not None:
                self.hook(self.value)
            self.value = value


@contextmanager
def _left_to_the_outer_cell(shell: Any) -> Iterator[_LastShown]:
    """Inside, neither an error nor the last value is shown."""
    last, own = _LastShown(sys.displayhook), vars(shell).get("_showtraceback")
    # Where the outer cell's value is put; the inner cell would leave none.
    hook: Any = getattr(shell, "displayhook", None)
    outer = getattr(hook, "exec_result", None)
    sys.displayhook, shell._showtraceback = last, lambda *_: None
    try:
        yield last
    finally:
        sys.displayhook = last.hook
        vars(shell).pop("_showtraceback", None)
        if own is not None:
            shell._showtraceback = own
        if outer is not None:
            hook.exec_result = outer


class _Guarding:
    """A guard of the whole kernel, from the moment torch is imported."""

    def __init__(self, settings: Settings) -> None:
        self.guard: Guard | None = None
        self._settings = settings
        self._stop: Callable[[], None] = when_torch_is_imported(self._start)

    def _start(self) -> None:
        if self._settings.off:
            return
        from memguard.watching import guard_process, process_guard

        known = process_guard()
        if known is not None:
            known.finish(write=False)  # one that a variable began gives way
        self.guard = guard_process(self._settings)

    def end(self) -> None:
        """Take everything out; harmless when done twice."""
        self._stop()
        if self.guard is not None:
            self.guard.finish()


def _open_guard() -> Guard | None:
    watching = sys.modules.get("memguard.watching")
    return None if watching is None else watching.process_guard()


def _tell(guard: Guard | None, whole: bool = False) -> None:
    """Print how things stand, or the whole report; never imports torch."""
    from memguard.report.text import one_line, render

    if guard is None:
        print("memguard: nothing is guarded yet")
        return
    report = guard.report()
    print(render(report) if whole and report.findings else one_line(report))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """An exception instead of the end of the kernel."""
        raise UsageError(f"%memguard: {message}")


def _settings(words: list[str]) -> Settings:
    """The settings that the magic's options, the environment and pyproject.toml say."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    for option in OPTIONS:
        parser.add_argument(option.flag, dest=option.name)
    given = parser.parse_args(words)
    try:
        return Settings.read(vars(given))
    except SettingsError as error:
        raise SettingsError(f"%memguard: {error}") from None
