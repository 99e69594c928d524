"""When a suspicion that was looked into and left alone is looked into again."""

from __future__ import annotations

import itertools

import pytest

from memguard.suspicion import Suspicion


def looked_into(suspicion: Suspicion, every: int, until: int) -> list[int]:
    """Steps at which one survivor each `every` steps is a case, each held for twice as many."""
    births: list[int] = []
    found = []
    for now in range(every, until, every):
        births.append(now - every)
        suspicion.observe(now - every)
        opinion = suspicion.survey(now, list(births), [])
        if opinion is not None:
            found.append(now)
            suspicion.hold(len(opinion.births), 2 * len(opinion.births))
    return found


@pytest.mark.parametrize(("is_grouped", "more"), [(False, False), (True, True)])
def test_what_is_met_together_is_looked_at_again_as_time_goes_by(
    is_grouped: bool, more: bool
) -> None:
    """Twenty steps' tensors count as one survivor: their number says little of what they weigh."""
    found = looked_into(Suspicion(2, 5, is_grouped=is_grouped), every=20, until=1200)

    gaps = [later / earlier for earlier, later in itertools.pairwise(found)]
    assert (max(gaps) < 1.5) is more
    assert min(gaps) > 1.15


def test_a_case_is_looked_into_when_more_is_certain_of_it() -> None:
    """Not a quarter of all steps later; and not again and again as growth slows down before it."""
    suspicion = Suspicion(2, 5, is_grouped=True)
    births, found = [], []
    for now in range(1, 2000):
        births.append(now - 1)
        suspicion.observe(now - 1)
        if suspicion.survey(now, births[::10], []) is not None:
            found.append(now)
            left = 1500 - now if now < 1490 else 1
            suspicion.hold(10**9, 10**9, left if now > 1000 else None)
    gaps = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert 1500 in found
    assert min(gap for gap, now in zip(gaps, found, strict=False) if now > 1490) >= 1500 // 64
    assert suspicion.certain_at is not None
