"""Which statement of the user's source is named as the one that makes a holder grow."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from snippets import Snippet

from memguard.explain.places import Place, Spot
from memguard.explain.source import find_statement, read_line
from memguard.explain.syntax import forget_sources


@pytest.fixture(autouse=True)
def _no_sources_left() -> Iterator[None]:
    yield
    forget_sources()
    for file in [file for file in linecache.cache if file.startswith("<snippet")]:
        del linecache.cache[file]


# name, code, arguments of `Snippet.place`, expected verb and value
CASES: list[tuple[str, str, dict[str, Any], str, str | None]] = [
    (
        "running_sum",
        """
        def train(model, loader, optimizer):
            total = 0.0
            for x, y in loader:
                loss = model(x, y)
                loss.backward()
                optimizer.step()  # at 0
                total += loss  # grows
            return total

        train(1, 2, 3)  # at 1
        """,
        {"kind": "local", "name": "total", "where": "train", "container": "Tensor"},
        "accumulate",
        "loss",
    ),
    (
        "sum_written_out_with_annotation",
        """
        def train(loader, optimizer):
            total: float = 0.0
            for loss in loader:
                optimizer.step()  # at 0
                total = total + loss / len(loader)  # grows
        """,
        {"kind": "local", "name": "total", "where": "train", "container": "Tensor"},
        "accumulate",
        "loss / len(loader)",
    ),
    (
        "moving_average_with_first_value",
        """
        smooth = None
        for step in range(10):
            loss = compute()
            opt.step()  # at 0
            smooth = loss if smooth is None else 0.9 * smooth + 0.1 * loss  # grows
        """,
        {"kind": "global", "name": "smooth", "container": "Tensor"},
        "accumulate",
        "0.1 * loss",
    ),
    (
        "rows_sorted_by_a_function",
        """
        rows = []
        for step in range(10):
            loss = compute()
            opt.step()  # at 0
            rows = sorted(rows + [(step, loss)], key=lambda row: row[0])  # grows
        """,
        {"kind": "global", "name": "rows", "container": "list", "path": "[...][...]"},
        "extend",
        "(step, loss)",
    ),
    (
        "rows_turned_over_or_added_to",
        """
        rows = []
        for step in range(10):
            loss = compute()
            opt.step()  # at 0
            rows = list(zip(*rows)) if turned else rows + [(step, loss)]  # grows
        """,
        {"kind": "global", "name": "rows", "container": "list", "path": "[...][...]"},
        "extend",
        "(step, loss)",
    ),
    (
        "attribute_read_by_getattr",
        """
        for step in range(10):
            loss = compute()
            opt.step()  # at 0
            compute.hist = getattr(compute, "hist", []) + [loss]  # grows
        """,
        {"kind": "attribute", "name": "hist", "container": "list", "path": "[...]"},
        "extend",
        "loss",
    ),
    (
        "lambda_with_the_one_before_as_a_default",
        """
        cb = None
        for step in range(10):
            loss = compute()
            opt.step()  # at 0
            cb = lambda prev=cb, l=loss: l  # grows
        """,
        {"kind": "global", "name": "cb", "container": "tuple"},
        "carry",
        "lambda prev=cb, l=loss: l",
    ),
    (
        "carried_state",
        """
        def train(model, data):
            hidden = model.init_hidden(8)
            for x in data:
                out, hidden = model(x, hidden)  # at 0, grows
                out.backward(retain_graph=True)
        """,
        {"kind": "local", "name": "hidden", "where": "train", "container": "Tensor"},
        "carry",
        "model(x, hidden)",
    ),
    (
        "carried_through_another_name",
        """
        def train(cell, data, opt):
            state = cell.initial_state()
            for x in data:
                out, new_state = cell(x, state)
                loss = out.mean()
                opt.step()  # at 0
                state = new_state  # grows
        """,
        {"kind": "local", "name": "state", "where": "train", "container": "Tensor"},
        "carry",
        "new_state",
    ),
    (
        "output_of_a_carrying_call_is_not_carried_itself",
        """
        def train(cell, data, opt):
            state = None
            for x in data:
                out, state = cell(x, state)  # grows
                opt.step()  # at 0
        """,
        {"kind": "local", "name": "out", "where": "train", "container": "Tensor"},
        "assign",
        None,
    ),
    (
        "concatenated_and_cut",
        """
        import torch
        def train(model, data):
            best = torch.zeros(0)
            for x in data:
                score = model(x)  # at 0
                best = torch.cat([best, score]).topk(8).values  # grows
        """,
        {"kind": "local", "name": "best", "where": "train", "container": "Tensor"},
        "accumulate",
        "score",
    ),
    (
        "list_in_a_with_and_try_block",
        """
        def evaluate(model, loader):
            outputs = []
            for x in loader:
                try:
                    with timer("forward"):
                        out = model(x)  # at 0
                        outputs.append(out)  # grows
                except RuntimeError:
                    continue
            return outputs
        """,
        {"kind": "local", "name": "outputs", "where": "evaluate", "container": "list"},
        "append",
        "out",
    ),
    (
        "augmented_list",
        """
        def train(loader, opt):
            seen = []
            for loss in loader:
                opt.step()  # at 0
                seen += [loss]  # grows
        """,
        {"kind": "local", "name": "seen", "where": "train", "container": "list"},
        "extend",
        "loss",
    ),
    (
        "list_made_anew_from_itself",
        """
        losses = []
        for loss in stream():
            opt.step()  # at 0
            losses = [*losses, loss]  # grows
        """,
        {"kind": "global", "name": "losses", "container": "list"},
        "extend",
        "loss",
    ),
    (
        "dict_of_lists_with_the_right_key",
        """
        class Trainer:
            def __init__(self):
                self.history = {"acc": [], "loss": []}

            def step(self, batch):
                loss, acc = self.forward(batch)
                self.optimizer.step()  # at 0
                self.history["acc"].append(acc)
                self.history["loss"].append(loss)  # grows

            def fit(self, loader):
                for batch in loader:
                    self.step(batch)  # at 1
        """,
        {
            "kind": "attribute",
            "name": "history",
            "where": "Trainer",
            "container": "dict",
            "path": "['loss'][...]",
        },
        "append",
        "loss",
    ),
    (
        "setdefault",
        """
        def train(loader, opt):
            log = {}
            for loss in loader:
                opt.step()  # at 0
                log.setdefault("loss", []).append(loss)  # grows
        """,
        {"kind": "local", "name": "log", "where": "train", "container": "dict"},
        "append",
        "loss",
    ),
    (
        "alias_of_an_attribute",
        """
        class Trainer:
            def fit(self, loader):
                history = self.history
                for loss in loader:
                    self.optimizer.step()  # at 0
                    history.append(loss)  # grows
        """,
        {"kind": "attribute", "name": "history", "where": "Trainer", "container": "list"},
        "append",
        "loss",
    ),
    (
        "two_names_at_once",
        """
        def train(loader, opt):
            shown = kept = []
            for loss in loader:
                opt.step()  # at 0
                shown.append(loss)  # grows
        """,
        {"kind": "local", "name": "kept", "where": "train", "container": "list"},
        "append",
        "loss",
    ),
    (
        "lists_reached_by_a_loop_over_items",
        """
        class Meter:
            def __init__(self):
                self.values = {"a": [], "b": []}

            def update(self, **metrics):
                for name, series in self.values.items():
                    series.append(metrics[name])  # grows

        def train(loader, opt):
            meter = Meter()
            for loss in loader:
                opt.step()  # at 0
                meter.update(a=loss, b=loss)
        """,
        {"kind": "attribute", "name": "values", "where": "Meter", "container": "dict"},
        "append",
        "metrics[name]",
    ),
    (
        "free_function_fills_another_objects_list",
        """
        class Policy:
            def __init__(self):
                self.saved_log_probs = []
                self.rewards = []

        def select_action(policy, state):
            dist = policy(state)
            policy.saved_log_probs.append(dist.log_prob(dist.sample()))  # grows

        def main():
            policy = Policy()
            for episode in range(10):
                for t in range(100):
                    select_action(policy, t)
                    policy.rewards.append(1.0)
                finish(policy)  # at 0
        """,
        {
            "kind": "attribute",
            "name": "saved_log_probs",
            "where": "Policy",
            "container": "list",
            "expression": "policy.saved_log_probs",
        },
        "append",
        "dist.log_prob(dist.sample())",
    ),
    (
        "inherited_attribute",
        """
        class Base:
            def __init__(self):
                self.outputs = []

            def keep(self, out):
                self.outputs.append(out)  # grows

        class Mine(Base):
            def run(self, loader):
                for x in loader:
                    self.keep(self.model(x))
                    self.opt.step()  # at 0
        """,
        {"kind": "attribute", "name": "outputs", "where": "Mine", "container": "list"},
        "append",
        "out",
    ),
    (
        "another_class_with_the_same_attribute",
        """
        class Logger:
            def __init__(self):
                self.items = []

            def log(self, text):
                self.items.append(text)

        class Memory:
            def __init__(self):
                self.items = []

            def push(self, item):
                self.items.append(item)  # grows

        def train(loader, opt):
            memory = Memory()
            logger = Logger()
            for x in loader:
                logger.log("x")
                opt.step()  # at 0
                memory.push(x)
        """,
        {"kind": "attribute", "name": "items", "where": "Memory", "container": "list"},
        "append",
        "item",
    ),
    (
        "attribute_set_by_name",
        """
        class Stats(Module):
            def forward(self, x):
                mean = x.mean()
                setattr(self, "running", 0.9 * self.running + 0.1 * mean)  # grows
                return x

        model = Stats()
        for x in stream():
            model(x)
            opt.step()  # at 0
        """,
        {"kind": "buffer", "name": "running", "where": "Stats", "container": "Tensor"},
        "accumulate",
        "0.9 * self.running + 0.1 * mean",
    ),
    (
        "buffer_in_place",
        """
        class Norm(Module):
            def __init__(self):
                self.register_buffer("running_mean", torch.zeros(8))

            def forward(self, x):
                self.running_mean.mul_(0.9).add_(x.mean(0), alpha=0.1)  # grows
                return x

        for x in stream():
            Norm()(x)
            opt.step()  # at 0
        """,
        {"kind": "buffer", "name": "running_mean", "where": "Norm", "container": "Tensor"},
        "accumulate",
        "x.mean(0)",
    ),
    (
        "state_of_a_module",
        """
        class Net(Module):
            def __init__(self):
                self.state = None

            def forward(self, x):
                out, self.state = self.gru(x, self.state)  # grows
                return out

        net = Net()
        for x in stream():
            loss = net(x).mean()
            opt.step()  # at 0
        """,
        {"kind": "attribute", "name": "state", "where": "Net", "container": "Tensor"},
        "carry",
        "self.gru(x, self.state)",
    ),
    (
        "global_cache_filled_in_a_function",
        """
        CACHE = {}

        def embed(model, key, x):
            if key in CACHE:
                return CACHE[key]
            CACHE[key] = model(x)  # grows
            return CACHE[key]

        def main():
            for step in range(10):
                embed(model, step, data[step])
                opt.step()  # at 0

        main()  # at 1
        """,
        {"kind": "global", "name": "CACHE", "container": "dict"},
        "item",
        "model(x)",
    ),
    (
        "global_statement",
        """
        total = 0

        def train(loader):
            global total
            for loss in loader:
                opt.step()  # at 0
                total += loss  # grows
        """,
        {"kind": "global", "name": "total", "container": "Tensor"},
        "accumulate",
        "loss",
    ),
    (
        "local_of_the_same_name_is_another_variable",
        """
        losses = []

        def evaluate(loader):
            losses = []
            for loss in loader:
                losses.append(loss)

        for x in stream():
            opt.step()  # at 0
            losses.append(model(x))  # grows
        """,
        {"kind": "global", "name": "losses", "container": "list"},
        "append",
        "model(x)",
    ),
    (
        "running_loop_of_two",
        """
        def run(train_loader, val_loader, opt):
            outputs = []
            for x in train_loader:
                outputs.append(x.loss)
                opt.step()
            for x in val_loader:
                out = model(x)  # at 0
                outputs.append(out)  # grows
        """,
        {"kind": "local", "name": "outputs", "where": "run", "container": "list"},
        "append",
        "out",
    ),
    (
        "method_that_the_loop_calls_not_one_that_it_does_not",
        """
        class Trainer:
            def validate(self, x):
                self.outputs.append(self.model(x))

            def training_step(self, x):
                loss = self.model(x)
                self.outputs.append(loss)  # grows

            def fit(self, loader):
                for x in loader:
                    self.training_step(x)
                    self.optimizer.step()  # at 0
        """,
        {"kind": "attribute", "name": "outputs", "where": "Trainer", "container": "list"},
        "append",
        "loss",
    ),
    (
        "list_handed_to_a_function",
        """
        def record(store, value):
            store.append(value)  # grows

        def train(loader, opt):
            losses = []
            for loss in loader:
                opt.step()  # at 0
                record(losses, loss)
        """,
        {"kind": "local", "name": "losses", "where": "train", "container": "list"},
        "append",
        "value",
    ),
    (
        "list_handed_over_by_keyword_to_a_method",
        """
        class Run:
            def keep(self, value, *, into):
                into.append(value)  # grows

            def fit(self, loader):
                losses = []
                for loss in loader:
                    self.opt.step()  # at 0
                    self.keep(loss, into=losses)
        """,
        {"kind": "local", "name": "losses", "where": "Run.fit", "container": "list"},
        "append",
        "value",
    ),
    (
        "list_kept_by_an_object",
        """
        class Recorder:
            def __init__(self, store):
                self.store = store

            def __call__(self, value):
                self.store.append(value)  # grows

        def train(loader, opt):
            losses = []
            record = Recorder(losses)
            for loss in loader:
                opt.step()  # at 0
                record(loss)
        """,
        {"kind": "local", "name": "losses", "where": "train", "container": "list"},
        "append",
        "value",
    ),
    (
        "attribute_that_is_someone_elses_list",
        """
        class Recorder:
            def __init__(self, store):
                self.store = store

        def train(loader, opt):
            losses = []
            recorder = Recorder(losses)
            for loss in loader:
                opt.step()  # at 0
                losses.append(loss)  # grows
        """,
        {"kind": "attribute", "name": "store", "where": "Recorder", "container": "list"},
        "append",
        "loss",
    ),
    (
        "call_nobody_can_look_into",
        """
        def train(loader, opt, record):
            losses = []
            for loss in loader:
                opt.step()  # at 0
                record(losses, loss)  # grows
        """,
        {"kind": "local", "name": "losses", "where": "train", "container": "list"},
        "call",
        None,
    ),
    (
        "queue_and_heap",
        """
        import heapq

        def train(loader, opt):
            hardest = []
            for loss in loader:
                opt.step()  # at 0
                heapq.heappush(hardest, (loss, loader))  # grows
        """,
        {"kind": "local", "name": "hardest", "where": "train", "container": "list"},
        "append",
        "(loss, loader)",
    ),
    (
        "asynchronous",
        """
        async def train(loader, queue, opt):
            async for loss in loader:
                opt.step()  # at 0
                await queue.put(loss)  # grows
        """,
        {"kind": "local", "name": "queue", "where": "train", "container": "Queue"},
        "append",
        "loss",
    ),
    (
        "walrus_in_a_condition",
        """
        def train(loader, opt):
            total = 0
            for loss in loader:
                opt.step()  # at 0
                if (total := total + loss) > 5:  # grows
                    print("far")
        """,
        {"kind": "local", "name": "total", "where": "train", "container": "Tensor"},
        "accumulate",
        "loss",
    ),
    (
        "starred_and_nested_targets",
        """
        def train(cell, loader):
            state = None
            for x in loader:
                (out, *rest), (state, _) = cell(x, state)  # at 0, grows
        """,
        {"kind": "local", "name": "state", "where": "train", "container": "Tensor"},
        "carry",
        "cell(x, state)",
    ),
    (
        "inside_match",
        """
        def train(loader, opt):
            kept = []
            for kind, loss in loader:
                opt.step()  # at 0
                match kind:
                    case "main":
                        kept.append(loss)  # grows
                    case _:
                        pass
        """,
        {"kind": "local", "name": "kept", "where": "train", "container": "list"},
        "append",
        "loss",
    ),
    (
        "comprehension_for_its_effect",
        """
        def train(loader, opt):
            kept = []
            for losses in loader:
                opt.step()  # at 0
                [kept.append(loss) for loss in losses if loss > 0]  # grows
        """,
        {"kind": "local", "name": "kept", "where": "train", "container": "list"},
        "append",
        "loss",
    ),
    (
        "nonlocal_in_a_nested_function",
        """
        def train(loader, opt):
            total = 0.0

            def step(loss):
                nonlocal total
                opt.step()  # at 0
                total = total + loss  # grows

            for loss in loader:
                step(loss)  # at 1
        """,
        {"kind": "closure", "name": "total", "where": "train.<locals>.step", "container": "Tensor"},
        "accumulate",
        "loss",
    ),
    (
        "lambda_that_captures",
        """
        def train(loader, opt, log):
            for x in loader:
                loss = model(x)
                opt.step()  # at 0
                log(lambda: f"{loss:.3f}")  # grows
        """,
        {"kind": "closure", "name": "loss", "where": "train.<locals>.<lambda>"},
        "define",
        'lambda: f"{loss:.3f}"',
    ),
    (
        "nested_function_that_captures",
        """
        def train(loader, opt, log):
            for x in loader:
                loss = model(x)
                def line():  # grows
                    return f"{loss:.3f}"
                log(line)
                opt.step()  # at 0
        """,
        {"kind": "closure", "name": "loss", "where": "train.<locals>.line"},
        "define",
        None,
    ),
    (
        "default_argument",
        """
        def remember(value, seen=[]):
            seen.append(value)  # grows
            return len(seen)

        for x in stream():
            remember(model(x))
            opt.step()  # at 0
        """,
        {"kind": "default", "name": "seen", "where": "remember", "container": "list"},
        "append",
        "value",
    ),
    (
        "class_attribute",
        """
        class Net(Module):
            stash = []

            def forward(self, x):
                out = self.body(x)
                type(self).stash.append(out)  # grows
                return out

        net = Net()
        for x in stream():
            net(x)
            opt.step()  # at 0
        """,
        {"kind": "class", "name": "stash", "where": "Net", "container": "list"},
        "append",
        "out",
    ),
    (
        "hook_registered_at_every_step",
        """
        def tap(layer):
            seen = []

            def hook(module, args, output):
                seen.append(output)

            layer.register_forward_hook(hook)  # grows
            return seen

        for x in stream():
            features = tap(model.body)
            loss = model(x)
            opt.step()  # at 0
        """,
        {"kind": "hook", "name": "hook", "where": "tap.<locals>.hook"},
        "register",
        "hook",
    ),
    (
        "hook_registered_once",
        """
        class Tap:
            def __init__(self, layer):
                self.features = {}
                layer.register_forward_hook(self.store)

            def store(self, module, args, output):
                self.features[len(self.features)] = output  # grows

        tap = Tap(model.body)
        for x in stream():
            model(x)
            opt.step()  # at 0
        """,
        {"kind": "hook", "name": "store", "where": "Tap.store"},
        "item",
        "output",
    ),
    (
        "hook_made_by_a_factory",
        """
        def make_hook(name):
            def hook(module, args, output):
                print(name)
            return hook

        for x in stream():
            model.body.register_full_backward_hook(make_hook("body"))  # grows
            opt.step()  # at 0
        """,
        {"kind": "hook", "name": "hook", "where": "make_hook.<locals>.hook"},
        "register",
        'make_hook("body")',
    ),
    (
        "cached_function",
        """
        import functools

        @functools.lru_cache(maxsize=None)  # grows
        def encode(index):
            return model(data[index])

        for i in range(10):
            encode(i)
            opt.step()  # at 0
        """,
        {"kind": "cache", "name": "encode", "where": "encode"},
        "define",
        None,
    ),
    (
        "ctx_attribute_that_is_an_output",
        """
        class Gate(Function):
            @staticmethod
            def forward(ctx, x, scale):
                ctx.scale = scale
                out = x * scale
                ctx.out = out  # grows
                return out
        """,
        {"kind": "ctx", "name": "ctx", "where": "Gate"},
        "attribute",
        "out",
    ),
    (
        "attribute_that_closes_a_cycle",
        """
        class Score:
            def __init__(self, record):
                self.record = record

        class Record:
            def __init__(self, x):
                self.x = x
                self.score = None
                self.score = Score(self)  # grows
        """,
        {"kind": "cycle", "name": "score", "where": "Record"},
        "attribute",
        "Score(self)",
    ),
    (
        "parameter_averages",
        """
        def train(model, loader, opt):
            ema = {name: p.clone() for name, p in model.named_parameters()}
            for x in loader:
                opt.step()  # at 0
                for name, p in model.named_parameters():
                    ema[name] = 0.99 * ema[name] + 0.01 * p  # grows
        """,
        {"kind": "local", "name": "ema", "where": "train", "container": "dict"},
        "accumulate",
        "0.01 * p",
    ),
    (
        "object_whose_method_fills_it",
        """
        class Meter:
            def __init__(self):
                self.sum = 0

            def update(self, value):
                self.sum += value  # grows

        def train(loader, opt):
            meter = Meter()
            for loss in loader:
                opt.step()  # at 0
                meter.update(loss)
        """,
        {
            "kind": "local",
            "name": "meter",
            "where": "train",
            "container": "Meter",
            "path": ".sum",
        },
        "accumulate",
        "value",
    ),
    (
        "generator_that_keeps_what_it_yields",
        """
        kept = []

        def batches(n):
            for i in range(n):
                out = encoder(i)
                kept.append(out)  # grows
                yield out

        for x in batches(10):
            opt.step()  # at 0
        """,
        {"kind": "global", "name": "kept", "container": "list"},
        "append",
        "out",
    ),
    (
        "numbers_of_the_same_list_are_not_tensors",
        """
        log = {"loss": [], "raw": []}
        for x in stream():
            loss = model(x)
            opt.step()  # at 0
            for name in log:
                log[name].append(loss.item())
            log[key].append(loss)  # grows
        """,
        {"kind": "global", "name": "log", "container": "dict", "path": "[...][...]"},
        "append",
        "loss",
    ),
    (
        "method_that_a_library_calls",
        """
        class Model(LightningModule):
            def __init__(self):
                self.losses = []

            def training_step(self, batch):
                loss = self.net(batch)
                self.losses.append(loss)  # grows
                return loss

        def main():
            trainer.fit(Model())  # at 0
        """,
        {"kind": "attribute", "name": "losses", "where": "Model", "container": "list"},
        "append",
        "loss",
    ),
    (
        "power_iteration_through_several_names",
        """
        class Norm(Module):
            def forward(self, x):
                v = normalize(mv(self.weight, self.u))
                u = normalize(mv(self.weight.t(), v))
                self.u = u  # grows
                return x / dot(u, v)

        norm = Norm()
        for x in stream():
            norm(x)
            opt.step()  # at 0
        """,
        {"kind": "buffer", "name": "u", "where": "Norm", "container": "Tensor"},
        "accumulate",
        "u",
    ),
    (
        "entry_added_to_by_get",
        """
        def train(loader, opt):
            sums = {}
            for name, loss in loader:
                opt.step()  # at 0
                sums[name] = sums.get(name, 0.0) + loss  # grows
        """,
        {"kind": "local", "name": "sums", "where": "train", "container": "dict"},
        "accumulate",
        "loss",
    ),
    (
        "renewed_by_keyword",
        """
        class State(NamedTuple):
            losses: list

        def update(state, batch):
            loss = objective(batch)
            return state._replace(losses=state.losses + [loss])  # grows

        def main():
            state = State([])
            for batch in stream():
                state = update(state, batch)
                opt.step()  # at 0
        """,
        {
            "kind": "attribute",
            "name": "losses",
            "where": "State",
            "container": "list",
            "expression": "state.losses",
        },
        "extend",
        "loss",
    ),
    (
        "linked_list",
        """
        def train(loader, opt):
            last = None
            for loss in loader:
                opt.step()  # at 0
                last = Node(loss, before=last)  # grows
        """,
        {"kind": "local", "name": "last", "where": "train", "container": "Node"},
        "carry",
        "Node(loss, before=last)",
    ),
    (
        "averages_in_place_through_zip",
        """
        def train(model, loader, opt):
            ema = [p.clone() for p in model.parameters()]
            for x in loader:
                opt.step()  # at 0
                for average, p in zip(ema, model.parameters()):
                    average.mul_(0.9).add_(p, alpha=0.1)  # grows
        """,
        {"kind": "local", "name": "ema", "where": "train", "container": "list"},
        "accumulate",
        "p",
    ),
    (
        "inside_a_librarys_queue",
        """
        def train(loader, opt):
            results = Queue()
            for loss in loader:
                opt.step()  # at 0
                results.put(loss)  # grows
        """,
        {
            "kind": "attribute",
            "name": "queue",
            "where": "Queue",
            "container": "deque",
            "expression": "results.queue",
        },
        "append",
        "loss",
    ),
    (
        "librarys_attribute_of_a_common_name",
        """
        class World:
            def step(self, action):
                self.state.append(action)

        def train(world, opt):
            for action in stream():
                world.step(action)
                opt.step()  # at 0
                opt.add_param_group({"params": grow(action)})  # grows

        train(World(), make_optimizer())
        """,
        {
            "kind": "attribute",
            "name": "state",
            "where": "Adam",
            "container": "defaultdict",
            "expression": "opt.state",
        },
        "append",
        '{"params": grow(action)}',
    ),
    (
        "buffered_log_record",
        """
        def train(loader, opt, handler):
            for step, loss in enumerate(loader):
                opt.step()  # at 0
                log.debug("starting %s", "x")
                log.debug("step %d: loss %s", step, loss)  # grows
        """,
        {
            "kind": "local",
            "name": "handler",
            "where": "train",
            "container": "list",
            "path": ".buffer[...].args[...]",
        },
        "append",
        "loss",
    ),
    (
        "gradient_with_a_graph",
        """
        def train(loader, opt):
            for x in loader:
                loss = model(x)
                loss.backward(create_graph=True)  # grows
                opt.step()  # at 0
        """,
        {"kind": "attribute", "name": "weight", "where": "Linear", "path": ".grad"},
        "accumulate",
        None,
    ),
    (
        "cache_wrapped_around_a_method",
        """
        class Retriever:
            def __init__(self):
                self.embed = functools.lru_cache(maxsize=None)(self._embed)  # grows

            def _embed(self, prompt):
                return self.text(prompt)
        """,
        {"kind": "cache", "name": "_embed", "where": "Retriever._embed"},
        "define",
        "functools.lru_cache(maxsize=None)(self._embed)",
    ),
    (
        "lambda_hook_that_fills_a_list",
        """
        seen = []
        model.body.register_forward_hook(lambda m, i, out: seen.append(out))  # grows
        for x in stream():
            model(x)
            opt.step()  # at 0
        """,
        {"kind": "global", "name": "seen", "container": "list"},
        "append",
        "out",
    ),
    (
        "filled_slot_is_not_growth_of_a_list",
        """
        def train(loader, opt):
            kept = [None]
            for loss in loader:
                opt.step()  # at 0
                kept[0] = loss
                kept[where(loss)] = loss
                kept.insert(0, loss)  # grows
        """,
        {"kind": "local", "name": "kept", "where": "train", "container": "list"},
        "append",
        "loss",
    ),
    (
        "one_key_written_again_and_again_is_not_growth",
        """
        def train(loader, opt):
            log = {}
            for step, loss in enumerate(loader):
                opt.step()  # at 0
                log["last"] = loss
                log[step] = loss  # grows
        """,
        {"kind": "local", "name": "log", "where": "train", "container": "dict"},
        "item",
        "loss",
    ),
    (
        "function_handed_over_is_called",
        """
        def warm_up():
            kept.append(first)

        def closure():
            loss = model(x)
            kept.append(loss)  # grows
            return loss

        kept = []
        for x in stream():
            opt.step(closure)  # at 0
        """,
        {"kind": "global", "name": "kept", "container": "list"},
        "append",
        "loss",
    ),
    (
        "ctx_attribute_of_that_name",
        """
        class Pair(Function):
            @staticmethod
            def forward(ctx, x):
                a, b = x + 1, x + 2
                ctx.a = a
                ctx.b = b  # grows
                return a, b
        """,
        {"kind": "ctx", "name": "b", "where": "Pair"},
        "attribute",
        "b",
    ),
    (
        "step_overridden_in_a_subclass",
        """
        class Base:
            def fit(self, loader):
                for x in loader:
                    self.one(x)
                    self.opt.step()  # at 0

        class Mine(Base):
            def debug(self, x):
                self.kept.append(x)

            def one(self, x):
                loss = self.model(x)
                self.kept.append(loss)  # grows
        """,
        {"kind": "attribute", "name": "kept", "where": "Mine", "container": "list"},
        "append",
        "loss",
    ),
    (
        "function_of_the_same_name_as_a_method",
        """
        def record(store, value):
            store.append(value)  # grows

        class Run:
            def record(self, value):
                record(self.kept, value)

            def fit(self, loader):
                for x in loader:
                    self.record(self.model(x))
                    self.opt.step()  # at 0
        """,
        {"kind": "attribute", "name": "kept", "where": "Run", "container": "list"},
        "append",
        "value",
    ),
]


@pytest.mark.parametrize(
    ("code", "place", "verb", "value"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_statement_that_grows(
    code: str, place: dict[str, Any], verb: str, value: str | None
) -> None:
    """The marked line is found, with what it does and what it puts in."""
    snippet = Snippet(code)

    found = find_statement(snippet.place(**place), snippet.stack())

    assert found is not None
    assert (snippet.marked("grows"), verb, value) == (found.line, found.verb, found.value)


def test_multi_line_statement_is_joined() -> None:
    """A statement over several lines is told on one, by its first line and without comments."""
    snippet = Snippet(
        """
        def train(loader, opt):
            kept = []
            for x in loader:
                opt.step()  # at 0
                kept.append(
                    # the whole batch
                    {"loss": model(x),
                     "x": x}
                )
                done = True
        """
    )

    found = find_statement(snippet.place("local", "kept", "train"), snippet.stack())

    assert found is not None
    assert found.code == 'kept.append({"loss": model(x), "x": x})'
    assert found.line == 5
    assert [line for line, _ in found.context][1:] == [4, 5, 6, 7, 8, 9, 10]
    assert found.function == "train"


def test_context_passes_over_blank_lines() -> None:
    """Two lines of code before and one after are shown, with their numbers and indentation."""
    snippet = Snippet(
        """
        total = 0
        for loss in stream():

            opt.step()  # at 0

            total += loss

        print(total)
        """
    )

    found = find_statement(snippet.place("global", "total"), snippet.stack())

    assert found is not None
    wanted = (
        (2, "for loss in stream():"),
        (4, "    opt.step()  # at 0"),
        (6, "    total += loss"),
        (8, "print(total)"),
    )
    assert wanted == found.context
    assert found.function is None


def test_beginning_anew_is_never_growth() -> None:
    """Zeros, empty containers and initial states are not what makes a holder grow."""
    snippet = Snippet(
        """
        def train(model, loader, opt):
            a = torch.zeros(3).to(device)
            a = None
            a = [[] for _ in range(3)]
            a = {"x": 0.0}
            a = model.init_hidden(8)
            a = float("inf")
            for x in loader:
                opt.step()  # at 0
                a = 0
        """
    )

    assert find_statement(snippet.place("local", "a", "train"), snippet.stack()) is None


@pytest.mark.parametrize(
    ("text", "file"),
    [("", "empty.py"), ("def broken(:\n", "broken.py"), ("x = '\0'\n", "zero.py"), (None, "no.py")],
)
def test_unreadable_source_is_no_error(tmp_path: Path, text: str | None, file: str) -> None:
    """No file, an empty one and one that is not Python all give no statement."""
    path = tmp_path / file
    if text is not None:
        path.write_text(text)
    place = Place("local", "x", "x", file=str(path), function="f", first_line=1)

    assert find_statement(place, [Spot(str(path), "f", 1, 1)]) is None


def test_source_other_than_the_program_says_is_no_error() -> None:
    """A file that changed while it ran gives no statement, not an exception."""
    snippet = Snippet("x = 1\n")
    place = Place("local", "loss", "loss", file=snippet.file, function="gone", first_line=900)

    assert find_statement(place, [Spot(snippet.file, "gone", 900, 950)]) is None


def test_place_without_file() -> None:
    """A place that knows no file of its own is looked for in the files of the stack."""
    snippet = Snippet(
        """
        kept = []
        for x in stream():
            opt.step()  # at 0
            kept.append(x)
        """
    )

    found = find_statement(Place("global", "kept", "kept"), snippet.stack())

    assert found is not None
    assert found.line == 4


def test_deep_nesting_is_no_error() -> None:
    """An expression nested deeper than Python recurses gives no statement."""
    snippet = Snippet("x = 1\n")
    terms = " + ".join(["x"] * 20_000)
    lines = ["total = 0\n", "for x in range(3):\n", f"    total = total + {terms}\n"]
    linecache.cache[snippet.file] = (1, None, lines, snippet.file)
    forget_sources()

    found = find_statement(Place("global", "total", "total", file=snippet.file), [])

    assert found is None or found.line == 3


def test_long_chain_of_elif_is_read() -> None:
    """A chain of conditions longer than Python recurses does not hide what stands in it."""
    branches = "".join(f"    elif x == {i}:\n        pass\n" for i in range(400))
    code = f"kept = []\nfor x in s():\n    if x < 0:\n        pass\n{branches}    kept.append(x)\n"
    snippet = Snippet(code)

    found = find_statement(snippet.place("global", "kept"), [])

    assert found is not None
    assert found.line == 805


def test_edited_cell_is_read_again() -> None:
    """A file whose text was replaced under the same name is parsed anew."""
    first = Snippet("kept = []\nfor x in s():\n    kept.append(x)\n")
    before = find_statement(first.place("global", "kept"), [])
    again = Snippet("kept = []\n\n\nfor x in s():\n    kept.append(x)\n", first.file)

    after = find_statement(again.place("global", "kept"), [])

    assert before is not None
    assert after is not None
    assert (before.line, after.line) == (3, 5)


def test_function_known_by_its_bare_name() -> None:
    """Python 3.10 knows no qualified names: the first line tells functions apart."""
    snippet = Snippet(
        """
        class A:
            def run(self, loader):
                total = 0
                for loss in loader:
                    total += loss

        class B:
            def run(self, loader):
                total = 0
                for loss in loader:
                    total += loss
        """
    )
    place = Place("local", "total", "total", file=snippet.file, function="run", first_line=8)

    found = find_statement(place, [Spot(snippet.file, "run", 8, 10)])

    assert found is not None
    assert (found.line, found.function) == (11, "B.run")


def test_global_of_another_file(tmp_path: Path) -> None:
    """A module's variable is found where another file fills it, under the name it has there."""
    (tmp_path / "store.py").write_text("CACHE = {}\nSEEN = []\n")
    train = tmp_path / "train.py"
    train.write_text(
        "import store\nfrom store import SEEN as seen\n\n"
        "for i in range(9):\n    store.CACHE[i] = model(i)\n    seen.append(i)\n    opt.step()\n"
    )
    stack = [Spot(str(train), "<module>", 1, 7)]
    file = str(tmp_path / "store.py")

    cache = find_statement(Place("global", "CACHE", "CACHE", file=file, module="store"), stack)
    seen = find_statement(Place("global", "SEEN", "SEEN", file=file, module="store"), stack)

    assert cache is not None
    assert seen is not None
    assert (Path(cache.file).name, cache.line) == ("train.py", 5)
    assert (Path(seen.file).name, seen.line) == ("train.py", 6)


