"""One confirmed case, and what a finding about it says of its holders and its growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memguard.explain.accumulation import Located
from memguard.explain.wording import holder_of
from memguard.judge import growth as growing
from memguard.judge.verdict import Ruling
from memguard.records import Holder, Kind
from memguard.units import plural


@dataclass(frozen=True, slots=True)
class Case:
    """What is investigated.

    Attributes:
        kind: `graph` or `tensor`.
        now: steps ended.
        births: steps under suspicion.
        reason: the judge's words.
        evaluation: whether the loop runs the model without going backward.
        awaiting: whether no backward ends the steps, so that one may still come.
        created: the user's frames in which the deepest survivor was made, innermost first.
        tensors: how many tensors each of `births` left, on average; 0 when they are not counted.
    """

    kind: Kind
    now: int
    births: Sequence[int]
    reason: str
    evaluation: bool = False
    awaiting: bool = False
    created: tuple[str, ...] = ()
    tensors: float = 0.0


def holder(located: Located, case: Case, count: int, each: int, ruling: Ruling) -> Holder:
    """The holder as a report tells it, with its share of `count` steps of `each` bytes."""
    # As the summary counts them: of tensors a step may leave several.
    several = case.tensors if case.kind in ("tensor", "cycle") and case.tensors else 1.0
    survivors = max(1, round(count * located.share * several))
    advice = located.advice
    return replace(
        holder_of(located.place, located.statement, located.type, located.chain),
        survivors=survivors,
        bytes=round(count * located.share) * each,
        created=case.created,
        why=at_its_pace(advice.why, case, count),
        fix=advice.fix,
        alternative=advice.alternative,
        bound=ruling.bound,
        modules=located.modules,
    )


def at_its_pace(why: str, case: Case, count: int) -> str:
    """The reason as it is true of what not each step leaves: a trial of a sweep, say.

    Args:
        why: says `every step` of what grows.
        case: what was investigated.
        count: how many steps have survivors.
    """
    each = max(1.0, case.tensors) * growing.rate(case.births, count, case.now)
    apart = round(1 / max(each, 1e-9))
    if apart <= 1:
        return why
    # Of tensors a step may leave several, so that their number does not tell the steps.
    steps = f"one step in {apart:,}" if case.kind == "graph" else "some steps"
    for said, true in (
        ("every step's", "those steps'"),
        ("every step before", "those before"),
        ("every step", steps),
    ):
        why = why.replace(said, true)
    return why


def summary(case: Case, count: int, bound: int | None) -> str:
    """One line: what survives of how many steps, and how fast it grows or where it ends."""
    pace = growing.rate_in_words(case.births, count, case.now, max(1.0, case.tensors))
    if case.kind == "graph":
        owner = "1 past step's" if count == 1 else f"{count:,} past steps'"
        told = f"{owner} autograd graphs are still alive"
    elif case.kind == "cycle":
        told = f"tensors of {plural(count, 'past step')} wait in reference cycles for a collection"
    elif case.tensors:
        # Those of several steps are met together, so that their steps cannot be counted.
        alive = plural(round(count * case.tensors), "tensor")
        told = f"{alive} of past steps are still alive"
    else:
        told = f"tensors of {plural(count, 'past step')} are still alive"
    return f"{told}, at most {bound}" if bound is not None else f"{told}, {pace}"
