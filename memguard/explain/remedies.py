"""Remedies for holders that no rewritten value helps: hooks, caches, cycles, growing data."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from memguard.explain.places import Place, Statement
from memguard.explain.rewrite import Line, called_on, is_record
from memguard.explain.syntax import dotted

_COPIED = re.compile(r"deepcopy|state_dict|snapshot|checkpoint|\bcopy\b")


@dataclass(frozen=True, slots=True)
class Remedy:
    """Cause and cure of one holder.

    Attributes:
        why: one sentence.
        fix: a line of code; None when no line can be given.
        alternative: a second way, in words.
        told: the whole as one line, where the usual wording does not do.
    """

    why: str
    fix: str | None = None
    alternative: str | None = None
    told: str | None = None

    def line(self) -> str:
        """All of it on one readable line."""
        if self.told is not None:
            return self.told
        if self.fix is None:
            return self.alternative or self.why
        return f"write `{self.fix}`" + (f", or {self.alternative}" if self.alternative else "")


def made_remedy(kind: str, place: Place, statement: Statement | None) -> Remedy | None:
    """The remedy for a hook, cache, ctx attribute, closure or cycle; None for other holders."""
    if place.kind == "ctx":
        return _ctx(place, statement, collected=kind == "cycle")
    if kind == "cycle" or place.kind == "cycle":
        return _cycle(place, statement)
    if place.kind == "cache":
        return _graph_cache(place) if kind == "graph" else _cache(place, statement)
    if statement is not None and statement.verb == "register":
        return _registered(place, statement)
    if statement is not None and statement.verb == "define":
        return _captured(place, statement)
    if "grad" in (place.name, place.path.rpartition(".")[2]) and kind == "graph":
        return Remedy(
            "the gradient has a graph of its own and is added to at every backward",
            "optimizer.zero_grad(set_to_none=True)",
            "get such gradients from torch.autograd.grad(loss, parameters, create_graph=True), "
            "or call p.grad.detach_() when the step is done",
        )
    return None


def line_of(statement: Statement | None) -> Line | None:
    """The statement's line, ready to be rewritten; None when it has no single line."""
    if statement is None:
        return None
    try:
        return Line(statement.code, numbers=not statement.as_tensor)
    except ValueError:
        return None


def _cycle(place: Place, statement: Statement | None) -> Remedy:
    owner = (place.owner or "the object").rpartition(".")[2]
    why = f"{owner} and what its `{place.name}` refers to refer to each other, so only a collection"
    why += " frees them and their tensors"
    let_go = f"`.{place.name} = None` when done" if place.name else "an attribute set to None"
    alternative = (
        f"a weakref.ref, or break the cycle ({let_go}); with gc disabled nobody collects: "
        "gc.enable(), or call gc.collect() now and then"
    )
    line = line_of(statement)
    value = line.find(statement.value) if line is not None and statement is not None else None
    if line is not None and isinstance(line.node, (ast.Assign, ast.AnnAssign)):
        value = line.node.value  # `node.me = node` has it on both sides
    if line is None or value is None:
        return Remedy(why, None, f"let one side hold {alternative}")
    inner = [n for n in ast.walk(value) if isinstance(n, ast.Name) and n.id in ("self", "cls")]
    referring: ast.expr = inner[0] if inner else value
    if not inner and not dotted(value):
        return Remedy(why, None, f"let one side hold {alternative}")
    line.replace(referring, f"weakref.proxy({line.text(referring)})")
    return Remedy(why, line.result(), alternative)


def _ctx(place: Place, statement: Statement | None, *, collected: bool) -> Remedy:
    # Cycles of several steps or layers hang on one another, and each collection frees some.
    freed = "only a collection frees" if collected else "a collection frees late or never"
    why = f"ctx.{place.name} keeps a tensor whose graph keeps ctx: a cycle through C++ that {freed}"
    value = statement.value if statement is not None else None
    name = value if value is not None and value.isidentifier() else place.name
    saved = statement.saved if statement is not None else ""
    # Backward has to be changed along with it: it still reads the attribute.
    read = f"*_, {name}" if saved else f"{name},"
    given = ", ".join(filter(None, (saved, name)))
    fix = f"ctx.save_for_backward({given})  # and in backward: {read} = ctx.saved_tensors"
    alternative = "one ctx.save_for_backward(a, b) call with all tensors where there are several"
    return Remedy(why, fix if name.isidentifier() else None, alternative)


def _graph_cache(place: Place) -> Remedy:
    """A bound would end the growth and not the waste: no graph of a past step is used again."""
    results = "every result" if place.limit is None else f"its last {place.limit} results"
    why = f"the cache of {place.name} keeps {results}, and each keeps the graph it came from"
    called = place.expression.removesuffix("(...)")
    return Remedy(
        why,
        None,
        f"let {place.name} return a detached tensor (`return ... .detach()`), so that its cache "
        f"keeps no graph, or call {called}.cache_clear() each step",
    )


