"""Hand-made reports of the findings users meet most, for the tests of what is told about them."""

from __future__ import annotations

from dataclasses import replace

from memguard.failures import Failure
from memguard.ledgers import Account, Ledger, Part, Row
from memguard.records import (
    Amount,
    CodeLine,
    Finding,
    Forecast,
    Growth,
    Holder,
    Ignored,
    Report,
    Retention,
    Suppression,
)
from memguard.report import lints, stale

MIB = 2**20
CLOCK = {"beat": "optimizer", "seconds_per_step": 0.044}
OVERHEAD = {"share": 0.0004, "seconds": 0.02, "audits": 3}
ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "pid": 4711, "rank": 0}
MEMORY = {
    "host_bytes": 1843 * MIB,
    "devices": [{"name": "cuda:0", "allocated": 3174 * MIB, "reserved": 4096 * MIB}],
}


def _report(*findings: Finding, **more: object) -> Report:
    fields: dict[str, object] = {
        "verdict": "leak" if findings else "clean",
        "step": 12,
        "findings": findings,
        "clock": CLOCK,
        "overhead": OVERHEAD,
        "environment": ENVIRONMENT,
        "memory": MEMORY,
    }
    return Report(**{**fields, **more})  # type: ignore[arg-type]


def _lines(**texts: str) -> tuple[CodeLine, ...]:
    return tuple(CodeLine(int(number[1:]), text) for number, text in texts.items())


RUNNING_SUM_FINDING = Finding(
    kind="graph",
    severity="leak",
    summary="9 past steps' autograd graphs are still alive, one more each step",
    fingerprint="3f9c1a",
    first_step=3,
    step=12,
    growth=Growth(Amount(1.0, 801, 32714752), Amount(9, 7209, 294432768)),
    forecast=Forecast(240, 230, 251, 8 * 1024 * MIB),
    modules=("blocks.11",),
    advice="Add total_loss up as a number: loss.item(), or loss.detach().",
    reason="graphs older than 2 steps: 1, 2, 3, 4, 5 at steps 5 to 9; none died in a collection",
    saved_bytes=294432768,
    steps=(3, 11),
    holders=(
        Holder(
            name="total_loss",
            where="local of train_epoch",
            file="train.py",
            line=57,
            code="total_loss += loss",
            type="Tensor",
            survivors=9,
            bytes=294432768,
            chain=(
                "thread MainThread",
                "frame train_epoch (train.py:57)",
                "local total_loss: Tensor float32 [] AddBackward0",
            ),
            created=("train.py:55 in train_epoch", "train.py:90 in main"),
            function="train_epoch",
            context=_lines(
                _55="        loss = criterion(model(x), y)",
                _56="        loss.backward()",
                _57="        total_loss += loss",
                _58="        optimizer.step()",
            ),
            why="total_loss is part of every step's graph, so it keeps them all: 7,209 nodes and "
            "281 MiB of activations",
            fix="total_loss += loss.item()",
            alternative="loss.detach() to stay on the device",
        ),
    ),
)
LEDGER = Ledger(
    (
        Account(
            "cuda:0",
            (
                Row("parameters", 1229 * MIB, 148, {"float32": 1229 * MIB}),
                Row("gradients", 1229 * MIB, 148, {"float32": 1229 * MIB}),
                Row(
                    "optimizer",
                    2458 * MIB,
                    296,
                    {"float32": 2458 * MIB},
                    parts=(
                        Part("first moments", 1229 * MIB, 148),
                        Part("second moments", 1229 * MIB, 148),
                    ),
                ),
                Row(
                    "activations",
                    614 * MIB,
                    80,
                    {"bfloat16": 500 * MIB, "float32": 114 * MIB},
                    parts=(Part("blocks.11", 51 * MIB, 7), Part("head", 12 * MIB, 1)),
                ),
                Row("retained", 281 * MIB, 70, {"bfloat16": 281 * MIB}),
                Row(
                    "other",
                    102 * MIB,
                    3,
                    {"float32": 102 * MIB},
                    parts=(Part("cuda:0 float32 [64, 4096]", 102 * MIB, 3, "batches, global"),),
                ),
                Row("unexplained", 7 * MIB),
                Row("cache", 224 * MIB),
            ),
            6144 * MIB,
            5920 * MIB,
            5980 * MIB,
            limit=8192 * MIB,
            retries=2,
        ),
        Account(
            "cpu",
            (
                Row("nodes", 7209 * 640, 7209),
                Row("unexplained", 1500 * MIB - 7209 * 640),
                Row("children", 300 * MIB, 1, parts=(Part("python 4712", 300 * MIB, 1),)),
            ),
            1800 * MIB,
            private=1500 * MIB,
            limit=32768 * MIB,
        ),
    ),
    complete=False,
    notes=("holders failed: RuntimeError: told so",),
    step=12,
)
RUNNING_SUM = _report(
    RUNNING_SUM_FINDING,
    ledger=LEDGER,
)

