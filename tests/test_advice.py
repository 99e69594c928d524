"""What a report tells the user to write, and why."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from memguard.explain.advice import Advice, advise
from memguard.explain.places import Place, Statement, Verb


def _place(name: str, **fields: Any) -> Place:
    fields.setdefault("kind", "local")
    fields.setdefault("expression", name)
    return Place(name=name, **fields)


def _statement(code: str, verb: Verb, value: str | None = None, **fields: Any) -> Statement:
    return Statement("train.py", 57, code, verb, value, **fields)


def _advice(
    place: Place, statement: Statement | None, kind: str = "graph", *, evaluation: bool = False
) -> Advice:
    return advise(kind, place, statement, evaluation=evaluation, after_backward=None)


# name, place, statement, the line to write instead
FIXES: list[tuple[str, Place, Statement, str | None]] = [
    (
        "running sum",
        _place("total_loss", container="Tensor"),
        _statement("total_loss += loss", "accumulate", "loss"),
        "total_loss += loss.item()",
    ),
    (
        "sum beside a count",
        _place("total", container="Tensor"),
        _statement("total, n = total + loss, n + 1", "accumulate", "loss"),
        "total, n = (total + loss).detach(), n + 1",
    ),
    (
        "sum beside another sum",
        _place("total", container="Tensor"),
        _statement("total, other = total + loss, other + loss_b", "accumulate", "loss"),
        "total, other = (total + loss).detach(), (other + loss_b).detach()",
    ),
    (
        "sum of a loss that may be a number already",
        _place("total", container="Tensor"),
        _statement(
            "total += loss if new else loss.item()", "accumulate", "loss if new else loss.item()"
        ),
        "total += loss.item() if new else loss.item()",
    ),
    (
        "sums of tensors and numbers in one dict",
        _place("sums", container="Tensor", path="['loss']", mixed=True),
        _statement("sums = {k: sums[k] + new[k] for k in sums}", "accumulate", "sums[k] + new[k]"),
        None,
    ),
    (
        "several losses, some of them weighted",
        _place("kept", container="list"),
        _statement("kept.extend([loss, loss * 2])", "extend", "[loss, loss * 2]"),
        "kept.extend([loss.item(), loss.item() * 2])",
    ),
    (
        "dict of tensors and numbers",
        _place("kept", container="dict", mixed=True),
        _statement("kept.update(logs)", "extend", "logs"),
        "kept.update({k: v.detach() if torch.is_tensor(v) else v for k, v in logs.items()})",
    ),
    (
        "state that begins as None",
        _place("state", container="tuple", path="[...]"),
        _statement("out, state = model(x, state)", "carry", "model(x, state)", optional=True),
        "out, state = model(x, None if state is None else tuple(s.detach() for s in state))",
    ),
    (
        "list of contexts",
        _place("kept", container="list", survivor="ctx"),
        _statement("kept.append(ctx)", "append", "ctx"),
        None,
    ),
    (
        "sum of a loss times a count",
        _place("total", container="Tensor"),
        _statement("total += loss * x.size(0)", "accumulate", "loss * x.size(0)"),
        "total += loss.item() * x.size(0)",
    ),
    (
        "sum of a criterion's result",
        _place("total"),
        _statement("total += criterion(out, y)", "accumulate", "criterion(out, y)"),
        "total += criterion(out, y).item()",
    ),
    (
        "sum of two losses",
        _place("total"),
        _statement("total += loss_a + loss_b", "accumulate", "loss_a + loss_b"),
        "total += (loss_a + loss_b).item()",
    ),
    (
        "sum of something that is no single number",
        _place("total"),
        _statement("total += features", "accumulate", "features"),
        "total += features.detach()",
    ),
    (
        "sum of a count of hits",
        _place("correct"),
        _statement("correct += (out > 0).sum()", "accumulate", "(out > 0).sum()"),
        "correct += (out > 0).sum().item()",
    ),
    (
        "sum written out",
        _place("total"),
        _statement("total = total + loss", "accumulate", "loss"),
        "total = total + loss.item()",
    ),
    (
        "sum of a parameter that callers give a loss",
        _place("sum", kind="attribute", expression="meter.sum"),
        _statement("self.sum += val * n", "accumulate", "val * n", origin="loss"),
        "self.sum += val.item() * n",
    ),
    (
        "sum that a later backward goes through",
        _place("window_loss"),
        _statement(
            "window_loss = window_loss + loss",
            "accumulate",
            "loss",
            pending="(window_loss / 4).backward() at line 60",
        ),
        "window_loss = 0.0",
    ),
    (
        "moving average",
        _place("smooth", container="Tensor"),
        _statement("smooth = 0.9 * smooth + 0.1 * loss", "accumulate", "0.1 * loss"),
        "smooth = (0.9 * smooth + 0.1 * loss).detach()",
    ),
    (
        "parameter averages",
        _place("ema", container="dict", path="['w']"),
        _statement("ema[n] = d * ema[n] + (1 - d) * p", "accumulate", "(1 - d) * p"),
        "ema[n] = (d * ema[n] + (1 - d) * p).detach()",
    ),
    (
        "averages made by a comprehension",
        _place("ema", container="dict", path="['w']"),
        _statement("ema = {n: d * ema[n] + p for n, p in ps}", "accumulate", None),
        "ema = {n: (d * ema[n] + p).detach() for n, p in ps}",
    ),
    (
        "average in place",
        _place("mean", kind="buffer", expression="norm.mean", container="Tensor"),
        _statement("self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)", "accumulate", "x.mean(0)"),
        "self.mean.mul_(0.9).add_(x.mean(0).detach(), alpha=0.1)",
    ),
    (
        "concatenation",
        _place("bank", container="Tensor"),
        _statement("bank = torch.cat([bank, z])[-64:]", "accumulate", "z"),
        "bank = torch.cat([bank, z])[-64:].detach()",
    ),
    (
        "carried state",
        _place("hidden", container="Tensor"),
        _statement("out, hidden = model(x, hidden)", "carry", "model(x, hidden)"),
        "out, hidden = model(x, hidden.detach())",
    ),
    (
        "carried pair of states",
        _place("h", container="Tensor"),
        _statement("out, (h, c) = lstm(x, (h, c))", "carry", "lstm(x, (h, c))"),
        "out, (h, c) = lstm(x, (h.detach(), c.detach()))",
    ),
    (
        "carried tuple",
        _place("state", container="Tensor", path="[...]"),
        _statement("out, state = model(x, state)", "carry", "model(x, state)"),
        "out, state = model(x, tuple(s.detach() for s in state))",
    ),
    (
        "carried by another name",
        _place("state", container="Tensor"),
        _statement("state = new_state", "carry", "new_state"),
        "state = new_state.detach()",
    ),
    (
        "carried by an attribute",
        _place("state", kind="attribute", expression="model.state", container="Tensor"),
        _statement("y, self.state = self.gru(x, self.state)", "carry", "self.gru(x, self.state)"),
        "y, self.state = self.gru(x, self.state.detach())",
    ),
    (
        "list of losses",
        _place("losses", container="list", path="[...]"),
        _statement("losses.append(loss)", "append", "loss"),
        "losses.append(loss.item())",
    ),
    (
        "list of outputs",
        _place("outs", container="list", path="[...]"),
        _statement("outs.append(out)", "append", "out"),
        "outs.append(out.detach())",
    ),
    (
        "value of no telling name in a list of losses",
        _place("losses", kind="attribute", container="list", path="[...]"),
        _statement("self.losses.append(value)", "append", "value"),
        "self.losses.append(value.item())",
    ),
    (
        "value whose caller gives a loss",
        _place("values", container="list", path="[...]"),
        _statement("values.append(v)", "append", "v", origin="criterion(out, y)"),
        "values.append(v.item())",
    ),
    (
        "loss that its mean is taken of",
        _place("losses", container="list", path="[...]"),
        _statement("losses.append(loss)", "append", "loss", single=False),
        "losses.append(loss.detach())",
    ),
    (
        "value that goes backward",
        _place("kept", container="list", path="[...]"),
        _statement("kept.append(value)", "append", "value", single=True),
        "kept.append(value.item())",
    ),
    (
        "losses of each row",
        _place("kept", container="list", path="[...]"),
        _statement(
            'kept.append(F.cross_entropy(a, b, reduction="none"))',
            "append",
            'F.cross_entropy(a, b, reduction="none")',
        ),
        'kept.append(F.cross_entropy(a, b, reduction="none").detach())',
    ),
    (
        "entry that is named at once",
        _place("entries", kind="attribute", container="dict", path="[...]"),
        _statement("value = self.entries[key] = make(key)", "item", "make(key)"),
        "value = self.entries[key] = make(key).detach()",
    ),
    (
        "dict of the step's results",
        _place("log", container="list", path="[...]['loss']"),
        _statement(
            'log.append({"step": step, "loss": loss, "out": out})',
            "append",
            '{"step": step, "loss": loss, "out": out}',
        ),
        'log.append({"step": step, "loss": loss.item(), "out": out.detach()})',
    ),
    (
        "tuple with a count",
        _place("log", container="list", path="[...][...]"),
        _statement("log.append((step, loss))", "append", "(step, loss)"),
        "log.append((step, loss.item()))",
    ),
    (
        "record of a transition",
        _place("memory", container="list", path="[...].value"),
        _statement(
            "memory.append(Transition(state, action, value))",
            "append",
            "Transition(state, action, value)",
        ),
        "memory.append(Transition(state.detach(), action, value.detach()))",
    ),
    (
        "object that has the tensor in it",
        _place("records", container="list", path="[...].loss"),
        _statement("records.append(record)", "append", "record", origin="Record(loss)"),
        None,
    ),
    (
        "list put behind a list",
        _place("losses", container="list", path="[...]"),
        _statement("losses += [loss]", "extend", "loss"),
        "losses += [loss.item()]",
    ),
    (
        "several at once",
        _place("kept", container="list", path="[...]"),
        _statement("kept.extend(parts)", "extend", "parts"),
        "kept.extend([v.detach() for v in parts])",
    ),
    (
        "dict of several",
        _place("kept", container="dict", path="['a']"),
        _statement("kept.update(parts)", "extend", "parts"),
        "kept.update({k: v.detach() for k, v in parts.items()})",
    ),
    (
        "entry of a cache",
        _place("CACHE", kind="global", container="dict", path="[...]"),
        _statement("CACHE[index] = vectors", "item", "vectors"),
        "CACHE[index] = vectors.detach()",
    ),
    (
        "entry computed by a call",
        _place("CACHE", kind="global", container="dict", path="[...]"),
        _statement("CACHE[index] = encoder(x)", "item", "encoder(x)"),
        "CACHE[index] = encoder(x).detach()",
    ),
    (
        "hook's stash",
        _place("seen", kind="hook", path=""),
        _statement("seen.append(output)", "append", "output"),
        "seen.append(output.detach())",
    ),
    (
        "hook registered anew",
        _place("hook", kind="hook"),
        _statement("layer.register_forward_hook(hook)", "register", "hook"),
        "handle = layer.register_forward_hook(hook)",
    ),
    (
        "hook that captures its own tensor",
        _place("<lambda>", kind="hook"),
        _statement("x.register_hook(lambda g: g * x)", "register", "lambda g: g * x"),
        "x.register_hook(lambda g, x=x.detach(): g * x)",
    ),
    (
        "lambda that captures the loss",
        _place("loss", kind="closure"),
        _statement('log(lambda: f"{loss}")', "define", 'lambda: f"{loss}"'),
        'log(lambda loss=loss.detach(): f"{loss}")',
    ),
    (
        "list of functions",
        _place("entries", kind="attribute", container="list", path="[...] closes over loss"),
        _statement("self.entries.append(make_line)", "append", "make_line"),
        None,
    ),
    (
        "list of exceptions",
        _place("errors", container="list", path="[...]"),
        _statement("errors.append(e)", "append", "e", origin="except RuntimeError as e"),
        "errors.append(repr(e))",
    ),
    (
        "attribute of ctx",
        _place("gate", kind="ctx", expression="ctx.gate"),
        _statement("ctx.gate = gate", "attribute", "gate"),
        "ctx.save_for_backward(gate)  # and in backward: gate, = ctx.saved_tensors",
    ),
    (
        "attribute of ctx beside what is saved already",
        _place("gate", kind="ctx", expression="ctx.gate"),
        _statement("ctx.gate = gate", "attribute", "gate", saved="x, w"),
        "ctx.save_for_backward(x, w, gate)  # and in backward: *_, gate = ctx.saved_tensors",
    ),
    (
        "unbounded cache",
        _place("encode", kind="cache"),
        _statement("@functools.cache", "define"),
        None,
    ),
    (
        "cache wrapped around a method",
        _place("encode", kind="cache"),
        _statement("self.f = lru_cache(maxsize=None)(self.encode)", "define"),
        None,
    ),
    (
        "log probabilities of an episode",
        _place("saved", kind="attribute", expression="policy.saved", container="list"),
        _statement("policy.saved.append(dist.log_prob(a))", "append", "dist.log_prob(a)"),
        "del policy.saved[:]",
    ),
    (
        "gradient with a graph",
        _place("grad", kind="attribute", expression="w.grad"),
        _statement("loss.backward(create_graph=True)", "accumulate"),
        "optimizer.zero_grad(set_to_none=True)",
    ),
    (
        "argument of a log record",
        _place("handler", container="list", path=".buffer[...].args[...]"),
        _statement('log.debug("loss %s", loss)', "append", "loss"),
        'log.debug("loss %s", loss.item())',
    ),
    (
        "best value so far",
        _place("best", container="Tensor"),
        _statement("best, at = loss, step", "assign", "loss"),
        "best, at = loss.item(), step",
    ),
    (
        "result that is needed with its graph",
        _place("out", container="Tensor"),
        _statement("out = model(x)", "assign", "model(x)"),
        None,
    ),
    (
        "coroutine that waits",
        _place("pend", container="list", path="[...] local l", layers=("list", "coroutine")),
        _statement("pend.append(work(loss))", "append", "work(loss)"),
        "pend.append(work(loss.detach()))",
    ),
    (
        "coroutine of two arguments that may be tensors or not",
        _place("pend", container="list", path="[...] local l", layers=("list", "coroutine")),
        _statement("pend.append(work(loss, batch))", "append", "work(loss, batch)"),
        None,
    ),
    (
        "generator that has the one before",
        _place("g", container="generator", path=" local l", layers=("generator", "generator")),
        _statement("g = gen(loss, g)", "carry", "gen(loss, g)"),
        "g = gen(loss.detach(), g)",
    ),
    (
        "partial that has the one before",
        _place(
            "f",
            container="tuple",
            path=" bound argument[...]",
            layers=("partial", "tuple", "tuple"),
        ),
        _statement("f = functools.partial(add, (f, loss))", "accumulate", "loss"),
        "f = functools.partial(add, (f, loss.detach()))",
    ),
    (
        "lambda that has the one before",
        _place("cb", container="tuple", path=" default l", layers=("function", "function")),
        _statement("cb = lambda prev=cb, l=loss: l", "carry", "lambda prev=cb, l=loss: l"),
        "cb = lambda prev=cb, l=loss.detach(): l",
    ),
    (
        "list that is computed and assigned",
        _place("hist", kind="attribute", container="list", path="[...]", layers=("list",)),
        _statement("run.hist = older + newer", "attribute", "older + newer"),
        "run.hist = [v.detach() for v in (older + newer)]",
    ),
    (
        "dict that its maker goes on to use",
        _place("adapted", container="dict", path="[...]['w']", layers=("dict", "dict")),
        _statement("adapted[name] = params", "item", "params"),
        "adapted[name] = {k: v.detach() for k, v in params.items()}",
    ),
    (
        "dict under a key of its own",
        _place("log", container="dict", path="[...]['loss']", layers=("dict", "dict"), mixed=True),
        _statement('log[batch["step"]] = batch', "item", "batch"),
        'log[batch["step"]] = '
        "{k: v.detach() if torch.is_tensor(v) else v for k, v in batch.items()}",
    ),
    (
        "object with a dict, under a key of its own",
        _place(
            "seen",
            container="OrderedDict",
            path="[...].payload['loss']",
            layers=("OrderedDict", "Event", "dict"),
            mixed=True,
        ),
        _statement('self.seen[ev.payload["step"]] = ev', "item", "ev"),
        None,
    ),
    (
        "tensor under a key read off it",
        _place("log", container="dict", path="[...]", layers=("dict",)),
        _statement("log.setdefault(out.shape[0], []).append(out)", "append", "out"),
        "log.setdefault(out.shape[0], []).append(out.detach())",
    ),
    (
        "dict that has other things as well",
        _place("kept", container="list", path="[...]['w']", layers=("list", "dict"), mixed=True),
        _statement("kept.append(row)", "append", "row"),
        "kept.append({k: v.detach() if torch.is_tensor(v) else v for k, v in row.items()})",
    ),
    (
        "carried list of pairs",
        _place("states", container="list", path="[...][...]", layers=("list", "tuple")),
        _statement("out, states = model(x, states)", "carry", "model(x, states)"),
        None,
    ),
    (
        "carried dict",
        _place("state", container="dict", path="['h']", layers=("dict",)),
        _statement("out, state = model(x, state)", "carry", "model(x, state)"),
        "out, state = model(x, {k: v.detach() for k, v in state.items()})",
    ),
    (
        "state carried beside a count",
        _place("h", container="Tensor"),
        _statement("h, seen = model(x, h, seen)", "carry", "model(x, h, seen)"),
        "h, seen = model(x, h.detach(), seen)",
    ),
    (
        "sum of what callers give as a tensor or a number",
        _place("total", container="Tensor"),
        _statement("self.total += v", "accumulate", "v", either=True, single=True),
        "self.total += float(v)",
    ),
    (
        "such a sum that goes on as a tensor",
        _place("total", container="Tensor"),
        _statement(
            "total = total + v * n", "accumulate", "v * n", either=True, single=True, as_tensor=True
        ),
        "total = total + torch.as_tensor(v * n).detach()",
    ),
    (
        "average of what callers give as a tensor or a number",
        _place("mean", container="Tensor"),
        _statement("mean = 0.9 * mean + 0.1 * v", "accumulate", "0.1 * v", either=True),
        "mean = torch.as_tensor(0.9 * mean + 0.1 * v).detach()",
    ),
    (
        "outputs that the loss is made of",
        _place("aux", kind="attribute", expression="net.moe.aux", container="list", path="[...]"),
        _statement("self.aux.append(gate)", "append", "gate", differentiated=True),
        "del net.moe.aux[:]",
    ),
    (
        "such outputs, reached by another function's variable",
        _place(
            "saved",
            kind="attribute",
            expression="policy.saved",
            container="list",
            path="[...]",
            reached_in="main",
        ),
        _statement(
            "self.saved.append(out)", "append", "out", differentiated=True, function="Policy.act"
        ),
        "del policy.saved[:]  # in main, after the optimizer step",
    ),
    (
        "such outputs, by layer",
        _place(
            "feats",
            expression="taps.feats",
            container="list",
            path="['1'][...]",
            layers=("dict", "list"),
            grouped=True,
        ),
        _statement(
            "self.feats.setdefault(name, []).append(out)", "append", "out", differentiated=True
        ),
        "for kept in taps.feats.values(): kept.clear()",
    ),
    (
        "such outputs, in a dict that has other things as well",
        _place("run", container="list", path="['hist'][...]", layers=("dict", "list")),
        _statement('run["hist"].append(out)', "append", "out", differentiated=True),
        None,
    ),
    (
        "outputs that nothing reads, beside a backward to come",
        _place("kept", container="list", path="[...][...]", layers=("dict", "list")),
        _statement(
            "kept.setdefault(k, []).append(out)",
            "append",
            "out",
            pending="loss.backward() at line 60",
            unread=True,
        ),
        "kept.setdefault(k, []).append(out.detach())",
    ),
    (
        "future whose result a library keeps under a name of its own",
        _place("futures", container="Tensor", path="[...]", layers=("list", "Future")),
        _statement("futures.append(f)", "append", "f"),
        None,
    ),
    (
        "list in a dict that several dicts have",
        _place(
            "runs",
            container="list",
            path="[...]['curve'][...]",
            layers=("list", "dict", "list"),
        ),
        _statement('run["curve"].append(loss)', "append", "loss", depth=3),
        'run["curve"].append(loss.item())',
    ),
    (
        "call nobody can look into",
        _place("losses", container="list"),
        _statement("record(losses, loss)", "call"),
        None,
    ),
]


@pytest.mark.parametrize(
    ("place", "statement", "fix"), [case[1:] for case in FIXES], ids=[case[0] for case in FIXES]
)
def test_fix_is_the_users_line_rewritten(
    place: Place, statement: Statement, fix: str | None
) -> None:
    """The user's own line comes back with what it needs, is Python, and stands in the advice."""
    told = _advice(place, statement)

    assert told.fix == fix
    if fix is not None:
        ast.parse(f"{fix}\ndef f(): ..." if fix.startswith("@") else fix)
        assert fix in told.advice


