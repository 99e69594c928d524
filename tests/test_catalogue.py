"""The catalogue of what libraries retain, told apart from the user's own findings."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest
import sample_reports
from programs import Run

from memguard import catalogue
from memguard.patterns import Pattern
from memguard.records import Finding, Holder
from memguard.triage import Triage

FINDING = sample_reports.RUNNING_SUM_FINDING


def metric_finding(**changes: Any) -> Finding:
    """Tensors in a metric of a library, changed as asked."""
    holder = {
        "name": "metric.preds",
        "where": "attribute of BinaryAveragePrecision",
        "chain": ("module train", "global metric: BinaryAveragePrecision", ".preds: list"),
        "modules": ("train", "torchmetrics.classification.average_precision"),
    }
    return dataclasses.replace(FINDING, kind="tensor", holders=(Holder(**{**holder, **changes}),))


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The distributions that are installed, to be filled in."""
    installed: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(catalogue, "_version", catalogue._version.__wrapped__)
    return installed


def test_a_librarys_retention_is_told_apart(versions: dict[str, str]) -> None:
    """It is a warning with the library's name, version, the way out and the issue."""
    versions["torchmetrics"] = "1.8.2"

    sorted_ = Triage(()).sort(metric_finding())

    assert sorted_ is not None
    assert sorted_.severity == "warning"
    known = sorted_.known
    assert known is not None
    assert (known.library, known.version) == ("torchmetrics", "1.8.2")
    assert known.link.startswith("https://github.com/")


@pytest.mark.parametrize(
    "change",
    [
        {"modules": ("train", "mymetrics.average_precision")},
        {"chain": ("module train", "global metric: Mine", ".history: list")},
        {"modules": ("train", "torchmetrics_extra")},
    ],
)
def test_the_users_own_bug_is_not_the_librarys(
    change: dict[str, Any], versions: dict[str, str]
) -> None:
    """Another library, or another attribute of it, is no known retention."""
    versions["torchmetrics"] = "1.8.2"

    sorted_ = Triage(()).sort(metric_finding(**change))

    assert sorted_ is not None
    assert sorted_.known is None
    assert sorted_.severity == "leak"


def test_graphs_kept_in_a_metric_are_the_users(versions: dict[str, str]) -> None:
    """Attached losses in a metric's list are mended with detach(), not by resetting the metric."""
    versions["torchmetrics"] = "1.8.2"

    told = Triage(()).sort(dataclasses.replace(metric_finding(), kind="graph"))

    assert told is not None
    assert (told.severity, told.known) == ("leak", None)


def test_a_librarys_retention_hides_no_bug_beside_it(versions: dict[str, str]) -> None:
    """A holder of the user's is told as theirs, whichever of the two comes first."""
    versions["torchmetrics"] = "1.8.2"
    [library] = metric_finding().holders
    own = dataclasses.replace(library, name="outputs", modules=("train",))
    both = metric_finding()

    for holders in ((library, own), (own, library)):
        told = Triage(()).sort(dataclasses.replace(both, holders=holders))

        assert told is not None
        assert (told.severity, told.known, told.holders) == ("leak", None, (own,))


@pytest.mark.parametrize(
    ("version", "known"),
    [("5.8.0", True), ("5.8.9.dev0", True), ("5.9.0rc1", False), ("5.9", False), ("5.10.4", False)],
)
def test_a_version_without_it_is_not_blamed(
    version: str, known: bool, versions: dict[str, str]
) -> None:
    """Versions are compared number by number, so that 5.10 comes after 5.9."""
    versions["transformers"] = version
    finding = metric_finding(
        where="cache of RTDetrV2SinePositionEmbedding.forward",
        chain=(
            "class RTDetrV2SinePositionEmbedding",
            ".forward: _lru_cache_wrapper",
            "(...): list",
        ),
        modules=("transformers.models.rt_detr_v2.modeling_rt_detr_v2",),
    )

    sorted_ = Triage(()).sort(finding)

    assert sorted_ is not None
    assert (sorted_.known is not None) is known


def test_a_suppression_comes_before_the_catalogue(versions: dict[str, str]) -> None:
    """What a user does not want to hear of is not told as the library's either."""
    versions["torchmetrics"] = "1.8.2"

    assert Triage([Pattern("module:torchmetrics.*")]).sort(metric_finding()) is None


@pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda entry: str(entry.reference))
def test_each_entry_says_why_and_where_it_is_known(entry: catalogue.Entry) -> None:
    """A public issue, a reason, a way out, and patterns that can be read."""
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", entry.link)
    assert entry.why
    assert entry.remedy
    assert re.compile(entry.reference)
    assert entry.before is None or re.fullmatch(r"\d+(\.\d+)*", entry.before)


LIBRARY = """
class Metric:
    def __init__(self):
        self.preds = []
    def update(self, scores):
        self.preds.append(scores)
Metric.__module__ = "torchmetrics.classification"
metric = Metric()
for _ in range({steps}):
    train_step(model, optimizer)
    metric.update(torch.ones(2 ** 18))
"""


def test_a_librarys_growth_ends_no_job(tmp_path: Path, versions: dict[str, str]) -> None:
    """It is warned of, stands apart in the report, and the verdict is not leak."""
    versions["torchmetrics"] = "1.8.2"
    watch = "guard = memguard.watch(model, optimizer, max_growth='8MiB')\n"

    with pytest.warns(match="known retention of libraries"):
        run = Run(tmp_path, LIBRARY.format(steps=40), watch=watch)

    assert not run.stopped
    assert run.report.verdict == "suspect"
    assert run.report.findings == ()
    [finding] = run.report.libraries
    assert finding.holders[0].name.endswith("preds")


def test_the_same_growth_of_ones_own_is_raised(tmp_path: Path, versions: dict[str, str]) -> None:
    """The twin without the library's name."""
    watch = "guard = memguard.watch(model, optimizer, max_growth='8MiB')\n"
    program = LIBRARY.format(steps=40).replace("torchmetrics.classification", "mine")

    assert Run(tmp_path, program, watch=watch).stopped
