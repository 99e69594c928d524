"""memguard names the variable, line and chain that keep memory growing in a PyTorch job.

Importing it loads neither torch nor anything else heavy: what needs them arrives when used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from memguard._version import __version__
from memguard.errors import (
    LeakError,
    LeakWarning,
    MemguardError,
    MemguardWarning,
    ReportError,
    SettingsError,
    UsageError,
)

if TYPE_CHECKING:
    from memguard import exporters
    from memguard.alive import WhyAlive, why_alive
    from memguard.counting import ledger
    from memguard.estimating import estimate
    from memguard.guard import Guard
    from memguard.ledgers import Estimate, Ledger
    from memguard.records import Report
    from memguard.scoping import Scope, expect_freed, scope
    from memguard.testing.asserting import assert_freed, assert_no_growth
    from memguard.watching import watch

__all__ = [
    "Estimate",
    "Guard",
    "LeakError",
    "LeakWarning",
    "Ledger",
    "MemguardError",
    "MemguardWarning",
    "Report",
    "ReportError",
    "Scope",
    "SettingsError",
    "UsageError",
    "WhyAlive",
    "__version__",
    "assert_freed",
    "assert_no_growth",
    "estimate",
    "expect_freed",
    "exporters",
    "ledger",
    "scope",
    "watch",
    "why_alive",
]

_LATE = {
    "Estimate": "memguard.ledgers",
    "Guard": "memguard.guard",
    "Ledger": "memguard.ledgers",
    "Report": "memguard.records",
    "Scope": "memguard.scoping",
    "WhyAlive": "memguard.alive",
    "assert_freed": "memguard.testing.asserting",
    "assert_no_growth": "memguard.testing.asserting",
    "estimate": "memguard.estimating",
    "expect_freed": "memguard.scoping",
    "exporters": "memguard.exporters",
    "ledger": "memguard.counting",
    # IPython asks for these two by name; they are no part of the public face.
    "load_ipython_extension": "memguard.startup.notebook",
    "unload_ipython_extension": "memguard.startup.notebook",
    "scope": "memguard.scoping",
    "watch": "memguard.watching",
    "why_alive": "memguard.alive",
}

# Hidden from type checkers, which would otherwise accept any attribute at all.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(_LATE[name])
        value = module if _LATE[name] == f"{__name__}.{name}" else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
