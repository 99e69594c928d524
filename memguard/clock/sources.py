"""Where the beats come from: hooks on root modules, optimizers and backwards."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from memguard import _events, _hooks, _modules, _process, _torch
from memguard._torch import Undo
from memguard.clock import discovery
from memguard.clock.beats import Clock
from memguard.clock.searches import Budget, Searches
from memguard.clock.tape import (
    BACKWARD,
    EVALUATION,
    GRADIENT,
    OPTIMIZER,
    OTHER,
    TRAINING,
    Tape,
    packed,
)

_Result = TypeVar("_Result")
# An optimizer, and what stands on the tape for its steps; 0 when it is not watched.
_Verdict = tuple[weakref.ref[Any], int]


class Listener(Protocol):
    """Who is told of the events; every method is called in the thread the event happens in."""

    def on_forward(self, module: Any, output: Any, gives_beat: bool) -> None:
        """A root module was called."""

    def on_optimizer(self, optimizer: Any) -> None:
        """An optimizer stepped."""

    def on_backward(self, roots: Any, is_gradient: bool) -> None:
        """A backward pass ended, or gradients were computed by `torch.autograd.grad`."""

    def on_failure(self, part: str, error: Exception) -> None:
        """Something failed that the user's loop must not hear of."""

    def on_all_gone(self) -> None:
        """Every watched module and optimizer was collected."""


class _RootHook(_hooks.ModuleHook):
    """The hook in a root module: nearly every call of it ends here, on the tape.

    What it needs lies together, since finding it costs more than all it does.
    """

    __slots__ = ("_evaluation", "_key", "_tape", "_training")

    def __init__(self, module: Any, tape: Tape, hear: Callable[[Any, Any], None]) -> None:
        super().__init__(module, hear)
        self._tape = tape
        self._key = id(module)
        self.beats(True)

    def beats(self, whether: bool) -> None:
        """Say whether its calls may give the beat."""
        self._training = packed(TRAINING if whether else OTHER, self._key)
        self._evaluation = packed(EVALUATION if whether else OTHER, self._key)

    def __call__(self, module: Any, arguments: Any, output: Any) -> None:
        # `ModuleHook.__call__`, `discovery.is_training` and `Tape.takes`, without the calls.
        try:
            if _torch.is_traced() or self._here is not _hooks.here:
                return
            tape = self._tape
            if len(tape.events) < tape.room and id(module) == self._key:
                training = module.__dict__.get("training", True)
                tape.events.append(self._training if training else self._evaluation)
            else:
                # A step that is looked at, or a copy of the module that took the hook along.
                self._seen(module, output)
        except RecursionError:
            return


_modules.keep_from_dynamo(_RootHook.__call__.__code__)