@pytest.mark.parametrize(
    ("place", "statement"), [case[1:3] for case in FIXES], ids=[case[0] for case in FIXES]
)
def test_graph_advice_names_the_cure(place: Place, statement: Statement) -> None:
    """Whatever the shape, one line says how graphs are let go, and one sentence says why."""
    told = _advice(place, statement)

    cures = ("detach", "item()", "save_for_backward")
    assert any(cure in told.advice for cure in cures)
    assert "\n" not in told.advice
    assert told.why
    assert not told.why.endswith(".")


def test_gradients_are_switched_off_in_the_thread_that_calls_the_model() -> None:
    """Around the loop that starts the threads it would change nothing."""
    statement = _statement("futures.append(f)", "append", "f", threaded="evaluate")
    place = _place("futures", container="list", path="[...]._result", layers=("list", "Future"))

    told = _advice(place, statement, evaluation=True)

    assert "inside evaluate" in told.advice
    assert "run the loop" not in told.advice


@pytest.mark.parametrize(("kind", "word"), [("graph", "late or never"), ("cycle", "only")])
def test_a_ctx_is_told_as_it_was_seen_to_be_freed(kind: str, word: str) -> None:
    """What a collection has freed is not told to be out of the collector's reach."""
    place = _place("y", kind="ctx", expression="ctx.y")
    told = _advice(place, _statement("ctx.y = y", "attribute", "y"), kind)
    assert word in told.why
    assert "ctx.save_for_backward(y)" in told.advice


