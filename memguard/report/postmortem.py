"""A post-mortem as text: what ended the memory, the last steps, the findings, the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memguard.ledgers import Lever
from memguard.records import Finding, Report
from memguard.report import ledger, text
from memguard.report.clean import clean
from memguard.units import format_bytes, format_count, plural

_REASON = 400
_MOST_MOMENTS = 12
_COLUMN = 14


@dataclass(frozen=True, slots=True)
class Moment:
    """What was in use when a step ended.

    Attributes:
        step: steps ended.
        seconds: since watching began.
        used: bytes by device, the host's as `cpu`.
    """

    step: int
    seconds: float
    used: tuple[tuple[str, int], ...]


def brief(reason: str, moments: Sequence[Moment], findings: Iterable[Finding]) -> str:
    """The post-mortem where there is no memory for more.

    Args:
        reason: what ended the memory.
        moments: the last looks, oldest first.
        findings: what was found before.
    """
    told = [f"{one.severity}: {clean(one.summary, 240)}" for one in findings]
    lines = [_headline(reason, moments), "", *_last_steps(moments)]
    return "\n".join([*lines, "", *(told or ["nothing was found before"])])


def render(reason: str, moments: Sequence[Moment], report: Report, levers: Iterable[Lever]) -> str:
    """The whole post-mortem, without a final newline.

    Args:
        reason: what ended the memory.
        moments: the last looks, oldest first.
        report: what is known, with the ledger.
        levers: what would help, the best first.
    """
    blocks = ["\n".join([_headline(reason, moments), "", *_last_steps(moments)])]
    blocks.append("where memory is\n\n" + ledger.render(report.ledger, levers))
    blocks.append(text.render(report))
    return "\n\n".join(blocks)


def _headline(reason: str, moments: Sequence[Moment]) -> str:
    after = f" after {plural(moments[-1].step, 'step')}" if moments else ""
    return f"memguard: post-mortem{after}: {clean(reason, _REASON)}"


def _last_steps(moments: Sequence[Moment]) -> list[str]:
    shown = moments[-_MOST_MOMENTS:]
    if not shown:
        return ["no step was looked at"]
    devices = list(dict.fromkeys(name for moment in shown for name, _ in moment.used))
    heads = ["host" if name == "cpu" else clean(name, _COLUMN - 2) for name in devices]
    lines = ["last steps" + "".join(f"{head:>{_COLUMN}}" for head in heads)]
    for moment in shown:
        used = dict(moment.used)
        sizes = "".join(f"{_size(used.get(name)):>{_COLUMN}}" for name in devices)
        lines.append(f"{format_count(moment.step):>10}{sizes}  at {moment.seconds:,.1f} s")
    return lines


def _size(size: int | None) -> str:
    return "" if size is None else format_bytes(size)
