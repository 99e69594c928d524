"""Where a holder lives, as text and numbers: handed from the chain search to the source search."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from memguard.explain.syntax import Scope, dotted

PlaceKind = Literal[
    "local",  # variable of a running or suspended function
    "global",  # variable of a module
    "attribute",  # attribute of an instance (plain, slots, dataclass, nn.Module)
    "buffer",  # registered buffer of an nn.Module
    "class",  # class attribute
    "closure",  # cell variable of a function that outlived its caller
    "default",  # default argument of a function
    "argument",  # argument bound by a functools.partial
    "hook",  # hook registered on a module, tensor or node; `name` is the hook function's
    "cache",  # functools.cache / lru_cache; `name` is the decorated function's
    "ctx",  # attribute of a custom autograd.Function's ctx; `owner` is the Function subclass
    "state",  # state of an optimizer, by parameter
    "built",  # what a comprehension or call is still building; `name` is what it is assigned to
    "native",  # memory that C++ holds for an API of torch's; `name` says which
    "cycle",  # reference cycle with no root; `owner` is one class of it, `name` an attribute in it
]


@dataclass(frozen=True, slots=True)
class Spot:
    """One frame of the user's stack when the step ended.

    Attributes:
        file: the code's file, as `co_filename` has it.
        function: `co_qualname` (or `co_name` on 3.10); `<module>` at top level.
        first_line: `co_firstlineno`.
        line: line being executed.
        repeated: whether it has ended and is run again and again as a whole, as a test is.
    """

    file: str
    function: str
    first_line: int
    line: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The accumulation point, located.

    Attributes:
        kind: what sort of variable holds it.
        name: bare name: `total_loss`, `history`, `PARAGRAPH_CACHE`.
        expression: as reached from the user's variable: `total_loss`, `trainer.history`.
        container: type of the object held under the name: `list`, `dict`, `Tensor`, `deque`.
        path: subscripts and attributes between the name and the survivor, indices masked:
            `[...]`, `['loss'][...]`, `.values`.
        file: file of the function, class or module that owns the name, when known.
        function: qualified name of the owning function (`local`, `closure`, `default`,
            `argument`, `hook`, `cache`, `built`).
        first_line: `co_firstlineno` of that function.
        owner: qualified name of the owning class (`attribute`, `class`, `buffer`, `ctx`, `cycle`).
        module: name of the owning module.
        entries: how many hooks or cached results it has now, where that says something.
        limit: entries a cache may have at most.
        survivor: what hangs on it: a tensor, or what is no tensor and keeps a graph all the same:
            a `node` (a `grad_fn`), or the `ctx` of a custom Function, which is one as well.
        layers: types of the objects from the named variable's own value down to what has the
            survivor in it: `list`, `tuple` for a tensor in a tuple in a list; empty where the
            variable is the survivor itself, or nobody knows.
        mixed: whether anything but tensors stands beside them in what has the survivor.
        partial: whether the survivor is a small part of the memory that it keeps, as a slice is.
        length: entries that the container has now; None where it has none, or lies within what
            the name says.
        recurs: whether its keys look like a fixed set, so that entries are overwritten in time.
        numbers: integers visible from there by the name a user would type
            (`capacity`, `self.capacity`, `N`): they give a bound its value.
        function_inside: name and first line of the function in it that keeps the survivor by what
            it closes over or its default arguments; None where that is no function.
        grouped: whether the named container is a dict of lists that have tensors only.
        reached_in: the running function, by qualified name, in which `expression` is valid, as it
            begins with one of its variables; None where it begins with anything else.
    """

    kind: PlaceKind
    name: str
    expression: str
    container: str = ""
    path: str = ""
    file: str | None = None
    function: str | None = None
    first_line: int | None = None
    owner: str | None = None
    module: str | None = None
    entries: int | None = None
    limit: int | None = None
    layers: tuple[str, ...] = ()
    mixed: bool = False
    partial: bool = False
    length: int | None = None
    recurs: bool = False
    survivor: Literal["tensor", "node", "ctx"] = "tensor"
    numbers: Mapping[str, int] = field(default_factory=dict)
    function_inside: tuple[str, int] | None = None
    grouped: bool = False
    reached_in: str | None = None

    def is_function_inside(
        self, value: ast.expr, lookup: Callable[[str], Scope | None] = lambda name: None
    ) -> bool | None:
        """Whether an expression gives the function in it that keeps the survivor; None: may be.

        Args:
            value: what a statement puts in: `later`, `self.later`, `partial(later, x)`, a lambda.
            lookup: the function that a plain name stands for, also by another name.
        """
        if self.function_inside is None:
            return None
        name, line = self.function_inside
        if isinstance(value, ast.Lambda):
            return name == "<lambda>" and value.lineno == line
        if isinstance(value, ast.Call):
            bound = dotted(value.func).rpartition(".")[2] == "partial" and bool(value.args)
            return self.is_function_inside(value.args[0], lookup) if bound else None
        if not isinstance(value, (ast.Name, ast.Attribute)):
            return False if isinstance(value, (ast.Constant, ast.JoinedStr)) else None
        found = lookup(value.id) if isinstance(value, ast.Name) else None
        if found is None or not found.is_function:
            return True if dotted(value).rpartition(".")[2] == name else None
        if (found.name, found.first) == (name, line):
            return True
        return None if found.marks else False  # a decorator may put any function in its place


