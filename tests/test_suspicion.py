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
