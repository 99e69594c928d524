"""Device memory through one class per back-end; a back-end is built only if it is in use.

Nothing here resets a peak, empties a cache or synchronises: other monitors rely on them.
"""

from __future__ import annotations

from typing import Any

import torch

from memguard import _torch


class Backend:
    """A device family whose allocator can be read.

    Attributes:
        name: device type as torch writes it.
    """

    name = "none"

    def in_use(self) -> bool:
        """Whether the program has touched a device of this family."""
        return False

    def figures(self) -> list[dict[str, Any]]:
        """One record a device: name, allocated, reserved and total bytes where they are known."""
        return []

    def limit(self) -> int | None:
        """Bytes of the smallest device in use; None when unknown."""
        totals = [self.usable(figure) for figure in self.figures() if figure.get("total")]
        return min(totals, default=None)

    def usable(self, figure: dict[str, Any]) -> int:
        """Bytes of a device that the program may use, of one of `figures`."""
        return int(figure["total"])


class Cuda(Backend):
    """CUDA and ROCm, which torch serves under one name."""

    name = "cuda"

    def in_use(self) -> bool:
        # `is_available` may start a driver; `is_initialized` only looks.
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def figures(self) -> list[dict[str, Any]]:
        records = []
        for index in range(torch.cuda.device_count()):
            allocated, reserved = self._bytes(index)
            if reserved or index == torch.cuda.current_device():
                total = torch.cuda.get_device_properties(index).total_memory
                records.append(_record(f"cuda:{index}", allocated, reserved, total))
        return records

    def usable(self, figure: dict[str, Any]) -> int:
        # With `set_per_process_memory_fraction` the allocator raises before the device is full.
        index = int(figure["name"].rpartition(":")[2])
        return int(figure["total"] * _torch.memory_fraction(index))

    def _bytes(self, index: int) -> tuple[int, int]:
        statistics = _torch.allocator_statistics("cuda", index)
        if statistics is None:
            return torch.cuda.memory_allocated(index), torch.cuda.memory_reserved(index)
        return (
            int(statistics["allocated_bytes"]["all"]["current"]),
            int(statistics["reserved_bytes"]["all"]["current"]),
        )


class Xpu(Backend):
    """Intel GPUs."""

    name = "xpu"

    def in_use(self) -> bool:
        module = getattr(torch, "xpu", None)
        return module is not None and bool(module.is_initialized())

    def figures(self) -> list[dict[str, Any]]:
        return [
            _record(
                f"xpu:{index}",
                torch.xpu.memory_allocated(index),
                torch.xpu.memory_reserved(index),
                torch.xpu.get_device_properties(index).total_memory,
            )
            for index in range(torch.xpu.device_count())
        ]


class Mps(Backend):
    """Apple GPUs, which share the host's memory."""

    name = "mps"

    def in_use(self) -> bool:
        # No call tells whether the device was used; asking an unused allocator is cheap.
        return bool(torch.backends.mps.is_available()) and torch.mps.current_allocated_memory() > 0

    def figures(self) -> list[dict[str, Any]]:
        # `recommended_max_memory` came with torch 2.5.
        limit = getattr(torch.mps, "recommended_max_memory", None)
        return [
            _record(
                "mps:0",
                torch.mps.current_allocated_memory(),
                torch.mps.driver_allocated_memory(),
                limit() if limit is not None else 0,
            )
        ]


BACKENDS: tuple[type[Backend], ...] = (Cuda, Xpu, Mps)


def used_backends() -> list[Backend]:
    """The back-ends this program uses; empty on a CPU-only run."""
    return [backend for backend in (cls() for cls in BACKENDS) if backend.in_use()]


def _record(name: str, allocated: int, reserved: int, total: int) -> dict[str, Any]:
    return {
        "name": name,
        "allocated": int(allocated),
        "reserved": int(reserved),
        "total": int(total),
    }