def _cache(place: Place, statement: Statement | None) -> Remedy:
    why = f"the cache of {place.name} keeps every result"
    alternative = "call its cache_clear() once the results are used"
    code = statement.code if statement is not None else ""
    if not code.startswith("@"):
        limited = re.sub(r"lru_cache\((maxsize=)?None\)", "lru_cache(maxsize=16)", code)
        limited = re.sub(r"(?<![\w_])cache\(", "lru_cache(maxsize=16)(", limited)
        if limited != code:
            return Remedy(why, limited, alternative)
        return Remedy(why, None, f"give the cache a maxsize; {alternative}")
    name = re.sub(r"\(.*", "", code[1:])
    if name.rpartition(".")[2] not in ("cache", "lru_cache"):
        return Remedy(why, None, alternative)
    limited = re.sub(r"\bcache$", "lru_cache", name)
    return Remedy(why, f"@{limited}(maxsize=16)", alternative)


def _registered(place: Place, statement: Statement) -> Remedy:
    closed = _on_itself(statement)
    if closed is not None:
        return closed
    why = "a hook is registered anew each step and none is removed; each keeps what it saw"
    line = line_of(statement)
    fix = None
    if line is not None and isinstance(line.node, ast.Expr):
        fix = f"handle = {statement.code}"
    elif line is not None:
        fix = statement.code
    alternative = (
        "register it once before the loop and let it store output.detach() where no gradient "
        "is needed"
    )
    if place.owner in ("a tensor or node", "the tensor"):
        alternative = "give it a weakref.ref to what it uses, which its graph keeps anyway"
    handle = "handle"
    if line is not None and isinstance(line.node, ast.Assign):
        handle = dotted(line.node.targets[0]) or handle
    told = f"call `{handle}.remove()` when the step is done"
    told = f"keep the handle (`{fix}`) and {told}" if fix is not None else told
    return Remedy(
        why, fix, f"{handle}.remove() when done; {alternative}", f"{told}, or {alternative}"
    )


def _on_itself(statement: Statement) -> Remedy | None:
    """`x.register_hook(lambda g: g * x)`: the hook refers to the tensor it hangs on."""
    line = line_of(statement)
    for call in ast.walk(line.node) if line is not None else ():
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        tensor = dotted(call.func.value)
        made = call.args[0] if call.args else None
        if call.func.attr != "register_hook" or not isinstance(made, ast.Lambda) or not line:
            continue
        if tensor.isidentifier() and tensor in {dotted(node) for node in ast.walk(made.body)}:
            line.replace(made, _bound_lambda(line, made, tensor))
            why = f"the hook refers to {tensor}, which it hangs on: a cycle through C++ that the "
            alternative = f"a weakref.ref({tensor}) in the hook, or handle.remove() after backward"
            return Remedy(f"{why}collector cannot free", line.result(), alternative)
    return None


def _bound_lambda(line: Line, made: ast.Lambda, name: str) -> str:
    """The lambda with a detached copy of a variable bound as it is made."""
    text = line.text(made)
    before = text[: text.index(":")].removeprefix("lambda").strip()
    parameters = ", ".join([*([before] if before else []), f"{name}={name}.detach()"])
    return f"lambda {parameters}: {line.text(made.body)}"


def _captured(place: Place, statement: Statement) -> Remedy:
    name = place.name if place.kind == "closure" and place.name.isidentifier() else None
    why = f"each function made here keeps {name or 'what it captures'} of its step, and its graph"
    alternative = (
        f"capture a number instead: `value = {name or 'loss'}.item()` before it, "
        f"or `{name or 'loss'}.detach()`"
    )
    line = line_of(statement)
    lambdas = [n for n in ast.walk(line.node) if isinstance(n, ast.Lambda)] if line else []
    if line is None or name is None or not lambdas or lambdas[0].args.vararg:
        return Remedy(why, None, alternative)
    line.replace(lambdas[0], _bound_lambda(line, lambdas[0], name))
    return Remedy(why, line.result(), alternative)


def plain_remedy(kind: str, place: Place, statement: Statement | None) -> Remedy | None:
    """The remedy for growth without graphs, by kind; None where values are to be detached."""
    if kind == "grad":
        return Remedy(
            "gradients of earlier steps are still in .grad, and new ones are added to them",
            "optimizer.zero_grad()",
            "model.zero_grad() before backward",
        )
    if kind == "reserved":
        alternative = (
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or keep batch shapes the same"
        )
        return Remedy("the allocator holds memory it cannot hand out again", None, alternative)
    if kind == "worker":
        alternative = (
            f"bound what workers keep in {place.expression} (functools.lru_cache with a maxsize), "
            "or set persistent_workers=False"
        )
        return Remedy(
            "each worker process has a copy of its own, which only grows", None, alternative
        )
    if kind == "stale":
        why = f"{place.expression} still refers to it"
        return Remedy(why, f"del {place.expression}" if dotted_text(place.expression) else None)
    return _gathered(place, statement, tensors=kind == "tensor")