LIST_OF_LOSSES_FINDING = Finding(
    kind="graph",
    severity="leak",
    summary="23 past steps' autograd graphs are still alive, one more each step",
    fingerprint="77ab01",
    first_step=3,
    step=26,
    growth=Growth(Amount(1.0, 8, 4), Amount(23, 184, 92)),
    advice="Keep losses as numbers: loss.item().",
    reason="graphs older than 2 steps: 19, 20, 21, 22, 23 at steps 22 to 26",
    steps=(3, 25),
    holders=(
        Holder(
            name="self.history",
            where="attribute of Trainer",
            file="/home/ada/project/trainers/base.py",
            line=1204,
            code="self.history['train'].append(\n    criterion(out, y)\n)",
            type="dict",
            survivors=23,
            bytes=92,
            chain=(
                "module __main__",
                "global trainer: Trainer",
                ".history: dict of 2",
                "['train']: list of 26",
                "[...]: Tensor float32 [] NllLossBackward0",
            ),
            created=("/home/ada/project/trainers/base.py:1204 in Trainer.fit",),
            function="Trainer.fit",
            context=_lines(
                _1203="            out = self.model(x)",
                _1204="            self.history['train'].append(",
                _1205="                criterion(out, y)",
                _1206="            )",
            ),
            why="every loss in self.history keeps the graph of its step, although backward freed "
            "the activations",
            fix="self.history['train'].append(\n    criterion(out, y).item()\n)",
        ),
    ),
)
LIST_OF_LOSSES = _report(
    LIST_OF_LOSSES_FINDING, step=26, overhead={"share": 0.00001}, memory={"host_bytes": 812 * MIB}
)

EVALUATION = _report(
    Finding(
        kind="graph",
        severity="leak",
        summary="6 past steps' autograd graphs are still alive, one more each step",
        fingerprint="c0ffee",
        first_step=1,
        step=8,
        growth=Growth(Amount(1.02, 96, 734003), Amount(6, 576, 4404018)),
        forecast=Forecast(90_500, 88_000, 94_000, 64 * 1024 * MIB),
        modules=("encoder.2", "head"),
        advice="Evaluate under torch.no_grad().",
        reason="graphs older than 2 steps: 2, 3, 4, 5, 6 at steps 4 to 8; no backward was seen",
        saved_bytes=4100000,
        steps=(1, 6),
        holders=(
            Holder(
                name="all_logits",
                where="local of evaluate",
                file="evaluate.py",
                line=70,
                code="all_logits.append(logits)",
                type="list",
                survivors=6,
                bytes=4404018,
                chain=(
                    "thread MainThread",
                    "frame main (evaluate.py:88)",
                    "frame evaluate (evaluate.py:70)",
                    "all_logits: list of 8",
                    "[...]: Tensor float32 [64, 10] AddmmBackward0",
                ),
                created=("evaluate.py:69 in evaluate", "evaluate.py:88 in main"),
                function="evaluate",
                context=_lines(
                    _68="    for x, y in loader:",
                    _69="        logits = model(x)",
                    _70="        all_logits.append(logits)",
                ),
                why="nothing goes backward here, so every output keeps its whole graph",
                fix="with torch.no_grad():\n    logits = model(x)",
                alternative="logits.detach() if only this list is to blame",
            ),
        ),
    ),
    step=8,
    clock={"beat": "forward", "seconds_per_step": 0.12},
)

