"""What a report says, in phrases; the text and the page show the same ones."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from memguard.records import Finding, Forecast, Growth, Holder, Report
from memguard.report import ledger
from memguard.report.clean import clean, clean_lines
from memguard.units import format_bytes, format_count, format_duration, plural

MOST_FINDINGS = 3  # told in full; the rest get a line each
MOST_LINES = 3  # one-line mentions before "and N more"
_WORTH_TELLING = 1024  # fewer bytes than this beside a count of graphs or nodes are noise
# Most characters of a headline, a sentence, a name, a source line, a path.
_SUMMARY, _SENTENCE, _NAME, _CODE, _PATH = 240, 600, 100, 160, 160

_NOUNS = {"graph": "graph", "stale": "graph", "tensor": "tensor", "cycle": "tensor"}
_UNHELD = {
    "graph": "Nothing in Python refers to them: what keeps them is inside C++.",
    "tensor": "Nothing in Python refers to them: what keeps them is inside C++.",
    "stale": "Nothing in Python refers to it: what keeps it is inside C++.",
    "cycle": "Nothing in the program refers to them: they refer to each other, "
    "and stay until the garbage collector runs.",
}

Facts = list[tuple[str, str]]


def mood(report: Report, finding: Finding | None = None) -> str:
    """The one word before the headline: `leak`, `suspect`, `warning`, `info` or `clean`."""
    if finding is None:
        return report.verdict
    if finding.severity == "leak" and report.verdict != "leak":
        return "suspect"
    return finding.severity


def left_out(report: Report) -> str:
    """What stands behind the verdict where suppressions left findings out: ` (1 ignored)`."""
    return f" ({len(report.ignored)} ignored)" if report.ignored else ""


def summary(report: Report, finding: Finding | None = None) -> str:
    """The headline without its first word."""
    if finding is not None:
        return clean(finding.summary, _SUMMARY)
    steps = plural(report.step, "step")
    if report.verdict == "clean":
        if report.step <= 0:
            return "no step was seen, so nothing was judged"
        return f"nothing {'else ' if report.ignored else ''}kept growing in {steps}"
    if report.libraries and not report.findings:
        known = plural(len(report.libraries), "known retention")
        return f"{known} of libraries in {steps}, nothing of yours"
    return {"leak": f"memory is leaking after {steps}"}.get(
        report.verdict, f"growth seen in {steps}, not confirmed"
    )


def in_one_line(report: Report, finding: Finding, *, after_others: bool = True) -> str:
    """A finding in one line: `leak: 9 past steps' graphs … (total_loss at train.py:57)`."""
    said, word = summary(report, finding), mood(report, finding)
    said = said if word == report.verdict and not after_others else f"{word}: {said}"
    if not finding.holders:
        return said
    first = finding.holders[0]
    at = f" at {place(first)}" if first.file is not None and first.line is not None else ""
    return f"{said} ({clean(first.name, _NAME)}{at})"


def _nearby(file: str) -> str:
    """The file as a terminal in the current folder would open it, when it lies below."""
    try:
        here = os.getcwd() + os.sep
    except OSError:  # the folder was deleted under us
        return file
    return file[len(here) :] if file.startswith(here) else file


def place(holder: Holder) -> str:
    """Where the statement stands: `train.py:57 in train_epoch`."""
    inside = f" in {clean(holder.function, _NAME)}" if holder.function else ""
    if holder.file is None:
        return "no source at hand" + inside
    file = clean(_nearby(holder.file), _PATH, keep_end=True)
    if holder.line is None:
        return f"{file}{inside} (the statement was not found)"
    return f"{file}:{holder.line}{inside}"


def owner(holder: Holder) -> str:
    """The holder by name, type and home: `total_loss (Tensor), local of train_epoch`."""
    kind = f" ({clean(holder.type, _NAME)})" if holder.type else ""
    where = f", {clean(holder.where, _NAME)}" if holder.where else ""
    return clean(holder.name, _NAME) + kind + where


def who(finding: Finding, holder: Holder) -> str:
    """The holder and what it keeps."""
    kept = _kept(finding, holder.survivors, holder.bytes)
    return f"{owner(holder)}, keeps {kept}" if kept else owner(holder)


def others(finding: Finding) -> Facts:
    """The holders after the first, in a line each."""
    return listed([_also(finding, holder) for holder in finding.holders[1:]], "holder")


def _also(finding: Finding, holder: Holder) -> str:
    if holder.file is None or not holder.code:
        return who(finding, holder)
    kept = _kept(finding, holder.survivors, holder.bytes)
    code = clean(holder.code, _NAME) + (f" ({kept})" if kept else "")
    return f"{clean(holder.name, _NAME)} at {place(holder)}: {code}"


def listed(said: list[str], noun: str) -> Facts:
    """A line each for the first few, and how many more there are."""
    more = len(said) - MOST_LINES
    shown = said[:MOST_LINES]
    if more > 0:
        shown.append(f"and {plural(more, f'more {noun}')}")
    return [("" if i else "also", line) for i, line in enumerate(shown)]


def _kept(finding: Finding, count: float, size: int) -> str:
    amounts = [plural(count, _noun(finding))] if count else []
    if size >= _WORTH_TELLING or (size and not amounts):
        amounts.append(format_bytes(size))
    return ", ".join(amounts)


def notes(holder: Holder) -> Facts:
    """What to know and do about a holder: why it keeps memory, its bound, the fix."""
    said: Facts = []
    if holder.why:
        said.append(("why", clean(holder.why, _SENTENCE)))
    if holder.bound is not None:
        full = ""
        if holder.survivors > 0 and holder.bytes > 0:
            size = format_bytes(holder.bytes / holder.survivors * holder.bound)
            full = f", about {size} when full"
        said.append(("max", f"never more than {plural(holder.bound, 'entry', 'entries')}{full}"))
    return said


def remedies(finding: Finding, holder: Holder | None) -> Facts:
    """The ways out: the holder's rewritten line and its alternative, else the general advice."""
    if holder is not None and holder.fix:
        ways = [("fix", "\n".join(clean_lines(holder.fix, _CODE * 2)))]
        if holder.alternative:
            ways.append(("or", clean(holder.alternative, _SENTENCE)))
        return ways
    other = holder.alternative if holder is not None else None
    advice = finding.advice or other
    return [("fix", clean(advice, _SENTENCE))] if advice else []


