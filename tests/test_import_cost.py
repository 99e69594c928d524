"""What `import memguard` costs, and what it offers."""

from __future__ import annotations

import importlib.metadata
import pickle

import pytest
from conftest import Python

import memguard

HEAVY = ("torch", "psutil", "rich", "numpy", "objgraph", "asyncio", "unittest")


def loaded(python: Python, program: str) -> list[str]:
    """The heavy modules that running `program` loads."""
    ended = python("-c", f"{program}\nimport sys\nprint(*sorted(set({HEAVY}) & set(sys.modules)))")

    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.parametrize(
    "program",
    [
        "import memguard",
        "import memguard; memguard.LeakError, memguard.__version__, dir(memguard)",
        "import memguard; memguard.Report",
        "import memguard; memguard.why_alive",
        "import memguard; memguard.Ledger, memguard.estimate(1e9)",
        "import memguard.cli",
        "from memguard.startup.torch_import import when_torch_is_imported as w; w(print)()",
        "from memguard.settings import Settings; Settings.read({'limit': '1GiB'}, {})",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_used(python: Python, program: str) -> None:
    """Neither torch nor anything that takes its time to load."""
    assert loaded(python, program) == []


def test_the_check_itself_can_fail(python: Python) -> None:
    """A program that does load something heavy is found out."""
    assert loaded(python, "import memguard, psutil") == ["psutil"]


def test_all_that_is_offered_is_there() -> None:
    """Every public name arrives, is listed, and in order."""
    assert memguard.__all__ == sorted(memguard.__all__)
    assert set(memguard.__all__) <= set(dir(memguard))
    for name in memguard.__all__:
        assert getattr(memguard, name) is getattr(memguard, name)
    assert callable(memguard.watch)
    assert isinstance(memguard.Guard, type)


def test_what_is_not_there_is_an_attribute_error() -> None:
    """A misspelled name fails as on any module."""
    with pytest.raises(AttributeError, match=r"^module 'memguard' has no attribute 'wacth'$"):
        memguard.wacth  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(ImportError):
        from memguard import wacth  # type: ignore[attr-defined] # noqa: F401


def test_exceptions_carry_the_name_a_user_imports() -> None:
    """A traceback shows memguard.LeakError, and pickle finds it there."""
    for name in memguard.__all__:
        offered = getattr(memguard, name)
        if isinstance(offered, type) and issubclass(offered, BaseException):
            assert (offered.__module__, offered.__name__) == ("memguard", name)
            assert pickle.loads(pickle.dumps(offered)) is offered


def test_the_version_is_the_distributions() -> None:
    """What is installed says the same as what is imported."""
    try:
        installed = importlib.metadata.version("torch-memguard")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("imported from its source tree, not installed")

    assert installed == memguard.__version__