def dotted_text(expression: str) -> bool:
    """Whether a text is a name with attributes, which may stand in a line of code."""
    return all(part.isidentifier() for part in expression.split("."))


def holder_text(place: Place, statement: Statement | None) -> str:
    """The holder as the statement itself writes it, else as the user reaches it."""
    line = line_of(statement)
    if line is None:
        return place.expression
    names = [dotted(node) for node in ast.walk(line.node)]
    for name in names:
        if name.rpartition(".")[2] == place.name:
            return name
    # A parameter through which it was handed over: `trail.append(entry)`.
    call = line.node.value if isinstance(line.node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return dotted(call.func.value) or place.expression
    return place.expression


def _gathered(place: Place, statement: Statement | None, *, tensors: bool) -> Remedy:
    """Detached tensors or plain objects that are kept for good."""
    holder = holder_text(place, statement)
    what = "tensors" if tensors else "objects"
    why = f"{holder} gathers {what} of every step and lets none go"
    value = (statement.value or "") if statement is not None else ""
    to_disk = "write them to disk as they come" if not tensors else "torch.save them to disk"
    if _COPIED.search(value):
        why = f"{holder} keeps every copy that is made, though at most the best is read again"
        fix = _only_newest(holder, statement)
        return Remedy(why, fix, f"keep only the best one, or {to_disk}")
    moved = ""
    if tensors and value and (line := line_of(statement)) is not None:
        part = line.find(value)
        if part is not None and value.endswith(".numpy()"):
            moved = f"; `{value}.copy()` keeps no tensor alive"
        elif part is not None and not value.endswith(".cpu()") and _is_one_tensor(part):
            moved = f"; on a GPU, move them off it: `{called_on(value, part, '.cpu()')}`"
        if isinstance(part, ast.Subscript):
            moved += "; a slice keeps all it was cut from alive: .clone() it"
    cloned = _cloned(place, statement)
    if cloned is not None:
        why += ", each a small part of what it was cut from, which stays with it"
        return Remedy(why, cloned, f"keep only what is used as well, or {to_disk}")
    if statement is None or statement.verb not in ("append", "extend", "item"):
        return _gathered_otherwise(place, statement, holder, why, f"{to_disk}{moved}")
    if statement.verb == "item" or place.container in ("dict", "OrderedDict", "defaultdict"):
        fix = f"if len({holder}) > N: {holder}.pop(next(iter({holder})))"
        alternative = f"clear it when it has been read, or {to_disk}{moved}"
        return Remedy(why, fix, alternative, f"bound it (`{fix}`), or {alternative}")
    listing = place.container in ("list", "") and dotted_text(holder) and place.kind != "state"
    line = line_of(statement)
    whole = listing and line is not None and not _is_in_lambda(line, holder)
    fix = f"{statement.code}; del {holder}[:-N]" if whole else None
    alternative = (
        f"make it a collections.deque(maxlen=N), clear() it once read, or {to_disk}{moved}"
    )
    return Remedy(
        why, fix, alternative, f"keep only what is used: `{fix}`, {alternative}" if fix else None
    )


def _is_in_lambda(line: Line, holder: str) -> bool:
    """Whether a lambda of the line makes the holder grow: what follows the line runs once."""
    made = (node.body for node in ast.walk(line.node) if isinstance(node, ast.Lambda))
    return any(dotted(part) == holder for body in made for part in ast.walk(body))


def _cloned(place: Place, statement: Statement | None) -> str | None:
    """The line that keeps a copy of a small part, and not the whole that it was cut from."""
    line = line_of(statement)
    value = line.find(statement.value) if line is not None and statement is not None else None
    layers = [layer for layer in place.layers if not layer.endswith("Tensor")]
    if not place.partial or len(layers) > 1 or line is None or value is None:
        return None
    if not _is_one_tensor(value):
        return None
    line.call_on(value, ".clone()")
    return line.result()


def _is_one_tensor(value: ast.expr) -> bool:
    plain = isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    return plain and not is_record(value)


def _gathered_otherwise(
    place: Place, statement: Statement | None, holder: str, why: str, to_disk: str
) -> Remedy:
    if place.container.endswith("Tensor") and statement is not None:
        return Remedy(
            f"{holder} is a tensor that grows at every step",
            f"{holder} = {holder}[-N:].clone()" if dotted_text(holder) else None,
            f"start anew once it has been read, or {to_disk}",
        )
    return Remedy(why, None, f"keep only what is used, clear it once read, or {to_disk}")


def _only_newest(holder: str, statement: Statement | None) -> str | None:
    line = line_of(statement)
    if line is None or statement is None or statement.value is None:
        return None
    one_call = isinstance(line.node, ast.Expr) and statement.verb == "append"
    return f"{holder} = [{statement.value}]" if one_call and dotted_text(holder) else None
