"""Being told of optimizer steps, backwards, first calls and compilations, by torch's public ways.

Where torch offers no hook a public function is wrapped, and only where a whole process is guarded.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from memguard import _modules, _torch
from memguard._torch import Undo


class _Tape(Protocol):
    """Takes numbers, as many as there is room for."""

    events: list[int]
    room: int


class StepListener:
    """Who is told of optimizer steps.

    Between looks a step is a number on a tape. It is put there by the one function that torch
    calls, since what a step costs is the number of functions it goes through, with cold caches.

    Args:
        tape: takes the numbers.
        hear: is told of the steps that the tape does not take, and of those of strangers.

    Attributes:
        known: by identity, an optimizer, held weakly, and the number of its steps; 0 for one that
            nobody cares for.
    """

    __slots__ = ("hear", "known", "tape")

    def __init__(self, tape: _Tape, hear: Callable[[Any], None]) -> None:
        self.tape = tape
        self.hear = hear
        self.known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def forget(self) -> None:
        """Hear of each optimizer's next step anew."""
        self.known = {}


class _OptimizerSteps:
    """One entry of ours in torch's table of optimizer hooks, whoever listens.

    torch walks its table while the hooks run, and a table that changes meanwhile, in whatever
    thread, breaks the user's `step()`. So listeners come and go in a tuple of our own, and the
    entry itself only when no step of ours is under way.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a collection within may close a guard
        self._listeners: tuple[StepListener, ...] = ()
        # One entry for each step under way: appending and popping need no lock.
        self._under_way: list[None] = []
        self._handle: Any = None

    def forked(self) -> None:
        """Begin with a lock of its own, in a forked child, in which no tape is read."""
        self._lock = threading.RLock()
        self._under_way = []  # of threads that are not there
        for listener in self._listeners:
            listener.forget()

    def add(self, listener: StepListener) -> None:
        """Begin to tell `listener` of every step."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
            if self._handle is None:
                self._handle = register_optimizer_step_post_hook(self._stepped)

    def discard(self, listener: StepListener) -> None:
        """Tell `listener` no more; harmless when it was never told."""
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not listener)
            if not self._listeners and not self._under_way and self._handle is not None:
                self._handle.remove()
                self._handle = None

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        under_way = self._under_way
        under_way.append(None)
        try:
            key = id(optimizer)
            for listener in self._listeners:
                known, tape = listener.known.get(key), listener.tape
                if known is None or len(tape.events) >= tape.room or known[0]() is not optimizer:
                    listener.hear(optimizer)
                elif known[1]:
                    tape.events.append(known[1])
        except RecursionError:
            # The user's own calls have left no room for ours: one event is not heard of.
            return
        finally:
            under_way.pop()
            if not self._listeners:
                self._leave_within()

    def _leave_within(self) -> None:
        """The last listener left while it was told: take the entry out while torch walks its table.

        Only where ours is the last entry, after which torch looks no further.
        """
        with self._lock:
            handle = self._handle
            if self._listeners or self._under_way or handle is None:
                return
            table = handle.hooks_dict_ref()
            if table and next(reversed(table)) == handle.id:
                handle.remove()
                self._handle = None


_optimizer_steps = _OptimizerSteps()

# Another thread of the parent may have held the lock, and is not in the child to let it go.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_optimizer_steps.forked)


def on_every_optimizer_step(listener: StepListener) -> Undo:
    """Tell `listener` of each step of any optimizer, when it is done; returns the undo."""
    _optimizer_steps.add(listener)
    return functools.partial(_optimizer_steps.discard, listener)


def on_first_module_call(hook: Callable[[Any], None]) -> Undo:
    """Call `hook(module)` after each module call until undone.

    The global hook makes `torch.compile`d modules warn, so the caller undoes it at the first call.
    """

    def after(module: Any, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            hook(module)

    handle = torch.nn.modules.module.register_module_forward_hook(after)
    return handle.remove


def on_every_backward(hook: Callable[[Any, bool], None]) -> Undo:
    """Call `hook(roots, is_gradient)` after each `autograd.backward` and `autograd.grad`.

    torch offers no hook for this, so the public functions are wrapped (`Tensor.backward` calls the
    first by name); only the guard of a whole process does that.
    """
    undo_backward = _after_backward("backward", "tensors", lambda roots: hook(roots, False))
    undo_gradient = _after_backward("grad", "outputs", lambda roots: hook(roots, True))

    def undo() -> None:
        undo_backward()
        undo_gradient()

    return undo


def _after_backward(name: str, first: str, hook: Callable[[Any], None]) -> Undo:
    original = getattr(torch.autograd, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not torch.compiler.is_compiling():
            hook(args[0] if args else kwargs.get(first))
        return result

    undo_builtin = _known_to_torchscript(original, wrapper)
    undo_replacing = replace(torch.autograd, name, wrapper)

    def undo() -> None:
        undo_replacing()
        undo_builtin()

    return undo


def _known_to_torchscript(original: Any, wrapper: Any) -> Undo:
    """TorchScript knows its builtins by identity: tell it the wrapper's as well."""
    table = _modules.builtins_of_torchscript()
    if id(original) not in table:
        return nothing
    table[id(wrapper)] = table[id(original)]
    return functools.partial(table.pop, id(wrapper), None)


class _DeviceMemory:
    """Our one observer in CUDA's allocator, which has no way to take it out again."""

    def __init__(self) -> None:
        self.listeners: tuple[Callable[[int, int, int, int], object], ...] = ()
        self._is_attached = False

    def attach(self) -> None:
        """Put the observer in, once, where CUDA is in use."""
        attach = _torch.attach_memory_observer
        if attach is None or self._is_attached:
            return
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            attach(self._ended)
            self._is_attached = True

    def _ended(self, device: int, wanted: int, total: int, free: int) -> None:
        for listener in self.listeners:
            listener(device, wanted, total, free)


_device_memory = _DeviceMemory()


def on_device_out_of_memory(hook: Callable[[int, int, int, int], object]) -> Undo:
    """Call `hook(device, wanted, total, free)`, bytes all, when a CUDA device runs out of memory.

    It is called before torch raises, and may allocate nothing on the device.
    """
    _device_memory.attach()
    _device_memory.listeners = (*_device_memory.listeners, hook)

    def undo() -> None:
        others = (other for other in _device_memory.listeners if other != hook)
        _device_memory.listeners = tuple(others)

    return undo


def undo_all(undos: Iterable[Undo]) -> None:
    """Undo each of them, whatever others do.

    Raises:
        Exception: what the last one that failed failed with.
    """
    failure: Exception | None = None
    for undo in undos:
        try:
            undo()
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure


def nothing() -> None:
    """The undo of what was never done."""


_has_compiled = False


def has_compiled() -> bool:
    """Whether something listened to `torch.compile` when it was called, here or before a fork."""
    return _has_compiled


def on_every_compile(hook: Callable[[Any], None]) -> Undo:
    """Call `hook(result)` after each `torch.compile`; only where a whole process is guarded."""
    original = torch.compile

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        global _has_compiled
        _has_compiled = True
        result = original(*args, **kwargs)
        hook(result)
        return result

    return replace(torch, "compile", wrapper)


def replace(owner: Any, name: str, wrapper: Any) -> Undo:
    """Put `wrapper` in the place of `owner.name`; returns the undo."""
    original = getattr(owner, name)
    setattr(owner, name, wrapper)

    def undo() -> None:
        # Somebody may have wrapped ours since; theirs must keep working.
        if getattr(owner, name) is wrapper:
            setattr(owner, name, original)

    return undo
