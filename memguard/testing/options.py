"""What a test session and each of its tests ask for: options, ini values and markers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from memguard.patterns import Pattern
from memguard.units import parse_size
from memguard.values import read_ignore, shown

if TYPE_CHECKING:
    import weakref

# What a test expects to be freed with it, held weakly, and how the test calls it.
Expected = list[tuple["weakref.ref[Any]", str]]
EXPECTED: pytest.StashKey[Expected] = pytest.StashKey()

Action = Literal["fail", "warn", "report"]
ACTIONS = ("fail", "warn", "report")
OFF = ("", "off", "0", "false", "no")
CHECKING_MARKERS = ("memguard", "no_leak")
LEAKY_MARKER = "leaky"
MARKERS = (
    "memguard(repeat=2, allow=(), max_growth=0, window=0, filter=None, action='fail'): check that "
    "this test leaves no tensor, graph, module or optimizer behind, whatever the command line says",
    "no_leak: the same under another name",
    "leaky(reason=''): a test that is known to leak: reported, and failed once it leaks no more",
)
KINDS = ("graph", "tensor")
# Runs of a test that leaves something: once may be a cache that fills, twice is growth.
RUNS = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """How one test is to be judged.

    Attributes:
        action: what happens when it leaks.
        repeat: runs, at most; a test that leaves nothing runs once.
        window: runs whose survivors do not count, the youngest.
        allow: kinds of leftovers that are fine.
        max_growth: bytes that each run may leave behind.
        filter: is given the finding, and says whether it counts.
        leaky: why the test is known to leak; None where it is not.
    """

    action: Action = "fail"
    repeat: int = RUNS
    window: int = 0
    allow: frozenset[str] = frozenset()
    max_growth: int = 0
    filter: Callable[[Any], bool] | None = None
    leaky: str | None = None


class WrongOption(ValueError):
    """An option, ini value or marker cannot be read; the message says which, and what would do."""


def session_action(option: str | None, ini: str) -> Action | None:
    """What the command line, or else the ini file, asks for; None for nothing.

    Raises:
        WrongOption: it is no word that is known.
    """
    value = option if option is not None else ini.strip().lower()
    if value in (OFF if option is None else ("off",)):
        return None
    if value not in ACTIONS:
        spelled = "ini memguard" if option is None else "--memguard"
        raise WrongOption(f"{spelled}: found {shown(value)}; accepted: {', '.join(ACTIONS)}, off")
    return value  # type: ignore[return-value]


def whole(value: Any, spelled: str, least: int) -> int:
    """A whole number of at least `least`.

    Raises:
        WrongOption: it is none.
    """
    try:
        number = int(value) if not isinstance(value, (bool, float)) else None
    except Exception:  # whatever an object's own conversion fails with
        number = None
    if number is None or number < least:
        raise WrongOption(
            f"{spelled}: found {shown(value)}; accepted: a whole number, {least} or more"
        )
    return number


def patterns(given: Sequence[str], listed: Sequence[str]) -> tuple[Pattern, ...]:
    """Patterns of findings to leave out.

    Args:
        given: on the command line, where commas part several of one text.
        listed: in the ini file, one a line, commas and all.

    Raises:
        WrongOption: one of them has an unknown field, or is a list that is not there.
    """
    try:
        folder = os.getcwd()
        read = [read_ignore(value, folder) for value in (*given, list(listed))]
        return tuple(pattern for several in read for pattern in several)
    except ValueError as error:
        raise WrongOption(f"--memguard-ignore: {error}") from None


def wanted(item: pytest.Item, action: Action | None, repeat: int) -> Wanted | None:
    """How a test is to be judged; None where it is not.

    Raises:
        WrongOption: a marker has a value that cannot be read.
    """
    # Walked through once, since most tests have none of them.
    ours = [mark for mark in item.iter_markers() if mark.name in (*CHECKING_MARKERS, LEAKY_MARKER)]
    if not ours:
        return Wanted(action, repeat) if action is not None else None
    found = action
    plan = Wanted(repeat=repeat)
    for name in CHECKING_MARKERS:
        # The outermost first, so that the mark on the test itself has the last word.
        for mark in reversed([mark for mark in ours if mark.name == name]):
            found = found or "fail"
            plan, said = tuned(plan, mark.args, mark.kwargs)
            found = said or found
    if found is None:
        return None
    leaky = next((mark for mark in ours if mark.name == LEAKY_MARKER), None)
    if leaky is not None:
        reason = leaky.kwargs.get("reason", leaky.args[0] if leaky.args else "")
        plan = replace(plan, leaky=str(reason))
    # The runs of the window come on top: they are not judged.
    return replace(plan, action=found, repeat=plan.repeat + plan.window)


def tuned(
    plan: Wanted, args: Sequence[Any], values: Mapping[str, Any]
) -> tuple[Wanted, Action | None]:
    """(the plan with a marker's values, the action it asks for).

    Raises:
        WrongOption: the marker has an argument that is unknown or cannot be read.
    """
    if args:
        raise WrongOption(f"marker memguard: found {args[0]!r}; accepted: keywords only")
    action: Action | None = None
    for name, value in values.items():
        spelled = f"marker memguard, {name}"
        if name == "repeat":
            plan = replace(plan, repeat=whole(value, spelled, 1))
        elif name == "window":
            plan = replace(plan, window=whole(value, spelled, 0))
        elif name == "allow":
            plan = replace(plan, allow=_kinds(value, spelled))
        elif name == "max_growth":
            plan = replace(plan, max_growth=_size(value, spelled))
        elif name == "filter":
            if not callable(value):
                raise WrongOption(
                    f"{spelled}: found {shown(value)}; accepted: a function of a finding"
                )
            plan = replace(plan, filter=value)
        elif name == "action" and value in ACTIONS:
            action = value
        else:
            known = "repeat, window, allow, max_growth, filter, action (fail, warn, report)"
            raise WrongOption(f"{spelled}: found {shown(value)}; accepted: {known}")
    return plan, action


def _kinds(value: Any, spelled: str) -> frozenset[str]:
    try:
        kinds = frozenset((value,) if isinstance(value, str) else value)
    except TypeError:
        kinds = frozenset({None})
    if not kinds <= frozenset(KINDS):
        found, known = shown(value), " or ".join(KINDS)
        raise WrongOption(f"{spelled}: found {found}; accepted: {known}, or both in a tuple")
    return kinds


def _size(value: Any, spelled: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_size(str(value))
    except Exception:  # whatever an object's own text fails with
        found = shown(value)
        raise WrongOption(f'{spelled}: found {found}; accepted: bytes, or "1MiB"') from None
