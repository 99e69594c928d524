"""Training code as text, standing where Python finds it, with places and stacks read off it.

Lines carry marks as comments: `# at 0` is the line the innermost frame runs, `# at 1` its
caller's; `# grows` and `# frees` mark the lines a test expects.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from memguard.explain.places import Place, PlaceKind, Spot

_numbers = itertools.count(1)


class Snippet:
    """A file that exists only for `linecache`, as a notebook's cell does.

    Args:
        code: the text, which may be indented as a whole.
        file: its name; one of its own by default.
    """

    def __init__(self, code: str, file: str | None = None) -> None:
        self.code = textwrap.dedent(code).strip("\n") + "\n"
        self.file = file or f"<snippet {next(_numbers)}>"
        lines = self.code.splitlines(keepends=True)
        linecache.cache[self.file] = (len(self.code), None, lines, self.file)
        self._functions = list(_functions(ast.parse(self.code), ""))

    def marked(self, mark: str) -> int | None:
        """The line with a mark; None when no line has it."""
        found = [n for n, line in self._lines() if re.search(rf"# .*\b{mark}\b", line)]
        assert len(found) <= 1, f"several lines are marked {mark}"
        return found[0] if found else None

    def stack(self) -> list[Spot]:
        """The frames marked `at 0`, `at 1` and so on, innermost first."""
        marks = itertools.takewhile(lambda n: n, (self.marked(f"at {i}") for i in range(9)))
        return [self._spot(line) for line in marks if line is not None]

    def place(self, kind: PlaceKind, name: str, where: str | None = None, **fields: Any) -> Place:
        """A place in this file.

        Args:
            kind: what sort of variable it is.
            name: its bare name.
            where: qualified name of the owning function, or of the owning class.
            fields: more of the place's fields.
        """
        first = None
        if kind in ("local", "closure", "default", "hook", "cache"):
            fields.setdefault("function", where)
            first = next((f for f, _, qualname in self._functions if qualname == where), None)
        elif where is not None:
            fields.setdefault("owner", where)
        fields.setdefault("first_line", first)
        fields.setdefault("expression", name)
        return Place(kind, name, file=self.file, **fields)

    def _lines(self) -> Iterator[tuple[int, str]]:
        return iter(enumerate(self.code.splitlines(), start=1))

    def _spot(self, line: int) -> Spot:
        around = [entry for entry in self._functions if entry[0] <= line <= entry[1]]
        first, _, qualname = around[-1] if around else (1, 0, "<module>")
        return Spot(self.file, qualname, first, line)


def _functions(node: ast.AST, above: str) -> Iterator[tuple[int, int, str]]:
    """(first line, last line, qualified name) of the functions in a tree, outer ones first."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([inner.lineno, *(mark.lineno for mark in inner.decorator_list)])
            yield first, inner.end_lineno or first, f"{above}{inner.name}"
            yield from _functions(inner, f"{above}{inner.name}.<locals>.")
        elif isinstance(inner, ast.ClassDef):
            yield from _functions(inner, f"{above}{inner.name}.")
        else:
            yield from _functions(inner, above)
