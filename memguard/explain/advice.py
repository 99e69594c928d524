"""Why a holder keeps memory, and the user's own line rewritten so that it does not."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from memguard.explain.places import Place, Statement
from memguard.explain.remedies import Remedy, holder_text, line_of, made_remedy, plain_remedy
from memguard.explain.rewrite import (
    Line,
    attached_leaves,
    called_on,
    cut_off,
    detach_in,
    looks_scalar,
)
from memguard.explain.syntax import bindings, dotted

# Values that a policy gradient goes backward through at the end of an episode.
_ROLLED_OUT = re.compile(r"log_?probs?\b|entrop|saved_", re.IGNORECASE)
_FUNCTION_PATH = re.compile(r"closes over|partial argument|__self__")
_FUNCTION = re.compile(r"make_\w*|\w*(fn|func|function|callback|closure|thunk|job|deferred)")


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
    remedy = made_remedy(kind, place, statement)
    if remedy is None and kind != "graph":
        remedy = plain_remedy(kind, place, statement)
    if remedy is None:
        remedy = _graph_remedy(place, statement, after_backward)
        remedy = _without_graph(remedy) if evaluation else remedy
    return Advice(remedy.why, remedy.fix, remedy.alternative, remedy.line())


def _without_graph(remedy: Remedy) -> Remedy:
    """In evaluation no graph is needed at all."""
    first = "run the loop under `with torch.no_grad():` (or torch.inference_mode())"
    told = (
        f"{first}, or write `{remedy.fix}`"
        if remedy.fix
        else f"{first}, or .detach() what it keeps"
    )
    return replace(remedy, alternative=f"{first}, which builds no graph", told=told)


def _graph_remedy(place: Place, statement: Statement | None, after_backward: bool | None) -> Remedy:
    line = line_of(statement)
    if line is None or statement is None or statement.verb == "call":
        return _unknown(place, statement)
    name = holder_text(place, statement)
    if statement.verb == "accumulate":
        return _accumulated(name, place, statement, line)
    if statement.verb == "carry":
        return _carried(name, place, line)
    value = line.find(statement.value)
    if value is None:
        return _unknown(place, statement)
    if "__traceback__" in place.path:
        return _exceptions(name, line, value)
    if _FUNCTION_PATH.search(place.path) or _is_function(value):
        return _functions(name, line, value)
    if _feeds_backward(place, statement, value):
        return _rolled_out(name, line, value)
    return _kept(name, place, statement, line, value, after_backward)


def _unknown(place: Place, statement: Statement | None) -> Remedy:
    name = place.expression
    where = f" in `{statement.code}`" if statement is not None else ""
    return Remedy(
        f"{name} keeps tensors of past steps, and each keeps the graph it came from",
        None,
        f"put .detach() tensors or .item() numbers into {name}{where}, not attached ones",
    )


def _accumulated(name: str, place: Place, statement: Statement, line: Line) -> Remedy:
    why = f"{name} is part of every step's graph, so it keeps them all"
    value = line.find(statement.value)
    whole = _assigned_value(line)
    if whole is None or _is_sum_with(whole, name):
        if value is None:
            return _unknown(place, statement)
        leaves = [leaf for leaf in attached_leaves(value) if looks_scalar(leaf)] or [value]
        shown = called_on(line.text(leaves[0]), leaves[0], ".detach()")
        numbers = isinstance(line.node, (ast.AugAssign, ast.Assign)) and _adds(line.node)
        detach_in(line, value, numbers=numbers)
        fix = line.result()
        if fix is not None and ".item()" in fix:
            return Remedy(why, fix, f"{shown} to stay on the device")
        return Remedy(why, fix, "make the update under `with torch.no_grad():`")
    why = f"each new {name} is computed from the old one, so it hangs on every step before"
    line.call_on(whole, ".detach()")
    leaves = list(attached_leaves(value)) if value is not None else []
    scalars = [leaf for leaf in leaves if looks_scalar(leaf)]
    if scalars:
        alternative = f"mix in a plain number: {line.text(scalars[0])}.item()"
    else:
        alternative = "make the update under `with torch.no_grad():`"
    return Remedy(why, line.result(), alternative)


def _assigned_value(line: Line) -> ast.expr | None:
    node = line.node
    return node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None


def _adds(node: ast.AugAssign | ast.Assign) -> bool:
    op = node.op if isinstance(node, ast.AugAssign) else getattr(node.value, "op", None)
    return isinstance(op, (ast.Add, ast.Sub))


def _is_sum_with(value: ast.expr, name: str) -> bool:
    """Whether a value is `x + v`: then v alone need be detached, x is what came before."""
    while isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)):
        if name in (dotted(value.left), dotted(value.right)):
            return True
        value = value.left
    return False


def _carried(name: str, place: Place, line: Line) -> Remedy:
    why = f"{name} comes out of one step and goes into the next, so every step's graph hangs on it"
    several = place.path.startswith("[") or place.container in ("tuple", "list")
    whole = _assigned_value(line)
    # All that comes back is detached: of `out, (h, c) = lstm(x, (h, c))` both states.
    carried = {name, *(dotted(target) for target, _, _ in bindings(line.node))}
    given: list[ast.expr] = [
        node
        for node in (ast.walk(whole) if whole is not None else ())
        if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) in carried
    ]
    targets = given or ([whole] if whole is not None and dotted(whole) else [])
    for target in targets:
        text = line.text(target)
        line.replace(
            target, f"tuple(s.detach() for s in {text})" if several else f"{text}.detach()"
        )
    other = f"{name} = {name}.detach()"
    if not several:
        other += f" (a tuple of states: tuple(s.detach() for s in {name}))"
    else:
        other = f"{name} = tuple(s.detach() for s in {name})"
    alternative = f"{other} after the step, or only where a new window starts"
    return Remedy(why, line.result(), alternative)


def _is_function(value: ast.expr) -> bool:
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Call):
        return dotted(value.func).rpartition(".")[2] == "partial"
    return bool(_FUNCTION.fullmatch(dotted(value).rpartition(".")[2].lower()))


def _functions(name: str, line: Line, value: ast.expr) -> Remedy:
    why = f"{name} keeps a function of every step, and each keeps the tensors it captures"
    alternative = (
        "bind numbers before making the function (loss.item()), or detach() what it captures"
    )
    if isinstance(value, ast.Name):
        line.call_on(value, "()")
        return Remedy(why, line.result(), alternative)
    return Remedy(why, None, alternative)


def _exceptions(name: str, line: Line, value: ast.expr) -> Remedy:
    why = f"{name} keeps exceptions, and each keeps the frames it passed with all their tensors"
    fix = None
    if dotted(value):
        line.replace(value, f"repr({line.text(value)})")
        fix = line.result()
    alternative = "drop the frames with error.with_traceback(None), or detach() what they hold"
    return Remedy(why, fix, alternative)


def _feeds_backward(place: Place, statement: Statement, value: ast.expr) -> bool:
    """Whether a list likely waits for a backward through what it holds."""
    if statement.verb not in ("append", "extend"):
        return False
    if _ROLLED_OUT.search(statement.value or "") or _ROLLED_OUT.search(place.name):
        return True
    pending = statement.pending is not None and "backward" in statement.pending
    return pending and not looks_scalar(value)


def _rolled_out(name: str, line: Line, value: ast.expr) -> Remedy:
    why = f"{name} keeps every step's values with their graphs, also after backward has used them"
    container = name if all(part.isidentifier() for part in name.split(".")) else None
    detach_in(line, value)
    kept = line.result()
    alternative = f"where no gradient is needed: `{kept}`" if kept else "detach() what is only read"
    if container is None:
        return Remedy(why, kept, "clear() it after the optimizer step")
    fix = f"del {container}[:]"
    told = f"clear it after the optimizer step: `{fix}` (or `{container}.clear()`); {alternative}"
    if "detach" not in told:
        told += " or .detach()"
    return Remedy(why, fix, f"{container}.clear() after the optimizer step; {alternative}", told)


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
    if cut_off(value) or not detach_in(line, value, holder=place.name):
        return Remedy(why, None, f"put .detach() tensors or .item() numbers into {name}")
    fix = line.result()
    part = next((leaf for leaf in attached_leaves(value) if looks_scalar(leaf)), value)
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
