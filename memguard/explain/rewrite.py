"""A user's own statement with a part of it rewritten, all other text left as it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from memguard.explain.expressions import PLAIN
from memguard.explain.syntax import UNPARSABLE, dotted, same, words
from memguard.explain.text import cut

_SCALAR = words(
    "loss error err accuracy acc metric score dice iou jaccard f1 auc nll kl mse mae rmse bce ce "
    "reward return norm precision recall psnr ssim elbo perplexity ppl penalty regularizer reg "
    "criterion objective cost distance divergence lossfn lossg lossd errd errg"
)
_TENSOR = words(
    "logit logits output outputs out pred preds prediction predictions feature features feat feats "
    "embedding embeddings emb hidden state states h c z x y image images img fake activation "
    "activations prob probs value values entropy entropies log logprob query key vector vectors "
    "attention weights tensor reconstruction recon residual grad grads latent target targets batch"
)
# Library functions that give one number.
_SCALAR_FUNCTIONS = re.compile(r".*(loss|entropy|_nll|mse|_error|criterion|divergence)\w*")
_REDUCING = words("mean sum norm min max median prod var std nanmean")
_COEFFICIENTS = words(
    "alpha beta gamma momentum decay lr lam lambda_ coef coeff factor rate n k i j eps tau scale "
    "count batch_size bs step steps epoch idx index weight_decay"
)
_CUT_OFF = words("item detach tolist numpy size numel dim")


class Line:
    """One statement on one line, and replacements in it.

    Args:
        code: the statement's text.
        numbers: whether a tensor may become a plain number; it is detached otherwise.

    Raises:
        ValueError: it is no single statement that parses.
    """

    def __init__(self, code: str, numbers: bool = True) -> None:
        try:
            body = ast.parse(code).body
        except UNPARSABLE as error:
            raise ValueError(code) from error
        if len(body) != 1 or hasattr(body[0], "body"):
            raise ValueError(code)
        self.code = code
        self.node = body[0]
        self.numbers = numbers
        self._changes: list[tuple[int, int, str]] = []

    def text(self, node: ast.expr) -> str:
        """The text of a part."""
        return cut([self.code], node)

    def replace(self, node: ast.expr, text: str) -> None:
        """Put another text in a part's place."""
        end = node.end_col_offset if node.end_col_offset is not None else node.col_offset
        self._changes.append((node.col_offset, end, text))

    def call_on(self, node: ast.expr, method: str) -> None:
        """Put a method call behind a part: `.detach()`."""
        if method == ".item()" and not self.numbers:
            method = ".detach()"
        self.replace(node, called_on(self.text(node), node, method))

    def result(self) -> str | None:
        """The statement with all replacements; None when there are none or it would not parse."""
        raw = self.code.encode()
        for start, end, text in sorted(self._changes, reverse=True):
            raw = raw[:start] + text.encode() + raw[end:]
        changed = raw.decode(errors="replace")
        try:
            ast.parse(changed)
        except UNPARSABLE:
            return None
        return changed if self._changes else None

    def find_record(self, name: str) -> ast.Call | None:
        """The object that is made with the one of that name in it: `Node(loss, last)`."""
        calls = (node for node in ast.walk(self.node) if isinstance(node, ast.Call))
        records = (call for call in calls if is_record(call))
        return next((r for r in records if name in map(dotted, ast.iter_child_nodes(r))), None)

    def find(self, text: str | None) -> ast.expr | None:
        """The part written as the text: what is put in rather than the key it is put in under."""
        wanted = parsed(text)
        if wanted is None:
            return None
        given = given_by(self.node)
        inside = (node for whole in given for node in reversed(list(ast.walk(whole))))
        everywhere = reversed(list(ast.walk(self.node)))
        for part in (*given, *inside, *everywhere):
            stored = isinstance(getattr(part, "ctx", None), ast.Store)
            if isinstance(part, ast.expr) and same(part, wanted) and not stored:
                return part
        return None


def given_by(node: ast.stmt) -> list[ast.expr]:
    """What a statement assigns or hands over, the last argument first."""
    value = getattr(node, "value", None)
    if isinstance(node, ast.Expr) and isinstance(value, ast.Call):
        return [*(keyword.value for keyword in reversed(value.keywords)), *reversed(value.args)]
    return [value] if isinstance(value, ast.expr) else []


def parsed(text: str | None) -> ast.expr | None:
    """An expression's tree; None when the text is none."""
    try:
        return ast.parse(text, mode="eval").body if text else None
    except UNPARSABLE:
        return None


def called_on(text: str, node: ast.expr, method: str) -> str:
    """`loss.item()`; `(a + b).detach()` where the text needs brackets."""
    plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.ListComp))
    return f"{text}{method}" if plain else f"({text}){method}"


def looks_scalar(value: ast.expr) -> bool:
    """Whether a value is one number, going by its name or the function it comes from."""
    if isinstance(value, ast.Call):
        func = value.func
        if isinstance(func, ast.Attribute) and func.attr in _REDUCING:
            return not value.args and not value.keywords
        if any(k.arg == "reduction" and not is_mean(k.value) for k in value.keywords):
            return False
        name = dotted(func).rpartition(".")[2].lower()
        return bool(_SCALAR_FUNCTIONS.fullmatch(name)) or _has_word(name, _SCALAR)
    if isinstance(value, (ast.BinOp, ast.IfExp)):
        leaves = list(attached_leaves(value))
        return bool(leaves) and all(looks_scalar(leaf) for leaf in leaves)
    if isinstance(value, ast.Subscript):
        return isinstance(value.slice, ast.Constant) and looks_scalar_name(str(value.slice.value))
    return looks_scalar_name(dotted(value).rpartition(".")[2])


