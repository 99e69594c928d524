"""Variables: locals near and far, globals, attributes of every sort."""

from __future__ import annotations

from holder_cases import Case

CASES = {
    "sums by name, of numbers and losses": Case(
        "meters.sums['g']",
        ("global meters: Meters", ".sums: defaultdict"),
        ("self.sums[k] += float(v)",),
        """
        class Meters:
            def __init__(self):
                self.sums = collections.defaultdict(float)
            def update(self, **kw):
                for k, v in kw.items():
                    self.sums[k] += v  # grows
        meters = Meters()
        for _ in range(40):
            loss = train_step(model, optimizer)
            meters.update(d=loss.item(), g=loss)
        """,
    ),
    "weights that their maker goes on to use": Case(
        "adapted",
        ("global adapted: dict", "dict", "['w']: Tensor"),
        ("adapted[step] = {k: v.detach() for k, v in params.items()}",),
        """
        adapted = {}
        def adapt(step):
            params = {"w": model.first.weight * 2}
            adapted[step] = params  # grows
            return params
        for step in range(40):
            x, y = batch()
            loss = (x @ adapt(step)["w"].T).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    ),
    "outputs the loss is made of": Case(
        "model.aux",
        ("global model: Net", ".aux: list"),
        ("del model.aux[:]",),
        """
        model.aux = []
        model.first.register_forward_hook(lambda m, args, out: model.aux.append(out))  # grows
        for _ in range(40):
            x, y = batch()
            loss = (model(x) - y).pow(2).mean() + model.aux[-1].pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    ),
    "local of a running function": Case(
        "total",
        ("thread MainThread", "frame epoch (train.py:", "local total: Tensor"),
        ("total += loss.item()", "loss.detach()"),
        """
        def epoch():
            total = 0.0
            for _ in range(40):
                loss = train_step(model, optimizer)
                total += loss  # grows
        epoch()
        """,
        where="local of epoch",
    ),
    "variable of a script": Case(
        "total",
        ("module __main__", "global total: Tensor"),
        ("total = total + loss.item()",),
        """
        total = 0.0
        for _ in range(40):
            loss = train_step(model, optimizer)
            total = total + loss  # grows
        """,
        where="global of this script",
    ),
    "local of a function further up the stack": Case(
        "history",
        ("thread MainThread", "frame main (train.py:", "local history: list"),
        ("kept.append(value.item())", "value.detach()"),
        """
        def add(kept, value):
            kept.append(value)  # grows
        def one_step(trail):
            add(trail, train_step(model, optimizer))
        def main():
            history = []
            for _ in range(40):
                one_step(history)
        main()
        """,
        where="local of main",
    ),
    "script variable handed down as an argument": Case(
        "history",
        ("module __main__", "global history: list"),
        ("trail.append",),
        """
        history = []
        def one_step(trail):
            trail.append(train_step(model, optimizer))  # grows
        for _ in range(40):
            one_step(history)
        """,
        where="global of this script",
    ),
    "local of another thread's function": Case(
        "kept",
        ("thread collector", "frame collect (train.py:", "local kept: list"),
        ("kept.append(item.item())",),
        """
        inbox = queue.Queue()
        def collect():
            kept = []
            while True:
                item = inbox.get()
                if item is None:
                    return
                kept.append(item)  # grows
                inbox.task_done()
        threading.Thread(target=collect, name="collector", daemon=True).start()
        try:
            for _ in range(400):
                inbox.put(train_step(model, optimizer))
                inbox.join()
        finally:
            inbox.put(None)
        """,
        where="local of collect",
        steps=400,
    ),
    "global of another module": Case(
        "SEEN",
        ("module notes", "global SEEN: list"),
        ("SEEN.append(value.item())",),
        """
        import notes
        for _ in range(40):
            notes.note(train_step(model, optimizer))
        """,
        where="global of notes",
        files={
            "notes.py": """
            SEEN = []
            def note(value):
                SEEN.append(value)  # grows
            """
        },
    ),
    "class attribute": Case(
        "Stash.kept",
        ("Stash", ".kept: list"),
        ("Stash.kept.append(x.detach())",),
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
        where="class attribute of Stash",
    ),
    "instance attribute": Case(
        "meter.values",
        ("global meter: Meter", ".values: list"),
        ("self.values.append(value.item())",),
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
        where="attribute of Meter",
    ),
    "slot": Case(
        "log.rows",
        ("global log: Log", ".rows: list"),
        ("log.rows.append(", ".detach()"),
        """
        class Log:
            __slots__ = ("rows",)
            def __init__(self):
                self.rows = []
        log = Log()
        for _ in range(40):
            log.rows.append(train_step(model, optimizer))  # grows
        """,
        where="attribute of Log",
    ),
    "dataclass field": Case(
        "state.losses",
        ("global state: State", ".losses: list"),
        ("state.losses.append(", ".detach()"),
        """
        import dataclasses
        @dataclasses.dataclass
        class State:
            step: int = 0
            losses: list = dataclasses.field(default_factory=list)
        state = State()
        for _ in range(40):
            state.losses.append(train_step(model, optimizer))  # grows
        """,
        where="attribute of State",
    ),
    "dataclass that is added to": Case(
        "totals.loss",
        ("global totals: Metrics", ".loss: Tensor"),
        ("totals += Metrics(loss.detach(), 32)",),
        """
        import dataclasses
        @dataclasses.dataclass
        class Metrics:
            loss: torch.Tensor
            count: int = 0
            def __add__(self, other):
                return Metrics(self.loss + other.loss, self.count + other.count)
        totals = Metrics(torch.zeros(()))
        for _ in range(40):
            loss = train_step(model, optimizer)
            totals += Metrics(loss, 32)  # grows
        """,
        where="attribute of Metrics",
    ),
    "object in an attribute that is added to": Case(
        "self.totals.loss",
        (".totals: Metrics", ".loss: Tensor"),
        ("have `self.step()` give an object whose .loss is detached",),
        """
        class Metrics:
            __slots__ = ("loss",)
            def __init__(self, loss):
                self.loss = loss
            def __add__(self, other):
                return Metrics(self.loss + other.loss)
        class Trainer:
            def __init__(self):
                self.totals = Metrics(torch.zeros(()))
            def step(self):
                return Metrics(train_step(model, optimizer))
            def run(self):
                for _ in range(40):
                    self.totals = self.totals + self.step()  # grows
        Trainer().run()
        """,
        where="attribute of Metrics",
    ),
    "frozen dataclass with slots": Case(
        "state.losses",
        ("global state: State", ".losses: list"),
        ("state.losses.append(", ".detach()"),
        """
        import dataclasses
        @dataclasses.dataclass(frozen=True, slots=True)
        class State:
            losses: list = dataclasses.field(default_factory=list)
        state = State()
        for _ in range(40):
            state.losses.append(train_step(model, optimizer))  # grows
        """,
        where="attribute of State",
    ),
    "field behind a property": Case(
        "log._rows",
        ("global log: Log", "._rows: list"),
        ("log.rows.append(", ".detach()"),
        """
        class Log:
            def __init__(self):
                self._rows = []
            @property
            def rows(self):
                return self._rows
        log = Log()
        for _ in range(40):
            log.rows.append(train_step(model, optimizer))  # grows
        """,
        where="attribute of Log",
    ),
    "attribute set by name": Case(
        "board.total",
        ("global board: Board", ".total: Tensor"),
        ("detach()",),
        """
        class Board:
            total = 0.0
        board = Board()
        for _ in range(40):
            loss = train_step(model, optimizer)
            setattr(board, "total", board.total + loss)  # grows
        """,
        where="attribute of Board",
    ),
    "attributes whose names are made at run time": Case(
        "board",
        ("global board: SimpleNamespace", ".loss0: Tensor"),
        ('setattr(board, f"loss{step}", loss.item())',),
        """
        import types
        board = types.SimpleNamespace()
        for step in range(40):
            loss = train_step(model, optimizer)
            setattr(board, f"loss{step}", loss)  # grows
        """,
    ),
    "attributes of self whose names are made at run time": Case(
        "board",
        ("global board: Board", ".loss0: Tensor"),
        ('setattr(self, f"loss{step}", loss.item())',),
        """
        class Board:
            def keep(self, step, loss):
                setattr(self, f"loss{step}", loss)  # grows
        board = Board()
        for step in range(40):
            board.keep(step, train_step(model, optimizer))
        """,
    ),
    "entries of vars()": Case(
        "board",
        ("global board: Board", ".loss0: Tensor"),
        ('vars(board)[f"loss{step}"] = loss.item()',),
        """
        class Board:
            pass
        board = Board()
        for step in range(40):
            loss = train_step(model, optimizer)
            vars(board)[f"loss{step}"] = loss  # grows
        """,
    ),
    "variables whose names are made at run time": Case(
        "globals()",
        ("module __main__", "global loss"),
        ('globals()[f"loss{step}"] = loss.item()',),
        """
        for step in range(40):
            loss = train_step(model, optimizer)
            globals()[f"loss{step}"] = loss  # grows
        """,
    ),
    "tensor that concatenation makes longer": Case(
        "outputs",
        ("global outputs: Tensor",),
        ("outputs = torch.cat([outputs, out]).detach()",),
        """
        outputs = torch.zeros(0, 1)
        for _ in range(40):
            x, y = batch()
            out = model(x)
            loss = (out - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            outputs = torch.cat([outputs, out])  # grows
        """,
    ),
    "cells of a notebook": Case(
        "losses",
        ("module __main__", "global losses: list"),
        ("losses.append(", ".detach()"),
        """
        import linecache, types
        cells = types.ModuleType("__main__")
        cells.__dict__.update(train_step=train_step, model=model, optimizer=optimizer)
        def run(number, text):
            file = f"<ipython-input-{number}-3b1f>"
            linecache.cache[file] = (len(text), None, text.splitlines(True), file)
            exec(compile(text, file, "exec"), cells.__dict__)
        run(1, "losses = []")
        run(2, "def step():\\n    losses.append(train_step(model, optimizer))  # grows\\n")
        run(3, "for _ in range(40):\\n    step()\\n")
        """,
    ),
    "two holders of different survivors": Case(
        "even",
        ("global even: dict",),
        ("even[step] = loss.item()",),
        """
        odd, even = [], {}
        for step in range(40):
            loss = train_step(model, optimizer)
            if step % 2:
                odd.append(loss)
            else:
                even[step] = loss  # grows
        """,
        steps=14,
    ),
}
