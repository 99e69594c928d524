"""Why a holder keeps memory, and the user's own line rewritten so that it does not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from memguard.explain.layers import detached, waiting, waiting_remedy
from memguard.explain.places import Place, Statement
from memguard.explain.remedies import (
    Remedy,
    dotted_text,
    holder_text,
    line_of,
    made_remedy,
    plain_remedy,
)
from memguard.explain.rewrite import (
    Line,
    called_on,
    cut_off,
    detach_in,
    is_record,
    looks_like_tensor,
    looks_scalar,
    parsed,
    tensor_parts,
)
from memguard.explain.sums import accumulated, assigned_value, awaited, results_of, unknown
from memguard.explain.syntax import bindings, dotted
from memguard.explain.unusual import functions, is_function, linked, unusual_remedy

# Values that a policy gradient goes backward through at the end of an episode.
_ROLLED_OUT = re.compile(r"log_?probs?\b|(?<![a-z_])entrop|saved_", re.IGNORECASE)
_TOKEN = re.compile(r"\.\w+|\[[^\]]*\]|\{[^}]*\}")
_FUNCTION_PATH = re.compile(r"closes over|bound argument|__self__| default ")
# Modules that rewritten lines use and the user's file may not import.
_MODULES = ("weakref", "traceback")
_READ_ONLY = "keep .item() or .detach() of what is only read"
_GROUPED = (("dict", "list"), ("defaultdict", "list"))
# Types whose entries a statement reaches by subscripts and `append`.
_CONTAINERS = frozenset(("list", "dict", "tuple", "set", "deque", "defaultdict", "OrderedDict"))
_WAITING = frozenset(("generator", "coroutine", "async_generator", "partial", "function"))
# Methods that give a tensor's parts as a tuple.
_TAKING_APART = frozenset(("unbind", "split", "chunk", "tensor_split"))


@dataclass(frozen=True, slots=True)
class Advice:
    """What to tell the user about one holder.

    Attributes:
        why: one sentence: why it keeps memory.
        fix: the user's line, rewritten; None when no line can be given.
        alternative: a second way, in words.
        advice: one line with all of it.
    """

    why: str
    fix: str | None
    alternative: str | None
    advice: str


def advise(
    kind: str,
    place: Place,
    statement: Statement | None,
    *,
    evaluation: bool,
    after_backward: bool | None,
) -> Advice:
    """What to do about a holder.

    Args:
        kind: what grows: `graph`, `tensor`, `cycle`, `host` and so on.
        place: the holder.
        statement: the statement that makes it grow, when it was found.
        evaluation: whether the loop runs the model without going backward.
        after_backward: whether backward has freed the activations; None when nobody knows.
    """
    remedy = unusual_remedy(kind, place, statement) or made_remedy(kind, place, statement)
    if remedy is None and kind != "graph":
        remedy = plain_remedy(kind, place, statement)
    if remedy is None:
        remedy = _graph_remedy(place, statement, after_backward)
        remedy = _without_graph(remedy, statement) if evaluation else remedy
    remedy = _with_imports(remedy, statement)
    return Advice(remedy.why, remedy.fix, remedy.alternative, remedy.line())


def _with_imports(remedy: Remedy, statement: Statement | None) -> Remedy:
    """A line that uses a module says so, where the user's own does not use it."""
    fix, code = remedy.fix or "", statement.code if statement is not None else ""
    needed = [m for m in _MODULES if f"{m}." in fix and f"{m}." not in code]
    told = f"{fix}  # import {needed[0]}" if needed else ""
    if not told:
        return remedy
    return replace(remedy, fix=told, told=remedy.told and remedy.told.replace(fix, told))


def _without_graph(remedy: Remedy, statement: Statement | None) -> Remedy:
    """In evaluation no graph is needed at all."""
    first = "run the loop under `with torch.no_grad():` (or torch.inference_mode())"
    if statement is not None and statement.threaded is not None:
        # A thread begins with gradients on, whatever the one that started it has.
        first = f"open `with torch.no_grad():` inside {statement.threaded}, as each thread has its "
        first += "own grad mode"
    told = (
        f"{first}, or write `{remedy.fix}`"
        if remedy.fix
        else f"{first}, or .detach() what it keeps"
    )
    return replace(remedy, alternative=f"{first}, which builds no graph", told=told)


