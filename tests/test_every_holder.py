"""Every kind of holder: its name, its line, its chain and its advice, one small program each."""

from __future__ import annotations

import linecache
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from holder_cases import (
    Case,
    being_built,
    containers,
    errors,
    functions,
    hooks,
    torch_owned,
    variables,
)
from programs import WATCH, Run, staying
from torch import nn

MODULES = (variables, containers, functions, hooks, errors, torch_owned, being_built)
CASES = {label: case for module in MODULES for label, case in module.CASES.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import modules from; they and hooks on every module are forgotten afterwards."""
    before = set(sys.modules)
    (tmp_path / "site-packages").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    hooks = nn.modules.module._global_forward_hooks
    known = dict(hooks)
    yield tmp_path
    hooks.clear()
    hooks.update(known)
    linecache.clearcache()
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def in_order(wanted: tuple[str, ...], lines: tuple[str, ...]) -> bool:
    """Whether the texts stand in the lines, one after the other."""
    rest = iter(lines)
    return all(any(text in line for line in rest) for text in wanted)


def run_case(case: Case, folder: Path) -> Run:
    for name, text in case.files.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip("\n"))
    return Run(folder, case.program, watch=case.watch or WATCH)


@pytest.mark.parametrize("label", [staying(label, case.stays) for label, case in CASES.items()])
def test_the_holder_is_named(label: str, folder: Path) -> None:
    """The report has the holder's name, the line that makes it grow, the chain and the advice."""
    case = CASES[label]
    run = run_case(case, folder)
    assert not run.report.failures
    finding = next(finding for finding in run.report.findings if finding.kind == case.kind)
    assert finding.step <= case.steps
    holder = finding.holders[0]
    assert holder.name == case.name, holder
    assert case.where in holder.where, holder.where
    assert in_order(case.chain, holder.chain), holder.chain
    line = linecache.getline(holder.file or "", holder.line or 0).strip()
    assert line.endswith("# grows"), (holder.file, holder.line, holder.code)
    assert line.startswith(holder.code or "?"), holder.code
    told = f"{finding.advice}\n{holder.fix}\n{holder.alternative}"
    assert all(text in told for text in case.advice), told
