"""Functions that keep things: closures, defaults, partials, caches, and those in mid-run."""

from __future__ import annotations

from programs import IN_CONTEXT

from holder_cases import Case

CASES = {
    "two kinds of functions in one list": Case(
        "todo",
        ("local todo: list", "[...]: function", "default value"),
        ("where later is made",),
        """
        def fit():
            todo = []
            for step in range(40):
                loss = train_step(model, optimizer)
                todo.append(lambda: step)
                def later(value=loss):
                    return value
                todo.append(later)  # grows
        fit()
        """,
    ),
    "coroutines nobody awaits": Case(
        "pend",
        ("global pend: list", "coroutine", "local value: Tensor"),
        ("pend.append(work(loss.detach()))",),
        """
        async def work(value):
            return value.item()
        pend = []
        try:
            for _ in range(40):
                loss = train_step(model, optimizer)
                pend.append(work(loss))  # grows
        finally:
            for waiting in pend:
                waiting.close()
        """,
    ),
    "generators, each with the one before": Case(
        "g",
        ("global g: generator", "local before: generator"),
        ("g = walk(loss.detach(), g)",),
        """
        def walk(value, before):
            yield value
            yield before
        g = None
        for _ in range(40):
            loss = train_step(model, optimizer)
            g = walk(loss, g)  # grows
            next(g)
        """,
    ),
    "finalizers": Case(
        "finalize._registry",
        ("class finalize", "._registry: dict"),
        ("weakref.finalize(model, str, loss.detach())",),
        """
        import weakref
        for _ in range(40):
            loss = train_step(model, optimizer)
            weakref.finalize(model, str, loss)  # grows
        """,
    ),
    "functions to be called at exit": Case(
        "atexit",
        ("no root in Python", "held by C++"),
        ("atexit.register(said, loss.detach())",),
        """
        import atexit
        def said(*args):
            pass
        try:
            for _ in range(40):
                loss = train_step(model, optimizer)
                atexit.register(said, loss)  # grows
        finally:
            atexit.unregister(said)
        """,
    ),
    "closure": Case(
        "seen",
        ("global log: function", "closes over seen: list"),
        ("seen.append(value.item())",),
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
        where="variable captured by make_logger.<locals>.log",
    ),
    "closure over a sum": Case(
        "total",
        ("global add: function", "closes over total: Tensor"),
        ("total += value.item()",),
        """
        def make_adder():
            total = 0.0
            def add(value):
                nonlocal total
                total += value  # grows
            return add
        add = make_adder()
        for _ in range(40):
            add(train_step(model, optimizer))
        """,
        where="variable captured by make_adder.<locals>.add",
    ),
    "lambdas": Case(
        "lines",
        ("global lines: list", "function"),
        ("loss.item()",),
        """
        lines = []
        for _ in range(40):
            loss = train_step(model, optimizer)
            lines.append(lambda loss=loss: f"{loss:.3f}")  # grows
        """,
    ),
    "default argument": Case(
        "kept",
        ("global remember: function", "default kept: list"),
        ("kept.append(value.item())",),
        """
        def remember(value, kept=[]):
            kept.append(value)  # grows
        for _ in range(40):
            remember(train_step(model, optimizer))
        """,
        where="default argument of remember",
    ),
    "keyword-only default": Case(
        "kept",
        ("global remember: function", "default kept: dict"),
        ("kept[step] = value.item()",),
        """
        def remember(step, value, *, kept={}):
            kept[step] = value  # grows
        for step in range(40):
            remember(step, train_step(model, optimizer))
        """,
        where="default argument of remember",
    ),
    "partials in a list": Case(
        "jobs",
        ("global jobs: list", "partial"),
        ("loss.item()", "detach()"),
        """
        jobs = []
        for _ in range(40):
            loss = train_step(model, optimizer)
            jobs.append(functools.partial(print, loss))  # grows
        """,
    ),
    "list bound by a partial": Case(
        "kept",
        ("global note: partial", "bound argument kept: list"),
        ("kept.append(value.item())",),
        """
        def keep(kept, value):
            kept.append(value)  # grows
        note = functools.partial(keep, [])
        for _ in range(40):
            note(train_step(model, optimizer))
        """,
        where="argument that a partial binds to keep",
    ),
    "bound methods in a list": Case(
        "callbacks",
        ("global callbacks: list", ".__self__: Line"),
        ("detach()",),
        """
        class Line:
            def __init__(self, loss):
                self.loss = loss
            def show(self):
                print(self.loss)
        callbacks = []
        for _ in range(40):
            line = Line(train_step(model, optimizer))
            callbacks.append(line.show)  # grows
        """,
    ),
    "object behind a bound method": Case(
        "update.__self__.values",
        ("global update: method", ".__self__: Meter", ".values: list"),
        ("self.values.append(value.item())",),
        """
        class Meter:
            def __init__(self):
                self.values = []
            def update(self, value):
                self.values.append(value)  # grows
        update = Meter().update
        for _ in range(40):
            update(train_step(model, optimizer))
        """,
    ),
    "attribute of a function": Case(
        "remember.kept",
        ("global remember: function", ".kept: list"),
        ("remember.kept.append(value.item())",),
        """
        def remember(value):
            remember.kept.append(value)  # grows
        remember.kept = []
        for _ in range(40):
            remember(train_step(model, optimizer))
        """,
    ),
    "lru_cache": Case(
        "loss_of(...)",
        ("global loss_of: _lru_cache_wrapper",),
        ("let loss_of return a detached tensor",),
        """
        @functools.lru_cache(maxsize=None)  # grows
        def loss_of(step):
            return train_step(model, optimizer)
        for step in range(40):
            loss_of(step)
        """,
        where="cache of loss_of, 8 entries and no limit",
    ),
    "lru_cache with a limit": Case(
        "loss_of(...)",
        ("global loss_of: _lru_cache_wrapper", "(...): Tensor"),
        ("let loss_of return a detached tensor",),
        """
        @functools.lru_cache(maxsize=16)  # grows
        def loss_of(step):
            return train_step(model, optimizer)
        for step in range(40):
            loss_of(step)
        """,
        where="cache of loss_of, 8 entries and at most 16",
    ),
    "cache of a method": Case(
        "Net2.loss_of(...)",
        ("class Net2", ".loss_of: _lru_cache_wrapper"),
        ("let loss_of return a detached tensor", "Net2.loss_of.cache_clear()"),
        """
        from functools import cache, lru_cache
        class Net2:
            @cache  # grows
            def loss_of(self, step):
                return train_step(model, optimizer)
        net = Net2()
        for step in range(40):
            net.loss_of(step)
        """,
        where="cache of Net2.loss_of, 8 entries and no limit",
    ),
    "generator": Case(
        "seen",
        ("global sink: generator", "local seen: list"),
        ("seen.append(", ".detach()"),
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
        where="local of keep",
    ),
    "generator that the loop goes over": Case(
        "average",
        ("frame <module> (train.py:", "the running for loop: enumerate", "local average: Tensor"),
        (".detach()", "torch.no_grad()"),
        """
        def stream(count):
            for _ in range(count):
                x, y = batch()
                yield model(x), y
        def smoothed(pairs):
            average = torch.zeros(1)
            for out, y in pairs:
                average = 0.9 * average + 0.1 * out.mean(0)  # grows
                yield out - average.detach(), y
        for step, (out, y) in enumerate(smoothed(stream(40))):
            loss = (out - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
        where="local of smoothed",
    ),
    "coroutine": Case(
        "seen",
        ("global sink: coroutine", "local seen: list"),
        ("seen.append(value.item())",),
        """
        import types
        @types.coroutine
        def receive():
            return (yield)
        async def keep():
            seen = []
            while True:
                value = await receive()
                seen.append(value)  # grows
        sink = keep()
        sink.send(None)
        for _ in range(40):
            sink.send(train_step(model, optimizer))
        """,
        where="local of keep",
    ),
    "asynchronous generator": Case(
        "seen",
        ("local sink: async_generator", "local seen: list"),
        ("seen.append(", ".detach()"),
        """
        import asyncio
        async def keep():
            seen = []
            while True:
                seen.append((yield))  # grows
        async def main():
            sink = keep()
            try:
                await sink.asend(None)
                for _ in range(40):
                    await sink.asend(train_step(model, optimizer))
            finally:
                await sink.aclose()
        asyncio.run(main())
        """,
        where="local of keep",
    ),
    "asyncio task": Case(
        "kept",
        ("local consumer: Task", "coroutine", "local kept: list"),
        ("kept.append(item.item())",),
        """
        import asyncio
        async def consume(source):
            kept = []
            while True:
                item = await source.get()
                kept.append(item)  # grows
        async def main():
            source = asyncio.Queue()
            consumer = asyncio.create_task(consume(source))
            for _ in range(40):
                await source.put(train_step(model, optimizer))
                await asyncio.sleep(0)
        asyncio.run(main())
        """,
        where="local of consume",
    ),
    "asyncio task that nobody keeps": Case(
        "kept",
        ("coroutine", "local kept: list"),
        ("kept.append(item.item())",),
        """
        import asyncio
        async def consume(source):
            kept = []
            while True:
                item = await source.get()
                kept.append(item)  # grows
        async def main():
            source = asyncio.Queue()
            asyncio.create_task(consume(source))
            for _ in range(40):
                await source.put(train_step(model, optimizer))
                await asyncio.sleep(0)
        asyncio.run(main())
        """,
        where="local of consume",
    ),
    "threading.local": Case(
        "state.losses",
        ("global state: _local", ".losses: list"),
        ("state.losses.append(", ".detach()"),
        """
        state = threading.local()
        state.losses = []
        for _ in range(40):
            state.losses.append(train_step(model, optimizer))  # grows
        """,
    ),
    "context variable": Case(
        "LOSSES",
        ("global LOSSES: ContextVar", ".get(): list"),
        ("LOSSES.get().append(", ".detach()"),
        """
        import contextvars
        LOSSES = contextvars.ContextVar("losses")
        def run():
            LOSSES.set([])
            for _ in range(40):
                LOSSES.get().append(train_step(model, optimizer))  # grows
        contextvars.copy_context().run(run)
        """,
    ),
    "context variable that is set anew": Case(
        "total",
        ("global total: ContextVar", ".get(): Tensor"),
        ("total.set(total.get() + loss.detach())",),
        """
        import contextvars
        total = contextvars.ContextVar("total")
        total.set(0.0)
        for _ in range(40):
            loss = train_step(model, optimizer)
            total.set(total.get() + loss)  # grows
        """,
        stays=IN_CONTEXT,
    ),
    "context variable whose list is replaced": Case(
        "seen",
        ("global seen: ContextVar", ".get(): list"),
        ("seen.set(seen.get() + [loss.item()])",),
        """
        import contextvars
        seen = contextvars.ContextVar("seen")
        seen.set([])
        for _ in range(40):
            loss = train_step(model, optimizer)
            seen.set(seen.get() + [loss])  # grows
        """,
        stays=IN_CONTEXT,
    ),
    "default of a context variable": Case(
        "LOSSES",
        ("global LOSSES: ContextVar", ".get(): list"),
        ("LOSSES.get().append(", ".detach()"),
        """
        import contextvars
        LOSSES = contextvars.ContextVar("losses", default=[])
        for _ in range(40):
            LOSSES.get().append(train_step(model, optimizer))  # grows
        """,
    ),
}