def test_function_imported_from_a_file_beside(tmp_path: Path) -> None:
    """A holder handed to a function of another file is followed there."""
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("")
    helper = tmp_path / "helpers" / "log.py"
    helper.write_text("def record(store, value):\n    store.append(value)\n")
    train = tmp_path / "train.py"
    train.write_text(
        "from helpers.log import record\n\ndef train(loader):\n    kept = []\n"
        "    for x in loader:\n        opt.step()\n        record(kept, x)\n"
    )
    place = Place("local", "kept", "kept", file=str(train), function="train", first_line=3)

    found = find_statement(place, [Spot(str(train), "train", 3, 6)])

    assert found is not None
    assert (str(helper), 2) == (found.file, found.line)


def test_class_that_a_package_hands_on(tmp_path: Path) -> None:
    """A class imported from a package's `__init__` is followed to the file it is written in."""
    package = tmp_path / "meters"
    package.mkdir()
    (package / "__init__.py").write_text("from .board import Board\n")
    board = package / "board.py"
    board.write_text(
        "class Board:\n    def __init__(self):\n        self.values = []\n\n"
        "    def add(self, value):\n        self.values.append(value)\n"
    )
    train = tmp_path / "train.py"
    train.write_text(
        "from meters import Board\n\nboard = Board()\nfor x in stream():\n"
        "    opt.step()\n    board.add(x)\n"
    )
    place = Place("global", "board", "board", "list", ".values[...]", file=str(train))

    found = find_statement(place, [Spot(str(train), "<module>", 1, 5)])

    assert found is not None
    assert (found.file, found.line) == (str(board), 6)


