"""Who holds it: one program for each way of keeping graphs, judged by name, place and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import IN_CPP, Run, staying

# name of the case: (program, words of which one is in the holder's name or place, chain has)
CASES: dict[str, tuple[str, list[str], str]] = {
    "running sum in a local": (
        """
        def epoch():
            total = 0.0
            for _ in range(40):
                loss = train_step(model, optimizer)
                total += loss  # grows
        epoch()
        """,
        ["total"],
        "local total",
    ),
    "running sum in a script's variable": (
        """
        total = 0.0
        for _ in range(40):
            loss = train_step(model, optimizer)
            total = total + loss  # grows
        """,
        ["total"],
        "global total",
    ),
    "list in a local": (
        """
        def epoch():
            losses = []
            for _ in range(40):
                losses.append(train_step(model, optimizer))  # grows
        epoch()
        """,
        ["losses"],
        "local losses: list",
    ),
    "module-level dict": (
        """
        CACHE = {}
        def remember(key, value):
            CACHE[key] = value  # grows
        for step in range(40):
            remember(step, train_step(model, optimizer))
        """,
        ["CACHE"],
        "global CACHE: dict",
    ),
    "list attribute of an object": (
        """
        class Meter:
            def __init__(self):
                self.values = []
            def update(self, value):
                self.values.append(value)  # grows
        meter = Meter()
        for _ in range(40):
            meter.update(train_step(model, optimizer))
        """,
        ["meter.values"],
        ".values: list",
    ),
    "sum attribute of a meter that is reset each epoch": (
        """
        class AverageMeter:
            def __init__(self):
                self.reset()
            def reset(self):
                self.sum = 0.0
                self.count = 0
            def update(self, value):
                self.sum += value  # grows
                self.count += 1
        meter = AverageMeter()
        for epoch in range(3):
            meter.reset()
            for _ in range(40):
                meter.update(train_step(model, optimizer))
        """,
        ["meter.sum"],
        ".sum: Tensor",
    ),
    "slots": (
        """
        class Log:
            __slots__ = ("rows",)
            def __init__(self):
                self.rows = []
        log = Log()
        for _ in range(40):
            log.rows.append(train_step(model, optimizer))  # grows
        """,
        ["log.rows"],
        ".rows: list",
    ),
    "list in a dict in an attribute": (
        """
        class Trainer:
            def __init__(self):
                self.history = collections.defaultdict(list)
            def fit(self):
                for _ in range(40):
                    loss = train_step(model, optimizer)
                    self.history["loss"].append(loss)  # grows
        Trainer().fit()
        """,
        ["self.history"],
        "['loss']",
    ),
    "tuples in a deque": (
        """
        recent = collections.deque()
        for step in range(40):
            recent.append((step, {"loss": train_step(model, optimizer)}))  # grows
        """,
        ["recent"],
        "global recent: deque",
    ),
    "records in a list": (
        """
        Row = collections.namedtuple("Row", "step loss")
        rows = []
        for step in range(40):
            rows.append(Row(step, train_step(model, optimizer)))  # grows
        """,
        ["rows"],
        "global rows: list",
    ),
    "class attribute": (
        """
        class Stash(nn.Module):
            kept = []
            def forward(self, x):
                Stash.kept.append(x)  # grows
                return x
        stash = Stash()
        for _ in range(40):
            x, y = batch()
            loss = (stash(model(x)) - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
        ["Stash.kept"],
        ".kept: list",
    ),
    "closure": (
        """
        def make_logger():
            seen = []
            def log(value):
                seen.append(value)  # grows
            return log
        log = make_logger()
        for _ in range(40):
            log(train_step(model, optimizer))
        """,
        ["seen"],
        "closes over seen",
    ),
    "lambdas in a list": (
        """
        lines = []
        def note(make):
            lines.append(make)  # grows
        for _ in range(40):
            loss = train_step(model, optimizer)
            note(lambda loss=loss: f"{loss.item():.3f}")
        """,
        ["lines"],
        "global lines: list",
    ),
    "default argument": (
        """
        def remember(value, kept=[]):
            kept.append(value)  # grows
        for _ in range(40):
            remember(train_step(model, optimizer))
        """,
        ["kept"],
        "default kept",
    ),
    "forward hook that stores raw outputs": (
        """
        activations = []
        def store(module, inputs, output):
            activations.append(output)  # grows
        model.first.register_forward_hook(store)
        for _ in range(40):
            train_step(model, optimizer)
        """,
        ["activations"],
        "global activations: list",
    ),
    "hook registered anew each step": (
        """
        def tap(layer):
            seen = []
            def hook(module, inputs, output):
                if not seen:
                    seen.append(output)
            layer.register_forward_hook(hook)  # grows
            return seen
        for _ in range(40):
            tap(model.first)
            train_step(model, optimizer)
        """,
        ["hook"],
        "_forward_hooks",
    ),
    "buffer with statistics": (
        """
        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("running_mean", torch.zeros(1))
            def forward(self, x):
                self.running_mean = 0.9 * self.running_mean + 0.1 * x.mean(0)  # grows
                return x - x.mean(0)
        norm = Norm()
        for _ in range(40):
            x, y = batch()
            loss = (norm(model(x)) - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
        ["running_mean"],
        ".running_mean",
    ),
    "module attribute that is a list": (
        """
        model.stored = []
        for _ in range(40):
            model.stored.append(train_step(model, optimizer))  # grows
        """,
        ["model.stored"],
        ".stored: list",
    ),
    "parameter average with gradients": (
        """
        average = {n: p.detach().clone() for n, p in model.named_parameters()}
        for _ in range(40):
            train_step(model, optimizer)
            for n, p in model.named_parameters():
                average[n] = 0.9 * average[n] + 0.1 * p  # grows
        """,
        ["average"],
        "global average: dict",
    ),
    "moving average of the loss": (
        """
        def fit():
            smooth = None
            for _ in range(40):
                loss = train_step(model, optimizer)
                if smooth is None:
                    smooth = loss
                smooth = 0.9 * smooth + 0.1 * loss  # grows
        fit()
        """,
        ["smooth"],
        "local smooth",
    ),
    "list of a running generator": (
        """
        def losses():
            seen = []
            while True:
                loss = train_step(model, optimizer)
                seen.append(loss)  # grows
                yield loss.item()
        source = losses()
        for _ in range(40):
            next(source)
        """,
        ["seen"],
        "seen: list",
    ),
    "list of a suspended generator": (
        """
        def keep():
            seen = []
            while True:
                seen.append((yield))  # grows
        sink = keep()
        next(sink)
        for _ in range(40):
            sink.send(train_step(model, optimizer))
        """,
        ["seen", "sink"],
        "",
    ),
    "custom function that keeps two outputs on ctx": (
        """
        class Gate(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                gate = torch.sigmoid(x)
                out = x * gate
                ctx.save_for_backward(x)
                ctx.gate = gate  # grows
                ctx.out = out  # grows
                return out, gate
            @staticmethod
            def backward(ctx, g, h):
                return g + h
        for _ in range(40):
            x, y = batch()
            out, gate = Gate.apply(model(x))
            loss = (out - y).pow(2).mean() + gate.mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
        ["ctx"],
        "",
    ),
    "linked list": (
        """
        class Node:
            def __init__(self, loss, before):
                self.loss = loss
                self.before = before
        def fit():
            last = None
            for _ in range(40):
                last = Node(train_step(model, optimizer), last)  # grows
        fit()
        """,
        ["last"],
        "local last: Node",
    ),
    "queue that is never drained": (
        """
        pending = queue.Queue()
        for _ in range(40):
            pending.put(train_step(model, optimizer))  # grows
        """,
        ["pending"],
        "global pending: Queue",
    ),
    "partials in a list": (
        """
        jobs = []
        for _ in range(40):
            jobs.append(functools.partial(print, train_step(model, optimizer)))  # grows
        """,
        ["jobs"],
        "global jobs: list",
    ),
    "cached function": (
        """
        @functools.lru_cache(maxsize=None)  # grows
        def loss_of(step):
            return train_step(model, optimizer)
        for step in range(40):
            loss_of(step)
        """,
        ["loss_of"],
        "",
    ),
    "growing tensor": (
        """
        outputs = torch.zeros(0, 1)
        for _ in range(40):
            x, y = batch()
            out = model(x)
            loss = (out - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            outputs = torch.cat([outputs, out])[-64:]  # grows
        """,
        ["outputs"],
        "global outputs: Tensor",
    ),
    "list of another thread's function": (
        """
        def worker():
            kept = []
            for _ in range(40):
                kept.append(train_step(model, optimizer))  # grows
        caught = []
        threading.excepthook = lambda args: caught.append(args.exc_value)
        thread = threading.Thread(target=worker)
        thread.start(); thread.join()
        raise caught[0]
        """,
        ["kept"],
        "local kept: list",
    ),
}


# What outlives its program, and why.
STAYING = {"custom function that keeps two outputs on ctx": IN_CPP}


@pytest.mark.parametrize("case", [staying(case, STAYING.get(case, "")) for case in CASES])
def test_the_holder_is_named(case: str, tmp_path: Path) -> None:
    """The leak is found by step 12, with the holder's name, the growing line and the chain."""
    source, words, chain = CASES[case]
    run = Run(tmp_path, source)
    assert run.stopped
    finding = run.report.findings[0]
    assert finding.kind == "graph"
    assert finding.step <= 12
    holder = finding.holders[0]
    assert any(word in f"{holder.name} {holder.where}" for word in words), holder
    assert holder.line in run.marked, (holder.line, holder.code)
    assert holder.file == run.file
    assert any(chain in line for line in holder.chain), holder.chain
    assert not run.report.failures
    assert "detach" in finding.advice or "item()" in finding.advice or "save_for" in finding.advice
