"""The storages behind a tensor, whatever kind of tensor it is, read without a subclass's code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from memguard._torch import is_tensor_type

# Tensors within tensors: a DTensor of a quantized tensor is two deep.
_MAX_DEPTH = 4

_PLAIN = (torch.Tensor, torch.nn.Parameter)

_mro = type.__dict__["__mro__"].__get__
_class_dict = type.__dict__["__dict__"].__get__


class Storage(NamedTuple):
    """One storage: equal keys are one storage."""

    key: int
    bytes: int
    device: str
    dtype: str


def storages_of(tensor: torch.Tensor, depth: int = 0) -> list[Storage]:
    """Every storage the tensor keeps here: a view its whole base's, a DTensor this rank's shard.

    Tensors of the meta device, uninitialized parameters and fake tensors keep none. To be called
    within `_torch.without_overrides()`; about a microsecond.
    """
    try:
        if tensor.layout is torch.strided and type(tensor) in _PLAIN:
            return _plain(tensor)
        return _unusual(tensor, depth)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError):
        return []


def storage_of(tensor: torch.Tensor) -> tuple[int, int]:
    """(key, bytes) of all that `storages_of` finds, by the first of them; (0, 0) where it is none.

    What is told of survivors weighs like the rows of the ledger; under a microsecond for a plain
    tensor. To be called within `_torch.without_overrides()`.
    """
    try:
        if tensor.layout is torch.strided and type(tensor) in _PLAIN and not tensor.is_meta:
            storage = tensor.untyped_storage()
            return storage._cdata, storage.nbytes()
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError):
        return 0, 0
    found = storages_of(tensor)
    return (found[0].key, sum({one.key: one.bytes for one in found}.values())) if found else (0, 0)


def place_of(tensor: torch.Tensor) -> tuple[int, int]:
    """(address, bytes) of the storage of a plain tensor in the host's memory; (0, 0) of others."""
    try:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            return 0, 0
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError):
        return 0, 0
    return (address, size) if type(address) is int and type(size) is int else (0, 0)


def _plain(tensor: torch.Tensor) -> list[Storage]:
    storage = tensor.untyped_storage()
    if storage.device.type == "meta":
        return []
    dtype = str(tensor.dtype).removeprefix("torch.")
    return [Storage(storage._cdata, storage.nbytes(), str(storage.device), dtype)]


def _unusual(tensor: torch.Tensor, depth: int) -> list[Storage]:
    if depth >= _MAX_DEPTH:
        return []
    inner = [] if type(tensor) is torch.Tensor else list(_inner_tensors(tensor))
    parts = _sparse_parts(tensor)
    if parts:
        inner = list(parts)
    elif tensor.layout is torch.strided and not _is_wrapper(tensor):
        return _plain(tensor)
    elif not inner:  # mkldnn, whose memory has no storage
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.numel() * tensor.element_size()
        return [Storage(id(tensor), size, str(tensor.device), dtype)]
    return [storage for one in inner for storage in storages_of(one, depth + 1)]


_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def _sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors that a sparse one consists of; empty for any other."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    names = _COMPRESSED.get(tensor.layout, ())
    read: Any = torch.Tensor
    return tuple(getattr(read, name)(tensor) for name in (*names, "values")) if names else ()


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether the tensor only stands for others; its storage then has sizes, but no memory."""
    storage = tensor.untyped_storage()
    if storage.device.type == "meta":
        return False
    try:
        storage.data_ptr()
    except RuntimeError:
        return True
    return False


def _inner_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Tensors among the attributes, slots as well: what wrappers like DTensor stand for."""
    values: list[Any] = list(torch.Tensor.__dict__["__dict__"].__get__(tensor).values())
    for cls in _mro(type(tensor)):
        names = _class_dict(cls).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            slot = _class_dict(cls).get(name)
            if hasattr(type(slot), "__get__") and type(slot).__name__ == "member_descriptor":
                try:
                    values.append(slot.__get__(tensor))
                except AttributeError:
                    continue
    return (value for value in values if is_tensor_type(type(value)))


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in page-locked memory of the host; asked only once a device is used.

    Asking it of a process that has not touched its device might start the device's driver.
    """
    return tensor.device.type == "cpu" and torch.Tensor.is_pinned(tensor)


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether other processes share the tensor's memory, or a file is mapped there."""
    try:
        storage = tensor.untyped_storage()
        if storage.device.type != "cpu":
            return False
        return storage.is_shared() or getattr(storage, "filename", None) is not None
    except (RuntimeError, ValueError, NotImplementedError):
        return False
