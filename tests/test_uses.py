"""Plain numbers are advised only where nothing of the program needs tensors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from memguard.explain.syntax import Source, read_source
from memguard.explain.uses import used_as_tensor

KEPT = "kept.append(loss)"


def uses(folder: Path, after: str) -> bool:
    """Whether a program that keeps losses and then does `after` uses them as tensors."""
    file = folder / "program.py"
    file.write_text(f"def main():\n    kept = []\n    {KEPT}\n" + after)
    source = read_source(str(file))
    assert isinstance(source, Source)
    nodes = ast.walk(source.module.node)
    growth = next(node for node in nodes if isinstance(node, ast.Expr) and node.lineno == 3)
    return used_as_tensor(source, "kept", growth)


@pytest.mark.parametrize(
    "after",
    [
        "    print(kept[-1].item())\n",
        "    print([value.item() for value in kept])\n",
        "    for value in kept:\n        print(value.cpu())\n",
        "    print(torch.stack(kept).mean())\n",
        "    mean = sum(kept) / len(kept)\n    print(mean.item())\n",
        "    return kept\nhistory = main()\nprint(history[0].detach())\n",
        "    summarize(kept)\ndef summarize(rows):\n    print(torch.stack(rows).mean())\n",
        "    summarize(rows=kept)\ndef summarize(rows):\n    print(torch.stack(rows).mean())\n",
        "class Meter:\n    def mean(self):\n        return torch.cat(self.kept)\n",
    ],
)
def test_what_only_tensors_can_do_is_seen(after: str, tmp_path: Path) -> None:
    """Also of a copy, an entry, a mean, or what a caller got."""
    assert uses(tmp_path, after)


@pytest.mark.parametrize(
    "after",
    [
        "    print(sum(kept) / len(kept))\n",
        "    print(f'{kept[-1]:.3f}')\n",
        "    loss.item()\n",
        "    plot(np.mean(kept))\n",
        "    correct = (logits.argmax(1) == labels).sum().item()\n",
    ],
)
def test_what_numbers_can_do_as_well_is_no_reason(after: str, tmp_path: Path) -> None:
    """Printing, averaging and plotting take both."""
    assert not uses(tmp_path, after)
