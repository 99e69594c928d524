"""Small programs, one for each way of keeping memory, with what a report must say of them."""

from __future__ import annotations

from dataclasses import dataclass, field

# Growing tensors are spoken of once they matter; here a few kilobytes do.
TIGHT = "guard = memguard.watch(model, optimizer, limit='64GiB', max_growth='64KiB')\n"


@dataclass(frozen=True, slots=True)
class Case:
    """One program and what its report says.

    Attributes:
        name: the holder's name, whole.
        chain: texts that stand in the chain's lines, in this order.
        advice: texts that stand in the advice or the fix.
        program: what follows the usual model; the line that grows ends in `# grows`.
        where: a text that stands in the place told beside the name.
        kind: what grows.
        watch: how the guard is made; None for the usual way.
        files: other files beside the program, by name; the marked line may stand in one.
        steps: steps within which it is found.
        stays: why what it keeps outlives the program; empty where it goes with its variables.
    """

    name: str
    chain: tuple[str, ...]
    advice: tuple[str, ...]
    program: str
    where: str = ""
    kind: str = "graph"
    watch: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    steps: int = 12
    stays: str = ""
