"""Containers, builtin and from the standard library, and what iterators keep."""

from __future__ import annotations

from holder_cases import TIGHT, Case

CASES = {
    "dict with all the losses of a task in it": Case(
        "rows",
        ("global rows: list", "[...]: dict"),
        ("put .detach() tensors or .item() numbers into rows",),
        """
        rows = []
        for step in range(40):
            losses = {"first": train_step(model, optimizer)}
            rows.append({"step": step, **losses})  # grows
        """,
    ),
    "pairs that are put in together": Case(
        "everything",
        ("global everything: list", "[...]: tuple"),
        ("keep .detach() copies or .item() numbers",),
        """
        everything = []
        for step in range(40):
            losses, rewards = [train_step(model, optimizer)], [1.0]
            everything.extend(zip(losses, rewards))  # grows
        """,
    ),
    "dict beside a branch that would write it as a ring": Case(
        "cache",
        ("global cache: dict", "[...]: Tensor float32 []"),
        ("cache[step] = loss.item()",),
        """
        cache, ring = {}, False
        for step in range(40):
            loss = train_step(model, optimizer)
            if ring:
                cache[step % 4] = loss
            else:
                cache[step] = loss  # grows
        """,
    ),
    "list into which a branch puts objects of another class": Case(
        "kept",
        ("global kept: list", "[...]: Row", ".loss: Tensor"),
        ("of what is read of row",),
        """
        class Mark:
            def __init__(self, loss):
                self.loss = loss
        class Row:
            pass
        kept, marking = [], False
        for _ in range(40):
            loss = train_step(model, optimizer)
            if marking:
                kept.append(Mark(loss))
            if not marking:
                row = Row()
                row.loss = loss
                kept.append(row)  # grows
        """,
    ),
    "slices of large tensors": Case(
        "firsts",
        ("global firsts: list", "[...]: Tensor float32 [100]"),
        ("firsts.append(torch.randn(400, 100)[0].clone())",),
        """
        firsts = []
        for _ in range(40):
            train_step(model, optimizer)
            firsts.append(torch.randn(400, 100)[0])  # grows
        """,
        kind="tensor",
        watch=TIGHT,
    ),
    "rows of numbers and losses, sorted": Case(
        "rows",
        ("global rows: list", "[...]: tuple"),
        ("rows = sorted(rows + [(step, loss.item())], key=lambda row: row[0])",),
        """
        rows = []
        for step in range(40):
            loss = train_step(model, optimizer)
            rows = sorted(rows + [(step, loss)], key=lambda row: row[0])  # grows
        """,
    ),
    "list in a dict in an attribute": Case(
        "self.history",
        ("local self: Trainer", ".history: dict", "['loss']: list"),
        ('self.history["loss"].append(loss.item())',),
        """
        class Trainer:
            def __init__(self):
                self.history = {"loss": []}
            def fit(self):
                for _ in range(40):
                    loss = train_step(model, optimizer)
                    self.history["loss"].append(loss)  # grows
        Trainer().fit()
        """,
    ),
    "lists in dicts that a loop runs over": Case(
        "runs",
        ("global runs: list", "[...]: dict", "['losses']: list"),
        ('run["losses"].append(loss.',),
        """
        runs = [{"name": name, "model": model, "losses": []} for name in "ab"]
        for _ in range(20):
            for run in runs:
                loss = train_step(run["model"], optimizer)
                run["losses"].append(loss)  # grows
        """,
    ),
    "lists in dicts that a function's loop runs over": Case(
        "runs",
        ("local runs: list", "[...]: dict", "['losses']: list"),
        ('run["losses"].append(loss.',),
        """
        def train():
            runs = [{"name": name, "model": model, "losses": []} for name in "ab"]
            for _ in range(20):
                for run in runs:
                    loss = train_step(run["model"], optimizer)
                    run["losses"].append(loss)  # grows
        train()
        """,
    ),
    "list that is added to": Case(
        "losses",
        ("global losses: list",),
        ("losses += [loss.item()]",),
        """
        losses = []
        for _ in range(40):
            loss = train_step(model, optimizer)
            losses += [loss]  # grows
        """,
    ),
    "list that is extended": Case(
        "outputs",
        ("global outputs: list",),
        ("outputs.extend(", "detach()"),
        """
        outputs = []
        for _ in range(40):
            train_step(model, optimizer)
            out = model(batch()[0])
            outputs.extend(out.unbind())  # grows
        """,
    ),
    "set": Case(
        "seen",
        ("global seen: set",),
        ("seen.add(", ".detach()"),
        """
        seen = set()
        for _ in range(40):
            seen.add(train_step(model, optimizer))  # grows
        """,
    ),
    "tuples in a deque": Case(
        "recent",
        ("global recent: deque",),
        ("detach()",),
        """
        recent = collections.deque()
        for step in range(40):
            loss = train_step(model, optimizer)
            recent.append((step, {"loss": loss}))  # grows
        """,
    ),
    "heap": Case(
        "best",
        ("global best: list",),
        ("detach()", "item()"),
        """
        import heapq
        best = []
        for step in range(40):
            loss = train_step(model, optimizer)
            heapq.heappush(best, (step, loss))  # grows
        """,
    ),
    "queue": Case(
        "pending",
        ("global pending: Queue", ".queue: deque"),
        ("pending.put(", ".detach()"),
        """
        pending = queue.Queue()
        for _ in range(40):
            pending.put(train_step(model, optimizer))  # grows
        """,
    ),
    "simple queue": Case(
        "pending",
        ("global pending: SimpleQueue",),
        ("pending.put(", ".detach()"),
        """
        pending = queue.SimpleQueue()
        for _ in range(40):
            pending.put(train_step(model, optimizer))  # grows
        """,
    ),
    "defaultdict": Case(
        "scores",
        ("global scores: defaultdict", "['loss']: list"),
        ('scores["loss"].append(loss.item())',),
        """
        scores = collections.defaultdict(list)
        for _ in range(40):
            loss = train_step(model, optimizer)
            scores["loss"].append(loss)  # grows
        """,
    ),
    "ordered dict": Case(
        "cache",
        ("global cache: OrderedDict",),
        ("cache[step] = loss.item()",),
        """
        cache = collections.OrderedDict()
        for step in range(40):
            loss = train_step(model, optimizer)
            cache[step] = loss  # grows
        """,
    ),
    "values of a dict with weak keys": Case(
        "kept",
        ("global kept: WeakKeyDictionary",),
        ("kept[key] = loss.item()",),
        """
        import weakref
        class Key: pass
        keys = [Key() for _ in range(40)]
        kept = weakref.WeakKeyDictionary()
        for key in keys:
            loss = train_step(model, optimizer)
            kept[key] = loss  # grows
        """,
    ),
    "linked list": Case(
        "last",
        ("local last: Node", ".before: Node"),
        ("detach()",),
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
    ),
    "itertools.cycle": Case(
        "losses",
        ("global losses: cycle",),
        ("cycle", "detach()"),
        """
        import itertools
        def endless():
            while True:
                yield train_step(model, optimizer)
        losses = itertools.cycle(endless())  # grows
        for _ in range(40):
            next(losses)
        """,
    ),
    "itertools.tee": Case(
        "ahead",
        ("global ahead: _tee",),
        ("tee", "detach()"),
        """
        import itertools
        def endless():
            while True:
                yield train_step(model, optimizer)
        ahead, behind = itertools.tee(endless())  # grows
        for _ in range(40):
            next(ahead)
        """,
    ),
    "array of objects": Case(
        "kept",
        ("global kept: ndarray",),
        ("kept[step] = loss.item()",),
        """
        import numpy
        kept = numpy.empty(40, dtype=object)
        for step in range(40):
            loss = train_step(model, optimizer)
            kept[step] = loss  # grows
        """,
    ),
    "array of objects in an attribute": Case(
        "self.kept",
        ("local self: Recorder", ".kept: ndarray"),
        ("self.kept[step] = loss.item()",),
        """
        import numpy
        class Recorder:
            def __init__(self):
                self.kept = numpy.empty(40, dtype=object)
            def run(self):
                for step in range(40):
                    loss = train_step(model, optimizer)
                    self.kept[step] = loss  # grows
        Recorder().run()
        """,
    ),
    "arrays that share a tensor's storage": Case(
        "rows",
        ("global rows: list", "ndarray", ".base: Tensor"),
        (".numpy().copy()",),
        """
        rows = []
        for _ in range(40):
            train_step(model, optimizer)
            rows.append(torch.randn(64, 64).numpy())  # grows
        """,
        kind="tensor",
        watch=TIGHT,
    ),
    "object that refers to itself": Case(
        "Node.me",
        ("a reference cycle", "Node", ".me: Node"),
        ("self.me = weakref.proxy(self)",),
        """
        import gc
        class Node:
            def __init__(self, rows):
                self.rows = rows
                self.me = self  # grows
        gc.disable()
        try:
            for _ in range(40):
                train_step(model, optimizer)
                Node(torch.randn(64, 64))
        finally:
            gc.enable()
        """,
        kind="cycle",
        watch=TIGHT,
    ),
    "dict that is set by default": Case(
        "rows",
        ("global rows: dict", "['loss']: list"),
        ('rows.setdefault("loss", []).append(loss.item())',),
        """
        rows = {}
        for _ in range(40):
            loss = train_step(model, optimizer)
            rows.setdefault("loss", []).append(loss)  # grows
        """,
    ),
    "views that keep what they were cut from": Case(
        "firsts",
        ("global firsts: list",),
        (".clone()",),
        """
        firsts = []
        for _ in range(40):
            train_step(model, optimizer)
            rows = torch.randn(64, 64)
            firsts.append(rows[0])  # grows
        """,
        kind="tensor",
        watch=TIGHT,
    ),
    "tensors kept without graph": Case(
        "CACHE",
        ("global CACHE: dict",),
        ("CACHE.pop(",),
        """
        CACHE = {}
        for step in range(40):
            train_step(model, optimizer)
            CACHE[step] = torch.randn(64, 64)  # grows
        """,
        kind="tensor",
        watch=TIGHT,
    ),
}