class Sources:
    """The hooks of one guard; holds modules and optimizers weakly."""

    def __init__(self, listener: Listener, clock: Clock, tape: Tape, budget: Budget) -> None:
        self._listener = listener
        self._clock = clock
        self._tape = tape
        self._here = _hooks.here
        self._roots: dict[int, weakref.ref[Any]] = {}
        # What `watch` was asked for, by identity.
        self._named: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._beating: set[int] = set()
        self._undo: list[Undo] = []
        self._root_undo: dict[int, Undo] = {}
        self._heard: dict[int, _RootHook] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._steps = _events.StepListener(tape, self._optimizer_stepped)
        self._stepped_now: dict[int, weakref.ref[Any]] = {}
        self._stepped_before: dict[int, weakref.ref[Any]] = {}
        self._everything = False
        # Whether roots without parameters may give the beat where nobody has any.
        self._bare_may_beat = True
        self._discovered = False
        self._searches = Searches(budget)
        # Whether something new was met that no search has looked around yet.
        self._is_search_due = False
        # Identities of the modules that the last discovery saw.
        self._met: set[int] = set()
        self._undo_first_call: Undo | None = None

    # --- what is watched ---

    def watch(self, modules: list[Any], optimizers: list[Any]) -> bool:
        """Listen to these, and to any optimizer that steps the modules' parameters.

        Returns whether any of them is new; it may be asked again at every turn of a loop.
        """
        named = self._named
        if all(named.get(id(item)) is item for item in (*modules, *optimizers)):
            return False
        for module in discovery.callable_roots(modules):
            self._add_root(module)
        for optimizer in optimizers:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer, self._gone)
            if _torch.is_optimizer(optimizer):
                self._clock.knows_optimizer()
        self._steps.forget()
        if not self._undo and (modules or optimizers):
            self._undo.append(_events.on_every_optimizer_step(self._steps))
        named.update((id(item), item) for item in (*modules, *optimizers))
        return True

    def watch_process(self) -> None:
        """Listen to whatever module, optimizer or backward this process turns out to use."""
        self._everything = True
        # A loader's worker calls the transforms of its dataset: that is no loop of its own.
        self._bare_may_beat = not _process.is_child()
        self._undo.append(_events.on_every_optimizer_step(self._steps))
        self._undo.append(_events.on_every_backward(self._went_backward))
        self._undo.append(_events.on_every_compile(self._compiled))
        self._wait()

    def discover(self) -> None:
        """Look through the heap for root modules and optimizers not yet known."""
        self._discovered = True
        self._is_search_due = False
        modules, optimizers = discovery.find()
        for module in modules:
            if len(self._roots) < discovery.MAX_ROOTS:
                self._add_root(module)
        self._met = discovery.identities_below(modules)
        stepped: set[int] = set()
        for optimizer in optimizers:
            stepped |= discovery.parameter_ids(optimizer)
        if any(stepped & discovery.parameter_ids_of(module) for module in modules):
            self._clock.knows_optimizer()

    def look_for_optimizer(self) -> None:
        """Look through the heap for an optimizer of what is watched: its forwards are no steps."""
        if self._everything:
            self.discover()
            return
        own = set().union(*map(discovery.parameter_ids_of, self.roots()))
        if any(own & discovery.parameter_ids(optimizer) for optimizer in discovery.find()[1]):
            self._clock.knows_optimizer()

    def roots(self) -> list[Any]:
        """The root modules still alive."""
        alive = [reference() for reference in self._roots.values()]
        return [module for module in alive if module is not None]

    def replace_roots(self, modules: list[Any]) -> None:
        """Listen to these modules too: what the loop was seen to call itself."""
        for module in modules:
            self._add_root(module)

    def optimizers(self) -> list[Any]:
        """The optimizers that were named, still alive."""
        alive = [reference() for reference in self._optimizers.values()]
        return [optimizer for optimizer in alive if optimizer is not None]

    def stepping_optimizers(self) -> list[Any]:
        """The optimizers that stepped lately; one left behind keeps its state for nothing."""
        alive = [reference() for reference in self._stepped.values()]
        return [optimizer for optimizer in alive if optimizer is not None]

    def own_tensors(self) -> list[Any]:
        """Parameters, buffers, gradients and optimizer state: what a step is expected to keep."""
        found: list[Any] = []
        for module in self.roots():
            found += [*module.parameters(), *module.buffers()]
        for optimizer in self.stepping_optimizers():
            for group in getattr(optimizer, "param_groups", ()):
                found += group["params"]
            for state in list(getattr(optimizer, "state", {}).values()):
                if isinstance(state, dict):  # some keep a step count beside the states
                    found += [v for v in state.values() if _torch.is_tensor_type(type(v))]
        gradients = map(_torch.gradient_of, found)
        return [*found, *(gradient for gradient in gradients if gradient is not None)]

    def end_step(self) -> None:
        """A step has ended: what stepped neither in it nor in the one before is left behind."""
        self._stepped_before, self._stepped_now = self._stepped_now, {}

    @property
    def _stepped(self) -> dict[int, weakref.ref[Any]]:
        return {**self._stepped_before, **self._stepped_now}

    def _add_root(self, module: Any) -> None:
        key = id(module)
        known = self._roots.get(key)
        if (known is not None and known() is module) or _modules.is_scripted(module):
            return
        if "_forward_hooks" not in module.__dict__:  # half way through its __init__
            return
        self._roots[key] = weakref.ref(module, self._gone)
        hook = self._heard[key] = _RootHook(module, self._tape, self._root_called)
        if discovery.has_parameters(module):
            self._beating.add(key)
        self._choose_beating()
        self._root_undo[key] = _hooks.put_in(module, hook)

    def _choose_beating(self) -> None:
        for key, root in self._heard.items():
            root.beats(self._gives_beat(key))

    def _gives_beat(self, root: int) -> bool:
        # With no module that has parameters, any root gives the beat.
        return root in self._beating or (not self._beating and self._bare_may_beat)

    # --- what is heard ---

    def _root_called(self, module: Any, output: Any) -> None:
        # Replicas of data-parallel runs carry copies of the hook; only the original counts.
        key = id(module)
        known = self._roots.get(key)
        if known is None or known() is not module:
            return
        if _torch.is_compiling():
            return
        beats = self._gives_beat(key)
        if beats:
            self._stop_waiting()
        self._listener.on_forward(module, output, beats)

    def _optimizer_stepped(self, optimizer: Any) -> None:
        if self._here is not _hooks.here:
            return
        key = id(optimizer)
        known = self._steps.known.get(key)
        if known is None or known[0]() is not optimizer:
            known = self._safely(self._judge, optimizer)
            if known is not None and known[1] and self._tape.takes(OPTIMIZER, key):
                return
        if known is None or not known[1]:
            return
        self._stop_waiting()
        if self._is_search_due:
            self._safely(self._search)
        self.mark_stepped(key)
        self._listener.on_optimizer(optimizer)

    def mark_stepped(self, optimizer: int) -> None:
        """Note that the optimizer with this identity stepped in the step that ends next."""
        known = self._steps.known.get(optimizer)
        if known is not None:
            self._stepped_now[optimizer] = known[0]

    def _judge(self, optimizer: Any) -> _Verdict:
        """Whether an optimizer that steps for the first time is watched."""
        verdict = self._everything or self._concerns(optimizer)
        verdicts = self._steps.known
        if len(verdicts) > 1000:  # a sweep that makes optimizers without end
            for dead in [key for key, (reference, _) in verdicts.items() if reference() is None]:
                del verdicts[dead]
        number = packed(OPTIMIZER, id(optimizer)) if verdict else 0
        known = verdicts[id(optimizer)] = weakref.ref(optimizer), number
        if self._everything:
            # It is watched for sure, and what it trains may be new. A search that is too dear now
            # is made at a later step, of whatever optimizer.
            self._is_search_due = True
            self._search()
        return known

    def _concerns(self, optimizer: Any) -> bool:
        """Whether the optimizer is watched, is wrapped by one, or steps watched parameters."""
        if id(optimizer) in self._optimizers:
            return True
        stepped = discovery.parameter_ids(optimizer)
        named = (discovery.parameter_ids(known) for known in self.optimizers())
        if any(stepped & parameters for parameters in named):
            return True
        return any(stepped & discovery.parameter_ids_of(module) for module in self.roots())

    def _went_backward(self, roots: Any, is_gradient: bool) -> None:
        if self._here is not _hooks.here:
            return
        if self._tape.takes(GRADIENT if is_gradient else BACKWARD):
            return
        if not self._discovered:
            self._safely(self._search)
        self._stop_waiting()
        self._listener.on_backward(roots, is_gradient)

    def _first_call(self, module: Any) -> None:
        # A transform or a metric may be called long before the model exists: go on waiting until a
        # module that can give a beat has been called.
        if self._here is _hooks.here and id(module) not in self._met:
            self._safely(self._search)
            if id(module) not in self._met and gc.get_freeze_count():
                self._safely(self._meet_frozen)

    def _search(self) -> None:
        """Look through the heap for what is new, if that is affordable now."""
        if self._searches.are_affordable():
            self._searches.make(self.discover)

    def _meet_frozen(self) -> None:
        """Take what is called just now: a server's model that `gc.freeze()` hides from searches."""
        module = _modules.outermost_called()
        if module is not None and discovery.has_parameters(module):
            self._met |= discovery.identities_below([module])
            self._add_root(module)

    def _safely(self, work: Callable[..., _Result], *args: Any) -> _Result | None:
        """Do what looks into the user's objects; its failure is the listener's to note."""
        try:
            return work(*args)
        except Exception as error:
            self._listener.on_failure("discovery", error)
            return None

    def _compiled(self, result: Any) -> None:
        # A compiled module warns of global hooks when it is called, so ours must be gone by then.
        self._stop_waiting()
        if _torch.is_module(result):
            self._safely(self._add_root, result)

    def _wait(self) -> None:
        """Wait for a module that can give a beat to be called."""
        self._met.clear()  # of the dead; their identities are used again
        self._undo_first_call = _events.on_first_module_call(self._first_call)

    def _wait_for_the_next(self) -> None:
        # A server has let go of its model. This may be within any code of torch's, so a table of
        # hooks that it may be walking is left alone.
        if self._here is _hooks.here and not _modules.has_global_forward_hooks():
            self._wait()

    def _stop_waiting(self) -> None:
        undo, self._undo_first_call = self._undo_first_call, None
        if undo is not None:
            undo()

    def _gone(self, reference: Any) -> None:
        # Python prints what a weak reference's callback raises. In a forked child, and when the
        # interpreter goes down and takes modules apart, there is nothing left to tidy.
        if self._here is _hooks.here and not sys.is_finalizing():
            self._safely(self._forget, reference)

    def _forget(self, reference: Any) -> None:
        has_beaten = False
        for key in [key for key, known in self._roots.items() if known is reference]:
            has_beaten = has_beaten or key in self._beating
            del self._roots[key]
            self._beating.discard(key)
            self._heard.pop(key, None)
            self._choose_beating()
            # Its hook went with it, but the undo would be kept for ever.
            self._root_undo.pop(key, _events.nothing)()
        if has_beaten and self._everything and self._undo_first_call is None:
            self._wait_for_the_next()
        watched = [*self._roots.values(), *self._optimizers.values()]
        if not self._everything and all(known() is None for known in watched):
            self._listener.on_all_gone()

    def remove(self) -> None:
        """Take every hook out; harmless when done twice."""
        self._everything = False
        self._stop_waiting()
        undos = [*self._undo, *self._root_undo.values()]
        self._undo.clear()
        self._root_undo.clear()
        self._roots.clear()
        self._beating.clear()
        self._heard.clear()
        self._optimizers.clear()
        self._named.clear()
        self._steps.forget()
        self._stepped_now.clear()
        self._stepped_before.clear()
        _events.undo_all(undos)