def test_a_function_that_was_handed_in_is_not_told_to_be_called() -> None:
    """It is to be called later; what it captures is bound where it is made."""
    place = _place(
        "callbacks",
        container="list",
        path="[...] default loss",
        layers=("list", "function"),
        function_inside=("<lambda>", 12),
    )
    told = _advice(place, _statement("callbacks.append(fn)", "append", "fn"))
    assert told.fix is None
    assert "where the lambda is made (line 12), bind loss.detach()" in told.advice


def test_a_slice_is_cloned_before_anything_is_bounded() -> None:
    """A bound alone would still keep all that each entry was cut from."""
    place = _place("firsts", container="list", path="[...]", layers=("list",), partial=True)
    told = _advice(place, _statement("firsts.append(x[0])", "append", "x[0]"), "tensor")
    assert told.fix == "firsts.append(x[0].clone())"


def test_nodes_are_not_told_to_be_detached() -> None:
    """A node has no `.detach()`; its name is what one may want to keep."""
    place = _place("kept", container="list", survivor="node")
    told = _advice(place, _statement("kept.append(loss.grad_fn)", "append", "loss.grad_fn"))
    assert told.fix == "kept.append(loss.grad_fn.name())"
    assert "detach" not in told.advice


def test_reinforce_advice_clears_and_detaches() -> None:
    """For values that a backward has used, the advice has both clearing and detaching."""
    place = _place("saved", kind="attribute", expression="policy.saved", container="list")

    told = _advice(place, _statement("policy.saved.append(log_prob)", "append", "log_prob"))

    assert "policy.saved.clear()" in told.advice
    assert "detach()" in told.advice


