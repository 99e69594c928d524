"""Exceptions and their frames, logging, and what an interactive session keeps."""

from __future__ import annotations

from holder_cases import Case

_FAIL = """
        def fail():
            loss = train_step(model, optimizer)
            raise ValueError("bad batch")
"""

CASES = {
    "kept exceptions": Case(
        "errors",
        ("global errors: list", "ValueError", ".__traceback__", ".f_locals['loss']: Tensor"),
        ("errors.append(repr(error))", "with_traceback(None)"),
        f"""{_FAIL}
        errors = []
        for _ in range(40):
            try:
                fail()
            except ValueError as error:
                errors.append(error)  # grows
        """,
    ),
    "kept tracebacks": Case(
        "traces",
        ("global traces: list", "traceback", ".f_locals['loss']: Tensor"),
        ("format_exc",),
        f"""{_FAIL}
        import sys
        traces = []
        for _ in range(40):
            try:
                fail()
            except ValueError as error:
                traces.append(error.__traceback__)  # grows
        """,
    ),
    "kept frames": Case(
        "frames",
        ("global frames: list", ".f_locals['loss']: Tensor"),
        ("extract_stack",),
        """
        import inspect
        frames = []
        def note():
            loss = train_step(model, optimizer)
            frames.append(inspect.currentframe())  # grows
        for _ in range(40):
            note()
        """,
    ),
    "stored exception that is raised again": Case(
        "STOP",
        ("global STOP: ValueError", ".__traceback__", ".f_locals['loss']: Tensor"),
        ("STOP.with_traceback(None)",),
        """
        STOP = ValueError("stop")
        def fail():
            loss = train_step(model, optimizer)
            raise STOP  # grows
        for _ in range(40):
            try:
                fail()
            except ValueError:
                pass
        """,
    ),
    "chained exceptions": Case(
        "last",
        ("global last: ValueError", ".__cause__: ValueError", ".f_locals['loss']: Tensor"),
        ("from None", "with_traceback(None)"),
        """
        last = None
        def fail():
            loss = train_step(model, optimizer)
            raise ValueError("again") from last  # grows
        for _ in range(40):
            try:
                fail()
            except ValueError as error:
                last = error
        """,
    ),
    "sys.last_value": Case(
        "sys.last_value",
        ("module sys", "global last_value: ValueError", ".f_locals['loss']: Tensor"),
        ("del sys.last_value",),
        """
        import sys
        def fail():
            loss = train_step(model, optimizer)
            raise ValueError("again") from sys.last_value  # grows
        sys.last_value = None
        try:
            for _ in range(40):
                try:
                    fail()
                except ValueError as error:
                    sys.last_value = error
        finally:
            del sys.last_value
        """,
    ),
    "results of a notebook's cells": Case(
        "Out",
        ("module __main__", "global Out: dict"),
        ("%reset", ";"),
        """
        import ipyshell
        ipyshell.session(dict(train_step=train_step, model=model, optimizer=optimizer))
        """,
        files={
            "site-packages/ipyshell.py": """
            import ast, linecache, types

            class Shell:
                def __init__(self, names):
                    self.module = types.ModuleType("__main__")
                    self.user_ns = self.module.__dict__
                    self.user_ns.update(names, Out={}, _oh={}, _="", In=[])
                    self.user_ns["_oh"] = self.user_ns["Out"]
                    self.count = 0

                def run_cell(self, text):
                    self.count += 1
                    file = f"<ipython-input-{self.count}-3b1f>"
                    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
                    last = ast.parse(text).body.pop()
                    code = compile(ast.Expression(last.value), file, "eval")
                    result = eval(code, self.user_ns)
                    self.user_ns["Out"][self.count] = result
                    self.user_ns[f"_{self.count}"] = self.user_ns["_"] = result

            def session(names):
                shell = Shell(names)
                for _ in range(40):
                    shell.run_cell("train_step(model, optimizer)  # grows")
            """
        },
    ),
    "buffered log records": Case(
        "memory",
        ("global memory: MemoryHandler", ".buffer: list", "LogRecord", ".args"),
        ('log.info("loss %s", loss.item())',),
        """
        import logging, logging.handlers
        log = logging.Logger("training")
        memory = logging.handlers.MemoryHandler(1000)
        log.addHandler(memory)
        for _ in range(40):
            loss = train_step(model, optimizer)
            log.info("loss %s", loss)  # grows
        """,
    ),
    "log handler that keeps records": Case(
        "handler.records",
        ("global handler: Keeper", ".records: list", ".args"),
        ('log.info("loss %s", loss.item())',),
        """
        import logging
        class Keeper(logging.Handler):
            def __init__(self):
                super().__init__()
                self.records = []
            def emit(self, record):
                self.records.append(record)
        log = logging.Logger("training")
        handler = Keeper()
        log.addHandler(handler)
        for _ in range(40):
            loss = train_step(model, optimizer)
            log.info("loss %s", loss)  # grows
        """,
    ),
}
