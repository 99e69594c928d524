"""Whether a container with older entries really gets longer, from counts alone."""

from __future__ import annotations

from memguard.judge.entries import Entries
from memguard.judge.verdict import UNKNOWN_BOUND


def test_a_holder_with_no_more_entries_than_survivors_is_not_doubted() -> None:
    """Everything in it is under suspicion: there is nothing to wait for."""
    assert Entries().doubt("history", survivors=7, entries=9, window=2) is None


def test_what_is_no_container_is_not_doubted() -> None:
    """An attribute has no entries."""
    assert Entries().doubt("total", survivors=7, entries=None, window=2) is None


def test_a_holder_of_old_entries_that_gets_longer_is_believed_at_the_second_count() -> None:
    """A table with settings in it, to which each step adds."""
    entries = Entries()
    first = entries.doubt("table", survivors=7, entries=40, window=2)
    assert first is not None
    assert first.action == "hold"
    assert first.until == 10
    assert entries.doubt("table", survivors=10, entries=43, window=2) is None


def test_a_holder_whose_entries_are_overwritten_waits_for_many() -> None:
    """Survivors come, and the table is no longer than before."""
    entries = Entries()
    entries.doubt("last", survivors=7, entries=40, window=2)
    second = entries.doubt("last", survivors=10, entries=40, window=2)
    assert second is not None
    assert second.until == UNKNOWN_BOUND
    assert entries.doubt("last", survivors=UNKNOWN_BOUND, entries=90, window=2) is None


def test_holders_are_counted_each_by_itself() -> None:
    """What one table does says nothing of another."""
    entries = Entries()
    entries.doubt("one", survivors=7, entries=40, window=2)
    other = entries.doubt("other", survivors=10, entries=43, window=2)
    assert other is not None
    assert other.until == 13
