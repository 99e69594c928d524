"""Source text for people: a statement on one line, the lines around it."""

from __future__ import annotations

import ast
import io
import linecache
import tokenize
from collections.abc import Sequence

from memguard.explain.syntax import UNPARSABLE, Source

_LONGEST_STATEMENT = 8


def read_line(file: str, line: int) -> str | None:
    """One line of a file as `linecache` has it, without its line end; None when there is none."""
    text = linecache.getline(file, line) if line > 0 else ""
    return text.rstrip() if text else None


def context_of(
    lines: Sequence[str], first: int, last: int, *, before: int = 2, after: int = 1
) -> tuple[tuple[int, str], ...]:
    """Numbered lines around a statement, blank ones passed over, indentation kept.

    Args:
        lines: the file's lines.
        first: first line of the statement, from 1.
        last: its last line; a very long statement is shortened.
        before: lines of code shown before it.
        after: lines of code shown after it.
    """
    last = min(last, first + _LONGEST_STATEMENT - 1, len(lines))
    full = [number for number in range(1, len(lines) + 1) if lines[number - 1].strip()]
    above = [number for number in full if number < first][-before:] if before else []
    below = [number for number in full if number > last][:after]
    own = [number for number in full if first <= number <= last]
    return tuple((number, lines[number - 1].rstrip()) for number in (*above, *own, *below))


def code_of(source: Source, node: ast.stmt | ast.expr) -> str:
    """The node's text on one line, comments left out; a compound statement's first line."""
    if isinstance(node, ast.stmt) and (getattr(node, "body", None) or getattr(node, "cases", None)):
        return _without_comment(source.lines[node.lineno - 1].strip())
    text = cut(source.lines, node)
    if "\n" not in text:
        return text
    joined = join_lines(text)
    return joined if joined is not None else ast.unparse(node)


def _without_comment(line: str) -> str:
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"{line}\n").readline):
            if token.type == tokenize.COMMENT:
                return line[: token.start[1]].rstrip()
    except (tokenize.TokenError, IndentationError):
        pass  # a header of several lines, or one whose block is missing here
    return line


def cut(lines: Sequence[str], node: ast.stmt | ast.expr) -> str:
    """The node's text as it stands in the lines."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    # Columns count bytes of UTF-8, as the parser does.
    rows = [line.encode() for line in lines[first : last + 1]]
    rows[-1] = rows[-1][: node.end_col_offset]
    rows[0] = rows[0][node.col_offset :]
    return b"".join(rows).decode(errors="replace")


def join_lines(text: str) -> str | None:
    """A statement of several lines on one; None when that would change what it means."""
    words: list[str] = []
    row, column = 1, 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"({text}\n)").readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER):
                continue
            apart = token.start[0] != row or token.start[1] > column
            opens = not words or words[-1] in "([{"
            closes = token.string in ")]}" and words[-1] != ","
            words.extend((" " if apart and not opens and not closes else "", token.string))
            row, column = token.end
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return None
    joined = "".join(words)[1:-1].strip()
    try:
        alike = ast.dump(ast.parse(joined)) == ast.dump(ast.parse(text))
    except UNPARSABLE:
        return None
    return joined if alike and "\n" not in joined else None
