"""What sort of process this is, asked without loading anything."""

from __future__ import annotations

import sys


def is_child() -> bool:
    """Whether `multiprocessing` made this process: a loader's worker, one of several trainers."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # While a spawned one imports its parent's program nothing public tells yet.
    is_beginning = getattr(process.current_process(), "_inheriting", False)
    return bool(is_beginning) or process.parent_process() is not None
