"""`memguard run`: run a script or module under guard, without touching its code."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from memguard._kinds import is_out_of_memory
from memguard.cli import children
from memguard.cli import program as programs
from memguard.errors import LeakError, SettingsError, leak_behind
from memguard.records import Finding, Report
from memguard.settings import OPTIONS, Settings
from memguard.startup import boot, forked, say
from memguard.startup.torch_import import when_torch_is_imported

if TYPE_CHECKING:
    from memguard.guard import Guard

_FLAGS = {option.flag for option in OPTIONS}
LEAK_STATUS = 23
USAGE_STATUS = 2
_USAGE = """\
memguard run [options] script.py [arguments of the script]
       memguard run [options] -m module [arguments of the module]"""


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Describe the command and its options, one for each setting."""
    parser = commands.add_parser(
        "run",
        usage=_USAGE,
        help="run a script or module under guard",
        description="Runs a program as python would, and stops it when its memory leaks.",
        epilog=f"Exits with the program's own status, or {LEAK_STATUS} when a leak stopped it.",
        allow_abbrev=False,
    )
    for option in OPTIONS:
        default = f" (default: {option.default})" if option.default else ""
        parser.add_argument(
            option.flag,
            dest=option.name,
            metavar=option.metavar,
            help=(option.help + default).replace("%", "%%"),
            action="append" if option.name == "ignore" else "store",
        )
    return parser


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part what is memguard's from the program and its own arguments, which may look alike."""
    end = 0
    while end < len(arguments):
        word = arguments[end]
        if word == "--":
            return list(arguments[:end]), list(arguments[end + 1 :])
        if not word.startswith("-") or word == "-" or word.startswith("-m"):
            break
        end += 2 if word in _FLAGS else 1
    return list(arguments[:end]), list(arguments[end:])


def run(args: argparse.Namespace) -> int:
    """Run the program that `args.program` names; returns the exit status.

    Raises:
        BaseException: whatever the program let through, unless a leak was behind it.
    """
    texts = _texts(args)
    try:
        guarding = _Guarding(_settings(texts), texts)
    except SettingsError as error:
        return _refuse(error)
    guarding.begin()
    try:
        program, arguments = _load(args.program)
        exec(program.code, programs.become_main(program, arguments))
    except programs.NotRunnable as error:
        guarding.give_up()
        return _refuse(error)
    except BaseException as error:
        leak = _leak_behind(error)
        if leak is None:
            guarding.interrupted = isinstance(error, KeyboardInterrupt)
            guarding.look_into(error)
            programs.show_plainly(error)
            raise
        guarding.tell(leak)
        return LEAK_STATUS
    return 0


def _texts(args: argparse.Namespace) -> dict[str, str]:
    """What the options say, by setting."""
    given = {option.name: getattr(args, option.name) for option in OPTIONS}
    # One option a line: commas part the patterns of each.
    return {
        name: "\n".join(said) if isinstance(said, list) else said
        for name, said in given.items()
        if said is not None
    }


def _settings(texts: Mapping[str, str]) -> Settings:
    keywords = {
        option.name: option.read(texts[option.name], option.flag, os.getcwd())
        for option in OPTIONS
        if option.name in texts
    }
    return Settings.read(keywords)


def _load(words: Sequence[str]) -> tuple[programs.Program, Sequence[str]]:
    if not words:
        raise programs.NotRunnable("no program given; name a script, or a module after -m")
    if not words[0].startswith("-m"):
        return programs.load_script(words[0]), words[1:]
    name, arguments = words[0][2:], words[1:]
    if not name and arguments:
        name, arguments = arguments[0], arguments[1:]
    if not name:
        raise programs.NotRunnable("-m needs the name of a module")
    # What a package sees while it is imported on the way to its module.
    sys.argv[:] = ["-m", *arguments]
    return programs.load_module(name), arguments


def _refuse(error: Exception) -> int:
    say(str(error), speaker="memguard run")
    return USAGE_STATUS


def _leak_behind(error: BaseException) -> LeakError | None:
    # Whoever caught the leak and leaves on purpose has chosen a status.
    return None if isinstance(error, (SystemExit, KeyboardInterrupt)) else leak_behind(error)


class _Guarding:
    """One program's guard: begun with torch, ended with the process.

    Attributes:
        interrupted: whether KeyboardInterrupt ended the program.
        stopped: whether a leak did.
    """

    def __init__(self, settings: Settings, texts: Mapping[str, str]) -> None:
        self._settings = settings
        self._texts = texts
        self._guard: Guard | None = None
        self._leave_children_alone: Callable[[], None] | None = None
        self._shown: tuple[Finding, ...] = ()
        self.stopped = False
        self.interrupted = False
        self._process = os.getpid()

    def begin(self) -> None:
        """Guard from the moment the program has imported torch; does nothing when switched off."""
        boot.give_way()
        if self._settings.off:
            return
        self._undo_passing_on = children.pass_on(self._settings, self._texts)
        self._stop_waiting = when_torch_is_imported(self._start)
        # The first to be registered is the last to run: after the program's threads have ended
        # and its own exit handlers have run, with the streams still open.
        atexit.register(self._finish)

    def _start(self) -> None:
        from memguard.watching import guard_process

        self._guard = guard_process(self._settings)
        # At once: a task or a thread of the program may keep the error to itself.
        self._guard.before_raising = self._show
        self._leave_children_alone = forked.guard_children(children.of_children(self._settings))

    def give_up(self) -> None:
        """There was no program to guard."""
        if not self._settings.off:
            self._stop_waiting()
            self._undo_passing_on()
            atexit.unregister(self._finish)

    def tell(self, leak: LeakError) -> None:
        """Show the whole report of the leak that ended the program, unless it has been."""
        self.stopped = True
        if leak.report.findings != self._shown:
            self._show(leak.report)

    def look_into(self, error: BaseException) -> None:
        """Have a post-mortem written where the program has run out of memory."""
        if self._guard is not None and is_out_of_memory(error):
            self._guard.look_into(error)

    def _show(self, report: Report) -> None:
        from memguard.report.text import print_report

        self._shown = report.findings
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # closed, or its reader gone
                print_report(report, sys.stderr)
                sys.stderr.flush()

    def _finish(self) -> None:
        # A forked child that leaves by the program's end has inherited this, but not the task.
        if os.getpid() != self._process:
            return
        self._stop_waiting()
        if self._leave_children_alone is not None:
            self._leave_children_alone()
        try:
            if self._guard is not None:
                self._close(self._guard)
            elif self._settings.report is not None:
                from memguard.reactions import write

                write(Report("clean", 0, clock={"beat": "none"}), self._settings.report)
        except Exception as error:
            say(f"could not finish its report: {type(error).__name__}: {error}")
        if self.interrupted:
            # Python dies by SIGINT if the last text it ran let KeyboardInterrupt through, and
            # dataclasses, imported to tell the report, are made from text.
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def _close(self, guard: Guard) -> None:
        guard.finish()
        if not self.stopped and sys.stderr is not None:
            from memguard.report.text import one_line

            print(one_line(guard.report()), file=sys.stderr)
