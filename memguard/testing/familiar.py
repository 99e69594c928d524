"""Holders of tests, pytest, mocks and threads, told by what the writer of a test knows."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Sequence
from dataclasses import replace

from memguard.explain.syntax import UNPARSABLE, dotted
from memguard.records import Holder

_FIXTURE = re.compile(r"\['(\w+)'\]")
# Where pytest keeps what a fixture has returned, as a chain and as an expression have it.
_VALUE = ".cached_result"
_IN_EXPRESSION = re.compile(r".*\.cached_result\[\.\.\.\]")
# Where a mock keeps the arguments of its calls.
_IN_MOCK = re.compile(r"\._mock_\w+.*")


def familiar(holder: Holder, thread: int | None = None) -> Holder:
    """A holder as the writer of the test knows it.

    Args:
        holder: as found.
        thread: identity of the thread whose running function it is a variable of.
    """
    chain = of_fixture(holder.chain)
    if chain != holder.chain:
        fixture = chain[0].partition(":")[0].partition(" ")[2]
        name = _IN_EXPRESSION.sub(fixture, holder.name)
        # A long way through pytest's records is abbreviated, and ends at the value itself.
        name = fixture if f"['{fixture}']" in name else name
        holder = replace(holder, chain=chain, name=name)
    code, fix = _within_assertion(holder.code), _within_assertion(holder.fix)
    holder = replace(holder, code=code, fix=fix)
    if _IN_MOCK.search(holder.name):
        return _of_mock(holder)
    if thread is not None and thread != threading.get_ident():
        names = {running.ident: running.name for running in threading.enumerate()}
        return _of_thread(holder, names.get(thread, f"thread {thread}"))
    return holder


def _within_assertion(line: str | None) -> str | None:
    """What the lambda does that a line gives to `assert_no_growth`; any other line as it is."""
    try:
        call = ast.parse(line or "", mode="eval").body
    except UNPARSABLE:
        return line
    if not isinstance(call, ast.Call) or not dotted(call.func).endswith("assert_no_growth"):
        return line
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    given = call.args[0] if call.args else named.get("fn")
    within = given.body if isinstance(given, ast.Lambda) else None
    if line is None or within is None:
        return line
    return ast.get_source_segment(line, within)


def of_fixture(chain: Sequence[str]) -> tuple[str, ...]:
    """A chain through pytest's own records to a fixture's value, begun at the fixture."""
    at = next((i for i, entry in enumerate(chain) if entry.startswith(_VALUE)), None)
    if at is None:
        return tuple(chain)
    names = [match[1] for entry in chain[:at] if (match := _FIXTURE.match(entry))]
    rest = list(chain[at + 1 :])
    kind = rest.pop(0).partition(": ")[2] if rest else ""
    name = f"fixture {names[-1]}" if names else "a fixture"
    return (f"{name}: {kind}" if kind else name, *rest)


def _of_mock(holder: Holder) -> Holder:
    name = _IN_MOCK.sub("", holder.name)
    return replace(
        holder,
        name=name,
        where="a mock",
        type="Mock",
        why=f"{name} is a mock, which keeps the arguments of all its calls",
        fix=f"{name}.reset_mock()",
        alternative="make the mock in the test or in a function-scoped fixture",
    )


def _of_thread(holder: Holder, thread: str) -> Holder:
    function = f" in {holder.function}" if holder.function else ""
    return replace(
        holder,
        why=f"thread {thread} still runs{function} when the test is over, with its variables",
        fix=None,
        alternative="end the thread in the test or its fixture, and join() it",
    )
