"""The answer of `why_alive` as text: who keeps an object alive, chain by chain."""

from __future__ import annotations

from collections.abc import Sequence

from memguard.records import Holder, Kept
from memguard.report import drawing, words
from memguard.report.clean import clean
from memguard.report.text import Paper, source, tree
from memguard.units import format_count, plural

_WIDTH = 100
_LABEL = 10
_NAME = 100


def render(subject: str, kept: Sequence[Kept], living: int | None = None) -> str:
    """The answer as text, without a final newline.

    Args:
        subject: what was asked about.
        kept: one record an object that was looked at.
        living: instances of the class that are alive; None where an object was asked about.
    """
    paper = Paper(_WIDTH, False)
    if living is None:
        lines = [f"memguard: {_headline(kept[0])}", *_object(kept[0], paper)]
        return "\n".join(lines)
    lines = [f"memguard: {_census(subject, len(kept), living)}"]
    for number, one in enumerate(kept, start=1):
        lines += ["", f"  {number}. {clean(one.type)}: {_held(one)}"]
        # A thousand entries of one list have one chain.
        alike = next((n for n, other in enumerate(kept[: number - 1], start=1) if other == one), 0)
        lines += [f"     by the same as {alike}"] if alike else _object(one, paper)
    return "\n".join(lines)


def _census(subject: str, looked: int, living: int) -> str:
    instances = plural(living, "living instance")
    if not living:
        return f"no instance of {clean(subject)} is alive"
    shown = (
        ""
        if looked == living
        else f"; {format_count(looked)} of them, roughly from oldest to newest"
    )
    return f"{instances} of {clean(subject)}{shown}"


def _headline(one: Kept) -> str:
    count = _count(one)
    if not count:
        return f"{_nobody(one)} this {clean(one.type)} alive"
    return f"{_references(count)} this {clean(one.type)} alive"


def _held(one: Kept) -> str:
    count = _count(one)
    return f"{_references(count) if count else _nobody(one)} it alive"


def _references(count: int) -> str:
    return "1 reference keeps" if count == 1 else f"{plural(count, 'reference')} keep"


def _nobody(one: Kept) -> str:
    if one.cycles:
        return "nothing but a reference cycle keeps"
    return "nothing that Python shows, beside this question, keeps"


def _count(one: Kept) -> int:
    return len(one.holders) + len(one.also) + one.others


def _object(one: Kept, paper: Paper) -> list[str]:
    lines: list[str] = []
    for holder in one.holders:
        lines += ["", *_holder(holder, paper)]
    for cycle in one.cycles:
        lines += ["", *tree(drawing.chain(cycle, "itself"), paper)]
    facts = _facts(one)
    return [*lines, "", *paper.labelled(facts, 2, _LABEL)] if facts else lines


def _holder(holder: Holder, paper: Paper) -> list[str]:
    lines = [f"  {words.owner(holder)}" if holder.where else f"  {clean(holder.name, _NAME)}"]
    if holder.line is not None:
        lines.append(f"  {words.place(holder)}")
        lines += source(drawing.statement_rows(holder), paper)
    return [*lines, *tree(drawing.chain(holder.chain, holder.name), paper)]


def _facts(one: Kept) -> words.Facts:
    said = [("" if i else "also", clean(line)) for i, line in enumerate(one.also)]
    if one.others:
        said.append(("" if said else "also", f"and {plural(one.others, 'more reference')}"))
    if one.cycles:
        then = "it" if not _count(one) else "when nothing else refers to it, it"
        said.append(("cycle", f"{then} waits for a collection (gc.collect())"))
    if one.hidden and not _count(one):
        said.append(("C++", "tensors and nodes may be held where nobody can look; see the README"))
    if one.frozen:
        said.append(
            ("frozen", f"{plural(one.frozen, 'object')} behind gc.freeze(), where no search comes")
        )
    if not one.complete:
        said.append(("note", "the search ended at its budget: there may be more, or a nearer root"))
    return said
