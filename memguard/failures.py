"""`Failure`, by itself: a test session, which may have nothing else to tell, loads no records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """A part of memguard that failed and was switched off; the job went on."""

    part: str
    error: str
    step: int
