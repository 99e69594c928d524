"""What a value is, judged by how it is written: a fresh start, a detached one, a mixture."""

from __future__ import annotations

import ast
from collections.abc import Callable

from memguard.explain.program import Program
from memguard.explain.syntax import FUNCTIONS, Scope, dotted, words

_EMPTY_MAKERS = words(
    "list dict set tuple deque defaultdict OrderedDict Counter Queue SimpleQueue LifoQueue "
    "PriorityQueue zeros zeros_like ones ones_like empty empty_like full full_like randn rand "
    "randn_like rand_like randint arange eye new_zeros new_ones new_full new_tensor"
)
_FIRST_WORDS = ("init", "initial", "reset", "zero", "fresh", "empty", "blank", "start", "begin")
_DETACHING = frozenset(("detach", "item", "tolist", "numpy", "data_ptr", "size", "numel"))
_KEEPING = words(
    "cpu cuda to clone float half double mean sum squeeze unsqueeze view reshape flatten sigmoid "
    "softmax contiguous exp log sqrt abs requires_grad_ pin_memory"
)
_REORDERING = words("sorted list tuple set reversed")
# Functions of Python's own that make something else than a tensor of one.
PLAIN = words("float int bool str len repr round id hash type format isinstance hasattr callable")


def starts_over(value: ast.expr) -> bool:
    """Whether a value begins anew: an empty container, zeros, a constant, an initial state."""
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.UnaryOp):
        return starts_over(value.operand)
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return all(starts_over(item) for item in value.elts)
    if isinstance(value, ast.Dict):
        return all(starts_over(item) for item in value.values)
    if isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return starts_over(value.elt)
    if isinstance(value, ast.DictComp):
        return starts_over(value.value)
    if isinstance(value, ast.BinOp):
        several = isinstance(value.left, ast.List) and isinstance(value.op, ast.Mult)  # [0] * n
        return starts_over(value.left) and (several or starts_over(value.right))
    if isinstance(value, ast.Attribute):
        return value.attr in ("inf", "nan")
    return isinstance(value, ast.Call) and _makes_new(value)


