"""Remedies for holders of one sort each: things being built, C++, errors, iterators, sessions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from memguard.explain import native
from memguard.explain.places import Place, Statement
from memguard.explain.remedies import Remedy, line_of
from memguard.explain.rewrite import Line, called_on, detach_in, looks_like_tensor
from memguard.explain.syntax import dotted

_JOINING = re.compile(r"\b(stack|cat|concat|concatenate|hstack|vstack)\(")
_ITERATOR = re.compile(r"\b(?:itertools\.)?(cycle|tee)\(")
_RESULTS = re.compile(r"Out|_oh|_+\d*")
_FUNCTION = re.compile(r"make_\w*|\w*(fn|func|function|callback|closure|thunk|job|deferred)")
_CAPTURED = re.compile(r" (?:closes over|default|bound argument) (\w+)$")
_DROP_FRAMES = "drop the frames with error.with_traceback(None), or detach() what they hold"


def unusual_remedy(kind: str, place: Place, statement: Statement | None) -> Remedy | None:
    """The remedy for a holder that the usual ones do not fit; None for all others."""
    if place.kind == "native":
        if place.name == native.AT_EXIT:
            return _at_exit(statement)
        return _NATIVE[place.name]()
    if place.kind == "state" and kind != "graph" and place.container in ("defaultdict", "dict"):
        return _stale_state(place)
    if place.kind == "cycle" and place.path.startswith("._base"):
        return _view_of_itself(place, statement)
    if place.survivor != "tensor":
        return _kept_nodes(place, statement)
    if kind != "graph" or statement is None:
        return None
    if statement.verb == "build":
        return _built(place, statement)
    if statement.verb == "raise":
        return _raised(place, statement)
    if statement.verb == "show":
        return _shown(place, statement)
    iterator = _ITERATOR.search(statement.code)
    kept = place.container in ("list", "_tee_dataobject")
    if iterator is not None and kept and statement.verb in ("assign", "attribute"):
        return _ITERATORS[iterator[1]](place)
    return _kept_frames(place, statement)


def _kept_nodes(place: Place, statement: Statement | None) -> Remedy:
    """`kept.append(ctx)` and `kept.append(loss.grad_fn)`: nodes, which have no `.detach()`."""
    name = place.expression
    if place.survivor == "ctx":
        why = f"{name} keeps the ctx of a custom Function, which is a node of the graph: all that "
        why += "was computed before it stays, and all that it saved"
        return Remedy(why, None, "keep `[t.detach() for t in ctx.saved_tensors]`, not the ctx")
    why = f"{name} keeps nodes of the graph, and each keeps all that was computed before it"
    line = line_of(statement)
    value = line.find(statement.value) if line is not None and statement is not None else None
    if line is None or value is None or not dotted(value):
        return Remedy(why, None, "keep its name, `grad_fn.name()`, not the node")
    line.call_on(value, ".name()")
    return Remedy(why, line.result(), "look at the node at once and let it go")


def _built(place: Place, statement: Statement) -> Remedy:
    name = place.name
    why = f"{name} is still being built: what every turn gives is kept with its graph till the end"
    line = line_of(statement)
    numbers = _JOINING.search(statement.code) is None
    cut = ".item() where they are single numbers" if numbers else ".detach() each before they meet"
    value = line.find(statement.value) if line is not None else None
    if line is None or value is None:
        return Remedy(why, _unmapped(line), f"let each turn give a .detach() tensor, or {cut}")
    detach_in(line, value, origin=statement.origin, single=statement.single, numbers=numbers)
    other = called_on(line.text(value), value, ".detach()")
    fix = line.result()
    if fix is not None and ".item()" in fix:
        return Remedy(why, fix, f"{other} to stay on the device")
    return Remedy(why, fix, cut if numbers else f"add up {called_on('', value, '.item()')} numbers")


def _unmapped(line: Line | None) -> str | None:
    """`list(map(step, xs))` with what each call gives detached."""
    for call in ast.walk(line.node) if line is not None else ():
        if isinstance(call, ast.Call) and dotted(call.func) == "map" and len(call.args) == 2:
            assert line is not None
            function, values = map(line.text, call.args)
            line.replace(call, f"({function}(v).detach() for v in {values})")
            return line.result()
    return None


def _raised(place: Place, statement: Statement) -> Remedy:
    line = line_of(statement)
    node = line.node if line is not None else None
    name = place.expression
    if isinstance(node, ast.Raise) and node.cause is not None and line is not None:
        line.replace(node.cause, "None")
        why = f"{name} keeps the errors before it as its __cause__, with the frames they passed"
        alternative = f"keep repr(error) or error.with_traceback(None) in {name}"
        if name.startswith("sys.last_"):
            alternative = f"`del {name}` once it was looked at"
        return Remedy(why, line.result(), alternative)
    why = f"{name} is one exception raised again and again: each time it keeps the frames it passes"
    if not isinstance(node, ast.Raise) or node.exc is None or line is None:
        return Remedy(why, None, _DROP_FRAMES)
    line.call_on(node.exc, ".with_traceback(None)")
    return Remedy(why, line.result(), "raise a new exception each time")


def _kept_frames(place: Place, statement: Statement) -> Remedy | None:
    """Exceptions, tracebacks or frames that are kept: all keep the variables of functions."""
    caught = (statement.origin or "").startswith("except ")
    if ".__traceback__" not in place.path and ".tb_frame" not in place.path and not caught:
        return _bare_frames(place) if ".f_locals" in place.path else None
    name = place.expression
    line = line_of(statement)
    value = line.find(statement.value) if line is not None else None
    why = f"{name} keeps exceptions, and each keeps the frames it passed with all their tensors"
    if line is None or value is None:
        return Remedy(why, None, _DROP_FRAMES)
    if isinstance(value, ast.Attribute) and value.attr == "__traceback__":
        line.replace(value, "traceback.format_exc()")
        why = f"{name} keeps tracebacks, and each keeps the frames it passed with all their tensors"
    elif dotted(value):
        line.replace(value, f"repr({line.text(value)})")
    return Remedy(why, line.result(), _DROP_FRAMES)


def _bare_frames(place: Place) -> Remedy:
    why = f"{place.expression} keeps frames of functions, and each keeps all its variables"
    return Remedy(why, None, "keep what traceback.extract_stack() gives, which is only text")


def _shown(place: Place, statement: Statement) -> Remedy:
    why = f"the session keeps the result of every cell in {place.name}, and with it its graph"
    fix = f"{statement.code};"
    alternative = "%reset -f out drops what is kept, and a result that is detached weighs little"
    told = f"end the cell with a semicolon so that it shows nothing (`{fix}`); {alternative}"
    return Remedy(why, fix, alternative, told)


def is_session_variable(name: str) -> bool:
    """Whether IPython keeps results of cells under that name: `Out`, `_oh`, `_`, `_12`."""
    return _RESULTS.fullmatch(name) is not None


def _cycle(place: Place) -> Remedy:
    why = f"itertools.cycle keeps all it has yielded, so {place.name} keeps every graph"
    return Remedy(
        why, None, "yield .detach() tensors or .item() numbers, or loop `while True:` without cycle"
    )


def _tee(place: Place) -> Remedy:
    why = "itertools.tee keeps what one of its iterators has yielded until the other has as well"
    return Remedy(
        why, None, "advance both in step, or let tee see .detach() tensors or .item() numbers only"
    )


_ITERATORS: dict[str, Callable[[Place], Remedy]] = {"cycle": _cycle, "tee": _tee}


def _stale_state(place: Place) -> Remedy:
    base = place.expression.rpartition(".")[0] or "optimizer"
    why = f"{place.expression} keeps an entry for every parameter it ever stepped, used or not"
    fix = f"{place.expression}.pop(parameter, None)"
    alternative = f"make a new optimizer when the parameters change, in place of {base}"
    told = f"when a parameter goes, drop its state: `{fix}`, or {alternative}"
    return Remedy(why, fix, alternative, told)


def _view_of_itself(place: Place, statement: Statement | None) -> Remedy:
    why = (
        f"{place.expression} is a view of the tensor it is kept on, and a view keeps what it was "
        "cut from: a cycle through C++ that no collection frees"
    )
    alternative = "keep it in a variable of its own"
    line = line_of(statement)
    value = line.find(statement.value) if line is not None and statement is not None else None
    if line is None or value is None:
        return Remedy(why, None, f".clone() it, or {alternative}")
    line.call_on(value, ".clone()")
    return Remedy(why, line.result(), alternative)


def linked(name: str, line: Line, record: ast.Call) -> Remedy:
    """`last = Node(loss, last)`: each object keeps the one before."""
    parts = [*record.args, *(keyword.value for keyword in record.keywords)]
    kept = [part for part in parts if dotted(part) != name and looks_like_tensor(part)]
    for part in kept:
        line.call_on(part, ".detach()")
    why = f"each {name} keeps the one before it, and with it the graphs of all steps"
    return Remedy(why, line.result(), f"let go of the {name} before where it is not used")


def is_function(value: ast.expr) -> bool:
    """Whether a value is a function, going by how it is written or called."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Call):
        return dotted(value.func).rpartition(".")[2] == "partial"
    return bool(_FUNCTION.fullmatch(dotted(value).rpartition(".")[2].lower()))


