"""`watch` and its kin: which guard watches what, and until when."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NoReturn

from memguard import reactions
from memguard.errors import LeakError, LeakWarning, SettingsError
from memguard.expectations import tell_left
from memguard.explain.frames import is_own_file
from memguard.explain.stepping import says_step
from memguard.given import sorted_out
from memguard.guard import Guard
from memguard.records import Report
from memguard.settings import Settings, Size

# Open guards by what they watch. They live here, so that `memguard.watch(model)` may stand alone
# on its line; they leave when they close or when what they watch is collected.
_guards: dict[tuple[int, ...], Guard] = {}
_process_guard: Guard | None = None


def watch(
    *objects: Any,
    action: str | None = None,
    window: int | None = None,
    patience: int | None = None,
    max_growth: int | str | Size | None = None,
    limit: int | str | Size | None = None,
    overhead: float | str | None = None,
    report: str | os.PathLike[str] | None = None,
    ignore: str | list[str] | tuple[str, ...] | None = None,
    on_leak: Callable[[Report], object] | str | None = None,
    on_step: Callable[[dict[str, float]], object] | str | None = None,
    ask: bool | None = None,
    watchdog: float | str | None = None,
    source: bool | None = None,
    **unknown: NoReturn,
) -> Guard:
    """Watch a training or evaluation loop for memory that never comes back.

    Called again with the same objects it returns the same guard, so it may stand inside the loop.

        guard = memguard.watch(model, optimizer)

    Args:
        objects: modules and optimizers, in any order, singly or in lists; with none, the loop says
            itself when a step has ended (`guard.step()`).
        action: what to do about a leak: `raise` (default), `warn`, `log`, `stop` (warn, and set
            `guard.should_stop`) or `off`.
        window: steps a graph may outlive its own; default 2.
        patience: growing steps before a graph is called leaked; default 5.
        max_growth: retained bytes (`512MiB`, `10%` of the limit) from which growing tensors are a
            leak; default 10 %.
        limit: bytes the forecast runs into; default: what the device, cgroup or machine has.
        overhead: share of step time that closer looks may cost; default 0.01.
        report: file to write the report to (`.json`, `.html`, `.txt`); `{rank}`, `{pid}` and
            `{step}` are filled in.
        ignore: patterns of findings to leave out, or a file of them.
        on_leak: function (or `package.module:function`) to call with the report of a leak before it
            is reacted to, to save a checkpoint; an action's name that it returns is done instead. A
            method's object is held weakly: keep it yourself.
        on_step: function to call with a dict of six figures at each step's end; see
            `memguard.exporters` for ready ones. Then no step is counted in passing: some 30
            microseconds more a step, and what the function takes.
        ask: whether `memguard ask PID` is answered, by a handler of the signal SIGURG; default:
            only where the whole process is guarded.
        watchdog: seconds without a step after which one line on standard error says so, from a
            thread of its own; default: no watchdog.
        source: whether reports show lines of the program's source; default True.
        unknown: none is accepted; a misspelt setting is refused with the name that is near.

    Returns:
        The guard; also a context manager that closes itself.

    Raises:
        UsageError: an object is neither module nor optimizer.
        SettingsError: a setting is unknown or has a value that is not accepted, or the same objects
            are already watched with other settings.

    Costs some tens of microseconds a step, and more in the first 128.
    """
    given = {
        "action": action,
        "window": window,
        "patience": patience,
        "max_growth": max_growth,
        "limit": limit,
        "overhead": overhead,
        "report": report,
        "ignore": ignore,
        "on_leak": on_leak,
        "on_step": on_step,
        "ask": ask,
        "watchdog": watchdog,
        "source": source,
    }
    if unknown:
        Settings.read(unknown, environ={}, pyproject=None)  # raises, with the name that is near
    asked = _asked(given)
    modules, optimizers = sorted_out(objects, "memguard.watch")
    key = tuple(sorted({id(item) for item in [*modules, *optimizers]}))
    known = _guards.get(key)
    if known is not None and key:
        if _has_other_settings(known, asked):
            raise SettingsError(
                "memguard.watch: these objects are already watched with other settings; "
                "close() that guard first"
            )
        return known
    if _process_guard is not None and not _process_guard.closed:
        has_other = _has_other_settings(_process_guard, asked)
        if not (_process_guard.is_quiet and has_other):
            # One guard tells of the whole process already. Before `memguard run` the program's own
            # settings stand back.
            if _process_guard.adopt(modules, optimizers):
                if has_other:
                    reactions.mention(
                        f"memguard.watch: its own settings ({', '.join(asked)}) stand back behind "
                        "those of memguard run; give them as options of memguard run"
                    )
                # Once: a loop that asks at every turn would put off its own judgement.
                _await_word(_process_guard, optimizers)
            return _process_guard
        # Switched on by the variable alone: what the program asks for comes first.
        _process_guard.finish(write=False)
    settings = Settings.read(given)
    guard = Guard(settings)
    if settings.off:
        guard.abandon()
        return guard
    try:
        guard.start(modules, optimizers, on_close=_forget)
        _await_word(guard, optimizers)
    except BaseException:
        guard.finish()  # half begun: what is in comes out again
        raise
    _guards[key or (id(guard),)] = guard
    return guard


def _await_word(guard: Guard, optimizers: list[Any]) -> None:
    """A loop without optimizer may say itself when a step has ended; its text tells."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    if optimizers or frame is None:
        return
    try:
        said = says_step(frame)
    except Exception:  # then the text does not tell
        said = "perhaps"
    guard.await_word(said)