def is_mean(value: ast.expr) -> bool:
    """Whether a loss's `reduction` gives one number."""
    return isinstance(value, ast.Constant) and value.value in ("mean", "sum", "batchmean")


def looks_scalar_name(name: str) -> bool:
    """Whether a variable of that name is likely one number: `recon_loss`, `acc`."""
    return _has_word(name.lower(), _SCALAR)


def looks_like_tensor(value: ast.expr) -> bool:
    """Whether a value is likely a tensor, going by its name."""
    name = dotted(value).rpartition(".")[2].lower()
    if isinstance(value, ast.Call):
        return not cut_off(value) and dotted(value.func) not in PLAIN
    known = _TENSOR | _SCALAR
    return _has_word(name, known) or _has_word(_singular(name), known) or name.endswith("prob")


def _has_word(name: str, known: frozenset[str]) -> bool:
    return any(part in known for part in name.split("_")) or name in known


def cut_off(value: ast.expr) -> bool:
    """Whether a value is written as a number or a detached tensor."""
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Name):
        return value.id.isupper() or value.id in _COEFFICIENTS
    if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Attribute):
        return value.value.attr == "shape"
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute):
        base = value.func.value
        return value.func.attr in _CUT_OFF or (isinstance(base, ast.Call) and cut_off(base))
    return dotted(value.func) in PLAIN


def attached_leaves(value: ast.expr) -> Iterator[ast.expr]:
    """Parts of a sum or product that may carry a graph."""
    if isinstance(value, ast.BinOp):
        yield from attached_leaves(value.left)
        yield from attached_leaves(value.right)
    elif isinstance(value, ast.IfExp):
        yield from attached_leaves(value.body)
        yield from attached_leaves(value.orelse)
    elif isinstance(value, (ast.UnaryOp, ast.Await)):
        yield from attached_leaves(value.operand if isinstance(value, ast.UnaryOp) else value.value)
    elif not cut_off(value):
        yield value


def detach_in(
    line: Line,
    value: ast.expr,
    *,
    holder: str = "",
    origin: str | None = None,
    single: bool | None = None,
    numbers: bool = True,
) -> bool:
    """Detach what a statement puts in; True when something was changed.

    Args:
        line: the statement.
        value: what goes in.
        holder: the holder's name, which says of a bare `v` whether it is a number.
        origin: source of what the value's variable was given, which says it better.
        single: whether the value's variable is one number, when that is known.
        numbers: whether single numbers may become plain ones by `.item()`.
    """
    if any(isinstance(node, ast.Dict) and None in node.keys for node in ast.walk(value)):
        return False  # of `{**losses}` nobody sees what is a tensor
    parts = tensor_parts(value)
    given = parsed(origin)
    for part in parts:
        bare = _is_bare(part) and looks_scalar_name(_singular(holder))
        told = isinstance(part, ast.Name) and given is not None and looks_scalar(given)
        scalar = looks_scalar(part) or bare or told
        if isinstance(part, (ast.Name, ast.Call)) and single is not None:
            scalar = single
        line.call_on(part, ".item()" if scalar and numbers else ".detach()")
    return bool(parts)


def _is_bare(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("v", "val", "value", "l", "item")


def _singular(name: str) -> str:
    word = name.lower()
    return word[:-2] if word.endswith("sses") else word.removesuffix("s")


def tensor_parts(value: ast.expr) -> list[ast.expr]:
    """The parts of a value to detach: itself, or the tensors in a tuple, dict or record."""
    members = _members(value)
    if members is not None:
        return [part for member in members for part in _tensor_parts_of_member(member)]
    leaves = list(attached_leaves(value))
    if isinstance(value, ast.BinOp) and leaves:
        scalars = [leaf for leaf in leaves if looks_scalar(leaf)]
        if len(leaves) == 1 or len(scalars) == 1:
            return (scalars or leaves)[:1]
        return [value]
    return leaves


def _tensor_parts_of_member(member: ast.expr) -> list[ast.expr]:
    if _members(member) is not None:
        return tensor_parts(member)
    if isinstance(member, (ast.BinOp, ast.IfExp)):
        parts = list(attached_leaves(member))
        return tensor_parts(member) if any(map(looks_like_tensor, parts)) else []
    return [member] if looks_like_tensor(member) and not cut_off(member) else []


def lambda_defaults(value: ast.Lambda) -> list[ast.expr]:
    """The default arguments of a lambda, which are computed as it is made."""
    keyword_only = (default for default in value.args.kw_defaults if default is not None)
    return [*value.args.defaults, *keyword_only]


def is_record(value: ast.expr) -> bool:
    """Whether a value is made by a class: it holds tensors, but is none."""
    return isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2][:1].isupper()


def _members(value: ast.expr) -> Sequence[ast.expr] | None:
    if isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        return value.elts
    if isinstance(value, ast.Dict):
        return value.values
    if isinstance(value, ast.Call) and is_record(value):
        return [*value.args, *(keyword.value for keyword in value.keywords)]
    if isinstance(value, ast.Call) and dotted(value.func) == "dict":
        return [keyword.value for keyword in value.keywords]
    return None