def _makes_new(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda", "requires_grad_"):
        return starts_over(call.func.value)
    name = dotted(call.func).rpartition(".")[2].strip("_")
    if not name and isinstance(call.func, ast.Attribute):
        name = call.func.attr.strip("_")
    if name in ("list", "dict", "set", "tuple", "deque"):
        return all(starts_over(arg) for arg in call.args[:1])
    if name in ("tensor", "float", "as_tensor"):
        # Text makes a number, as in float("inf").
        return all(starts_over(arg) for arg in call.args)
    words = name.lower().split("_")
    return name in _EMPTY_MAKERS or words[0] in _FIRST_WORDS or words[-1] in ("zeros", "reset")


def is_detached(value: ast.expr, scope: Scope, program: Program, depth: int = 3) -> bool:
    """Whether a value is cut off from the graph, or a plain number, by the way it is written."""

    def again(inner: ast.expr) -> bool:
        return is_detached(inner, scope, program, depth)

    if isinstance(value, ast.Call):
        return _call_detaches(value, scope, program, depth, again)
    if isinstance(value, ast.Attribute) and value.attr in ("data", "shape", "dtype", "device"):
        return True
    if isinstance(value, ast.IfExp) and isinstance(value.orelse, ast.Name):
        return again(value.body)
    if isinstance(value, (ast.Name, ast.JoinedStr, ast.Lambda)):
        return False
    parts = _parts(value)
    return isinstance(value, ast.Constant) or (bool(parts) and all(map(again, parts)))


def _parts(value: ast.expr) -> list[ast.expr]:
    """The values that a value written as a display, an operation or a part is made of."""
    if isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        return value.elts
    if isinstance(value, ast.Dict):
        return value.values
    if isinstance(value, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        return [value.elt]
    if isinstance(value, (ast.DictComp, ast.Attribute, ast.Starred, ast.Subscript, ast.Await)):
        return [value.value]
    if isinstance(value, ast.IfExp):
        return [value.body, value.orelse]
    if isinstance(value, ast.BinOp):
        return [value.left, value.right]
    return [value.operand] if isinstance(value, ast.UnaryOp) else []


def _call_detaches(
    call: ast.Call, scope: Scope, program: Program, depth: int, again: Callable[[ast.expr], bool]
) -> bool:
    func = call.func
    if isinstance(func, ast.Attribute):
        if func.attr in _DETACHING:
            return True
        if func.attr in _KEEPING:
            return again(func.value)
    name = dotted(func).rpartition(".")[2]
    if name in PLAIN or "detach" in name or "repackage" in name:
        return True
    if name in ("tuple", "list", "dict", "max", "min", "sum", "Variable") and call.args:
        return all(map(again, call.args))
    target = program.lookup(name, scope) if isinstance(func, ast.Name) else None
    if target is scope:
        return True  # calls itself: what else it returns decides
    return target is not None and depth > 0 and detaches(target, program, depth - 1)


def detaches(function: Scope, program: Program, depth: int = 3) -> bool:
    """Whether a function of the user's gives back detached values (`repackage_hidden`)."""
    if not isinstance(function.node, FUNCTIONS):
        return False
    returned = [
        piece.node.value
        for piece in function.pieces
        if isinstance(piece.node, ast.Return) and piece.node.value is not None
    ]
    return bool(returned) and all(is_detached(v, function, program, depth) for v in returned)


def parts_without(value: ast.expr, mentions: Callable[[ast.expr], bool]) -> ast.expr | None:
    """What is mixed into a holder: the one operand or argument that does not mention it."""
    if isinstance(value, ast.BinOp):
        return _only_member(_operand_without(value, mentions))
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        apart = [part for part in value.elts if not mentions(part)]
        return apart[0] if len(apart) == 1 else None
    if isinstance(value, ast.IfExp):
        return parts_without(value.orelse if mentions(value.orelse) else value.body, mentions)
    if isinstance(value, (ast.Attribute, ast.Subscript, ast.Await)):
        return parts_without(value.value, mentions)
    if isinstance(value, ast.Call):
        return _argument_without(value, mentions)
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)):
        return value.elt
    return value.value if isinstance(value, ast.DictComp) else None


def _only_member(value: ast.expr | None) -> ast.expr | None:
    """`loss` of `[loss]`."""
    listed = isinstance(value, (ast.List, ast.Tuple)) and len(value.elts) == 1
    return value.elts[0] if listed and isinstance(value, (ast.List, ast.Tuple)) else value


def _argument_without(call: ast.Call, mentions: Callable[[ast.expr], bool]) -> ast.expr | None:
    if dotted(call.func) in _REORDERING and call.args:
        return parts_without(call.args[0], mentions)  # not `key` or `reverse`
    inner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(inner, ast.Call) and mentions(inner):
        return parts_without(inner, mentions)
    items = [*call.args, *(keyword.value for keyword in call.keywords)]
    lists = [item for item in items if isinstance(item, (ast.List, ast.Tuple))]
    members = [part for item in lists for part in item.elts]
    apart = [part for part in members or items if not mentions(part)]
    return next((part for part in apart if not isinstance(part, ast.Constant)), None)


def _operand_without(value: ast.BinOp, mentions: Callable[[ast.expr], bool]) -> ast.expr | None:
    touched, apart = value.left, value.right
    if mentions(apart):
        touched, apart = apart, touched
    if mentions(apart) or not mentions(touched):
        return None
    # In `(x + v) / 2` the side without x is only a factor: what goes in is deeper.
    factor = not isinstance(value.op, (ast.Add, ast.Sub)) or isinstance(apart, ast.Constant)
    deeper = _operand_without(touched, mentions) if isinstance(touched, ast.BinOp) else None
    return deeper if factor and deeper is not None else apart