def _graph_remedy(place: Place, statement: Statement | None, after_backward: bool | None) -> Remedy:
    line = line_of(statement)
    if line is None or statement is None or statement.verb == "call":
        return unknown(place, statement)
    name = holder_text(place, statement)
    if waiting(place) is not None:
        remedy = waiting_remedy(name, place, statement, line)
        if remedy is not None:
            return remedy
    if statement.verb == "accumulate":
        return accumulated(name, place, statement, line)
    if statement.verb == "carry":
        return _carried(name, place, line, begins_as_none=statement.optional)
    value = line.find(statement.value)
    if value is None:
        return unknown(place, statement)
    origin = parsed(statement.origin)
    inside = _inside_of(place, statement, line, value)
    nested = bool(inside) or (origin is not None and is_record(origin))
    nested = nested or _is_in_object(place, statement, line, value)
    if statement.differentiated and not is_function(value):
        return _rolled_out(name, place, statement, line, None if nested else value)
    if (
        place.is_function_inside(value) is True
        or _FUNCTION_PATH.search(place.path)
        or place.function_inside is not None
        or is_function(value)
        or isinstance(origin, ast.Lambda)
    ):
        return functions(name, place, value)
    if nested:
        each = statement.verb != "extend"
        return _nested(name, place, line, value, inside, each=each)
    if _feeds_backward(place, statement, value):
        return _rolled_out(name, place, statement, line, value)
    return _kept(name, place, statement, line, value, after_backward)


def _extended(
    why: str, statement: Statement, line: Line, value: ast.expr, *, mixed: bool
) -> Remedy:
    """Several values at once: each of them is detached."""
    text = line.text(value)
    func = value.func if isinstance(value, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr in _TAKING_APART:
        line.call_on(func.value, ".detach()")
        return Remedy(why, line.result(), f"[v.item() for v in {text}] where they are numbers")
    parts = results_of(value)
    assigned = not isinstance(line.node, ast.Expr) and not isinstance(line.node, ast.AugAssign)
    if mixed and ".update(" in statement.code:
        guarded = "v.detach() if torch.is_tensor(v) else v"
        line.replace(value, f"{{k: {guarded} for k, v in {text}.items()}}")
    elif parts[0] is not value or assigned or looks_like_tensor(value):
        for part in parts:
            line.call_on(part, ".item()" if looks_scalar(part) else ".detach()")
    elif ".update(" in statement.code:
        line.replace(value, f"{{k: v.detach() for k, v in {text}.items()}}")
    else:
        line.replace(value, f"[v.detach() for v in {text}]")
    fix = line.result()
    if fix is not None and ".item()" in fix:
        return Remedy(why, fix, f"{called_on(line.text(parts[0]), parts[0], '.detach()')} instead")
    return Remedy(why, fix, ".item() instead where they are single numbers")


def _carried(name: str, place: Place, line: Line, *, begins_as_none: bool) -> Remedy:
    why = f"{name} comes out of one step and goes into the next, so every step's graph hangs on it"
    record = line.find_record(name)
    if record is not None:
        return linked(name, line, record)
    layers = place.layers
    if not layers and (place.path.startswith("[") or place.container in ("tuple", "list")):
        layers = ("tuple",)
    cut = detached(name, layers, mixed=place.mixed)
    if cut is None:
        return Remedy(why, None, f"detach every tensor in {name} before the next step uses it")
    whole = assigned_value(line)
    # All that comes back is detached: of `out, (h, c) = lstm(x, (h, c))` both states.
    carried = {name, *(dotted(target) for target, _, _ in bindings(line.node))}
    given: list[ast.expr] = [
        node
        for node in (ast.walk(whole) if whole is not None else ())
        if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) in carried
        if dotted(node) == name or looks_like_tensor(node)
    ]
    targets = given or ([whole] if whole is not None and dotted(whole) else [])
    for target in targets:
        text = line.text(target)
        fresh = detached(text, layers, mixed=place.mixed) or text
        if begins_as_none and target is not whole:
            fresh = f"None if {text} is None else {fresh}"
        line.replace(target, fresh)
    other = f"{name} = {cut}"
    if not layers and not place.container.endswith("Tensor"):
        other += f" (a tuple of states: tuple(s.detach() for s in {name}))"
    alternative = f"{other} after the step, or only where a new window starts"
    return Remedy(why, line.result(), alternative)


