"""The answer of `why_alive` as a picture, drawn by Graphviz from the text of the chains.

From the text, not from the objects: they are long let go of, and their own repr is never run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from memguard.errors import MemguardError, UsageError
from memguard.records import Kept
from memguard.report.clean import clean

_PROGRAM = "dot"
_AS_TEXT = (".dot", ".gv")
_BY_PROGRAM = (".svg", ".png", ".pdf")
_SECONDS = 60
_WIDEST = 100


def draw(kept: Sequence[Kept], path: str | os.PathLike[str]) -> None:
    """Write the chains as a graph; the path's ending says in which form.

    Raises:
        UsageError: the name has an ending that is not known.
        MemguardError: the file cannot be written, or Graphviz is not there or fails.
    """
    target = Path(path)
    ending = target.suffix.lower()
    named = clean(os.fspath(path), keep_end=True)
    if ending in _AS_TEXT:
        _write(target, dot(kept), named)
        return
    if ending not in _BY_PROGRAM:
        accepted = ", ".join((*_AS_TEXT, *_BY_PROGRAM))
        raise UsageError(f"picture: path is {named}; accepted: a name that ends in {accepted}")
    program = shutil.which(_PROGRAM)
    if program is None:
        raise MemguardError(
            f"picture: drawing {named} needs Graphviz, and its program {_PROGRAM!r} was not found; "
            "install Graphviz (apt install graphviz), or name a file that ends in .dot"
        )
    words = [program, f"-T{ending[1:]}", "-o", os.path.abspath(target)]
    try:
        ended = subprocess.run(
            words, input=dot(kept).encode(), capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MemguardError(f"picture: drawing {named} failed: {clean(error)}") from None
    if ended.returncode:
        said = clean(ended.stderr.decode(errors="replace").strip() or "it did not say why")
        raise MemguardError(f"picture: Graphviz could not draw {named}: {said}")


def _write(target: Path, text: str, named: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # a ValueError where a NUL is in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise MemguardError(f"picture: cannot write {named}: {clean(reason)}") from None


def dot(kept: Sequence[Kept]) -> str:
    """The chains in Graphviz's language; what two chains begin with in common is drawn once."""
    nodes: dict[tuple[str, ...], str] = {}
    edges: dict[tuple[str, str], None] = {}
    for number, one in enumerate(kept):
        nodes[(str(number),)] = f"object{number} [label={_quoted(one.type)}, style=filled]"
        for chain in _chains(one):
            above: str | None = None
            for depth in range(1, len(chain)):
                name = f"chain{len(nodes)}"
                known = nodes.setdefault(
                    ("", *chain[:depth]), f"{name} [label={_quoted(chain[depth - 1])}]"
                )
                name = known.partition(" ")[0]
                if above is not None:
                    edges[above, name] = None
                above = name
            if above is not None:
                edges[above, f"object{number} [label={_quoted(_edge(chain[-1]))}]"] = None
    lines = ["digraph memguard {", "  node [shape=box, fontname=monospace];"]
    lines += [f"  {node};" for node in nodes.values()]
    lines += [f"  {above} -> {below};" for above, below in edges]
    return "\n".join([*lines, "}"]) + "\n"


def _chains(one: Kept) -> Iterator[tuple[str, ...]]:
    for holder in one.holders:
        yield holder.chain
    yield from one.cycles


def _edge(entry: str) -> str:
    return entry.rpartition(": ")[0] or entry


def _quoted(text: str) -> str:
    plain = clean(text, _WIDEST).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'