FUNCTIONS = """
from functools import partial

def logged(function):
    def wrapper():  # kept
        return function()
    return wrapper

class Trainer:
    def later(self):
        return self.loss

    def fit(self, loader):
        todo = []
        {decorator}
        def later(value=0):
            return value
        again = later
        for x in loader:
            opt.step()  # at 0
            todo.append(lambda: x)
            todo.append({value})  # grows
"""


@pytest.mark.parametrize(
    ("value", "name", "marked", "decorator"),
    [
        ("later", "later", "return value", ""),
        ("self.later", "later", "return self.loss", ""),
        ("partial(later, x)", "later", "return value", ""),
        ("again", "later", "return value", ""),
        ("later", "wrapper", "def wrapper", "@logged"),
    ],
)
def test_the_function_that_keeps_survivors_is_known(
    value: str, name: str, marked: str, decorator: str
) -> None:
    """By its attribute, by another name, bound to arguments, or in a decorator's wrapper."""
    snippet = Snippet(FUNCTIONS.format(value=value, decorator=decorator))
    lines = snippet.code.splitlines()
    line = next(n for n, text in enumerate(lines, 1) if marked in text)
    line -= marked.startswith("return")
    place = snippet.place(
        "local", "todo", "Trainer.fit", container="list", function_inside=(name, line)
    )
    found = find_statement(place, snippet.stack())
    assert found is not None
    assert found.line == snippet.marked("grows")


