"""The door to torch's private or changing parts; `_modules` and `_storage` are its wings.

Importing this module imports torch, so only clock, sensors, explain and the guard do, and only
once a loop is watched. Each private name says in which version it was seen (2.13.0 unless noted)
and what happens without it: the sensor that needs it is switched off, never the job.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch

from memguard import _computing
from memguard._heap import family

Node = Any  # torch.autograd.graph.Node; custom functions' nodes do not inherit from it
Undo = Callable[[], None]
Tensor = torch.Tensor
Module = torch.nn.Module
Optimizer = torch.optim.Optimizer
T = TypeVar("T")
_MOST_CLASSES = 10_000

# By identity, since a metaclass may hash in its own way, and with a weak reference that takes the
# entry out when the class dies: through its methods a class holds all that its module does.
_tensor_types: dict[int, tuple[weakref.ref[type], bool]] = {}
# A type's own `__mro__` and `__dict__`, read past any metaclass that answers differently.
_mro = type.__dict__["__mro__"].__get__
_class_dict = type.__dict__["__dict__"].__get__


def _inherits(cls: type, base: type) -> bool:
    return any(ancestor is base for ancestor in _mro(cls))


def _remember(table: dict[int, tuple[weakref.ref[type], T]], cls: type, value: T) -> None:
    key = id(cls)
    # A program that makes classes in a loop and keeps them must not grow this table for ever.
    if len(table) < _MOST_CLASSES:
        table[key] = weakref.ref(cls, lambda _: table.pop(key, None)), value


def is_tensor_type(cls: type) -> bool:
    """Whether instances of `cls` are tensors; runs no code of the class, unlike isinstance."""
    known = _tensor_types.get(id(cls))
    if known is not None:
        return known[1]
    found = _inherits(cls, torch.Tensor)
    _remember(_tensor_types, cls, found)
    return found


def is_module(value: object) -> bool:
    """Whether `value` is an nn.Module, judged by its real type."""
    return _inherits(type(value), torch.nn.Module)


def is_optimizer(value: object) -> bool:
    """Whether `value` is a torch.optim.Optimizer, judged by its real type."""
    return _inherits(type(value), torch.optim.Optimizer)


def is_parameter(value: object) -> bool:
    """Whether `value` is an nn.Parameter, judged by its real type."""
    return _inherits(type(value), torch.nn.Parameter)


def is_context(value: object) -> bool:
    """Whether `value` is the ctx of a custom autograd Function."""
    return _inherits(type(value), torch.autograd.function.FunctionCtx)


def is_node(value: object) -> bool:
    """Whether `value` is an autograd node; built-in and custom ones have no class in common."""
    return any("next_functions" in _class_dict(cls) for cls in _mro(type(value)))


def _stand_in() -> type | None:
    module = sys.modules.get("torch._subclasses.fake_tensor")  # seen in 2.4 to 2.13
    return getattr(module, "FakeTensor", None)


def is_stand_in(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no data and stands for one that torch.compile met while tracing."""
    fake = _stand_in()
    return fake is not None and _inherits(type(tensor), fake)


def stand_in_classes() -> frozenset[int]:
    """Classes of such tensors, by identity."""
    fake = _stand_in()
    return family(fake) if fake is not None else frozenset()


def node_classes() -> frozenset[int]:
    """Classes of autograd nodes by identity: torch makes one for each kind of node, with no base.

    Those of custom Functions do have one, and their own classes come with their definition.
    """
    made = (cls for cls in type.__subclasses__(object) if "next_functions" in _class_dict(cls))
    return family(*made, torch.autograd.function.BackwardCFunction)


def without_overrides() -> AbstractContextManager[Any]:
    """Inside, reading a tensor's attributes runs no subclass's and no mode's code."""
    guard = getattr(torch._C, "DisableTorchFunction", None)  # seen in 1.7 to 2.13
    return cast("AbstractContextManager[Any]", guard()) if guard is not None else nullcontext()


