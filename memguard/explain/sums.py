"""Remedies for running sums and averages: what is added is cut off before, or the result after."""

from __future__ import annotations

import ast
import re

from memguard.explain.places import Place, Statement
from memguard.explain.remedies import Remedy
from memguard.explain.rewrite import (
    Line,
    attached_leaves,
    called_on,
    detach_in,
    looks_like_tensor,
    looks_scalar,
)
from memguard.explain.syntax import dotted

_GUARDED = "detach what is a tensor: `v.detach() if torch.is_tensor(v) else v`"
_NO_GRAD = "make the update under `with torch.no_grad():`"


def unknown(place: Place, statement: Statement | None) -> Remedy:
    """In words, where no part of the statement can be told to be what is kept."""
    name = place.expression
    if statement is not None and statement.verb == "call" and statement.value is None:
        return Remedy(
            f"{name} keeps what it is given or what it calls back for, and each keeps its graph",
            None,
            f"let what `{statement.code}` is given or calls back give .detach() tensors or .item() "
            "numbers",
        )
    where = f" in `{statement.code}`" if statement is not None else ""
    return Remedy(
        f"{name} keeps tensors of past steps, and each keeps the graph it came from",
        None,
        f"put .detach() tensors or .item() numbers into {name}{where}, not attached ones",
    )


def accumulated(name: str, place: Place, statement: Statement, line: Line) -> Remedy:
    """`total += loss` and `average = 0.9 * average + 0.1 * loss`."""
    why = f"{name} is part of every step's graph, so it keeps them all"
    if awaited(statement, name):
        fix = f"{name} = 0.0" if all(part.isidentifier() for part in name.split(".")) else None
        alternative = f"{name}.detach() once it has been used"
        told = f"start anew after `{statement.pending}`: `{fix}`, or {alternative}" if fix else None
        return Remedy(why, fix, f"{fix} after {statement.pending}; {alternative}", told)
    value = line.find(statement.value)
    whole = assigned_value(line)
    summed = _summed_object(place, line)
    if summed is not None:
        return _of_object(summed, place, statement, line, value)
    if whole is None or _is_sum_with(whole, name):
        if value is None:
            return unknown(place, statement)
        leaves = list(attached_leaves(value))
        shown = leaves[0] if len(leaves) == 1 else value
        if statement.either:
            return _taking_both(why, line, value, statement.single)
        kept = called_on(line.text(shown), shown, ".detach()")
        numbers = isinstance(line.node, (ast.AugAssign, ast.Assign)) and _adds(line.node)
        detach_in(line, value, origin=statement.origin, single=statement.single, numbers=numbers)
        fix = line.result()
        if fix is not None and ".item()" in fix:
            return Remedy(why, fix, f"{kept} to stay on the device")
        return Remedy(why, fix, _NO_GRAD)
    why = f"each new {name} is computed from the old one, so it hangs on every step before"
    if place.mixed and isinstance(whole, (ast.DictComp, ast.ListComp)):
        return Remedy(why, None, f"{_GUARDED}, where {name} is put together")
    for part in _own_results(line, whole, name):
        if statement.either:
            line.replace(part, f"torch.as_tensor({line.text(part)}).detach()")
        else:
            line.call_on(part, ".detach()")
    leaves = list(attached_leaves(value)) if value is not None else []
    scalars = [leaf for leaf in leaves if looks_scalar(leaf)]
    number = f"mix in a plain number: {line.text(scalars[0])}.item()" if scalars else None
    return Remedy(why, line.result(), number or _NO_GRAD)


def _summed_object(place: Place, line: Line) -> str | None:
    """The object that a statement adds to, where what keeps the graphs is an attribute of it."""
    base = place.expression.rpartition(".")[0] if place.kind == "attribute" else ""
    node = line.node
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    written = {dotted(target) for target in targets if target is not None}
    return base if base and base in written else None


def _of_object(
    summed: str, place: Place, statement: Statement, line: Line, value: ast.expr | None
) -> Remedy:
    """`total += Metrics(loss, 1)`: only tensors can be detached, not the objects that have them."""
    why = f"each new {summed} is made from the old one, so its .{place.name} hangs on all before"
    is_made = isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2][:1].isupper()
    if value is not None and is_made and any(map(looks_like_tensor, attached_leaves(value))):
        detach_in(line, value, origin=statement.origin, single=statement.single, numbers=False)
        return Remedy(why, line.result())
    added = f"`{line.text(value)}`" if value is not None else "what is added"
    return Remedy(why, None, f"have {added} give an object whose .{place.name} is detached")


def _taking_both(why: str, line: Line, value: ast.expr, single: bool | None) -> Remedy:
    """The line for a value that callers give as a tensor now and as a plain number then."""
    text = line.text(value)
    tensor = f"torch.as_tensor({text}).detach()"
    if single is True and line.numbers:
        line.replace(value, f"float({text})")
        return Remedy(why, line.result(), f"{tensor} to stay on the device")
    line.replace(value, tensor)
    return Remedy(why, line.result(), _NO_GRAD)


def _own_results(line: Line, whole: ast.expr, name: str) -> list[ast.expr]:
    """What is to be detached; of `total, n = total + loss, n + 1` not the count."""
    targets = line.node.targets if isinstance(line.node, ast.Assign) else []
    several = targets[0] if len(targets) == 1 else None
    if not isinstance(several, ast.Tuple) or not isinstance(whole, ast.Tuple):
        return results_of(whole)
    own: list[ast.expr] = []
    for target, value in zip(several.elts, whole.elts, strict=False):
        others = (leaf for leaf in attached_leaves(value) if dotted(leaf) != dotted(target))
        if dotted(target) == name or any(map(looks_like_tensor, others)):
            own.append(value)
    return own or results_of(whole)


def assigned_value(line: Line) -> ast.expr | None:
    """All that the statement assigns; None where it assigns nothing, or adds to what was there."""
    node = line.node
    return node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None


def results_of(value: ast.expr) -> list[ast.expr]:
    """The tensors that a value is, or is a collection of."""
    if isinstance(value, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        return [value.elt]
    if isinstance(value, ast.DictComp):
        return [value.value]
    if isinstance(value, (ast.List, ast.Tuple)):
        return [part for part in value.elts if not isinstance(part, ast.Starred)]
    if isinstance(value, ast.Dict):
        return [part for part, key in zip(value.values, value.keys, strict=True) if key is not None]
    return [value]


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


def awaited(statement: Statement, name: str) -> bool:
    """Whether the backward that is still to come goes through the holder itself."""
    call = (statement.pending or "").rpartition(" at line ")[0]
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", call) is not None