SINGLES = [
    ("loss = f(x)\n    loss.backward()\n    kept.append(loss)", True),
    ("rows = f(x)\n    rows.mean().backward()\n    kept.append(rows)", False),
    ("rows = f(x)\n    print(rows[0])\n    kept.append(rows)", False),
    ("z = f(x)\n    print(f'{z:.3f}')\n    kept.append(z)", True),
    ("z = f(x)\n    kept.append(z)", None),
    ("z = f(x)\n    z.mean()\n    z.item()\n    kept.append(z)", None),
    ("z = f(x)\n    z.backward()\n    keep(z)", True),
]


@pytest.mark.parametrize(("body", "single"), SINGLES)
def test_single_numbers_are_told_by_their_uses(body: str, single: bool | None) -> None:
    """Going backward makes a value one number, taking its mean makes it several."""
    helper = "def keep(value):\n    kept.append(value)\n" if "keep(" in body else ""
    snippet = Snippet(f"kept = []\n{helper}for x in stream():\n    {body}\n")

    found = find_statement(snippet.place("global", "kept"), [])

    assert found is not None
    assert found.single is single


def test_evaluation_prefers_the_evaluating_method() -> None:
    """Of two methods that fill the same list, the one named after what the loop does is taken."""
    snippet = Snippet(
        """
        class Model(LightningModule):
            def training_step(self, batch):
                self.outputs.append(self.net(batch))

            def validation_step(self, batch):
                self.outputs.append(self.net(batch))
        """
    )
    place = snippet.place("attribute", "outputs", "Model", container="list")

    training = find_statement(place, [], evaluation=False)
    evaluating = find_statement(place, [], evaluation=True)

    assert training is not None
    assert evaluating is not None
    assert (training.line, evaluating.line) == (3, 6)


