"""Values that are no tensors but have some in them: how what lies inside is detached."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memguard.explain.places import Place, Statement
from memguard.explain.remedies import Remedy
from memguard.explain.rewrite import Line, lambda_defaults, looks_like_tensor
from memguard.explain.syntax import dotted

# What is made from arguments and keeps them until it runs: it has no `.detach()`, they have.
_WAITING = frozenset(("generator", "coroutine", "async_generator", "partial", "function"))
_GUARDED = "{0}.detach() if torch.is_tensor({0}) else {0}"


def detached(text: str, layers: Sequence[str], *, mixed: bool) -> str | None:
    """An expression for a detached copy of a value; None where nobody can be sure of one.

    Args:
        text: the value, as something a method can be called on.
        layers: what the value is down to what has the tensor, outermost first; empty for a tensor.
        mixed: whether other things stand beside the tensors.
    """
    if not layers:
        return f"{text}.detach()"
    part = _GUARDED.format("v") if mixed else "v.detach()"
    state = _GUARDED.format("s") if mixed else "s.detach()"
    forms = {
        "list": f"[{part} for v in {text}]",
        "tuple": f"tuple({state} for s in {text})",
        "dict": f"{{k: {part} for k, v in {text}.items()}}",
    }
    return forms.get(layers[0]) if len(layers) == 1 else None


def waiting(place: Place) -> str | None:
    """What keeps the tensor as an argument until it runs: `coroutine`; None when nothing does."""
    return next((layer for layer in place.layers if layer in _WAITING), None)


def waiting_remedy(name: str, place: Place, statement: Statement, line: Line) -> Remedy | None:
    """`pend.append(work(loss))`, `last = lambda before=last, l=loss: ...`: arguments that wait.

    None where the statement makes nothing out of arguments.
    """
    kind = waiting(place)
    whole = getattr(line.node, "value", None)
    value = line.find(statement.value)
    made = next(_makers(value or whole), None) or next(_makers(whole), None)
    # A closure captures variables, which no argument can be detached of.
    if kind is None or made is None or ("closes over" in place.path):
        return None
    linked = name in map(dotted, _arguments(made))
    given = [part for part in _arguments(made) if dotted(part) != name and looks_like_tensor(part)]
    if not linked and (not given or kind in ("function", "partial")):
        return None  # functions have a remedy of their own
    # Of several arguments some may be no tensors, as may what lies in a dict.
    if len(given) == 1 and (place.layers[-1] in _WAITING or given[0] not in _own(made)):
        line.call_on(given[0], ".detach()")
    if linked:
        why = f"each {name} keeps the one before it, and with it the tensors of all steps"
        other = f"let go of the {name} before where it is not used"
    else:
        why = f"{name} keeps a {kind} of every step, and each keeps the tensors it was given"
        other = f"give it .detach() tensors or .item() numbers; a {kind} itself has no .detach()"
    return Remedy(why, line.result(), other)


def _makers(value: ast.AST | None) -> Iterator[ast.Call | ast.Lambda]:
    for node in ast.walk(value) if value is not None else ():
        if isinstance(node, ast.Lambda) or (isinstance(node, ast.Call) and _arguments(node)):
            yield node


def _own(made: ast.Call | ast.Lambda) -> list[ast.expr]:
    if isinstance(made, ast.Lambda):
        return lambda_defaults(made)
    return [*made.args, *(keyword.value for keyword in made.keywords)]


def _arguments(made: ast.Call | ast.Lambda) -> list[ast.expr]:
    """What it is made from, also within tuples and lists; not the function of a `partial`."""
    shown: list[ast.expr] = []
    for part in _own(made):
        shown += part.elts if isinstance(part, (ast.Tuple, ast.List)) else [part]
    return shown