@dataclass(frozen=True, slots=True)
class Release:
    """A statement that empties or bounds the holder, standing in the same loop as its growth.

    Attributes:
        line: where it stands.
        code: the statement.
        bound: entries (or steps) after which it takes effect, when the source says so; else None.
        outer: whether it stands in a loop around the one that makes the holder grow.
    """

    file: str
    line: int
    code: str
    bound: int | None = None
    outer: bool = False


Verb = Literal[
    "append",  # x.append(v), x.add(v), x.insert, x.put, x.setdefault(k, []).append(v)
    "extend",  # x.extend(vs), x += [v], x.update(d)
    "accumulate",  # x += v, x = x + v, x = a * x + b * v, x = torch.cat([x, v]), x.add_(v)
    "carry",  # x comes back out of a call it went into: out, x = model(inp, x)
    "item",  # x[k] = v
    "attribute",  # o.x = v, self.x = v
    "assign",  # x = v
    "build",  # x = [f(v) for v in vs], x = sum(f(v) for v in vs)
    "raise",  # raise x, raise E from x: exceptions keep the frames they pass
    "show",  # the last line of a notebook's cell, whose result the session keeps
    "register",  # module.register_forward_hook(hook) and its like
    "call",  # record(x, v): grows inside something without source
    "define",  # def/lambda/decorator that makes the holder
]


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement that makes a holder grow.

    Attributes:
        value: source of what is put in (`loss`, `output`, `make_line`); None when there is none.
        function: qualified name of the enclosing function; None at module level.
        context: (line, text) of a few lines around, indentation kept.
        release: the statement that bounds it, if one stands in the same loop.
        pending: words for what the loop will still do that would free the graphs
            (`loss.backward() at line 40`), when the source shows it; else None.
        origin: source of what the value's variable was given (`criterion(out, y)`), by its
            assignment or its function's caller; `except Bad as error` for a caught exception.
        single: whether that variable is one number, going by what else is done with it (True after
            `loss.backward()`, False after `rows.mean()`); None when the source does not show it.
        as_tensor: whether the file goes on to use what is kept as tensors, so that plain numbers
            in their place would break it.
        optional: whether the file gives the holder None as its first value.
        holder: the holder as the statement has it where it is no variable: `globals()`.
        either: whether the value may be a plain number as well as a tensor, by what callers give.
        differentiated: whether the program goes backward through what the holder keeps.
        saved: what the same function gives `ctx.save_for_backward` already: `x, weight`.
        depth: references from the holder down to what is put in, where the source shows them all;
            else 0.
        unread: whether no other statement of the user's files reads what has the holder's name.
        threaded: the function that calls the model in threads of its own, by the running loop.
    """

    file: str
    line: int
    code: str
    verb: Verb
    value: str | None = None
    function: str | None = None
    context: tuple[tuple[int, str], ...] = ()
    release: Release | None = None
    pending: str | None = None
    origin: str | None = None
    single: bool | None = None
    as_tensor: bool = False
    optional: bool = False
    holder: str | None = None
    either: bool = False
    differentiated: bool = False
    saved: str = ""
    depth: int = 0
    unread: bool = False
    threaded: str | None = None
