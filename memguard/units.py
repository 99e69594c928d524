"""Sizes, shares, durations and counts: read as users type them, written as users read them."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z%]*)", re.IGNORECASE)
# No memory has this many digits; the cap keeps a pasted novel out of the arithmetic.
_LONGEST = 40
_PREFIXES = ("k", "m", "g", "t")
# A bare letter is binary, as batch systems and container tools read it.
_FACTORS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES, 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(_PREFIXES, 1)},
    **{prefix: 1024**power for power, prefix in enumerate(_PREFIXES, 1)},
}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MOST_BYTES = 1024 ** len(_BINARY)
_MOST_COUNTED = 10**18


def parse_size(text: str) -> int:
    """The bytes meant by a size such as `512MiB`.

    Args:
        text: a number of bytes, or a number with a unit: `kB`, `MB`, `GB`, `TB` (powers of
            1000), `KiB`, `MiB`, `GiB`, `TiB` or `K`, `M`, `G`, `T` (powers of 1024); case and
            spaces do not matter.

    Raises:
        ValueError: `text` is no such size.
    """
    number, unit = _amount(text)
    if number is None or unit not in _FACTORS:
        raise ValueError(
            f"{_quoted(text)} is no size; accepted: bytes (1048576) or a number with a unit "
            "from kB to TB (2GB) or KiB to TiB (512MiB)"
        )
    return int(number * _FACTORS[unit] + Fraction(1, 2))


def parse_share(text: str) -> float:
    """The share of a whole, 0 to 1, meant by `10%` or `0.1`.

    Raises:
        ValueError: `text` is neither, or lies outside 0 to 1.
    """
    number, unit = _amount(text)
    accepted = "accepted: a percentage from 0% to 100%, or a number from 0 to 1 (10% or 0.1)"
    if number is None or unit not in ("", "%"):
        raise ValueError(f"{_quoted(text)} is no share; {accepted}")
    share = number / 100 if unit == "%" else number
    if share > 1:
        raise ValueError(f"{_quoted(text)} is more than the whole; {accepted}")
    return float(share)


def _amount(text: str) -> tuple[Fraction | None, str]:
    stripped = text.strip()
    match = _AMOUNT.fullmatch(stripped) if len(stripped) <= _LONGEST else None
    if match is None:
        return None, ""
    return Fraction(match[1].rstrip(".")), match[2].lower()


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


def format_bytes(size: float) -> str:
    """A size in binary units, as short as it stays true: `512 B`, `31.2 MiB`, `8 GiB`."""
    if not _is_finite(size):
        return "unknown size"
    if size < 0:
        return "-" + format_bytes(-size)
    if size >= _MOST_BYTES:
        return f"over 1,024 {_BINARY[-1]}"
    value, unit = float(size), 0
    # 1023.6 would be written 1024, which is 1 of the next unit.
    while round(value) >= 1024 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or round(value, 1) >= 100 else 1
    return f"{_trimmed(value, digits)} {_BINARY[unit]}"


def format_count(count: float) -> str:
    """A count with its thousands apart: `7,209`; fractions keep one digit: `1.5`."""
    if not _is_finite(count):
        return "unknown"
    if abs(count) >= _MOST_COUNTED:
        return "over 10^18" if count > 0 else "under -10^18"
    if isinstance(count, int):
        return f"{count:,}"
    return _trimmed(count, 1)


def format_duration(seconds: float) -> str:
    """A time span in its two largest units: `350 ms`, `12 s`, `2 h 5 min`, `3 d 4 h`."""
    if not _is_finite(seconds):
        return "unknown time"
    if seconds < 0:
        return "-" + format_duration(-seconds)
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if round(seconds * factor) < 1000:
            return f"{round(seconds * factor)} {unit}"
    if round(seconds, 1) < 10:
        return f"{_trimmed(seconds, 1)} s"
    whole = round(min(seconds, _MOST_COUNTED))
    for large, small, size, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60)):
        if whole >= size:
            return _pair(whole // size, large, whole % size // part, small)
    return _pair(whole // 60, "min", whole % 60, "s") if whole >= 60 else f"{whole} s"


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    first = f"{format_count(large)} {large_unit}"
    return f"{first} {small} {small_unit}" if small else first


def plural(count: float, noun: str, nouns: str | None = None) -> str:
    """A count with its noun in the right number: `1 graph`, `7,209 nodes`, `1.5 graphs`.

    Args:
        nouns: the noun for other counts than one; `noun` with an s when left out.
    """
    written = format_count(count)
    return f"{written} {noun}" if written == "1" else f"{written} {nouns or noun + 's'}"


def _trimmed(value: float, digits: int) -> str:
    written = f"{value:,.{digits}f}"
    return written.removesuffix(".0")


def _is_finite(value: float) -> bool:
    # math.isfinite overflows on integers beyond the range of floats.
    return isinstance(value, int) or math.isfinite(value)