def test_list_that_a_later_backward_goes_through_is_cleared() -> None:
    """Numbers in place of losses would break the backward that is still to come."""
    place = _place("kept", container="list", path="[...]")
    pending = "torch.stack(kept).sum().backward() at line 60"

    told = _advice(place, _statement("kept.append(loss)", "append", "loss", pending=pending))

    assert told.fix == "del kept[:]"


def test_sum_can_stay_on_the_device() -> None:
    """Besides the number there is the way without a device synchronisation."""
    told = _advice(_place("total"), _statement("total += loss", "accumulate", "loss"))

    assert told.alternative == "loss.detach() to stay on the device"
    assert told.why == "total is part of every step's graph, so it keeps them all"


def test_evaluation_needs_no_graph() -> None:
    """In a loop without backward, no_grad comes first and detaching is still named."""
    place = _place("outs", container="list", path="[...]")

    told = _advice(place, _statement("outs.append(out)", "append", "out"), evaluation=True)

    assert told.advice.startswith("run the loop under `with torch.no_grad():`")
    assert "torch.inference_mode()" in told.advice
    assert "outs.append(out.detach())" in told.advice
    assert told.fix == "outs.append(out.detach())"


def test_hook_advice_removes_and_detaches() -> None:
    """A hook registered at every step is to be removed, or registered once."""
    told = _advice(
        _place("hook", kind="hook"),
        _statement("h = layer.register_forward_hook(hook)", "register", "hook"),
    )

    assert "h.remove()" in told.advice
    assert "detach()" in told.advice
    assert "once before the loop" in told.advice