def unheld(report: Report, finding: Finding) -> str | None:
    """The plain sentence for a finding without holders; None where none is to be expected."""
    if mood(report, finding) == "suspect":
        return "Not confirmed yet, so what holds it was not looked for."
    return clean(finding.unnamed, _SENTENCE) or _UNHELD.get(finding.kind)


def survivors(finding: Finding, holder: Holder) -> str | None:
    """What hangs at the end of a chain: `graphs: 9 of steps 3 … 11, 7,209 nodes, 281 MiB`."""
    if finding.kind not in _NOUNS or _is_one_object(finding):
        return None
    total = finding.growth.total
    count = holder.survivors or total.graphs
    size = holder.bytes or total.bytes
    parts = [_steps(finding, count)]
    if total.nodes and count == total.graphs:
        parts.append(plural(total.nodes, "node"))
    if size >= _WORTH_TELLING or len(parts) < 2:
        saved = finding.saved_bytes if size == total.bytes else 0
        if saved >= size:
            parts.append(f"{format_bytes(size)} saved for backward")
        elif saved > 0:
            parts.append(f"{format_bytes(size)}, {format_bytes(saved)} of it saved for backward")
        else:
            parts.append(format_bytes(size))
    deepest = f"; deepest module: {_modules(finding)}" if len(finding.modules) == 1 else ""
    return f"{_noun(finding)}{'' if count == 1 else 's'}: {', '.join(parts)}{deepest}"


def _steps(finding: Finding, count: float) -> str:
    if not finding.steps:
        return format_count(count)
    first, last = finding.steps[0], finding.steps[-1]
    if first == last:
        return f"{format_count(count)} of step {format_count(first)}"
    return f"{format_count(count)} of steps {format_count(first)} … {format_count(last)}"


def _modules(finding: Finding) -> str:
    names = [clean(name, _NAME) for name in finding.modules[:MOST_LINES]]
    more = len(finding.modules) - MOST_LINES
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _noun(finding: Finding) -> str:
    return "object" if _is_one_object(finding) else _NOUNS.get(finding.kind, "object")


def _is_one_object(finding: Finding) -> bool:
    """Whether it is about an object that was declared dead, which ends its own chain."""
    return finding.kind == "stale" and finding.steps is None


def growth(finding: Finding, *, with_total: bool) -> str | None:
    """What is added each step, `+1 graph, +31.2 MiB a step since step 3`; None when nothing is."""
    if _is_one_object(finding):
        return None
    per_step = finding.growth.per_step
    rarely = 0 < per_step.graphs < 0.75
    every = round(1 / per_step.graphs) if rarely and per_step.graphs > 1e-9 else 1
    amounts = _amounts(finding, finding.growth, every)
    kept = _kept(finding, finding.growth.total.graphs, finding.growth.total.bytes)
    if not amounts:
        return f"{kept} so far" if kept else None
    pace = f"every {plural(every, 'step')}" if every > 1 else "a step"
    since = f"{', '.join(amounts)} {pace} since step {format_count(finding.first_step)}"
    return f"{since}; {kept} so far" if with_total and kept else since


def _amounts(finding: Finding, grown: Growth, every: int) -> list[str]:
    each = grown.per_step
    amounts = []
    if 0 < each.graphs < math.inf:
        count = each.graphs * every
        # An average of 0.97 or 1.04 is one a step as far as a reader is concerned.
        tidy = round(count) if abs(count - round(count)) < 0.05 else count
        amounts.append("+" + plural(tidy, _noun(finding)))
    # Where tensors weigh little, the nodes are the cost.
    if each.nodes > 0 and each.bytes < 1024**2:
        amounts.append("+" + plural(each.nodes * every, "node"))
    if each.bytes * every >= _WORTH_TELLING or (each.bytes > 0 and not amounts):
        amounts.append("+" + format_bytes(each.bytes * every))
    return amounts


