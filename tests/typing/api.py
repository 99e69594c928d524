"""A user's code that type checkers must accept; never run."""

from __future__ import annotations

import weakref

import torch

import memguard


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """The public face, each name once, with the type it promises."""
    guard: memguard.Guard = memguard.watch(model, optimizer)
    guard.step()

    def decide(report: memguard.Report) -> str:
        return "stop"

    with memguard.watch(model, on_leak=decide, on_step=memguard.exporters.prometheus()) as told:
        assert not told.should_stop
    report: memguard.Report = guard.report()
    guard.close()
    try:
        with memguard.watch(model, window=3, action="warn") as inner:
            inner.step()
    except memguard.LeakError as leak:
        report = leak.report
    except (memguard.SettingsError, memguard.UsageError, memguard.ReportError) as error:
        shared: memguard.MemguardError = error
        raise shared from None
    where: memguard.Ledger = memguard.ledger(model, optimizer)
    where = guard.ledger()
    needed: memguard.Estimate = memguard.estimate(model, optimizer, ranks=4)
    needed = memguard.estimate(7e9, "adamw", dtype="bf16")
    assert where.account("cpu").bytes_of("parameters") < needed.total
    answer: memguard.WhyAlive = memguard.why_alive(model, limit=5)
    answer.picture("why.svg")
    assert str(answer)
    assert answer.holders[0].line != answer.kept[0].others
    memguard.assert_freed(weakref.ref(model))
    guard.expect_freed(model, "the model")
    memguard.expect_freed(model, "the model")
    with memguard.scope("fold 3", action="log") as fold:
        scope: memguard.Scope = fold
        scope.keep(model)
    assert scope.report.findings == scope.findings
    memguard.assert_no_growth(lambda: model(torch.ones(1)), repeat=3)
    assert issubclass(memguard.LeakWarning, UserWarning)
    assert issubclass(memguard.MemguardWarning, UserWarning)
    return report.verdict + memguard.__version__


def misspelled() -> None:
    """A name that does not exist is an error, not an unknown type."""
    memguard.wacth  # type: ignore[attr-defined] # noqa: B018
