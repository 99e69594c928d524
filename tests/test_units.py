"""Sizes, shares, durations and counts, in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memguard.units import (
    format_bytes,
    format_count,
    format_duration,
    parse_share,
    parse_size,
    plural,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        (" 1.5 GiB ", 3 * 2**29),
        (".5KiB", 512),
        ("3.TiB", 3 * 2**40),
        ("2GB", 2 * 10**9),
        ("7kb", 7000),
        ("1.000001MB", 1_000_001),
        ("12B", 12),
        ("8G", 8 * 2**30),
        ("0.5B", 1),
    ],
)
def test_sizes_are_read_as_users_type_them(text: str, size: int) -> None:
    """Units of 1000 and of 1024, in any case, with or without a space."""
    assert size == parse_size(text)


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "1e9", "5 XB", "10%", "nan", "inf", "1,5GB", "٣MB", "1 2", "9" * 999]
)
def test_other_sizes_are_refused_with_what_is_accepted(text: str) -> None:
    """The message names what was found and how to write it, and stays short."""
    with pytest.raises(ValueError, match="is no size; accepted: ") as caught:
        parse_size(text)

    assert repr(text)[:20] in str(caught.value)
    assert "512MiB" in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "share"),
    [("10%", 0.1), ("0.01", 0.01), ("1", 1.0), ("100 %", 1.0), ("0", 0.0), ("2.5%", 0.025)],
)
def test_shares_are_percentages_or_numbers_up_to_one(text: str, share: float) -> None:
    """Both ways of writing a share give the same number."""
    assert share == parse_share(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ten", "is no share"),
        ("10MiB", "is no share"),
        ("-1%", "is no share"),
        ("10", "is more than the whole"),
        ("101%", "is more than the whole"),
    ],
)
def test_other_shares_are_refused_with_what_is_accepted(text: str, said: str) -> None:
    """A forgotten percent sign is told apart from a word."""
    with pytest.raises(ValueError, match=f"{said}; accepted: .*10% or 0.1"):
        parse_share(text)


@pytest.mark.parametrize(
    ("size", "written"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1023.7 * 2**20, "1 GiB"),
        (294432768, "281 MiB"),
        (32714752, "31.2 MiB"),
        (99.96 * 2**20, "100 MiB"),
        (8 * 2**30, "8 GiB"),
        (-3 * 2**20, "-3 MiB"),
        (2**200, "over 1,024 EiB"),
        (10**400, "over 1,024 EiB"),
        (float("nan"), "unknown size"),
    ],
)
def test_bytes_are_written_in_the_unit_that_fits(size: float, written: str) -> None:
    """At most one digit after the point, none where it would be zero."""
    assert written == format_bytes(size)


@given(st.integers(min_value=0, max_value=2**70))
def test_written_bytes_read_back_as_nearly_the_same(size: int) -> None:
    """Rounding loses less than six percent, whatever the size."""
    written = format_bytes(size)
    if written.endswith(("PiB", "EiB")) or written.startswith("over"):
        return

    assert parse_size(written.replace(",", "")) == pytest.approx(size, rel=0.06)


@pytest.mark.parametrize(
    ("count", "written"),
    [(7209, "7,209"), (0, "0"), (1.0, "1"), (1.5, "1.5"), (1234.56, "1,234.6")],
)
def test_counts_keep_their_thousands_apart(count: float, written: str) -> None:
    """Whole numbers stay whole, others keep one digit."""
    assert written == format_count(count)


@pytest.mark.parametrize(
    ("count", "written"),
    [(10**999, "over 10^18"), (-(10**19), "under -10^18"), (float("inf"), "unknown")],
)
def test_absurd_counts_are_bounded(count: float, written: str) -> None:
    """A number from a broken file neither fills a screen nor raises."""
    assert written == format_count(count)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.00004, "40 µs"),
        (0.9999, "1 s"),
        (0.35, "350 ms"),
        (1.25, "1.2 s"),
        (9.97, "10 s"),
        (59.7, "1 min"),
        (95, "1 min 35 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (100_000, "1 d 3 h"),
        (-5, "-5 s"),
        (1e300, "11,574,074,074,074 d 1 h"),
        (float("nan"), "unknown time"),
    ],
)
def test_durations_are_written_in_their_two_largest_units(seconds: float, written: str) -> None:
    """From microseconds to days, rounded to what a reader needs."""
    assert written == format_duration(seconds)


def test_nouns_follow_their_count() -> None:
    """One is singular, everything else plural, irregular nouns as given."""
    assert plural(1, "graph") == "1 graph"
    assert plural(1.0, "graph") == "1 graph"
    assert plural(0, "graph") == "0 graphs"
    assert plural(1.5, "graph") == "1.5 graphs"
    assert plural(7209, "node") == "7,209 nodes"
    assert plural(2, "entry", "entries") == "2 entries"