def is_attached(tensor: torch.Tensor) -> bool:
    """Whether the tensor hangs on an autograd graph; makes no wrapper for its node."""
    try:
        return tensor.requires_grad and not tensor.is_leaf
    except RuntimeError:  # a view whose base was changed in a way autograd forbids
        return False


def node_of(tensor: torch.Tensor) -> Node | None:
    """The tensor's node; None also for a view whose base was changed in a forbidden way.

    Touches the node: see `sensors.touched`.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


# Whether dynamo is tracing: it folds a call of this to True, so what follows is never traced. Bound
# to its own name, since each call costs as much again; seen in 2.1 to 2.13.
is_traced: Callable[[], bool] = torch.compiler.is_dynamo_compiling


def is_number(value: object) -> bool | None:
    """Whether a tensor is a single number; None for what is no tensor."""
    if not is_tensor_type(type(value)):
        return None
    try:
        with without_overrides():
            return torch.Tensor.numel(cast("torch.Tensor", value)) == 1
    except RuntimeError:  # kinds of tensors that do not tell
        return None


def type_of(tensor: torch.Tensor) -> str:
    """The tensor's type, sizes and node as a chain shows them: `float32 [16, 96] AddBackward0`.

    Read past what subclasses define: an uninitialized parameter raises when asked for its shape.
    """
    own: Any = torch.Tensor
    dtype = str(own.dtype.__get__(tensor)).removeprefix("torch.")
    node = node_of(tensor) if is_attached(tensor) else None
    name = f" {node.name()}" if node is not None else ""
    entries = _sparse_entries(tensor)
    sparse = f" with {entries:,} sparse entries" if entries is not None else ""
    return f"{dtype} [{', '.join(_sizes(tensor))}]{sparse}{name}"


def _sparse_entries(tensor: torch.Tensor) -> int | None:
    """Entries a sparse tensor stores, an index that is there twice counted twice; else None."""
    own: Any = torch.Tensor
    if own.layout.__get__(tensor) is not torch.sparse_coo:
        return None
    return int(own._nnz(tensor))  # seen in 1.0 to 2.13


def _sizes(tensor: torch.Tensor) -> Iterator[str]:
    """The size of each dimension; `*` where it differs within a nested tensor."""
    for index in range(torch.Tensor.dim(tensor)):
        try:
            yield str(torch.Tensor.size(tensor, index))
        except RuntimeError:  # nested tensors of strided layout have none as a whole
            yield "*"


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A leaf's gradient; None for other tensors, whose `.grad` warns when it is read.

    None, too, while other threads compute: a backward may let go of it at this very moment.
    """
    try:
        if not tensor.is_leaf or _computing.others():
            return None
        return tensor.grad
    except RuntimeError:  # kinds of tensors that have none
        return None


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a view was cut from; None for other tensors."""
    try:
        return tensor._base if tensor._is_view() else None
    except RuntimeError:  # changed in a way autograd forbids
        return None


def hooks_name(tensor: torch.Tensor, hooks: object) -> str | None:
    """The attribute under which a tensor has a dict of hooks; None when the dict is none."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        descriptor = getattr(torch._C.TensorBase, name, None)  # the latter from 2.1 on
        if descriptor is not None and descriptor.__get__(tensor) is hooks:
            return name
    return None


def caches_casts() -> bool:
    """Whether autocast is on in this thread, with its cache of parameters cast."""
    if not torch.is_autocast_cache_enabled():
        return False
    devices = ("cpu", "cuda", "xpu", "mps")
    try:
        return any(map(torch.is_autocast_enabled, devices))  # takes a device from 2.4 on
    except (TypeError, RuntimeError):
        return bool(torch.is_autocast_enabled())


def is_compiling() -> bool:
    """Whether code is compiled or exported just now, traced by dynamo or run with fake tensors."""
    return torch.compiler.is_compiling()


def sequence_number() -> int:
    """The number the next node of this thread will get; -1 where torch does not tell.

    Cold, as it is once a step, it takes some 10 microseconds.
    """
    read = _sequence_reader()
    return read() if read is not None else -1


