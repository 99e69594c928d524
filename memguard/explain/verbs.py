"""What a statement does to a holder: the verb of its growth, and what goes in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memguard.explain.expressions import is_detached, parts_without, starts_over
from memguard.explain.places import Verb
from memguard.explain.rewrite import lambda_defaults
from memguard.explain.subject import ANY, Keys, View, key_of
from memguard.explain.syntax import Piece, bindings, dotted, same, words

APPENDING = words("append add insert appendleft put put_nowait push enqueue append_row push_back")
_STORING = words("add append push put store record log save insert remember collect observe write")
EXTENDING = frozenset(("extend", "extendleft", "update"))
# In-place methods after which no more hangs on the tensor than before.
_HARMLESS = words(
    "detach_ zero_ fill_ requires_grad_ share_memory_ resize_ normal_ uniform_ random_ retain_"
)
_MIXING = words(
    "cat concat concatenate stack hstack vstack dstack column_stack add sub mul lerp where maximum "
    "minimum logaddexp append addcmul sum roll scatter index_add index_copy"
)
_RESHAPING = words(
    "to cuda cpu float half double view reshape clone contiguous squeeze unsqueeze sort sorted "
    "list tuple set dict copy deepcopy abs sqrt clamp reversed zip enumerate iter filter"
)
_PUSHING_FUNCTIONS = words("heappush heappushpop insort insort_left insort_right")


@dataclass(frozen=True, slots=True)
class Growth:
    """One way in which a statement makes a holder grow.

    Attributes:
        value: what goes in; None when there is no single thing.
        keys: where in the holder it goes.
        calls: calls that handed the holder over to the statement's function, outermost first.
        weak: whether it only may be growth: `x = v`, or a call nobody can look into.
    """

    piece: Piece
    verb: Verb
    value: ast.expr | None
    keys: Keys = ()
    calls: tuple[Piece, ...] = ()
    weak: bool = False

    @property
    def steps(self) -> tuple[Piece, ...]:
        """The calls that hand the holder over, outermost first, then the statement itself."""
        return (*self.calls, self.piece)


def growths(view: View, piece: Piece) -> Iterator[Growth]:
    """The ways in which one statement makes the holder grow, itself and without calls."""
    node = piece.node
    if isinstance(node, ast.AugAssign):
        yield from _augmented(view, piece, node)
    for binding in (node, *(n for n in piece.nodes() if isinstance(n, ast.NamedExpr))):
        for target, value, whole in bindings(binding):
            found = _bound(view, piece, target, value, whole)
            if found is not None:
                yield found
    if isinstance(node, ast.Raise) and any(
        part is not None and view.is_holder(part) for part in (node.exc, node.cause)
    ):
        yield Growth(piece, "raise", None, (), view.calls)
    for call in piece.calls():
        found = _called(view, piece, call) or _renewed(view, piece, call)
        if found is not None:
            yield found


def _augmented(view: View, piece: Piece, node: ast.AugAssign) -> Iterator[Growth]:
    keys = view.reached(node.target)
    if keys is None or isinstance(node.value, ast.Constant):
        return
    listing = isinstance(node.value, (ast.List, ast.ListComp, ast.Tuple, ast.Dict, ast.DictComp))
    container = view.subject.container in ("list", "deque", "set", "dict") and not keys
    verb: Verb = "extend" if listing or container else "accumulate"
    value = node.value
    if isinstance(value, (ast.List, ast.Tuple)) and len(value.elts) == 1:
        value = value.elts[0]
    yield Growth(piece, verb, value, keys, view.calls)


def _bound(
    view: View, piece: Piece, target: ast.expr, value: ast.expr, whole: bool
) -> Growth | None:
    if view.is_holder(target):
        return _rebound(view, piece, target, value, whole)
    if isinstance(target, ast.Subscript):
        keys = view.reached(target.value)
        if keys is None or (starts_over(value) and not _is_new_tensor(view, value)):
            return None
        if isinstance(target.slice, ast.Slice) and not view.subject.is_tensor:
            return _slice_assigned(view, piece, keys, value)
        keys = (*keys, key_of(target.slice))

        def reads_entry(expr: ast.AST) -> bool:
            return any(_is_entry(target, node) for node in ast.walk(expr))

        if reads_entry(value):
            mixed = parts_without(value, reads_entry)
            return Growth(piece, "accumulate", mixed or value, keys, view.calls)
        # Written under one and the same key, it only replaces what was there.
        one_key = isinstance(target.slice, ast.Constant) and not view.subject.is_tensor
        return Growth(piece, "item", value, keys, view.calls, weak=one_key)
    if isinstance(target, ast.Attribute):
        keys = view.reached(target.value)
        if keys is None or starts_over(value):
            return None
        return Growth(piece, "attribute", value, (*keys, f".{target.attr}"), view.calls)
    return None


def _is_new_tensor(view: View, value: ast.expr) -> bool:
    """Whether a value that begins anew is nevertheless what gathers: a tensor without graph."""
    made = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    return view.subject.plain and made


def _is_entry(target: ast.Subscript, node: ast.AST) -> bool:
    """Whether an expression reads the entry `x[k]`: as `x[k]` or `x.get(k)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        alike = node.func.attr in ("get", "setdefault") and same(node.func.value, target.value)
        return alike and same(node.args[0], target.slice)
    return isinstance(node, ast.Subscript) and same(target, node)


def _slice_assigned(view: View, piece: Piece, keys: Keys, value: ast.expr) -> Growth | None:
    """`x[len(x):] = vs` grows; `x[:] = x[-n:]` and `x[:] = []` do not."""
    if view.mentions(value):
        return None
    return Growth(piece, "extend", value, keys, view.calls)


def _rebound(
    view: View, piece: Piece, target: ast.expr, value: ast.expr, whole: bool
) -> Growth | None:
    if starts_over(value) or is_detached(value, piece.scope, view.program):
        return None
    if isinstance(value, ast.Await):
        value = value.value
    plain: Verb = "attribute" if isinstance(target, ast.Attribute) else "assign"
    if not is_fed(view, value):
        verb = _indirect(view, piece, value)
        if verb is not None:
            return Growth(piece, verb, value, (), view.calls)
        return Growth(piece, plain, value if whole else None, (), view.calls, weak=True)
    verb = self_fed(view, value, piece)
    if verb is None:
        return None
    mixed = value if verb == "carry" else parts_without(value, view.mentions)
    return Growth(piece, verb, mixed, (), view.calls, weak=verb == "assign")


def is_fed(view: View, value: ast.AST) -> bool:
    """Whether a value has the holder in it, and not only cut off from its graph."""
    if view.is_holder(value):
        return True
    inner = isinstance(value, ast.expr) and not isinstance(value, (ast.Name, ast.Constant))
    if inner and isinstance(value, ast.expr) and is_detached(value, view.scope, view.program):
        return False
    return any(is_fed(view, inner) for inner in ast.iter_child_nodes(value))


def self_fed(view: View, value: ast.expr, piece: Piece) -> Verb | None:
    """The verb of `x = value` when x is in the value; None when it only reshapes or shortens x."""
    if isinstance(value, ast.IfExp):
        fed = [part for part in (value.body, value.orelse) if view.mentions(part)]
        verbs = [self_fed(view, part, piece) for part in fed]
        return next((verb for verb in verbs if verb is not None), None if fed else "assign")
    if isinstance(value, ast.BinOp):
        sides = (value.left, value.right)
        listing = any(isinstance(side, (ast.List, ast.ListComp, ast.Tuple)) for side in sides)
        return "extend" if listing else "accumulate"
    if isinstance(value, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
        return None if view.is_holder(value) else "extend"
    if isinstance(value, (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)):
        return _comprehended(value)
    if isinstance(value, ast.BoolOp):
        return "assign"
    if isinstance(value, ast.Lambda):
        given = [default for default in lambda_defaults(value) if is_fed(view, default)]
        return "carry" if given else "assign"
    if isinstance(value, ast.Call):
        return _fed_call(view, value, piece)
    if isinstance(value, (ast.Subscript, ast.Attribute, ast.Starred)):
        inner = value.value
        if isinstance(inner, (ast.Call, ast.BinOp)):
            return self_fed(view, inner, piece)
        indexed = isinstance(value, ast.Subscript) and view.subject.is_tensor
        return "accumulate" if indexed else None
    return None


def _comprehended(
    value: ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp,
) -> Verb | None:
    result = value.value if isinstance(value, ast.DictComp) else value.elt
    return None if isinstance(result, ast.Name) else "accumulate"


def _fed_call(view: View, call: ast.Call, piece: Piece) -> Verb | None:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else dotted(func)
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    fed = [arg for arg in arguments if is_fed(view, arg)]
    if isinstance(func, ast.Attribute) and view.mentions(func.value):
        inner = self_fed(view, func.value, piece) if not view.is_holder(func.value) else None
        return inner or (None if name in _RESHAPING else "accumulate")
    if name in ("max", "min") and isinstance(func, ast.Name):
        return "assign"
    if name in _RESHAPING and fed:
        return self_fed(view, fed[0], piece)
    if not fed:
        return None
    # `self.gru(x, h)` and `cell(x, h)` are calls of objects, `torch.cat` is a library's function.
    root = dotted(func).partition(".")[0]
    library = isinstance(func, ast.Attribute) and view.program.imports.is_imported(
        root, piece.scope.source
    )
    return "accumulate" if library or name in _MIXING else "carry"


def _indirect(view: View, piece: Piece, value: ast.expr, hops: int = 3) -> Verb | None:
    """`state = new_state` where `_, new_state = model(x, state)` came before it."""
    if hops == 3 and not isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple)):
        return None
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    names -= {piece.scope.receiver() or ""}
    for name in sorted(names if hops else ()):
        for made, whole in view.program.assigned(name, piece.scope):
            if starts_over(made) or is_detached(made, piece.scope, view.program):
                continue
            if is_fed(view, made):
                verb = self_fed(view, made, piece)
                if verb in ("carry", "accumulate"):
                    return verb
            elif whole and _indirect(view, piece, made, hops - 1) is not None:
                return "accumulate"
    return None


def _called(view: View, piece: Piece, call: ast.Call) -> Growth | None:
    func = call.func
    if not isinstance(func, ast.Attribute):
        return _by_function(view, piece, call, dotted(func))
    name = func.attr
    if name in _PUSHING_FUNCTIONS:
        return _by_function(view, piece, call, name)
    keys = view.reached(_base_of(func.value))
    if keys is None:
        return _set_by_name(view, piece, call)
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    first = arguments[0] if arguments else None
    if name in APPENDING:
        at = 1 if name == "insert" and len(arguments) > 1 else 0
        value = arguments[at] if arguments else None
        return None if value is None else Growth(piece, "append", value, (*keys, ANY), view.calls)
    if name in EXTENDING and first is not None:
        return Growth(piece, "extend", first, (*keys, ANY), view.calls)
    if name == "set" and len(arguments) == 1:
        return _set_anew(view, piece, arguments[0])
    if name in ("setdefault", "__setitem__") and len(arguments) > 1:
        fresh = starts_over(arguments[1])
        keys = (*keys, key_of(arguments[0]))
        return None if fresh else Growth(piece, "item", arguments[1], keys, view.calls)
    if name.startswith("register_") and "hook" in name:
        return Growth(piece, "register", first, keys, view.calls)
    if name.endswith("_") and not name.endswith("__") and name not in _HARMLESS and arguments:
        tensors = [arg for arg in arguments if not isinstance(arg, ast.Constant)]
        return Growth(piece, "accumulate", tensors[-1], keys, view.calls) if tensors else None
    if name.split("_")[0] in _STORING and not name.endswith("_") and first is not None and not keys:
        # Some library's object: its name says that it keeps what it is given.
        return Growth(piece, "append", first, (ANY,), view.calls, weak=True)
    return None


def _set_anew(view: View, piece: Piece, value: ast.expr) -> Growth | None:
    """`total.set(total.get() + loss)`, as a context variable is given its value."""
    if starts_over(value) or is_detached(value, piece.scope, view.program):
        return None
    verb = self_fed(view, value, piece) if is_fed(view, value) else _indirect(view, piece, value)
    if verb is None or verb == "assign":
        return Growth(piece, "assign", value, (), view.calls, weak=True)
    return Growth(piece, verb, parts_without(value, view.mentions), (), view.calls)


def _base_of(value: ast.expr) -> ast.expr:
    """The object at the start of a row of in-place calls: `x` in `x.mul_(a).add_(v)`."""
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr.endswith("_")
    ):
        value = value.func.value
    return value


def _renewed(view: View, piece: Piece, call: ast.Call) -> Growth | None:
    """`state._replace(losses=state.losses + [loss])`: a new object with more in it."""
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg == view.subject.attribute:
            verb = self_fed(view, keyword.value, piece) if is_fed(view, keyword.value) else None
            if verb is not None:
                mixed = parts_without(keyword.value, view.mentions)
                return Growth(piece, verb, mixed, (), view.calls)
    return None


def _by_function(view: View, piece: Piece, call: ast.Call, name: str) -> Growth | None:
    name = name.rpartition(".")[2]
    if name in _PUSHING_FUNCTIONS and len(call.args) > 1:
        keys = view.reached(call.args[0])
        if keys is not None:
            return Growth(piece, "append", call.args[1], (*keys, ANY), view.calls)
    return _set_by_name(view, piece, call)


def _set_by_name(view: View, piece: Piece, call: ast.Call) -> Growth | None:
    """`setattr(self, "history", v)` and `object.__setattr__(self, "history", v)`."""
    name = dotted(call.func).rpartition(".")[2]
    if name not in ("setattr", "__setattr__", "register_buffer") or len(call.args) < 2:
        return None
    *above, key, value = call.args
    keys = view.reached(above[0]) if above else None
    if keys is not None and not isinstance(key, ast.Constant):
        # A name that is made anew each time: `setattr(log, f"loss{step}", loss)`.
        return Growth(piece, "attribute", value, (*keys, ANY), view.calls)
    constant = key.value if isinstance(key, ast.Constant) else None
    if constant != view.subject.attribute or constant is None or starts_over(value):
        return None
    fed = view.mentions(value)
    return Growth(piece, "accumulate" if fed else "attribute", value, (), view.calls, weak=not fed)
