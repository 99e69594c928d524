"""Settings: three sources, one order, and words for every wrong value."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memguard.errors import SettingsError
from memguard.settings import OPTIONS, Settings, Size

MIB = 1024 * 1024


def read(
    keywords: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    pyproject: Path | None = None,
) -> Settings:
    """Settings from these sources and no other."""
    return Settings.read(keywords or {}, environ or {}, pyproject)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with nothing in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_table(folder: Path, text: str) -> Path:
    """A pyproject.toml whose [tool.memguard] holds `text`."""
    file = folder / "pyproject.toml"
    file.write_text(f"[tool.memguard]\n{text}\n")
    return file


# --- defaults and order ---


def test_defaults_are_those_documented() -> None:
    """Nobody set anything: the documented defaults."""
    assert read() == Settings(
        action="raise",
        window=2,
        patience=5,
        max_growth=Size(share=0.1),
        limit=None,
        overhead=0.01,
        report=None,
        ignore=(),
        problems=(),
    )


def test_each_field_is_described_once() -> None:
    """Every field but the problems has a keyword, a variable and words."""
    fields = [field.name for field in dataclasses.fields(Settings)]

    assert fields == [*(option.name for option in OPTIONS), "problems"]
    assert len({option.variable for option in OPTIONS}) == len(OPTIONS)
    assert all(option.accepted and option.help and option.metavar for option in OPTIONS)


def test_keyword_beats_environment_beats_pyproject(project: Path) -> None:
    """Of three sources that disagree the nearest to the call wins."""
    file = write_table(project, "window = 3\npatience = 3\noverhead = 0.03")
    settings = read({"window": 5}, {"MEMGUARD_WINDOW": "4", "MEMGUARD_PATIENCE": "4"}, file)

    assert (settings.window, settings.patience, settings.overhead) == (5, 4, 0.03)


def test_none_counts_as_not_given() -> None:
    """A keyword that is None leaves the decision to the other sources."""
    assert read({"window": None}, {"MEMGUARD_WINDOW": "4"}).window == 4


def test_an_empty_variable_counts_as_not_set() -> None:
    """`MEMGUARD_WINDOW= python train.py` is how shells unset a variable for one command."""
    settings = read(environ={"MEMGUARD_WINDOW": " ", "MEMGUARD": ""})

    assert settings == Settings()


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an environment given, the variables of the process count."""
    monkeypatch.setenv("MEMGUARD_PATIENCE", "7")

    assert Settings.read({}, pyproject=None).patience == 7


# --- pyproject.toml ---