def test_cells_of_a_notebook_share_their_variables() -> None:
    """A variable of one cell is found where a function of another cell fills it."""
    first = Snippet("losses = []\n\ndef keep(loss):\n    losses.append(loss)\n")
    second = Snippet(
        """
        for x in stream():
            keep(model(x))
            opt.step()  # at 0
        """
    )
    place = Place("global", "losses", "losses", file=second.file)
    stack = [*second.stack(), Spot(first.file, "<module>", 1, 1)]

    found = find_statement(place, stack)

    assert found is not None
    assert (found.file, found.line) == (first.file, 4)


ORIGINS = [
    ("loss = criterion(model(x), y)\n    kept.append(loss)", "criterion(model(x), y)"),
    ("raw = model(x)\n    loss = raw\n    kept.append(loss)", "model(x)"),
    ("kept.append(model(x))", None),
    ("kept.append(x)", None),
    ("try:\n        run()\n    except Bad as e:\n        kept.append(e)", "except Bad as e"),
]


@pytest.mark.parametrize(("body", "origin"), ORIGINS)
def test_origin_of_a_local_value(body: str, origin: str | None) -> None:
    """The statement tells what the variable it puts in was given before."""
    snippet = Snippet(f"kept = []\nfor x in stream():\n    {body}\n")

    found = find_statement(snippet.place("global", "kept"), [])

    assert found is not None
    assert found.origin == origin


