"""`memguard config`: what is in force, and where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from memguard.cli import main
from memguard.settings import OPTIONS


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with settings of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.memguard]\npatience = 9\nignore = ["kind:x\\n"]\n'
    )
    return tmp_path


def rows(said: str) -> dict[str, list[str]]:
    """The table's lines by setting."""
    lines = [line.split("  ") for line in said.partition("\n\n")[0].splitlines()]
    return {line[0]: [word.strip() for word in line[1:] if word] for line in lines}


def test_each_setting_has_its_value_and_where_it_comes_from(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each: default, variable or file."""
    monkeypatch.setenv("MEMGUARD", "warn")
    monkeypatch.setenv("MEMGUARD_SOURCE", "0")
    monkeypatch.setenv("MEMGUARD_LIMIT", "2GiB")
    assert main(["config"]) == 0
    said = rows(capsys.readouterr().out)

    assert set(said) == {"setting", *(option.name for option in OPTIONS)}
    assert said["action"] == ["warn", "MEMGUARD", "MEMGUARD"]
    assert said["window"] == ["2", "default", "MEMGUARD_WINDOW"]
    assert said["source"] == ["no", "MEMGUARD_SOURCE", "MEMGUARD_SOURCE"]
    assert said["limit"] == ["2 GiB", "MEMGUARD_LIMIT", "MEMGUARD_LIMIT"]
    assert said["patience"] == ["9", str(project / "pyproject.toml"), "MEMGUARD_PATIENCE"]


def test_what_is_passed_over_is_told_on_standard_error(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the setting stands as if it had not been written."""
    monkeypatch.setenv("MEMGUARD_WINDOW", "__import__('os').abort()")
    assert main(["config"]) == 0
    told = capsys.readouterr()

    assert rows(told.out)["window"] == ["2", "default", "MEMGUARD_WINDOW"]
    assert told.err.startswith("memguard: MEMGUARD_WINDOW is ")
    assert told.err.count("\n") == 1


@pytest.mark.usefixtures("project")
def test_a_function_that_is_nowhere_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One in this folder is not, where programs are started."""
    (tmp_path / "beside_me.py").write_text("raise SystemExit\n")
    monkeypatch.setenv("MEMGUARD_ON_LEAK", "beside_me:save")
    monkeypatch.setenv("MEMGUARD_ON_STEP", "beside_nobody:plot")
    assert main(["config"]) == 0

    (line,) = [line for line in capsys.readouterr().err.splitlines() if "on_" in line]
    assert line.startswith("memguard: on_step is beside_nobody:plot: there is no module")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "MEMGUARD is not set, so it does nothing"),
        ("1", "MEMGUARD is set, so programs are guarded"),
        ("nonsense", "MEMGUARD is not set, so it does nothing"),
        ("0", "MEMGUARD is off, so nothing is guarded"),
    ],
)
def test_the_start_up_line_is_told_where_it_is(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: str | None,
    said: str,
) -> None:
    """Whether a plain `python` would be guarded."""
    (project / "memguard_startup.pth").write_text("")
    monkeypatch.syspath_prepend(str(project))
    if value is not None:
        monkeypatch.setenv("MEMGUARD", value)
    main(["config"])

    assert said in capsys.readouterr().out