def forecast(told: Forecast | None, report: Report) -> str | None:
    """When memory runs out at this growth; None when nobody can tell."""
    if told is None:
        return None
    limit = f"{format_bytes(told.limit)} limit"
    memory = f"memory of {clean(told.device, 40)}" if told.device else "memory"
    if told.steps <= 0:
        return f"{memory} is full any moment now ({limit})"
    span = f"{format_count(told.low)} … {format_count(told.high)}; "
    between = span if told.low != told.high else ""
    seconds = told.seconds
    pace = number(report.clock, "seconds_per_step")
    if seconds is None and pace is not None:
        seconds = min(told.steps, 10**12) * pace
    soon = f", {format_duration(seconds)} from now" if seconds is not None and seconds > 0 else ""
    return f"{memory} is full in about {plural(told.steps, 'step')}{soon} ({between}{limit})"


def _forecast_of(finding: Finding, report: Report) -> str | None:
    told = forecast(finding.forecast, report)
    waiting = told is not None and finding.kind == "cycle"
    return f"{told}, unless a collection comes first" if waiting else told


def facts(report: Report, finding: Finding, *, with_total: bool) -> Facts:
    """The finding's numbers, one labelled line each."""
    lines: list[tuple[str, str | None]] = [
        ("created", _created(finding)),
        ("modules", _modules(finding) if len(finding.modules) > 1 or with_total else None),
        ("growth", growth(finding, with_total=with_total)),
        ("forecast", _forecast_of(finding, report)),
        ("evidence", clean(finding.reason, _SENTENCE) if finding.reason else None),
    ]
    return [(label, text) for label, text in lines if text]


def _created(finding: Finding) -> str | None:
    holder = finding.holders[0] if finding.holders else None
    if holder is None or not holder.created:
        return None
    shown = [holder.line, *(part.line for part in holder.context)]
    if any(f"{holder.created[0]} ".startswith(f"{holder.file}:{line} ") for line in shown):
        return None
    frames = [clean(_nearby(frame), _PATH, keep_end=True) for frame in holder.created[:MOST_LINES]]
    return ", called from ".join(frames)


def closing(report: Report) -> Facts:
    """The report's last lines: where memory is, what failed, what memguard itself cost."""
    lines = [("memory", memory(report))] if report.findings and memory(report) else []
    for failure in report.failures[:MOST_LINES]:
        what = f"{clean(failure.part, _NAME)} at step {format_count(failure.step)}"
        error = clean(failure.error, _SUMMARY)
        lines.append(("failed", f"{what}, switched off; the job went on: {error}"))
    if len(report.failures) > MOST_LINES:
        lines.append(("failed", f"and {len(report.failures) - MOST_LINES} more"))
    own = [
        cost(report),
        _rank(report),
        found(report, report.findings[0]) if len(report.findings) == 1 else beat(report),
    ]
    return [*lines, ("memguard", "; ".join(part for part in own if part))]


def _rank(report: Report) -> str | None:
    rank = number(report.environment, "rank")
    alone = (number(report.environment, "world_size") or 1) <= 1
    return None if rank is None or (rank == 0 and alone) else f"rank {format_count(rank)}"


def found(report: Report, finding: Finding) -> str:
    """When a finding was made, and its fingerprint."""
    fingerprint = f"fingerprint {clean(finding.fingerprint, 64)}"
    if report.step <= 0 and finding.step <= 0:
        return fingerprint  # no loop, no steps
    step = f"step {format_count(finding.step)}"
    when = f"suspect at {step}" if mood(report, finding) == "suspect" else f"verdict at {step}"
    return f"{when}; {fingerprint}"


def memory(report: Report) -> str:
    """Where memory is: the ledger's shares, else what process and devices hold."""
    told = ledger.one_line(report.ledger)
    if told:
        return told
    parts = []
    host = number(report.memory, "host_bytes")
    if host is not None:
        parts.append(f"process {format_bytes(host)}")
    devices = report.memory.get("devices")
    if isinstance(devices, (list, tuple)):
        parts += [_device(device) for device in devices[:8] if isinstance(device, Mapping)]
    return " · ".join(part for part in parts if part)


def _device(device: Mapping[str, Any]) -> str:
    sizes = []
    for word in ("allocated", "reserved"):
        size = number(device, word)
        if size is not None:
            sizes.append(f"{format_bytes(size)} {word}")
    return f"{clean(device.get('name', 'device'), 40)} {', '.join(sizes)}" if sizes else ""


def cost(report: Report) -> str | None:
    """memguard's own cost: `0.04 % of step time`; None when it was not measured."""
    share = number(report.overhead, "share")
    if share is None or share < 0:
        return None
    percent = share * 100
    written = (
        "under 0.01" if percent < 0.005 else f"{percent:.2f}" if percent < 10 else f"{percent:.0f}"
    )
    return f"{written} % of step time"


def beat(report: Report) -> str:
    """What ended the steps: `beat optimizer`."""
    return f"beat {clean(report.clock.get('beat', 'none'), 40)}"


def number(data: Mapping[str, Any], key: str) -> float | None:
    """The finite number under `key`; None for anything else."""
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None