def _inside_of(place: Place, statement: Statement, line: Line, value: ast.expr) -> str:
    """Where in what is put in the tensors lie, when it is not a tensor itself: `.loss`."""
    if _is_shown(place, value):
        return ""
    return "".join(_TOKEN.findall(place.path)[_depth(statement, line) :])


def _is_shown(place: Place, value: ast.expr) -> bool:
    """Whether the value is written out, so that its tensors can be told, or is a log record's."""
    written_out = isinstance(value, (ast.List, ast.Tuple, ast.Set, ast.Dict)) or is_record(value)
    return written_out or ".args[" in place.path


def _is_in_object(place: Place, statement: Statement, line: Line, value: ast.expr) -> bool:
    """Whether the tensor is an attribute of what is put in, as a future has its result.

    A library's own attributes do not stand in the path; the layers have their owner all the same.
    """
    last = place.layers[-1] if place.layers else ""
    if statement.verb not in ("append", "extend", "item") or _is_shown(place, value):
        return False
    if last in _CONTAINERS or last in _WAITING or last.endswith(("Tensor", "Parameter")):
        return False
    return len(place.layers) > _depth(statement, line)


def _depth(statement: Statement, line: Line) -> int:
    """References from the holder down to what is put in, as the statement writes them."""
    # A statement that stores under written keys goes as deep as it has subscripts.
    target = getattr(line.node, "value", line.node)
    stored: ast.AST = target.func if isinstance(target, ast.Call) else line.node
    if isinstance(line.node, ast.Assign):
        indexed = [t for t in line.node.targets if isinstance(t, ast.Subscript)]
        stored = (indexed or line.node.targets)[0]
    written = sum(map(_reaches_in, _spine(stored)))
    # As deep as one subscript: what is appended, and what `setattr` gives a name made at run time.
    named = statement.verb == "attribute" and isinstance(target, ast.Call)
    return max(statement.depth, written + (statement.verb in ("append", "extend") or named))


def _spine(stored: ast.AST) -> Iterator[ast.AST]:
    """The parts of `log[batch["step"]]` that reach into the holder, without the key's own."""
    if not isinstance(stored, ast.expr):
        yield from ast.walk(stored)
    while isinstance(stored, (ast.Subscript, ast.Attribute, ast.Call)):
        yield stored
        stored = stored.func if isinstance(stored, ast.Call) else stored.value


def _reaches_in(node: ast.AST) -> bool:
    """`x[k]`, and `x.setdefault(k, [])`, which reaches as deep."""
    called = node.func if isinstance(node, ast.Call) else None
    reaching = isinstance(called, ast.Attribute) and called.attr == "setdefault"
    return isinstance(node, ast.Subscript) or reaching


def _nested(
    name: str, place: Place, line: Line, value: ast.expr, inside: str, *, each: bool
) -> Remedy:
    """What is put in is an object, a dict or a tuple that has the tensor in it.

    `each` says whether the value is itself one entry, and not several.
    """
    text = line.text(value)
    shown = text if len(text) <= 40 else "what is put in"
    part = f"its {inside}" if inside else "each tensor in it"
    why = f"{name} keeps {shown} of every step, and {part} keeps the graph it came from"
    # The value itself may be needed with its graph: only what is kept is cut off.
    copy = None
    if each and len(_TOKEN.findall(inside)) == 1 and place.layers:
        copy = detached(called_on(text, value, ""), place.layers[-1:], mixed=place.mixed)
    if copy is not None:
        line.replace(value, copy)
        return Remedy(why, line.result(), f".item() numbers of it; {shown} itself stays as it is")
    alternative = f"keep .detach() copies or .item() numbers of what is read of {shown} ({part}), "
    return Remedy(why, None, f"{alternative}not {shown} itself")