def functions(name: str, place: Place, value: ast.expr) -> Remedy:
    """Functions that are kept, each with what it captures.

    None is told to be called in place: it is kept to be called later, if ever. What is to change
    stands where it is made.
    """
    why = f"{name} keeps a function of every step, and each keeps the tensors it captures"
    alternative = (
        "bind numbers before making the function (loss.item()), or detach() what it captures"
    )
    captured = _CAPTURED.search(place.path)
    if captured is not None:
        told = captured[1]
        alternative = f"bind {told}.detach() (or the number {told}.item()) in place of {told}"
    if not dotted(value):
        return Remedy(why, None, alternative)
    made, line = place.function_inside or ("", 0)
    function = "the lambda" if made == "<lambda>" else made or dotted(value)
    where = f" (line {line})" if line else ""
    return Remedy(why, None, f"where {function} is made{where}, {alternative}")


def _autocast() -> Remedy:
    why = "inside a torch.autocast block every leaf that is cast is kept with its cast"
    alternative = "open the torch.autocast block inside the loop, or with cache_enabled=False"
    return Remedy(why, "torch.clear_autocast_cache()", alternative)


def _at_exit(statement: Statement | None) -> Remedy:
    why = "atexit keeps what each function is to be called with until the process ends"
    line = line_of(statement)
    value = line.find(statement.value) if line is not None and statement is not None else None
    alternative = "register one function, once, before the loop"
    if line is None or value is None or not looks_like_tensor(value):
        return Remedy(why, None, f"give it .detach() tensors or .item() numbers, or {alternative}")
    line.call_on(value, ".detach()")
    return Remedy(why, line.result(), alternative)


def _torchscript() -> Remedy:
    why = "what TorchScript compiles is kept with its constants as long as the process lives"
    return Remedy(
        why, None, "call torch.jit.trace or torch.jit.script once, before the loop, not in it"
    )


_NATIVE: dict[str, Callable[[], Remedy]] = {
    native.AUTOCAST: _autocast,
    native.TORCHSCRIPT: _torchscript,
}
