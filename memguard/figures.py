"""The plain figures of a report: memory, limits, environment; each failure is a missing figure."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Any

from memguard import _torch
from memguard._version import __version__
from memguard.sensors.allocator import Allocation
from memguard.sensors.devices import Backend, used_backends
from memguard.sensors.host import Host, InUse
from memguard.sensors.limits import Bound, host_bound
from memguard.settings import Settings


@dataclass(frozen=True, slots=True)
class Seen:
    """One reading, for whoever else needs what was read.

    Attributes:
        host: what the process has in use.
        devices: what the allocators of the devices in use say.
    """

    host: InUse
    devices: tuple[Allocation, ...] = ()


class Figures:
    """Reads memory and its limits; built once a guard."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._host = Host()

    def memory(self) -> dict[str, Any]:
        """Resident bytes of the process, and one record for each device in use."""
        devices = [figure for backend in used_backends() for figure in backend.figures()]
        return {"host_bytes": self._host.resident(), "devices": devices}

    def resident(self) -> int:
        """Bytes of this process in RAM."""
        return self._host.resident()

    def limit(self, device: str = "cpu") -> int:
        """Bytes the forecast for `device` runs into."""
        return self.wanted_limit(self._found_limit(device))

    def wanted_limit(self, found: int) -> int:
        """The limit in force where there are `found` bytes: the user may have set a lower one."""
        wanted = self._settings.limit
        return wanted.of(found) if wanted is not None else found

    def host_standing(self, process: InUse) -> tuple[int, int]:
        """(bytes in use, their limit) of the host, `used` and `limit` at the cost of one.

        Args:
            process: what the process has in use, as it was just read.
        """
        bound = host_bound(process.resident, process.virtual)
        return self._host_used(process.resident, bound), self.wanted_limit(bound.limit)

    def _found_limit(self, device: str) -> int:
        backend = _backend_of(device)
        if backend is None:
            return self._bound().limit
        # Cards differ: only a device that is not told by number is given the least of all.
        own = [f for f in backend.figures() if f["name"] == device and f.get("total")]
        limit = backend.usable(own[0]) if own else backend.limit()
        return limit if limit is not None else self._bound().limit

    def _bound(self) -> Bound:
        process = self._host.read()
        return host_bound(process.resident, process.virtual)

    def _host_used(self, resident: int, bound: Bound) -> int:
        """Of the host's own limit also what other processes have; of the user's only ours."""
        own = self._settings.limit is not None
        return resident if own else max(resident, bound.limit - bound.room)

    def room(self) -> int:
        """Bytes of host memory that may still be taken."""
        return self._bound().room

    def used(self, device: str = "cpu") -> int:
        """Bytes of `device` in use now: of the host's limit also what other processes have."""
        backend = _backend_of(device)
        if backend is None:
            return self.host_standing(self._host.read())[0]
        return sum(figure["allocated"] for figure in backend.figures() if figure["name"] == device)

    def max_growth(self, device: str = "cpu") -> int:
        """Retained bytes on `device` that make a warning a leak."""
        return self._settings.max_growth.of(self.limit(device))


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
        "world_size": _torch.world_size(),
    }