def _asked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are given, as they are read; without a look at anything else.

    A call inside the loop comes by here at every turn.
    """
    names = [name for name, value in given.items() if value is not None]
    if not names:
        return {}
    settings = Settings.read(given, environ={}, pyproject=None)
    return {name: getattr(settings, name) for name in names}


def _has_other_settings(guard: Guard, asked: Mapping[str, Any]) -> bool:
    return any(_differs(getattr(guard.settings, name), value) for name, value in asked.items())


def _differs(known: Any, asked: Any) -> bool:
    # A function that is written in the call is another one at every turn.
    return not (callable(known) and callable(asked)) and bool(known != asked)


def process_guard() -> Guard | None:
    """The guard of this whole process, while there is one."""
    return _process_guard


def guard_process(settings: Settings, *, quiet: bool = False) -> Guard:
    """Watch whatever this process trains or evaluates, all of it by one guard.

    Args:
        settings: the settings in force.
        quiet: neither say nor write anything before a step has ended, and give way to a `watch`
            that has settings of its own.
    """
    global _process_guard
    guard = Guard(settings)
    if not settings.off:
        guard.start([], [], process=True, quiet=quiet, on_close=_forget)
        _process_guard = guard
    return guard


def open_guards() -> list[Guard]:
    """Every guard of this process that watches something."""
    return [*_guards.values(), *([_process_guard] if _process_guard is not None else [])]


def _forget(guard: Guard) -> None:
    global _process_guard
    for key in [key for key, known in _guards.items() if known is guard]:
        del _guards[key]
    if _process_guard is guard:
        _process_guard = None


def _abandon_all() -> None:
    global _process_guard
    for guard in open_guards():
        guard.abandon()
    _guards.clear()
    _process_guard = None


# A forked child (a DataLoader's worker) inherits hooks and callbacks; they must be inert there.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


def _close_all() -> None:
    # What ended the program, where it was an exception; a session at a prompt goes on after one.
    last = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for guard in open_guards():
        guard.look_into(last)
        with contextlib.suppress(LeakError, LeakWarning):  # the program is over
            guard.finish(ask=True)
    tell_left()


# Reports are written at the end of a run that never closes its guard.
atexit.register(_close_all)