def test_pyproject_is_found_from_the_current_folder_upwards(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job started in a subfolder has its project's settings."""
    write_table(project, "window = 9")
    (project / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(project / "a" / "b")

    assert Settings.read({}, {}).window == 9


def test_the_search_stops_at_the_first_pyproject(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project within a project does not inherit the outer one's settings."""
    write_table(project, "window = 9")
    (project / "inner").mkdir()
    (project / "inner" / "pyproject.toml").write_text("[project]\nname = 'inner'\n")
    monkeypatch.chdir(project / "inner")

    assert Settings.read({}, {}).window == 2


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no such owners there")
@pytest.mark.parametrize("how", ["another's", "everybody's"])
def test_a_pyproject_that_others_may_have_written_is_not_believed(
    how: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says so, where it names memguard; the next one above it is read."""
    write_table(project, "window = 9")
    (project / "inner").mkdir()
    file = write_table(project / "inner", "report = 'thesis.json'\non_leak = 'theirs:save'")
    monkeypatch.chdir(project / "inner")
    if how == "everybody's":
        file.chmod(0o666)
    else:
        mine = os.stat
        theirs = os.stat_result((*mine(file)[:4], 54321, *mine(file)[5:]))
        monkeypatch.setattr(os, "stat", lambda at, **how: theirs if at == file else mine(at, **how))
    settings = Settings.read({}, {})

    assert (settings.window, settings.report, settings.on_leak) == (9, None, None)
    (problem,) = settings.problems
    assert problem.startswith(f"{file} ")
    assert problem.endswith("; it is passed over")
    file.write_text("[project]\nname = 'inner'\n")
    assert Settings.read({}, {}).problems == ()


@pytest.mark.parametrize("end", ["home", "repository"])
def test_the_search_ends_at_home_and_at_a_repositorys_top(
    end: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies above is no project's of this user's; what lies there is."""
    write_table(project, "window = 9")
    (project / "top" / "inner").mkdir(parents=True)
    monkeypatch.chdir(project / "top" / "inner")
    assert Settings.read({}, {}).window == 9
    if end == "home":
        monkeypatch.setenv("HOME", str(project / "top"))
    else:
        (project / "top" / ".git").touch()  # a file in work trees, a folder elsewhere

    assert Settings.read({}, {}).window == 2
    write_table(project / "top", "window = 7")
    assert Settings.read({}, {}).window == 7


def test_a_pyproject_that_does_not_name_memguard_is_not_judged(project: Path) -> None:
    """Somebody else's broken file is none of our business."""
    file = project / "pyproject.toml"
    file.write_text("this is [no TOML")

    assert read(pyproject=file) == Settings()


def test_a_broken_pyproject_is_a_problem(project: Path) -> None:
    """A file that should hold settings but cannot be read is told in one line."""
    file = write_table(project, "window = ")
    [problem] = read(pyproject=file).problems

    assert problem.startswith(f"{file} could not be read: ")
    assert problem.endswith("; it is passed over")
    assert "\n" not in problem


@pytest.mark.parametrize("text", ["tool.memguard = 3", "tool = 'memguard'"])
def test_a_pyproject_of_another_shape_is_a_problem(project: Path, text: str) -> None:
    """No table where a table belongs: one line, and defaults."""
    file = project / "pyproject.toml"
    file.write_text(text)
    settings = read(pyproject=file)

    assert len(settings.problems) == 1
    assert settings.window == 2


def test_an_unreadable_pyproject_is_a_problem(project: Path) -> None:
    """A pyproject.toml that cannot be opened does not stop the job."""
    [problem] = read(pyproject=project / "missing.toml").problems

    assert "could not be read" in problem


def test_pyproject_values_have_types_of_their_own(project: Path) -> None:
    """TOML's numbers, booleans and lists are understood, not only text."""
    file = write_table(
        project, 'action = false\nlimit = 1000\noverhead = 1\nignore = ["a", "b"]\nwindow = "3"'
    )
    settings = read(pyproject=file)

    assert settings.problems == ()
    assert settings.action == "off"
    assert settings.limit == Size(bytes=1000)
    assert settings.overhead == 1.0
    assert settings.ignore == ("a", "b")
    assert settings.window == 3


def test_paths_in_pyproject_start_at_its_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path means the same from whichever subfolder the job is started."""
    file = write_table(project, 'report = "out/leak.json"\nignore = "known.txt"')
    (project / "known.txt").write_text("history\n")
    (project / "inner").mkdir()
    monkeypatch.chdir(project / "inner")
    settings = read(pyproject=file)

    assert settings.report == str(project / "out" / "leak.json")
    assert settings.ignore == ("history",)


# --- wrong values ---

ACTION = "raise, warn, log, stop or off (1 for raise, 0 for off)"
STEPS = "a whole number of steps, 1 or more"
GROWTH = "bytes, a size such as 512MiB or 2GB, or a share of the limit such as 10%"
LIMIT = "bytes, a size such as 512MiB or 2GB, or a share of the memory found such as 90%"
SHARE = "a share of step time above 0 and at most 1, such as 0.01 or 1%"
REPORT = "a file name ending in .json, .html or .txt, in which {rank}, {pid} and {step} may stand"
IGNORE = "patterns, separated by commas, or the name of a file with one pattern a line"
WRONG = [
    ("action", "loud", ACTION),
    ("action", 2, ACTION),
    ("action", 1.0, ACTION),
    ("window", 0, STEPS),
    ("window", "two", STEPS),
    ("window", "-1", STEPS),
    ("window", 2.0, STEPS),
    ("window", True, STEPS),
    ("patience", "1e3", STEPS),
    ("patience", "0", STEPS),
    ("max_growth", "lots", GROWTH),
    ("max_growth", 0, GROWTH),
    ("max_growth", True, GROWTH),
    ("limit", "0%", LIMIT),
    ("limit", "0", LIMIT),
    ("limit", -5, LIMIT),
    ("limit", "101%", LIMIT),
    ("overhead", 0, SHARE),
    ("overhead", "0", SHARE),
    ("overhead", 1.5, SHARE),
    ("overhead", float("nan"), SHARE),
    ("overhead", True, SHARE),
    ("report", "leak.pdf", REPORT),
    ("report", "{pid.__class__}.json", REPORT),
    ("report", "{pid!r}.json", REPORT),
    ("report", "{step.json", REPORT),
    ("report", 3, REPORT),
    ("ignore", 7, IGNORE),
    ("ignore", ["a", 7], IGNORE),
]


@pytest.mark.parametrize(("name", "value", "accepted"), WRONG)
def test_a_wrong_keyword_raises_one_line(name: str, value: object, accepted: str) -> None:
    """The message names keyword, value and what is accepted."""
    with pytest.raises(SettingsError) as caught:
        read({name: value})

    assert str(caught.value) == f"{name} is {value!r}; accepted: {accepted}"
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(
    ("name", "value", "accepted"), [row for row in WRONG if isinstance(row[1], str)]
)
def test_a_wrong_variable_is_one_problem_and_the_default_stands(
    name: str, value: str, accepted: str
) -> None:
    """The job goes on with the default; the line names variable, value and what is accepted."""
    [option] = [option for option in OPTIONS if option.name == name]
    settings = read(environ={option.variable: value})

    assert settings.problems == (
        f"{option.variable} is {value!r}; accepted: {accepted}; it is passed over",
    )
    assert getattr(settings, name) == option.default


def test_a_wrong_variable_leaves_the_decision_to_pyproject(project: Path) -> None:
    """What is passed over does not hide the next source."""
    file = write_table(project, "window = 3")
    settings = read(environ={"MEMGUARD_WINDOW": "x"}, pyproject=file)

    assert settings.window == 3
    assert len(settings.problems) == 1


def test_a_wrong_entry_in_pyproject_is_one_problem(project: Path) -> None:
    """The line names file, key, value and what is accepted."""
    file = write_table(project, "window = 0")
    settings = read(pyproject=file)

    assert settings.window == 2
    assert settings.problems == (
        f"[tool.memguard] window in {file} is 0; accepted: a whole number of steps, 1 or more;"
        " it is passed over",
    )


def test_an_unknown_keyword_raises_with_the_nearest_known() -> None:
    """A slip of the fingers is answered with the name that was meant."""
    with pytest.raises(SettingsError) as caught:
        read({"windw": 3})

    assert str(caught.value) == "unknown setting 'windw'; did you mean window?"


def test_an_unknown_keyword_like_no_other_lists_all() -> None:
    """A name that resembles none is answered with all of them."""
    with pytest.raises(
        SettingsError, match=r"^unknown setting 'colour'; known are action, ask, ignore,"
    ):
        read({"colour": 3})


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("MEMGUARD_WINDWO", "did you mean MEMGUARD_WINDOW?"),
        ("MEMGUARD_MAXGROWTH", "did you mean MEMGUARD_MAX_GROWTH?"),
        ("MEMGUARD_ACTION", "did you mean MEMGUARD?"),
        ("MEMGUARD_VERBOSITY", "known are MEMGUARD, MEMGUARD_ASK, MEMGUARD_IGNORE, "),
    ],
)
def test_an_unknown_variable_is_a_problem_with_the_nearest_known(variable: str, said: str) -> None:
    """A misspelled variable would otherwise be ignored without a word."""
    [problem] = read(environ={variable: "3"}).problems

    assert problem.startswith(f"unknown environment variable {variable}; {said}")


def test_other_programs_variables_are_none_of_ours() -> None:
    """Only MEMGUARD itself and MEMGUARD_* are looked at."""
    assert read(environ={"MEMGUARDIAN": "x", "NOT_MEMGUARD": "x"}).problems == ()


def test_an_unknown_key_in_pyproject_is_a_problem(project: Path) -> None:
    """A misspelled key is told like a misspelled variable."""
    file = write_table(project, "pateince = 3")
    [problem] = read(pyproject=file).problems

    assert problem == f"unknown setting 'pateince' in {file}; did you mean patience?"


def test_a_huge_or_hostile_value_still_makes_one_short_line() -> None:
    """A value is shown shortened, and one whose repr fails by its type."""

    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

    for name in ("window", "action"):
        with pytest.raises(SettingsError, match=rf"^{name} is a Hostile; accepted"):
            read({name: Hostile()})
    with pytest.raises(SettingsError) as caught:
        read({"window": "9\n" * 1000})
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_text_is_never_evaluated() -> None:
    """Code in a value stays text."""
    settings = read(environ={option.variable: "__import__('os').abort()" for option in OPTIONS})

    assert dataclasses.replace(settings, problems=(), ignore=()) == Settings()
    assert len(settings.problems) == len(OPTIONS) - 1  # as a pattern it is as good as any


@given(st.sampled_from(OPTIONS), st.text())
def test_no_text_in_the_environment_breaks_the_job(option: Any, text: str) -> None:
    """Whatever stands in a variable, reading it raises nothing."""
    settings = read(environ={option.variable: text})

    assert all("\n" not in problem for problem in settings.problems)


# --- right values ---


@pytest.mark.parametrize(
    ("text", "action"),
    [
        *[(word, word) for word in ("raise", "warn", "log", "stop", "off")],
        *[(word, "raise") for word in ("1", "true", "True", "yes", "ON", " raise ")],
        *[(word, "off") for word in ("0", "false", "no", "OFF")],
    ],
)
def test_the_switch_understands_names_numbers_and_yes_or_no(text: str, action: str) -> None:
    """MEMGUARD=1, MEMGUARD=off and their like."""
    assert read(environ={"MEMGUARD": text}).action == action


@pytest.mark.parametrize("keyword", [None, "raise", "warn"])
def test_off_in_the_environment_silences_explicit_calls(keyword: str | None) -> None:
    """MEMGUARD=0 switches a program off whose code asks for a guard."""
    settings = read({"action": keyword}, {"MEMGUARD": "0"})

    assert settings.off


def test_off_elsewhere_gives_way_like_any_value(project: Path) -> None:
    """Only the environment's off is final; a keyword beats pyproject's."""
    file = write_table(project, 'action = "off"')

    assert not read({"action": "warn"}, pyproject=file).off
    assert read({"action": "off"}).off
    assert read(pyproject=file).off


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (MIB, Size(bytes=MIB)),
        (str(MIB), Size(bytes=MIB)),
        (np.int64(MIB), Size(bytes=MIB)),
        ("512MiB", Size(bytes=512 * MIB)),
        ("2GB", Size(bytes=2 * 10**9)),
        ("10%", Size(share=0.1)),
        ("100%", Size(share=1.0)),
        (Size(share=0.5), Size(share=0.5)),
    ],
)
def test_sizes_are_bytes_units_or_shares(value: object, size: Size) -> None:
    """max_growth and limit read alike."""
    settings = read({"max_growth": value, "limit": value})

    assert settings.max_growth == settings.limit == size


def test_a_size_is_bytes_once_the_whole_is_known() -> None:
    """A share needs the total, bytes do not."""
    assert Size(share=0.1).of(8 * MIB) == int(0.8 * MIB)
    assert Size(bytes=5).of(8 * MIB) == 5
    assert (str(Size(share=0.1)), str(Size(bytes=512 * MIB))) == ("10%", "512 MiB")


def test_whole_numbers_of_other_libraries_are_numbers() -> None:
    """numpy's integers and floats are taken for what they are."""
    settings = read({"window": np.int32(3), "patience": np.uint8(4), "overhead": np.float32(0.5)})

    assert (settings.window, settings.patience, settings.overhead) == (3, 4, 0.5)
    assert type(settings.window) is int
    assert type(settings.overhead) is float


@pytest.mark.parametrize("value", [0.02, "0.02", "2%"])
def test_overhead_is_a_share(value: object) -> None:
    """A number or a percentage."""
    assert read({"overhead": value}).overhead == 0.02


@pytest.mark.parametrize("name", ["a.json", "out/a.html", "a-{rank}-{pid}-{step}.TXT"])
def test_a_report_stays_where_the_job_was_started(project: Path, name: str) -> None:
    """A script that changes folder does not move its report."""
    assert read({"report": name}).report == os.path.join(project, name)
    assert read({"report": Path(name)}).report == os.path.join(project, name)


def test_ignore_takes_one_pattern_or_several(project: Path) -> None:
    """Text, text with commas, or a list."""
    assert read({"ignore": "history"}).ignore == ("history",)
    assert read(environ={"MEMGUARD_IGNORE": "history, cache ,"}).ignore == ("history", "cache")
    assert read({"ignore": ["history", "cache"]}).ignore == ("history", "cache")
    assert read({"ignore": ("history",)}).ignore == ("history",)


def test_ignore_takes_a_file_of_patterns(project: Path) -> None:
    """One pattern a line, with comments and blank lines left out."""
    (project / "known.txt").write_text("# known and harmless\nhistory\n\n  cache, too  \n")

    assert read({"ignore": "known.txt"}).ignore == ("history", "cache, too")
    assert read({"ignore": Path("known.txt")}).ignore == ("history", "cache, too")
    assert read({"ignore": ["other", "known.txt"]}).ignore == ("other", "history", "cache, too")


def test_a_python_file_is_a_pattern_and_not_a_list(project: Path) -> None:
    """`train.py` beside train.py means its findings."""
    (project / "train.py").write_text("import torch\n")

    assert read({"ignore": "train.py"}).ignore == ("train.py",)


def test_a_file_of_patterns_that_is_no_text_is_refused(project: Path) -> None:
    """Bytes that are no text are a wrong value like any other."""
    (project / "known.bin").write_bytes(b"\xff\xfe\xff")

    with pytest.raises(
        SettingsError, match=r"^ignore is 'known.bin': it is no UTF-8 text; accepted"
    ):
        read({"ignore": "known.bin"})


def test_settings_do_not_change() -> None:
    """What was read once stays."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().window = 3  # type: ignore[misc]


def test_a_deleted_current_folder_is_no_obstacle(tmp_path: Path) -> None:
    """A job whose folder was removed under it still has settings."""
    gone, home = tmp_path / "gone", os.getcwd()
    gone.mkdir()
    os.chdir(gone)
    try:
        gone.rmdir()
        settings = Settings.read({"report": "a.json"}, {})
    finally:
        os.chdir(home)

    assert settings.report == os.path.join(os.curdir, "a.json")


@pytest.mark.parametrize("name", ["on_leak", "on_step"])
def test_a_function_is_given_itself_or_by_where_it_is(name: str) -> None:
    """A keyword takes either; a variable names module and function, and imports nothing."""
    [option] = [option for option in OPTIONS if option.name == name]

    assert getattr(read({name: print}), name) is print
    assert getattr(read({name: "package.module:save"}), name) == "package.module:save"
    settings = read(environ={option.variable: "no_such.module:Saver.save"})
    assert getattr(settings, name) == "no_such.module:Saver.save"
    for wrong in ("save", "module:", ":save", "a b:c", "a:b()", "a.:b", 3):
        with pytest.raises(SettingsError, match="accepted: a function, or where to import it from"):
            read({name: wrong})


@pytest.mark.parametrize(("value", "seconds"), [(600, 600.0), ("90", 90.0), (0.5, 0.5)])
def test_the_watchdog_takes_seconds(value: Any, seconds: float) -> None:
    """Numbers, also as text."""
    assert read({"watchdog": value}).watchdog == seconds


@pytest.mark.parametrize("value", [0, -1, "soon", float("nan"), float("inf"), True, 1e9])
def test_a_watchdog_that_could_never_bark_is_refused(value: Any) -> None:
    """Neither nothing nor forever is a time to wait."""
    with pytest.raises(SettingsError, match=r"^watchdog is .*; accepted: seconds"):
        read({"watchdog": value})


def test_whether_to_answer_is_yes_or_no() -> None:
    """Left alone it is decided where the guard is made."""
    assert read().ask is None
    assert read(environ={"MEMGUARD_ASK": "yes"}).ask is True
    assert read({"ask": False}).ask is False
