"""A leak that goes on, with the figures of now, where looking into it again is not earned yet."""

from __future__ import annotations

from dataclasses import replace

from memguard.case_words import Case, summary
from memguard.figures import Figures
from memguard.judge import growth as growing
from memguard.records import Finding, Holder


def renewed(finding: Finding, case: Case, figures: Figures) -> Finding:
    """A graph finding as it stands by now: its holders are taken to go on as when they were found.

    Args:
        finding: what was found.
        case: what survives now.
        figures: limits of memory.

    Costs two readings of memory, where an explanation takes passes over the heap.
    """
    before = finding.growth.total
    # Between looks far apart not every survivor is met: the pace it was found at tells how many.
    gone_on = growing.so_far(finding.growth, case.now - finding.step)
    count = max(len(case.births), round(gone_on.graphs))
    graphs = max(1.0, before.graphs)
    nodes, size = round(before.nodes / graphs), round(before.bytes / graphs)
    grown = growing.growth(case.births, count, case.now, nodes, size)
    left = finding.forecast
    if left is not None:
        device = left.device or "cpu"
        left = growing.forecast(
            figures.limit(device),
            figures.used(device),
            grown.per_step.bytes + grown.per_step.nodes * growing.NODE_BYTES,
            growing.spread(case.births),
            left.device,
        )
    more = count / graphs
    return replace(
        finding,
        summary=summary(case, count, None),
        step=case.now,
        growth=grown,
        forecast=left,
        holders=tuple(_grown(holder, more) for holder in finding.holders),
        reason=f"{case.reason}; looked into at step {finding.step}",
        saved_bytes=round(finding.saved_bytes * more),
        steps=(case.births[0], case.births[-1]),
    )


def _grown(holder: Holder, more: float) -> Holder:
    return replace(
        holder, survivors=round(holder.survivors * more), bytes=round(holder.bytes * more)
    )
