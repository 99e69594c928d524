"""What the callers of a function hand over decides which rewritten line is right in it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator

import pytest
from snippets import Snippet

from memguard.explain.callers import may_be_number, threaded
from memguard.explain.loops import running_regions
from memguard.explain.program import Program
from memguard.explain.syntax import forget_sources


@pytest.fixture(autouse=True)
def _no_sources_left() -> Iterator[None]:
    yield
    forget_sources()
    for file in [file for file in linecache.cache if file.startswith("<snippet")]:
        del linecache.cache[file]


def _number(code: str) -> bool:
    """Whether what the line marked `grows` adds may be a plain number."""
    snippet = Snippet(code)
    program = Program([snippet.file])
    pieces = [piece for scope in program.sources[0].scopes for piece in scope.pieces]
    growth = next(piece for piece in pieces if piece.line == snippet.marked("grows"))
    assert isinstance(growth.node, ast.AugAssign)
    return may_be_number(program, growth, growth.node.value)


METER = """
class Meter:
    def update(self, value, weight=1):
        self.total += value * weight  # grows
"""
METERS = """
class Meters:
    def update(self, **kw):
        for k, v in kw.items():
            self.sums[k] += v  # grows
"""


@pytest.mark.parametrize(
    "code",
    [
        f"{METER}meter.update(loss.item(), 32)\nmeter.update(loss, 32)",
        f"{METER}def all(**kw):\n    for k, v in kw.items():\n        m[k].update(v, 32)\n"
        "all(mse=mse.item(), mae=mae)",
        f"{METERS}meters.update(d=d_loss.item(), g=g_loss)",
        f"{METERS}meters.update(d=float(d_loss), g=g_loss)",
    ],
)
def test_numbers_beside_tensors_are_seen(code: str) -> None:
    """Also when they are handed on, or by name."""
    assert _number(code)


@pytest.mark.parametrize(
    "code",
    [
        f"{METER}meter.update(loss, 32)",
        f"{METERS}meters.update(d=d_loss, g=g_loss)",
        "for x in data:\n    loss = model(x)\n    total += loss  # grows",
        "for x in data:\n    total += model(x).mean()  # grows",
    ],
)
def test_tensors_alone_are_told_apart(code: str) -> None:
    """Nothing speaks for numbers, so the usual line is right."""
    assert not _number(code)


@pytest.mark.parametrize(
    ("call", "function"),
    [
        ("pool.submit(evaluate, x)", "evaluate"),
        ("loop.run_in_executor(None, evaluate, x)", "evaluate"),
        ("threading.Thread(target=evaluate).start()", "evaluate"),
        ("evaluate(x)", None),
        ("pool.submit(print, x)", None),
    ],
)
def test_functions_of_other_threads_are_named(call: str, function: str | None) -> None:
    """Those that the running loop hands over, when they are the user's."""
    code = f"def evaluate(x):\n    return net(x)\nfor x in data:\n    done.append({call})  # at 0\n"
    snippet = Snippet(code)
    program = Program([snippet.file])
    assert threaded(program, running_regions(program, snippet.stack())) == function
