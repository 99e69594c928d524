"""What is said of habits that cost memory or spoil training without being a leak."""

from __future__ import annotations

from dataclasses import dataclass

from memguard.units import format_bytes, plural


@dataclass(frozen=True, slots=True)
class Words:
    """One habit in words.

    Attributes:
        summary: the headline.
        why: one sentence: what it does to the job.
        fix: the user's own line, rewritten; None when no line can be given.
        alternative: a second way, in words; None when there is none.
        advice: what to do, where there is no line.
    """

    summary: str
    why: str
    fix: str | None
    alternative: str | None
    advice: str


def gradients(optimizer: str, parameter: str, steps: int, code: str | None) -> Words:
    """Gradients that nothing clears between the steps of an optimizer.

    Args:
        optimizer: as the user wrote it, or its type.
        parameter: whose gradient was watched; empty where it has no name.
        steps: steps into which it was carried.
        code: the statement that steps; None when it was not found.
    """
    clearing = f"{optimizer}.zero_grad()"
    of = f" ({parameter} was watched)" if parameter else ""
    fix = f"{code}\n{clearing}" if code is not None else None
    return Words(
        f"gradients are never cleared between the steps of {optimizer}",
        f"each step's gradients are added to those of all steps before; the gradient was carried "
        f"over {plural(steps, 'step')} in a row{of}, so the optimizer follows their sum",
        fix,
        "zero_grad() before the backward; where gradients are accumulated, once for each step",
        f"call zero_grad() of {optimizer} once for each step, after it or before the next backward",
    )


def evaluation(module: str, forwards: int, size: int, nodes: int, code: str | None) -> Words:
    """Forwards in evaluation mode whose graphs nobody goes backward through.

    Args:
        module: the model's class.
        forwards: forwards whose graphs died unused.
        size: bytes that one of those graphs has saved.
        nodes: its autograd nodes.
        code: the statement that calls the model; None when it was not found.
    """
    saved = format_bytes(size)
    return Words(
        f"{module} builds graphs in evaluation that no backward uses, {saved} each",
        f"{plural(forwards, 'forward')} in evaluation mode built a graph of {plural(nodes, 'node')}"
        f" that died unused; without it {saved} less is held at a time, and less time is spent",
        None if code is None else f"with torch.no_grad():\n    {code}",
        "@torch.inference_mode() or @torch.no_grad() above the function that evaluates",
        "evaluate under torch.no_grad() or torch.inference_mode()",
    )


def retained(code: str, size: int, times: int) -> Words:
    """A backward that keeps its graph at every step although nothing goes through it again.

    Args:
        code: the statement.
        size: bytes still saved when the step had ended.
        times: how often that was seen.
    """
    kept = format_bytes(size)
    return Words(
        f"backward keeps its graph at every step for nothing, {kept}",
        f"retain_graph=True leaves {kept} of activations in memory until the loss is overwritten "
        f"in the next step (seen {plural(times, 'time')}), and the loop has no second backward",
        _without_retaining(code),
        "where a second backward was refused, detach() what it has in common with the first",
        "leave retain_graph=True out of the last backward through a graph",
    )


def _without_retaining(code: str) -> str | None:
    for written in (", retain_graph=True", "retain_graph=True, ", "retain_graph=True"):
        if written in code:
            return code.replace(written, "", 1)
    return None


def emptied() -> Words:
    """An allocator's cache that is emptied at every step."""
    return Words(
        "the allocator's cache is emptied at every step",
        "what a step gives back is asked for again in the next: each call waits for the device "
        "and has the driver allocate anew, and not one byte more is free for tensors",
        None,
        "call it where phases change, such as before an evaluation, or not at all",
        "take empty_cache() out of the loop",
    )


def uncollected(steps: int) -> Words:
    """Automatic collection that is off while nobody collects.

    Args:
        steps: steps for which that has been so.
    """
    return Words(
        "automatic garbage collection is off, and nobody collects",
        f"in {plural(steps, 'step')} nothing was collected: any reference cycle that holds a "
        "tensor keeps it for good",
        None,
        "gc.collect() every few hundred steps, or gc.enable()",
        "call gc.collect() every few hundred steps, or leave automatic collection on",
    )
