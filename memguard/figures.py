"""The plain figures of a report: memory, limits, environment; each failure is a missing figure."""

from __future__ import annotations

import os
import platform
from typing import Any

from memguard import _torch
from memguard._version import __version__
from memguard.sensors.devices import Backend, used_backends
from memguard.sensors.host import Host
from memguard.sensors.limits import Bound, host_bound
from memguard.settings import Settings


class Figures:
    """Reads memory and its limits; built once a guard, asked only when something is to be told."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._host = Host()

    def memory(self) -> dict[str, Any]:
        """Resident bytes of the process, and one record for each device in use."""
        devices = [figure for backend in used_backends() for figure in backend.figures()]
        return {"host_bytes": self._host.resident(), "devices": devices}

    def limit(self, device: str = "cpu") -> int:
        """Bytes the forecast for `device` runs into."""
        found = self._found_limit(device)
        wanted = self._settings.limit
        return wanted.of(found) if wanted is not None else found

    def _found_limit(self, device: str) -> int:
        backend = _backend_of(device)
        if backend is None:
            return self._bound().limit
        # Cards differ: only a device that is not told by number is given the least of all.
        own = [f for f in backend.figures() if f["name"] == device and f.get("total")]
        limit = backend.usable(own[0]) if own else backend.limit()
        return limit if limit is not None else self._bound().limit

    def _bound(self) -> Bound:
        return host_bound(self._host.resident(), self._host.virtual())

    def room(self) -> int:
        """Bytes of host memory that may still be taken."""
        return self._bound().room

    def used(self, device: str = "cpu") -> int:
        """Bytes of `device` in use now: of the host's limit also what other processes have."""
        backend = _backend_of(device)
        if backend is None:
            if self._settings.limit is not None:
                return self._host.resident()
            bound = self._bound()
            return max(self._host.resident(), bound.limit - bound.room)
        return sum(figure["allocated"] for figure in backend.figures() if figure["name"] == device)

    def max_growth(self, device: str = "cpu") -> int:
        """Retained bytes on `device` that make a warning a leak."""
        return self._settings.max_growth.of(self.limit(device))

    def has_own_max_growth(self) -> bool:
        """Whether the user has said what growth is too much."""
        return self._settings.max_growth != Settings().max_growth


def _backend_of(device: str) -> Backend | None:
    family = device.partition(":")[0]
    return next((backend for backend in used_backends() if backend.name == family), None)


def environment() -> dict[str, Any]:
    """Versions, platform and process; no environment variables, no host names."""
    return {
        "memguard": __version__,
        "torch": _torch.version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "pid": os.getpid(),
        "rank": _torch.rank(),
    }