@pytest.mark.parametrize(
    ("after_backward", "activations"), [(True, False), (False, True), (None, False)]
)
def test_why_tells_what_is_kept(after_backward: bool | None, activations: bool) -> None:
    """Activations are named as kept only when backward has not freed them."""
    told = advise(
        "graph",
        _place("outs", container="list", path="[...]"),
        _statement("outs.append(out)", "append", "out"),
        evaluation=False,
        after_backward=after_backward,
    )

    assert ("activations" in told.why) == activations


def test_without_a_statement_the_holder_is_named() -> None:
    """Where the source does not tell, the advice still says what to put into which holder."""
    told = _advice(_place("history", expression="trainer.history", container="list"), None)

    assert told.fix is None
    assert "trainer.history" in told.advice
    assert "detach()" in told.advice
    assert ".item()" in told.advice


def test_cycle_is_broken_by_a_weak_reference() -> None:
    """The attribute that closes a cycle is rewritten to refer weakly; collections are explained."""
    place = _place("score", kind="cycle", owner="Record")

    made = _advice(place, _statement("self.score = Score(self)", "attribute", "Score(self)"))
    given = _advice(place, _statement("self.score = score", "attribute", "score"), "cycle")

    assert made.fix == "self.score = Score(weakref.proxy(self))  # import weakref"
    assert given.fix == "self.score = weakref.proxy(score)  # import weakref"
    assert "weakref.ref" in made.advice
    assert "gc" in made.advice