def test_origin_is_told_by_the_caller() -> None:
    """For a parameter, the statement tells what a call gave it."""
    snippet = Snippet(
        """
        class Meter:
            def __init__(self):
                self.values = []

            def update(self, value):
                self.values.append(value)

        meter = Meter()
        for x in stream():
            loss = criterion(x)
            meter.update(loss)
        """
    )

    found = find_statement(snippet.place("attribute", "values", "Meter"), [])

    assert found is not None
    assert found.origin == "criterion(x)"


def test_read_line() -> None:
    """A line is read without its line end; a line that is not there is None."""
    snippet = Snippet("x = 1\n\n  # last")

    assert read_line(snippet.file, 1) == "x = 1"
    assert read_line(snippet.file, 3) == "  # last"
    assert read_line(snippet.file, 0) is None
    assert read_line(snippet.file, 4) is None


def calls_to_find(blocks: int) -> int:
    """Python calls that finding a statement takes in a file of so many functions."""
    block = """
def step_{n}(model, batch, opt, log):
    logits = model(batch["x"], mask=batch["mask"], scale=1.0 / (1 + {n}))
    loss = cross_entropy(logits.flatten(0, 1), batch["y"].flatten(), ignore_index=-1)
    opt.zero_grad()
    loss.backward()
    opt.step()
    log["loss_{n}"] = loss.item()
    if {n} % 10 == 0 and log:
        print(f"step {n} loss {{loss.item():.4f}}")
    return loss
"""
    code = "history = []\n" + "".join(block.format(n=n) for n in range(blocks))
    code += "for i in range(9):\n    history.append(step_7(m, b, o, {}))\n"
    snippet = Snippet(code)
    place = snippet.place("global", "history")
    last = code.count("\n")
    spot = Spot(snippet.file, "<module>", 1, last)
    forget_sources()
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = find_statement(place, [spot])
    finally:
        sys.setprofile(before)
    assert found is not None
    assert found.line == last
    return calls


def test_a_long_file_takes_no_more_than_its_length() -> None:
    """Five thousand lines take some hundreds of calls each; a file twice as long, twice as many.

    Calls are counted, since seconds depend on what else the process and the machine hold.
    """
    short, long = calls_to_find(230), calls_to_find(460)
    assert long < 500 * 11 * 460
    assert long < 2.2 * short