HOOK = _report(
    Finding(
        kind="graph",
        severity="leak",
        summary="7 past steps' autograd graphs are still alive, one more every 5 steps",
        fingerprint="beef42",
        first_step=5,
        step=40,
        growth=Growth(Amount(0.2, 9, 104858), Amount(7, 315, 3670016)),
        modules=("layers.0.norm", "layers.1.norm", "layers.2.norm", "layers.3.norm", "head"),
        saved_bytes=3670016,
        steps=(5, 35),
        holders=(
            Holder(
                name="tap",
                where="forward hook on encoder.norm",
                file="probe.py",
                line=31,
                code="layer.register_forward_hook(tap)",
                type="function",
                survivors=7,
                bytes=3670016,
                chain=(
                    "module __main__",
                    "global model: Net",
                    ".encoder.norm: LayerNorm",
                    "hook tap: function (probe.py:29)",
                    "closure seen: list of 7",
                    "[...]: Tensor float32 [32, 128] NativeLayerNormBackward0",
                ),
                created=("probe.py:31 in watch_layer",),
                function="watch_layer",
                context=_lines(
                    _29="    def tap(module, args, output):",
                    _30="        seen.append(output)",
                    _31="    layer.register_forward_hook(tap)",
                ),
                why="a hook is registered anew each time and never removed; each one keeps the "
                "output it saw",
                fix="handle = layer.register_forward_hook(tap)",
                alternative="call handle.remove() once the output was read",
            ),
        ),
    ),
    step=40,
    memory={},
)

CTX_CYCLE = _report(
    Finding(
        kind="graph",
        severity="leak",
        summary="5 past steps' autograd graphs are still alive, one more each step",
        fingerprint="0ddba1",
        first_step=2,
        step=9,
        growth=Growth(Amount(1.0, 3, 524288), Amount(5, 15, 2621440)),
        advice="Save outputs with ctx.save_for_backward().",
        reason="graphs older than 2 steps: 1, 2, 3, 4, 5 at steps 5 to 9",
        saved_bytes=2621440,
        steps=(2, 6),
        holders=(
            Holder(
                name="ctx.gate",
                where="attribute of GatedUnit's ctx",
                file="gated_regression.py",
                line=20,
                code="ctx.gate, ctx.value = gate, value",
                type="Tensor",
                survivors=5,
                bytes=2621440,
                chain=(
                    "GatedUnitBackward (no root: only the cycle itself refers to it)",
                    "ctx.gate: Tensor float32 [256, 512]",
                    ".grad_fn: back to GatedUnitBackward",
                ),
                function="GatedUnit.forward",
                why="an output kept on ctx refers to its own grad_fn: a cycle through C++ that no "
                "garbage collection can free",
                fix="ctx.save_for_backward(gate, value)",
            ),
        ),
    ),
    step=9,
)

TENSOR_WARNING = _report(
    Finding(
        kind="tensor",
        severity="warning",
        summary="tensors gather, 1 more each step, up to a bound of 1,000",
        fingerprint="9a9a9a",
        first_step=1,
        step=60,
        growth=Growth(Amount(1.0, 0, 21504), Amount(57, 0, 1225728)),
        steps=(1, 57),
        holders=(
            Holder(
                name="memory.buffer",
                where="attribute of ReplayMemory",
                file="dqn.py",
                line=88,
                code="self.buffer.append(transition)",
                type="list",
                survivors=57,
                bytes=1225728,
                chain=(
                    "module __main__",
                    "global memory: ReplayMemory",
                    ".buffer: list of 57",
                    "[...]: Tensor float32 [4, 84, 16]",
                ),
                function="ReplayMemory.push",
                why="transitions are kept until capacity is reached",
                bound=1000,
            ),
        ),
    ),
    verdict="clean",
    step=60,
)

