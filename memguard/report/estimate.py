"""An estimate as a table: bytes by kind, and what each stage of sharding leaves on a rank."""

from __future__ import annotations

from memguard.ledgers import Estimate
from memguard.units import format_bytes, plural

_NAME, _SIZE = 18, 12


def render(estimate: Estimate) -> str:
    """The estimate as text, without a final newline."""
    lines = [f"{plural(estimate.parameters, 'parameter')}, {format_bytes(estimate.total)} in all"]
    for row in estimate.rows:
        dtypes = ", ".join(row.dtypes)
        name = "optimizer state" if row.name == "optimizer" else row.name
        lines.append(_line(name, row.bytes, dtypes))
        lines += [_line(f"  {part.name}", part.bytes) for part in row.parts]
    if estimate.stages:
        lines += ["", f"each of {plural(estimate.ranks, 'rank')}, by ZeRO stage"]
        heads = ("stage", "parameters", "gradients", "optimizer", "in all", "saves")
        lines.append("  " + heads[0] + "".join(f" {head:>{_SIZE}}" for head in heads[1:]))
        for stage in estimate.stages:
            sizes = (stage.parameters, stage.gradients, stage.optimizer, stage.total, stage.saves)
            row_of = "".join(f" {format_bytes(size):>{_SIZE}}" for size in sizes)
            lines.append(f"  {stage.stage:<5}{row_of}")
    lines += ["", *(f"note: {note}" for note in estimate.notes)] if estimate.notes else []
    return "\n".join(lines)


def _line(name: str, size: int, said: str = "") -> str:
    return f"  {name:<{_NAME}} {format_bytes(size):>{_SIZE}}  {said}".rstrip()