@functools.cache
def _sequence_reader() -> Callable[[], int] | None:
    return getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", None)


ACCUMULATOR_SEQUENCE = 2**64 - 1


def node_sequence(node: Node) -> int | None:
    """The node's creation number; None for gradient accumulators, as old as their leaf."""
    read = getattr(node, "_sequence_nr", None)  # seen in 2.4 to 2.13
    if read is None:
        return None
    number = int(read())
    return None if number == ACCUMULATOR_SEQUENCE else number


def node_metadata(node: Node) -> dict[Any, Any]:
    """The dict that lives and dies with the C++ node."""
    return cast("dict[Any, Any]", node.metadata)


def next_nodes(node: Node) -> list[Node]:
    """The nodes this one passes gradients to."""
    return [following for following, _ in node.next_functions if following is not None]


_saved_names_of: dict[int, tuple[weakref.ref[type], tuple[str, ...]]] = {}


def _saved_names(cls: type) -> tuple[str, ...]:
    known = _saved_names_of.get(id(cls))
    if known is not None:
        return known[1]
    names = tuple(name for name in dir(cls) if name.startswith("_raw_saved_"))
    _remember(_saved_names_of, cls, names)
    return names


def saved_tensors(node: Node) -> Iterator[torch.Tensor]:
    """What the node saved for backward and still has; runs no saved-tensor hook."""
    for name in _saved_names(type(node)):
        try:
            raw = getattr(node, name, None)
        except RuntimeError:  # custom functions refuse once backward has freed what they saved
            continue
        for one in raw if isinstance(raw, (tuple, list)) else (raw,):
            data = getattr(one, "data", None)
            if is_tensor_type(type(data)):
                yield cast("torch.Tensor", data)
            elif type(data) is tuple:  # what a pack hook made of it, such as save_on_cpu's
                yield from (part for part in data if is_tensor_type(type(part)))


def tensors_on_context(node: Node) -> Iterator[torch.Tensor]:
    """What a custom function put on its ctx itself, beside `save_for_backward`."""
    if not is_context(node):
        return
    for value in list(vars(node).values()):
        for one in value if type(value) in (tuple, list) else (value,):
            if is_tensor_type(type(one)):
                yield one


def is_half(tensor: torch.Tensor) -> bool:
    """Whether the tensor holds floating-point numbers of 16 bits or fewer."""
    return tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 2


def is_compiled_node(node: Node) -> bool:
    """Whether the node stands for all that torch.compile made of one region; seen in 2.4 to 2.13.

    Under another name it is taken for a node like any other, of several modules.
    """
    return type(node).__name__ == "CompiledFunctionBackward"


def leaf_of(node: Node) -> torch.Tensor | None:
    """The leaf whose gradient the node accumulates; None for other nodes."""
    return getattr(node, "variable", None) if type(node).__name__ == "AccumulateGrad" else None


def device_name(tensor: torch.Tensor) -> str:
    """`cpu`, `cuda:0`, ..."""
    return str(tensor.device)


def allocator_statistics(family: str, index: int) -> dict[str, Any] | None:
    """A caching allocator's statistics, nested as C++ gives them; None where there are none.

    `memory_stats` would flatten some hundred entries at each call.
    """
    module = getattr(torch, family, None)
    read = getattr(module, "memory_stats_as_nested_dict", None)  # CUDA: 1.8 to 2.13, XPU: from 2.4
    return None if read is None else cast("dict[str, Any]", read(index))


def memory_fraction(index: int) -> float:
    """The share of a CUDA device that the process may use; 1.0 where nobody has set it."""
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # seen in 2.13.0
    return float(read(index)) if read is not None else 1.0


# Puts an observer into CUDA's allocator for good, and would start CUDA; seen in 1.13 to 2.13.
attach_memory_observer: Any = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)


def version() -> str:
    """torch's version."""
    return str(torch.__version__)


def world_size() -> int:
    """Ranks that train together; 0 where distributed training has not begun."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 0


def rank() -> int:
    """This process's rank, 0 without distributed training."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0