CYCLE = _report(
    Finding(
        kind="cycle",
        severity="warning",
        summary="18 tensors wait in reference cycles for the garbage collector, which is off",
        fingerprint="cc11ee",
        first_step=1,
        step=14,
        growth=Growth(Amount(1.5, 0, 1310720), Amount(18, 0, 23592960)),
        advice="Break the cycle with a weak reference, or call gc.collect() now and then.",
        reason="18 tensors died in one collection; gc is disabled",
        steps=(1, 12),
    ),
    verdict="suspect",
    step=14,
)

SEVERAL = _report(
    LIST_OF_LOSSES_FINDING,
    Finding(
        kind="tensor",
        severity="warning",
        summary="31 tensors gather in EMBEDDINGS and two others, one more each step",
        fingerprint="e1e1e1",
        first_step=2,
        step=33,
        growth=Growth(Amount(1.0, 0, 1572864), Amount(31, 0, 48758784)),
        steps=(2, 32),
        holders=tuple(
            Holder(
                name=name,
                where=f"global of {module}",
                file=f"{module}.py",
                line=28 + i,
                code=f"{name}.append(z.detach())",
                type="list",
                survivors=31 - i,
                bytes=48758784 - i * 1572864,
                chain=(f"module {module}", f"{name}: list of {31 - i}") if i == 0 else (),
                function="embed",
            )
            for i, (name, module) in enumerate(
                (n, m)
                for n, m in [
                    ("EMBEDDINGS", "speaker"),
                    ("NORMS", "speaker"),
                    ("KEYS", "bank"),
                    ("VALUES", "bank"),
                    ("QUERIES", "bank"),
                    ("MASKS", "bank"),
                ]
            )
        ),
    ),
    Finding(
        kind="host",
        severity="warning",
        summary="process memory grows, and no tensor explains it",
        fingerprint="505050",
        first_step=10,
        step=33,
        growth=Growth(Amount(0, 0, 2306867), Amount(0, 0, 53057941)),
        advice="Look at what the loop appends to: lists of strings or numpy arrays, logs, caches.",
        reason="private memory rose in 23 of 23 steps",
    ),
    Finding(
        kind="grad",
        severity="info",
        summary="gradients were not cleared between optimizer steps",
        fingerprint="6d6d6d",
        first_step=2,
        step=4,
        advice="Call optimizer.zero_grad() each step.",
    ),
    step=33,
)

CLEAN = _report(step=80, overhead={"share": 0.0031})

SUSPECT = _report(
    Finding(
        kind="graph",
        severity="leak",
        summary="3 past steps' autograd graphs are still alive, one more each step",
        fingerprint="5a5a5a",
        first_step=3,
        step=7,
        growth=Growth(Amount(1.0, 801, 32714752), Amount(3, 2403, 98144256)),
        reason="graphs older than 2 steps: 1, 2, 3 at steps 5 to 7; 5 growing steps are needed",
    ),
    verdict="suspect",
    step=7,
)

UNHELD = _report(
    Finding(
        kind="graph",
        severity="leak",
        summary="12 past steps' autograd graphs are still alive, one more each step",
        fingerprint="d0d0d0",
        first_step=1,
        step=15,
        growth=Growth(Amount(1.0, 40, 2097152), Amount(12, 480, 25165824)),
        advice="Look for backward(create_graph=True) into .grad: use torch.autograd.grad instead.",
        reason="graphs older than 2 steps grew for 5 steps; no frame, global or object refers to "
        "them and a collection freed none",
        saved_bytes=25165824,
    ),
    step=15,
    failures=(Failure("census", "RuntimeError: dictionary changed size during iteration", 11),),
)

FAILURES = _report(
    step=80,
    overhead={"share": 0.0031},
    failures=(
        Failure("census", "RuntimeError: dictionary changed size during iteration", 11),
        Failure("host memory", "PermissionError: [Errno 13] '/proc/self/smaps_rollup'", 0),
    ),
)

