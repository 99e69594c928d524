"""What torch keeps: gradients, optimizer state, buffers, contexts, caches inside C++."""

from __future__ import annotations

from programs import COMPILED, IN_CPP, TORCHSCRIPT

from holder_cases import TIGHT, Case

CASES = {
    "gradient with a history": Case(
        "model.first.weight.grad",
        (".first: Linear", ".weight: Parameter", ".grad: Tensor"),
        ("zero_grad(set_to_none=True)",),
        """
        for _ in range(40):
            x, y = batch()
            loss = (model(x) - y).pow(2).mean()
            loss.backward(create_graph=True)  # grows
            optimizer.step()
        """,
        watch="import warnings; warnings.simplefilter('ignore')\n"
        "guard = memguard.watch(model, optimizer)\n",
        stays=IN_CPP,
    ),
    "state of parameters an optimizer no longer has": Case(
        "optimizer.state",
        ("global optimizer: SGD", ".state: defaultdict"),
        ("optimizer.state.pop(",),
        """
        optimizer.param_groups[0]["momentum"] = 0.9
        for _ in range(40):
            extra = nn.Parameter(torch.randn(64, 64))
            optimizer.add_param_group({"params": [extra], "momentum": 0.9})  # grows
            x, y = batch()
            loss = (model(x) - y).pow(2).mean() + extra.pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            del optimizer.param_groups[-1]
        """,
        kind="tensor",
        watch=TIGHT,
    ),
    "state of parameters that left an optimizer's group": Case(
        "optimizer.state",
        ("global optimizer: SGD", ".state: defaultdict"),
        ("optimizer.state.pop(",),
        """
        group = optimizer.param_groups[0]
        group["momentum"] = 0.9
        for _ in range(40):
            extra = nn.Parameter(torch.randn(64, 64))
            optimizer.param_groups[0]["params"].append(extra)  # grows
            x, y = batch()
            loss = (model(x) - y).pow(2).mean() + extra.pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            optimizer.param_groups[0]["params"].pop()
        """,
        kind="tensor",
        watch=TIGHT,
    ),
    "list in an optimizer's state": Case(
        "optimizer.state",
        (".state: defaultdict", "['losses']: list"),
        ('optimizer.state[first].setdefault("losses", []).append(loss.item())',),
        """
        first = model.first.weight
        for _ in range(40):
            loss = train_step(model, optimizer)
            optimizer.state[first].setdefault("losses", []).append(loss)  # grows
        """,
    ),
    "contexts of a custom function": Case(
        "kept",
        ("global kept: list", "GateBackward"),
        ("ctx.saved_tensors",),
        """
        kept = []
        class Gate(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                kept.append(ctx)  # grows
                return x * 2
            @staticmethod
            def backward(ctx, g):
                return g * 2
        for _ in range(40):
            x, y = batch()
            loss = (Gate.apply(model(x)) - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
        stays=IN_CPP,
    ),
    "nodes of graphs": Case(
        "kept",
        ("global kept: list", "MeanBackward0"),
        ("kept.append(loss.grad_fn.name())",),
        """
        kept = []
        for _ in range(40):
            loss = train_step(model, optimizer)
            kept.append(loss.grad_fn)  # grows
        """,
    ),
    "state carried through a compiled module": Case(
        "h",
        ("global h: Tensor",),
        ("out, h = fast(x, h.detach())",),
        """
        import warnings
        import torch._dynamo
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.GRUCell(8, 8)
            def forward(self, x, h):
                h = self.cell(x, h)
                return h.sum(), h
        fast = torch.compile(Recurrent(), backend="eager")
        h = torch.zeros(4, 8)
        try:
            for _ in range(40):
                x, y = torch.randn(4, 8), train_step(model, optimizer)
                out, h = fast(x, h)  # grows
        finally:
            torch._dynamo.reset()
        """,
        stays=COMPILED,
    ),
    "buffer with statistics": Case(
        "norm.running_mean",
        ("global norm: Norm", ".running_mean: Tensor"),
        (".detach()", "no_grad"),
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
        where="buffer of Norm",
    ),
    "module attribute": Case(
        "model.stored",
        ("global model: Net", ".stored: list"),
        ("model.stored.append(", ".detach()"),
        """
        model.stored = []
        for _ in range(40):
            model.stored.append(train_step(model, optimizer))  # grows
        """,
    ),
    "ctx of a custom function": Case(
        "ctx.gate",
        ("GateBackward", ".gate: Tensor"),
        ("ctx.save_for_backward",),
        """
        class Gate(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                gate = torch.sigmoid(x)
                out = x * gate
                ctx.save_for_backward(x)
                ctx.gate = gate  # grows
                ctx.out = out
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
        where="ctx of Gate",
        stays=IN_CPP,
    ),
    "ctx that has its input and its output": Case(
        "ctx.y",
        ("GateBackward", ".y: Tensor"),
        ("ctx.save_for_backward(y)", "in backward: y, = ctx.saved_tensors"),
        """
        class Gate(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = x * torch.sigmoid(x)
                ctx.x = x
                ctx.y = y  # grows
                return y
            @staticmethod
            def backward(ctx, g):
                return g + ctx.x + ctx.y
        import gc
        gc.disable()
        try:
            for _ in range(40):
                x, y = batch()
                loss = (Gate.apply(model(x)) - y).pow(2).mean()
                optimizer.zero_grad(); loss.backward(); optimizer.step()
        finally:
            gc.enable()
        """,
        where="ctx of Gate",
        kind="cycle",
        stays=IN_CPP,
    ),
    "pack hook that stores what it is given": Case(
        "packed",
        ("global packed: dict",),
        ("packed", "detach()"),
        """
        packed = {}
        def pack(tensor):
            packed[len(packed)] = tensor  # grows
            return len(packed) - 1
        def unpack(key):
            return packed[key]
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            for _ in range(40):
                train_step(model, optimizer)
        """,
    ),
    "attribute of a tensor that is a view of it": Case(
        "rows.first",
        ("held by C++", ".first: Tensor"),
        (".clone()",),
        """
        for _ in range(40):
            train_step(model, optimizer)
            rows = torch.randn(64, 64)
            rows.first = rows[0]  # grows
        """,
        kind="tensor",
        watch=TIGHT,
        stays=IN_CPP,
    ),
    "autocast's cache": Case(
        "the cache of torch.autocast",
        ("held by C++: the cache of torch.autocast",),
        ("torch.clear_autocast_cache()",),
        """
        with torch.autocast("cpu", dtype=torch.bfloat16):  # grows
            for _ in range(40):
                extra = torch.randn(64, 64, requires_grad=True)
                (torch.randn(8, 64) @ extra).sum().backward()
                train_step(model, optimizer)
        """,
        kind="tensor",
        watch=TIGHT,
    ),
    "constants of traced functions": Case(
        "TorchScript's compilation unit",
        ("held by C++: TorchScript",),
        ("torch.jit.trace", "once"),
        """
        import warnings
        warnings.simplefilter("ignore")
        for _ in range(40):
            train_step(model, optimizer)
            table = torch.randn(64, 64)
            torch.jit.trace(lambda x: x @ table, torch.randn(2, 64))  # grows
        """,
        kind="tensor",
        watch=TIGHT,
        stays=TORCHSCRIPT,
    ),
    "metric of a library": Case(
        "metric",
        ("global metric: Running", ".values: list"),
        ("metric.update(loss.item())",),
        """
        import metriclib
        metric = metriclib.Running()
        for _ in range(40):
            loss = train_step(model, optimizer)
            metric.update(loss)  # grows
        """,
        files={
            "site-packages/metriclib.py": """
            class Running:
                def __init__(self):
                    self.values = []
                def update(self, value):
                    self._add(value)
                def _add(self, value):
                    self.values.append(value)
            """
        },
    ),
    "trainer of a library": Case(
        "trainer",
        ("global trainer: Trainer", ".outputs: list"),
        ("detach()",),
        """
        import trainlib
        def training_step(batch):
            return train_step(model, optimizer)
        trainer = trainlib.Trainer(training_step)
        trainer.fit(range(40))  # grows
        """,
        files={
            "site-packages/trainlib.py": """
            class Trainer:
                def __init__(self, step):
                    self.step = step
                    self.outputs = []
                def fit(self, loader):
                    for batch in loader:
                        self.outputs.append(self.step(batch))
            """
        },
    ),
}