def _feeds_backward(place: Place, statement: Statement, value: ast.expr) -> bool:
    """Whether a list likely waits for a backward through what it holds."""
    if statement.verb not in ("append", "extend"):
        return False
    if _ROLLED_OUT.search(statement.value or "") or _ROLLED_OUT.search(place.name):
        return True
    pending = statement.pending is not None and "backward" in statement.pending
    pending = pending and not statement.unread
    return pending and (not looks_scalar(value) or awaited(statement, place.name))


def _rolled_out(
    name: str, place: Place, statement: Statement, line: Line, value: ast.expr | None
) -> Remedy:
    """What is kept is gone backward through, so that detaching would take the gradient away.

    `value` is what is put in, None where that is no tensor that could be detached instead.
    """
    why = f"{name} keeps every step's values with their graphs, also after backward has used them"
    if len(place.layers) > 1 and dotted_text(place.expression):
        # Only the lists are emptied, and only where nothing else lies beside them.
        if not place.grouped or place.layers[:2] not in _GROUPED:
            told = f"clear the {place.layers[-1]} itself, not all of {place.expression}, after the "
            return Remedy(why, None, f"{told}optimizer step; {_READ_ONLY}")
        fix = f"for kept in {place.expression}.values(): kept.clear()"
        told = f"clear its lists after the optimizer step: `{fix}`"
        return Remedy(why, fix, f"after the optimizer step; {_READ_ONLY}", f"{told}; {_READ_ONLY}")
    # As whoever steps the optimizer reaches it, which is not always as the statement does.
    reached = [text for text in (place.expression, name) if dotted_text(text)]
    container = reached[0] if reached else None
    elsewhere = _elsewhere(place, statement, container, name)
    if value is not None:
        detach_in(line, value)
    kept = line.result()
    alternative = f"where no gradient is needed: `{kept}`" if kept else "detach() what is only read"
    if container is None:
        return Remedy(why, kept, "clear() it after the optimizer step")
    fix = f"del {container}[:]" if place.container in ("list", "") else f"{container}.clear()"
    fix += f"  # in {elsewhere}, after the optimizer step" if elsewhere else ""
    told = f"clear it after the optimizer step: `{fix}` (or `{container}.clear()`); {alternative}"
    if "detach" not in told:
        told += " or .detach()"
    return Remedy(why, fix, f"{container}.clear() after the optimizer step; {alternative}", told)


def _elsewhere(place: Place, statement: Statement, container: str | None, name: str) -> str | None:
    """The function in which a line belongs that the marked one's function could not run."""
    if container is None or container == name or place.reached_in == statement.function:
        return None
    return place.reached_in


def _kept(
    name: str,
    place: Place,
    statement: Statement,
    line: Line,
    value: ast.expr,
    after_backward: bool | None,
) -> Remedy:
    shown = line.text(value)
    shown = shown if len(shown) <= 40 else "what it is given"
    why = f"{name} keeps {shown} of every step, and each keeps the graph it came from"
    if after_backward is False:
        why += " with all its activations"
    if statement.verb == "extend" and not isinstance(value, (ast.List, ast.Dict, ast.Tuple)):
        return _extended(why, statement, line, value, mixed=place.mixed)
    changed = not cut_off(value) and detach_in(
        line, value, holder=place.name, origin=statement.origin, single=statement.single
    )
    if not changed:
        return Remedy(why, None, f"put .detach() tensors or .item() numbers into {name}")
    fix = line.result()
    parts = tensor_parts(value) or [value]
    part = next((leaf for leaf in parts if looks_scalar(leaf)), parts[0])
    if statement.verb == "assign" and not dotted(value):
        # What is computed anew each time is likely needed with its graph.
        return Remedy(why, None, f"let {name} go when the step is done, or keep a .detach() of it")
    if fix is not None and ".item()" in fix:
        on_device = called_on(line.text(part), part, ".detach()")
        return Remedy(why, fix, f"{on_device} to stay on the device")
    if place.kind == "buffer":
        return Remedy(why, fix, "make the update under `with torch.no_grad():`")
    if isinstance(value, (ast.Dict, ast.Tuple, ast.List)):
        return Remedy(why, fix, "add .cpu() to free device memory as well")
    on_host = ".detach().cpu()"
    if len(line.text(part)) <= 40:
        on_host = called_on(line.text(part), part, on_host)
    return Remedy(why, fix, f"{on_host} to free device memory as well")
