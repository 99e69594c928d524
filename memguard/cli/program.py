"""Finding a Python program and running it in this process as `python` itself would.

`runpy` is no help: it puts `sys.argv` and `__main__` back when the program's last line has run,
while threads, exit handlers and pickles of the program still need them.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

_MAIN = "__main__"
# What stands above the program in a traceback: memguard, and the import system looking for it.
_BEFORE_THE_PROGRAM = (
    os.path.dirname(__file__) + os.sep,
    "<frozen importlib",
    importlib.util.find_spec.__code__.co_filename,
)

# What was __main__ before: code of it is still running.
_former_main: list[ModuleType | None] = []


class NotRunnable(Exception):
    """What was named is no program; the message is one line."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program ready to run.

    Attributes:
        code: its main module, compiled.
        name: what `sys.argv[0]` will be.
        attributes: what Python itself puts into its `__main__`.
    """

    code: CodeType
    name: str
    attributes: Mapping[str, Any]


def load_script(path: str) -> Program:
    """The program that `python path` would run: a script, or a folder or zip with a `__main__`.

    Puts the script's folder (or the folder or zip) first in `sys.path`.

    Raises:
        NotRunnable: there is no such file, or it has no `__main__`.
        SyntaxError: the script's own.
    """
    if path == "-":
        raise NotRunnable("cannot run a program from standard input; name a file")
    # As Python does: made absolute, but "." and ".." stay as typed.
    file = os.path.join(os.getcwd(), path)
    finder: Any = pkgutil.get_importer(file)
    if finder is not None:
        return _load_folder(path, file, finder)
    program = _load_file(path, file)
    _put_first(os.path.dirname(os.path.realpath(file)))
    return program


def _load_file(path: str, file: str) -> Program:
    try:
        if path.endswith(".pyc"):
            loader: Any = SourcelessFileLoader(_MAIN, file)
            code = loader.get_code(_MAIN)
        else:
            loader = SourceFileLoader(_MAIN, file)
            with io.open_code(file) as opened:
                source = opened.read()
            # Bytes, so that the file's own encoding line counts.
            code = compile(source, file, "exec", dont_inherit=True)
    except OSError as error:
        raise NotRunnable(f"cannot open {path!r}: {error.strerror or error}") from None
    return Program(code, path, {"__loader__": loader, "__file__": file, "__cached__": None})


def _load_folder(path: str, file: str, finder: Any) -> Program:
    spec = finder.find_spec(_MAIN)
    if spec is None or spec.loader is None:
        raise NotRunnable(f"cannot run {path!r}: it has no __main__.py")
    _put_first(file, always=True)
    return _from_spec(spec, path)


def load_module(name: str) -> Program:
    """The program that `python -m name` would run; imports the packages that contain it.

    Puts the current folder first in `sys.path`.

    Raises:
        NotRunnable: there is no such module, or it is a package without a `__main__`.
        Exception: whatever importing a containing package raises.
    """
    _put_first(os.getcwd())
    spec = _find_module(name)
    if spec is None:
        raise NotRunnable(f"no module named {name!r}")
    if spec.submodule_search_locations is not None:
        spec = _find_module(f"{name}.{_MAIN}")
        if spec is None:
            raise NotRunnable(f"cannot run {name!r}: the package has no __main__ module")
    return _from_spec(spec, spec.origin or name)


def _find_module(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # A package on the way is missing; if anything else is, that is the program's own failure.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise
    except (ImportError, ValueError):
        if name.startswith(".") or name == _MAIN:
            return None
        raise


def _from_spec(spec: ModuleSpec, name: str) -> Program:
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        raise NotRunnable(f"cannot run {spec.name!r}: it has no Python code")
    attributes = {
        "__package__": spec.parent,
        "__loader__": spec.loader,
        "__spec__": spec,
        "__file__": spec.origin,
        "__cached__": spec.cached,
    }
    return Program(code, name, attributes)


def _put_first(entry: str, *, always: bool = False) -> None:
    """Put what Python would have put first in sys.path in place of what it did for memguard."""
    # Python 3.10 knows no safe path but leaves the entry out when isolated.
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[:1] = [entry]
    elif always:
        sys.path.insert(0, entry)


def become_main(program: Program, arguments: Sequence[str]) -> dict[str, Any]:
    """Make the program this process's `__main__`; returns the namespace to execute it in."""
    _former_main.append(sys.modules.get(_MAIN))
    main = ModuleType(_MAIN)
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    vars(main).update(program.attributes, __builtins__=builtins)
    sys.modules[_MAIN] = main
    sys.argv[:] = [program.name, *arguments]
    return vars(main)


def show_plainly(error: BaseException) -> None:
    """Have `error`, if nobody catches it, shown as though memguard had not been there."""
    shown, hook = _from_the_program_on(error.__traceback__), sys.excepthook

    def excepthook(
        kind: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        sys.excepthook = hook
        if value is error:
            # On its way out it has passed through our frames once more.
            traceback = value.__traceback__ = sys.last_traceback = shown
        hook(kind, value, traceback)

    sys.excepthook = excepthook


def _from_the_program_on(traceback: TracebackType | None) -> TracebackType | None:
    while traceback and traceback.tb_frame.f_code.co_filename.startswith(_BEFORE_THE_PROGRAM):
        traceback = traceback.tb_next
    return traceback
