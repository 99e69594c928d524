"""What a caching allocator says beside its bytes: the peak, and how often it was short."""

from __future__ import annotations

from typing import Any

import torch


def peak_and_retries(device: str) -> dict[str, Any]:
    """Most bytes that `cuda:0` ever gave out and its retries; empty where neither is told.

    Never run on a device: written from the documentation of torch 2.13.
    """
    family, _, index = device.partition(":")
    module = getattr(torch, family, None)
    # One call into C; `memory_stats` flattens some hundred entries. Seen in 1.8 to 2.13.
    read = getattr(module, "memory_stats_as_nested_dict", None)
    if read is None:
        return {}
    told = read(int(index or 0))
    peak = told.get("allocated_bytes", {}).get("all", {}).get("peak")
    return {"peak": peak, "retries": told.get("num_alloc_retries", 0)}