# name, kind, place, statement, the line to write, words the advice has
GROWING: list[tuple[str, str, Place, Statement | None, str | None, list[str]]] = [
    (
        "detached tensors in a list",
        "tensor",
        _place("kept", container="list"),
        _statement("kept.append(z.detach())", "append", "z.detach()"),
        "kept.append(z.detach()); del kept[:-N]",
        ["deque(maxlen=N)", "clear()", "z.detach().cpu()"],
    ),
    (
        "tensors in a dict",
        "tensor",
        _place("CACHE", kind="global", container="dict"),
        _statement("CACHE[i] = z", "item", "z"),
        "if len(CACHE) > N: CACHE.pop(next(iter(CACHE)))",
        ["bound it", "z.cpu()"],
    ),
    (
        "copies of the weights",
        "tensor",
        _place("snapshots", kind="attribute", expression="saver.snapshots", container="list"),
        _statement(
            "self.snapshots.append(copy.deepcopy(model.state_dict()))",
            "append",
            "copy.deepcopy(model.state_dict())",
        ),
        "self.snapshots = [copy.deepcopy(model.state_dict())]",
        ["best", "torch.save"],
    ),
    (
        "rows cut from a batch",
        "tensor",
        _place("rows", container="list"),
        _statement("rows.append(batch[0])", "append", "batch[0]"),
        "rows.append(batch[0]); del rows[:-N]",
        [".clone()"],
    ),
    (
        "tensor that is made longer",
        "tensor",
        _place("kv", container="Tensor"),
        _statement("kv = torch.cat([kv, new])", "accumulate", "new"),
        "kv = kv[-N:].clone()",
        ["start anew"],
    ),
    (
        "text in a list",
        "host",
        _place("trail", container="list"),
        _statement("trail.append(entry)", "append", "entry"),
        "trail.append(entry); del trail[:-N]",
        ["disk"],
    ),
    (
        "list known by another name where it grows",
        "host",
        _place("trail", kind="global", container="list"),
        _statement("audit_trail.append(entry)", "append", "entry"),
        "audit_trail.append(entry); del audit_trail[:-N]",
        ["deque"],
    ),
    (
        "cache of a data set's workers",
        "worker",
        _place("decoded", kind="attribute", expression="dataset.decoded", container="dict"),
        _statement("self.decoded[i] = x", "item", "x"),
        None,
        ["dataset.decoded", "persistent_workers=False"],
    ),
    (
        "cache of tensors",
        "tensor",
        _place("encode", kind="cache"),
        _statement("self.f = lru_cache(maxsize=None)(self.encode)", "define"),
        "self.f = lru_cache(maxsize=16)(self.encode)",
        ["cache_clear()"],
    ),
    ("fragments", "reserved", _place("x"), None, None, ["expandable_segments"]),
    ("declared dead", "stale", _place("model"), None, "del model", ["del model"]),
    ("gradients not cleared", "grad", _place("x"), None, "optimizer.zero_grad()", ["backward"]),
]


@pytest.mark.parametrize(
    ("kind", "place", "statement", "fix", "words"),
    [case[1:] for case in GROWING],
    ids=[case[0] for case in GROWING],
)
def test_growth_without_graphs(
    kind: str, place: Place, statement: Statement | None, fix: str | None, words: list[str]
) -> None:
    """Where detaching does not help, the advice bounds, clears or moves what is kept."""
    told = _advice(place, statement, kind)

    assert told.fix == fix
    ast.parse(fix or "")
    assert [word for word in words if word not in told.advice] == []


@pytest.mark.parametrize("code", ["for x in kept:", "x = (", "", "def f(): ..."])
def test_line_that_cannot_be_rewritten(code: str) -> None:
    """A line that is no whole statement gives words instead of a wrong line."""
    told = _advice(_place("kept", container="list"), _statement(code, "append", "x"))

    assert told.fix is None
    assert "detach()" in told.advice