LIBRARY_FINDING = replace(
    TENSOR_WARNING.findings[0],
    fingerprint="e2d8cd",
    holders=(
        Holder(
            name="metric",
            where="global of train",
            type="list",
            survivors=24,
            bytes=213 * MIB,
            chain=("module train", "global metric: BinaryAveragePrecision", ".preds: list"),
            modules=("train", "torchmetrics.classification.average_precision"),
        ),
    ),
    known=Retention(
        library="torchmetrics",
        version="1.8.2",
        why="metrics that need every score at once keep each update's until reset()",
        remedy="call reset() at the end of each epoch",
        link="https://github.com/Lightning-AI/torchmetrics/issues/3294",
    ),
)
LIBRARY = _report(verdict="suspect", libraries=(LIBRARY_FINDING,))

IGNORED = _report(
    verdict="clean",
    ignored=(
        Ignored(RUNNING_SUM_FINDING, "holder:total_loss", "plotted at the end", "known.txt:2"),
    ),
    suppressions=(
        Suppression("kind:tensor & file:*/vendor/*", 0, "", "known.txt:5"),
        Suppression("holder:total_loss", 1, "plotted at the end", "known.txt:2"),
        Suppression("3f9c1b", 0),
    ),
)
LEAK_BESIDE_IGNORED = _report(
    *SEVERAL.findings[:1],
    libraries=(LIBRARY_FINDING,),
    **{"ignored": IGNORED.ignored, "suppressions": IGNORED.suppressions[1:2]},
)

_TOLD = lints.gradients("self.opt", "head.bias", 3, "self.opt.step()")
HABIT = _report(
    Finding(
        kind="grad",
        severity="warning",
        summary=_TOLD.summary,
        fingerprint="5d1a90",
        first_step=4,
        step=4,
        holders=(
            Holder(
                name="self.opt",
                where="in Trainer.update",
                file="train.py",
                line=31,
                code="self.opt.step()",
                type="AdamW",
                function="Trainer.update",
                context=_lines(_30="        loss.backward()", _31="        self.opt.step()"),
                why=_TOLD.why,
                fix=_TOLD.fix,
                alternative=_TOLD.alternative,
            ),
        ),
        advice=_TOLD.advice,
        reason="unchanged from the end of a step to the next gradient, 3 times",
    ),
    verdict="clean",
)

DECLARED_DEAD = _report(
    Finding(
        kind="stale",
        severity="warning",
        summary=stale.summary("fold 3 model", 46 * MIB, 5),
        fingerprint="e40b17",
        first_step=20,
        step=25,
        growth=Growth(total=Amount(1, bytes=46 * MIB)),
        holders=(
            stale.with_advice(
                Holder(
                    name="sweep.models",
                    where="attribute of Sweep",
                    file="sweep.py",
                    line=18,
                    code="self.models[number] = model",
                    type="dict",
                    function="Sweep.fold",
                    chain=(
                        "module __main__",
                        "global sweep: Sweep",
                        ".models: dict",
                        "[...]: Net",
                    ),
                ),
                "fold 3 model",
            ),
        ),
        reason="declared dead, and alive",
    ),
    verdict="suspect",
)

ALL = {
    "running_sum": RUNNING_SUM,
    "list_of_losses": LIST_OF_LOSSES,
    "evaluation": EVALUATION,
    "hook": HOOK,
    "ctx_cycle": CTX_CYCLE,
    "tensor_warning": TENSOR_WARNING,
    "cycle": CYCLE,
    "several": SEVERAL,
    "clean": CLEAN,
    "suspect": SUSPECT,
    "unheld": UNHELD,
    "failures": FAILURES,
    "library": LIBRARY,
    "ignored": IGNORED,
    "leak_beside_ignored": LEAK_BESIDE_IGNORED,
    "habit": HABIT,
    "declared_dead": DECLARED_DEAD,
}
