"""What runs before torch is there."""

from __future__ import annotations

import contextlib
import sys


def say(line: str, *, speaker: str = "memguard") -> None:
    """Write one line of memguard's own to standard error, whatever state that is in."""
    # print(file=None) would go to standard output.
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"{speaker}: " + " ".join(line.split()), file=sys.stderr)
