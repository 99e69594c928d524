"""The pytest plugin: its options, markers and fixture, and how it tells what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from plugin_runs import LEAK, OWN_LEAK, Run

import memguard
from memguard.sensors.births import Births

HEALTHY = """
import torch
def test_healthy():
    loss = torch.ones(3, requires_grad=True).sum()
    loss.backward()
"""


# --- options and their ini twins ---


def test_a_leaky_test_fails_and_says_why(run: Run) -> None:
    """The headline, the line, the chain, the fix, an own letter, a failing run's status."""
    result = run(LEAK + HEALTHY, "--memguard")

    result.assert_outcomes(failed=1, passed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*test_run.py L.*",
            "*test_leak leaves 1 graph behind*",
            "*test_run.py:6 in test_leak",
            "*>  6  *KEPT.append(torch.ones(3, requires_grad=True).sum())",
            "*fix  KEPT.append(torch.ones(3, requires_grad=True).sum().item())*",
            "*global KEPT: list",
            "*test_run.py::test_leak*leaked*graph*1*KEPT (global of test_run)",
            "2 tests judged, 1 leaked",
            "LEAKED test_run.py::test_leak - test_leak leaves 1 graph behind*",
        ]
    )


def test_without_being_asked_nothing_is_judged(run: Run) -> None:
    """Installed alone it changes no outcome and prints no line."""
    result = run(LEAK)

    result.assert_outcomes(passed=1)
    assert "memguard" not in result.stdout.str().replace("memguard.testing.plugin", "")


@pytest.mark.parametrize(
    ("words", "failed", "warned"),
    [
        (("--memguard",), 1, 0),
        (("--memguard=fail",), 1, 0),
        (("--memguard=warn",), 0, 1),
        (("--memguard=report",), 0, 0),
        (("--memguard=off",), 0, 0),
        (("--memguard", "--memguard=off"), 0, 0),
    ],
)
def test_what_happens_with_a_leak_is_chosen(
    run: Run, words: tuple[str, ...], failed: int, warned: int
) -> None:
    """It fails the test, is warned of, only listed, or not looked for."""
    result = run(LEAK, *words, "-W", "default::memguard.LeakWarning")

    result.assert_outcomes(failed=failed, passed=1 - failed, warnings=warned)
    assert ("leaves 1 graph behind" in result.stdout.str()) == (bool(failed or warned))
    assert ("1 leaked" in result.stdout.str()) == ("off" not in words[-1])


def test_a_path_may_follow_the_option(run: Run) -> None:
    """`--memguard` takes no word of its own that could be a path."""
    result = run(LEAK, "--memguard", "test_run.py")

    result.assert_outcomes(failed=1)


@pytest.mark.parametrize("word", ["maybe", "=maybe"])
def test_an_unknown_mode_is_wrong_usage(run: Run, word: str) -> None:
    """On the command line and in the ini file."""
    if word.startswith("="):
        spelled, result = "--memguard", run(LEAK, f"--memguard{word}")
    else:
        spelled, result = "ini memguard", run(LEAK, ini=f"memguard = {word}")

    told = f"ERROR: memguard: {spelled}: found 'maybe'; accepted: fail, warn, report, off"
    result.stderr.fnmatch_lines([told])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_filter_that_makes_warnings_errors_fails_the_test(run: Run) -> None:
    """A warning that the user wants as an error is one."""
    result = run(LEAK, "--memguard=warn", "-W", "error::memguard.LeakWarning")

    result.assert_outcomes(failed=1)


def test_the_ini_file_has_the_same_settings(run: Run, pytester: pytest.Pytester) -> None:
    """Mode, repeats, report and patterns; the command line wins."""
    ini = "memguard = fail\nmemguard_repeat = 3\nmemguard_report = found.json\nmemguard_ignore =\n"
    result = run(LEAK, ini=ini)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*each of 3 runs left something more"])
    assert (pytester.path / "found.json").is_file()

    run(LEAK, ini=ini + "    holder:KEPT").assert_outcomes(passed=1)
    run(LEAK, "--memguard=report", ini=ini).assert_outcomes(passed=1)


def test_a_test_is_run_again_only_when_it_leaves_something(run: Run) -> None:
    """`--memguard-repeat` is the most runs; what leaves nothing runs once."""
    source = """
        import torch
        CACHE, RUNS, LEFT = {}, {"healthy": 0, "fills": 0, "leaks": 0}, []
        def test_healthy():
            RUNS["healthy"] += 1
        def test_fills():
            RUNS["fills"] += 1
            CACHE.setdefault("model", torch.nn.Linear(2, 2))
        def test_leaks():
            RUNS["leaks"] += 1
            LEFT.append(torch.ones(2))
        def test_runs():
            assert RUNS == {"healthy": 1, "fills": 2, "leaks": 4}
    """
    result = run(source, "--memguard", "--memguard-repeat", "4")

    result.assert_outcomes(passed=3, failed=1)


def test_with_one_run_whatever_is_left_counts(run: Run) -> None:
    """`--memguard-repeat 1` never runs a test twice, so a cache that fills is one, too."""
    source = """
        import torch
        CACHE = {}
        def test_fills():
            CACHE.setdefault("model", torch.nn.Linear(2, 2))
    """
    result = run(source, "--memguard", "--memguard-repeat", "1")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_fills leaves 1 module behind*", "*judged by one run*"])


@pytest.mark.parametrize("number", ["0", "many"])
def test_a_wrong_number_of_runs_is_wrong_usage(run: Run, number: str) -> None:
    """It says what was found and what is accepted."""
    result = run(LEAK, "--memguard", "--memguard-repeat", number)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--memguard-repeat: found '{number}'; accepted: a whole*"])


@pytest.mark.parametrize(
    ("pattern", "failed"),
    [("holder:KEPT", 0), ("kind:graph", 0), ("file:test_run.py", 0), ("holder:OTHER", 1)],
)
def test_what_matches_a_pattern_is_left_out(run: Run, pattern: str, failed: int) -> None:
    """It is listed as ignored, and fails nothing."""
    result = run(LEAK, "--memguard", "--memguard-ignore", pattern)

    result.assert_outcomes(failed=failed, passed=1 - failed)
    assert ("ignored" in result.stdout.str()) == (not failed)


def test_a_pattern_of_an_unknown_field_is_wrong_usage(run: Run) -> None:
    """As everywhere else in memguard."""
    result = run(LEAK, "--memguard", "--memguard-ignore", "colour:red")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--memguard-ignore: 'colour' is no field*"])


def test_the_session_is_written_as_one_file(run: Run, pytester: pytest.Pytester) -> None:
    """All that was found, as JSON."""
    run(LEAK + HEALTHY, "--memguard", "--memguard-report", "found.json")
    found = json.loads((pytester.path / "found.json").read_text())
    (row,) = found["tests"]

    assert (found["schema"], found["judged"], found["leaked"]) == ("memguard.tests/1", 2, 1)
    assert (row["test"], row["outcome"], row["kind"]) == (
        "test_run.py::test_leak",
        "leaked",
        "graph",
    )
    assert (row["holder"], row["line"], row["survivors"]) == ("KEPT", 6, 1)
    assert row["chain"][:2] == ["module test_run", "global KEPT: list"]


def test_a_file_that_cannot_be_written_is_told(run: Run) -> None:
    """The tests' own outcome stands."""
    result = run(HEALTHY, "--memguard", "--memguard-report", "nowhere/found.json")

    result.assert_outcomes(passed=1, warnings=1)


@pytest.mark.parametrize(
    ("word", "shown"),
    [("-q", "1 test judged"), ("-v", "judged, none leaked"), ("-vv", "judged, none leaked")],
)
def test_more_is_told_with_more_v(run: Run, word: str, shown: str) -> None:
    """A line with -v where all is well, none without."""
    assert "judged" not in run(HEALTHY, "--memguard").stdout.str()
    assert ("judged" in run(HEALTHY, "--memguard", word).stdout.str()) == word.startswith("-v")


def test_what_is_only_reported_is_told_in_full_with_v(run: Run) -> None:
    """The table alone without."""
    plain = run(LEAK, "--memguard=report").stdout.str()
    verbose = run(LEAK, "--memguard=report", "-v").stdout.str()

    assert "leaves 1 graph behind" not in plain
    assert "leaves 1 graph behind" in verbose


def test_junit_has_the_figures(run: Run, pytester: pytest.Pytester) -> None:
    """As properties of the test case, and the headline as its failure."""
    run(LEAK + HEALTHY, "--memguard", "--junitxml=junit.xml")
    tree = ElementTree.parse(pytester.path / "junit.xml")
    (suite,) = tree.iter("testsuite")
    counts = {name: suite.get(name) for name in ("failures", "errors")}
    properties = {p.get("name"): p.get("value") for p in tree.iter("property")}

    assert properties["memguard_kind"] == "graph"
    assert properties["memguard_holder"] == "KEPT"
    assert properties["memguard_survivors"] == "1"
    assert counts == {"failures": "1", "errors": "0"}
    assert ["leaves 1 graph" in (e.get("message") or "") for e in tree.iter("failure")] == [True]


# --- markers ---


@pytest.mark.parametrize("marker", ["memguard", "no_leak", "memguard(repeat=2)"])
def test_a_marked_test_is_judged_without_the_option(run: Run, marker: str) -> None:
    """And no other."""
    source = OWN_LEAK.replace("def test", f"@pytest.mark.{marker}\ndef test", 1)
    result = run(source + LEAK.replace("test_leak", "test_other"))

    result.assert_outcomes(failed=1, passed=1)


@pytest.mark.parametrize(
    ("values", "failed"),
    [
        ("allow='graph'", 0),
        ("allow=('tensor',)", 1),
        ("max_growth='1MiB'", 0),
        ("max_growth='1B'", 1),
        ("filter=lambda found: found.holders[0].name != 'KEPT'", 0),
        ("filter=lambda found: True", 1),
        ("action='report'", 0),
        ("repeat=3", 1),
        ("repeat=3, window=1", 1),
    ],
)
def test_a_marker_tunes_its_test(run: Run, values: str, failed: int) -> None:
    """Kinds, bytes, a function and runs."""
    source = OWN_LEAK.replace("def test", f"@pytest.mark.memguard({values})\ndef test", 1)

    run(source, "--memguard").assert_outcomes(failed=failed, passed=1 - failed)


def test_commas_part_patterns_to_ignore(run: Run) -> None:
    """As on memguard's own command line."""
    both = "holder:OTHER,holder:KEPT"

    run(OWN_LEAK, "--memguard", "--memguard-ignore", both).assert_outcomes(passed=1)
    # A line of the ini file is one pattern, as holders may have commas: `cache[0, 1]`.
    run(OWN_LEAK, "--memguard", ini=f"memguard_ignore = {both}").assert_outcomes(failed=1)


def test_a_window_lets_the_youngest_run_have_survivors(run: Run) -> None:
    """What is gone a run later is none with `window=1`."""
    source = """
        import pytest, torch
        RUNS = []
        @pytest.mark.memguard(repeat={repeat}, window={window})
        def test_last():
            RUNS.append(torch.ones(2))
            del RUNS[:-1]
    """
    run(source.format(repeat=1, window=0)).assert_outcomes(failed=1)
    run(source.format(repeat=1, window=1)).assert_outcomes(passed=1)


HOSTILE = "class Hostile:\n    def __repr__(self): raise ValueError\n"


@pytest.mark.parametrize(
    "values",
    [
        *("repeat=0", "window=-1", "allow='colour'", "max_growth='much'"),
        *("filter=3", "colour=1", "3"),
        *("allow=None", "allow=5", "max_growth=-1"),
        *(f"{name}=Hostile()" for name in ("repeat", "allow", "max_growth", "filter", "action")),
    ],
)
def test_a_wrong_marker_stops_collection(run: Run, values: str) -> None:
    """It says which value, and what is accepted."""
    source = OWN_LEAK.replace("def test", f"{HOSTILE}@pytest.mark.memguard({values})\ndef test", 1)
    result = run(source)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: memguard: marker memguard*"])


def test_a_known_leaky_test_is_reported_and_does_not_fail(run: Run) -> None:
    """It has its own letter, and stands in the table with its reason's word."""
    source = OWN_LEAK.replace("def test", "@pytest.mark.leaky(reason='ticket 3')\ndef test", 1)
    result = run(source, "--memguard")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_run.py l*", "*test_leak*known*graph*"])


def test_a_leaky_test_that_was_mended_fails(run: Run) -> None:
    """So that the mark does not stay for ever; neither letter nor words say that it leaks."""
    source = "import pytest\n@pytest.mark.leaky(reason='ticket 3')\n" + HEALTHY.split("\n", 2)[2]
    told = "test_healthy is marked leaky (ticket 3) but leaves nothing behind: take the mark off"
    result = run("import torch\n" + source, "--memguard")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_run.py F*", told, "NOT LEAKY test_run.py::test_healthy*"])
    result.stdout.no_fnmatch_line("*LEAKED*")


# --- the fixture ---


def test_the_fixture_watches_a_loop(run: Run) -> None:
    """A leak inside the test's own loop raises there; the guard closes with the test."""
    source = """
        import pytest, torch
        import memguard as package
        def test_loop(memguard):
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            memguard.watch(model, optimizer)
            total = 0
            with pytest.raises(package.LeakError, match="total"):
                for _ in range(40):
                    loss = model(torch.ones(1, 2)).sum()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    total += loss
    """
    run(source).assert_outcomes(passed=1)


def test_what_is_expected_to_be_freed_fails_the_test_when_it_is_not(run: Run) -> None:
    """With the option and without; the test's own variables and fixtures may hold it."""
    source = """
        import pytest, torch
        KEPT = []
        class Thing: pass
        @pytest.fixture
        def thing(): return Thing()
        def test_freed(memguard, thing):
            memguard.expect_freed(thing)
        def test_kept(memguard, thing):
            KEPT.append(thing)
            memguard.expect_freed(thing, "the thing")
    """
    for words, judged in (((), "1 test"), (("--memguard",), "2 tests")):
        result = run(source, *words)

        result.assert_outcomes(passed=1, failed=1)
        result.stdout.fnmatch_lines(
            [
                "the thing was expected to be freed with the test and is still alive",
                "*KEPT (list)*",
                "*test_kept *leaked *stale*",
                f"{judged} judged, 1 leaked",
            ]
        )


def test_the_fixture_has_the_assertions(run: Run) -> None:
    """The same as the package's."""
    source = """
        import pytest, torch, weakref
        KEPT = []
        def test_them(memguard):
            thing = torch.ones(2)
            memguard.assert_freed(thing)
            memguard.assert_no_growth(lambda: torch.ones(2))
            assert "thing" in str(memguard.why_alive(thing))
            with pytest.raises(AssertionError, match="KEPT"):
                memguard.assert_no_growth(lambda: KEPT.append(torch.ones(2)))
            with pytest.raises(TypeError, match="takes no weak reference"):
                memguard.expect_freed((1, 2))
    """
    run(source).assert_outcomes(passed=1)


def test_the_fix_is_for_what_the_function_does() -> None:
    """Not for the assertion that calls it, which stands on the same line where it is a lambda."""
    kept: list[torch.Tensor] = []
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(AssertionError, match=r"fix  kept.append\(weight.sum\(\).item\(\)\)\n"):
        memguard.assert_no_growth(lambda: kept.append(weight.sum()))
    sums: list[torch.Tensor] = []
    with pytest.raises(AssertionError, match=r"fix  sums.append\(weight.sum\(\).item\(\)\)\n"):
        memguard.assert_no_growth(repeat=3, fn=lambda: sums.append(weight.sum()))
    with pytest.raises(AssertionError, match=r"fix  make it a collections\.deque"):
        memguard.assert_no_growth(lambda: kept.append(torch.ones(2)))


# --- beside what else pytest does ---


def test_a_failing_test_is_not_judged(run: Run) -> None:
    """Its traceback holds what it made; skipped and expected failures are not, either."""
    source = """
        import pytest, torch
        KEPT = []
        def test_fails():
            KEPT.append(torch.ones(2))
            assert False
        def test_skips():
            KEPT.append(torch.ones(2))
            pytest.skip()
        @pytest.mark.xfail(strict=False)
        def test_expected():
            KEPT.append(torch.ones(2))
            assert False
    """
    result = run(source, "--memguard", "-v")

    result.assert_outcomes(failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["* judged, none leaked"])


def test_wider_fixtures_are_torn_down_once_and_last(run: Run, pytester: pytest.Pytester) -> None:
    """Judging comes between the test's own fixtures and the wider ones, also for the last test."""
    source = """
        import pytest, torch
        ORDER = []
        @pytest.fixture(scope="session")
        def whole():
            yield torch.nn.Linear(2, 2)
            print("OUT", ORDER.count("own"), ORDER.count("module"))
            open("order.txt", "a").write(",".join(ORDER + ["session"]) + ";")
        @pytest.fixture(scope="module")
        def part(whole):
            yield
            ORDER.append("module")
        @pytest.fixture
        def own(part):
            yield
            ORDER.append("own")
        def test_one(own, whole):
            whole.register_forward_hook(lambda m, i, o, kept=torch.ones(2): None)
    """
    result = run(source, "--memguard")

    result.assert_outcomes(failed=1)
    assert (pytester.path / "order.txt").read_text() == "own,own,module,session;"
    assert "\nOUT" not in result.stdout.str().split("short test summary")[1]


def test_a_wider_fixture_that_fails_in_its_teardown_is_an_error(run: Run) -> None:
    """As without the plugin."""
    source = """
        import pytest
        @pytest.fixture(scope="module")
        def part():
            yield
            raise RuntimeError("teardown of part")
        def test_one(part): pass
    """
    result = run(source, "--memguard")

    assert result.parseoutcomes().get("error", result.parseoutcomes().get("errors")) == 1
    result.stdout.fnmatch_lines(["*RuntimeError: teardown of part*"])


def test_a_test_that_fails_when_run_again_is_unconfirmed(run: Run) -> None:
    """It passes, since it did, and is listed."""
    source = """
        import torch
        KEPT = []
        def test_once():
            assert not KEPT
            KEPT.append(torch.ones(2))
    """
    result = run(source, "--memguard")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_once*unconfirmed*"])


def test_running_again_leaves_no_trace_in_the_report(run: Run, pytester: pytest.Pytester) -> None:
    """Output and properties stand there once."""
    source = """
        import torch
        KEPT = []
        def test_says(record_property):
            record_property("said", 1)
            print("hello", 1 + 1)
            KEPT.append(torch.ones(2))
    """
    result = run(source, "--memguard", "--junitxml=junit.xml", "-o", "junit_family=xunit1")

    assert result.stdout.str().count("hello 2") == 1
    assert (pytester.path / "junit.xml").read_text().count('name="said"') == 1


def test_the_plugin_can_be_kept_out(run: Run, pytester: pytest.Pytester) -> None:
    """`-p no:...` leaves nothing of it, not even the option."""
    pytester.makepyfile(test_run=LEAK)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:memguard", "--memguard"],
        capture_output=True,
        text=True,
        check=False,
        cwd=pytester.path,
    )

    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "unrecognized arguments: --memguard" in ended.stderr


def test_not_asked_it_loads_no_torch(run: Run, pytester: pytest.Pytester) -> None:
    """Nor anything of memguard that takes time; asked, it waits until the tests load torch."""
    pytester.makepyfile(
        test_run="""
        import sys
        def test_modules():
            heavy = {"torch", "psutil", "numpy", "memguard.alive", "memguard.testing.checking"}
            print("LOADED", sorted(heavy & set(sys.modules)))
        """
    )
    words = [sys.executable, "-m", "pytest", "-s", "-p", "no:memguard"]
    words += ["-p", "memguard.testing.plugin"]
    words += ["-p", "no:hypothesispytest"]
    for more, loaded in (([], "[]"), (["--memguard"], "torch")):
        ended = subprocess.run(
            [*words, *more], capture_output=True, text=True, check=False, cwd=pytester.path
        )
        line = next(line for line in ended.stdout.splitlines() if "LOADED" in line)

        assert ended.returncode == 0
        assert ("torch" not in line) if loaded == "torch" else line.endswith("LOADED []")


def test_a_failure_of_its_own_fails_no_test(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told at the end, and nothing more is judged."""

    def broken(*_: object) -> None:
        raise AttributeError("no such name in this torch")

    monkeypatch.setattr(Births, "begin", broken)
    result = run(LEAK + HEALTHY, "--memguard")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["judging tests failed: AttributeError: no such name in*"])


def test_it_leaves_nothing_in_the_process(run: Run) -> None:
    """The session's end takes the collector's callback out; `no_residue` looks."""
    run(LEAK + HEALTHY, "--memguard").assert_outcomes(failed=1, passed=1)


def _has(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


@pytest.mark.skipif(not _has("xdist"), reason="pytest-xdist is not installed")
def test_workers_of_xdist_tell_the_controller(pytester: pytest.Pytester, run: Run) -> None:
    """Letters, table and file are the controller's."""
    result = run(
        LEAK + HEALTHY, "--memguard", "-n", "2", "--memguard-report", "found.json", apart=True
    )

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*test_leak*leaked*graph*", "2 tests judged, 1 leaked"])
    assert json.loads((pytester.path / "found.json").read_text())["leaked"] == 1


@pytest.mark.skipif(not _has("xdist"), reason="pytest-xdist is not installed")
def test_workers_of_xdist_tell_of_marked_tests(run: Run, pytester: pytest.Pytester) -> None:
    """Also where only a mark asks, which the controller does not see."""
    source = OWN_LEAK.replace("def test", "@pytest.mark.no_leak\ndef test", 1)
    result = run(source + HEALTHY, "-n", "1", "--junitxml=junit.xml", apart=True)

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*test_leak*leaked*graph*", "1 test judged, 1 leaked"])
    assert "<failure" in (pytester.path / "junit.xml").read_text()


FORKING = """
import os, pickle, pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    hook = item.config.hook
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        reports = runtestprotocol(item, log=False)
        told = [hook.pytest_report_to_serializable(config=item.config, report=r) for r in reports]
        with os.fdopen(writing, "wb") as file:
            pickle.dump(told, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        told = pickle.load(file)
    os.waitpid(child, 0)
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for data in told:
        report = hook.pytest_report_from_serializable(config=item.config, data=data)
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_tests_in_forked_processes_are_judged_there(run: Run, pytester: pytest.Pytester) -> None:
    """And told here, whether the command line asks or a mark."""
    source = OWN_LEAK.replace("def test", "@pytest.mark.no_leak\ndef test", 1) + HEALTHY
    for words, judged in ((("--memguard",), 2), ((), 1)):
        result = run(source, *words, "--memguard-report", "found.json", conftest=FORKING)
        found = json.loads((pytester.path / "found.json").read_text())

        result.assert_outcomes(failed=1, passed=1)
        result.stdout.fnmatch_lines(["test_run.py L.*", "*KEPT.append(*"])
        assert (found["judged"], found["leaked"]) == (judged, 1)
        assert found["tests"][0]["holder"] == "KEPT"


@pytest.mark.skipif(not _has("pytest_rerunfailures"), reason="not installed")
def test_flaky_tests_are_run_again_by_their_plugin(run: Run) -> None:
    """What passes in the end is judged then."""
    source = """
        import torch
        RUNS, KEPT = [], []
        def test_flaky():
            RUNS.append(1)
            assert len(RUNS) > 1
        def test_leaks():
            KEPT.append(torch.ones(2))
    """
    result = run(source, "--memguard", "--reruns", "1", apart=True, beside="rerunfailures")

    # A leak is a failure as any other, and so run again.
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "rerun": 2}
    result.stdout.fnmatch_lines(["test_run.py R.RL*", "2 tests judged, 1 leaked"])


@pytest.mark.parametrize("name", ["asyncio", "anyio"])
def test_coroutines_are_judged(run: Run, name: str) -> None:
    """As pytest-asyncio and anyio run them."""
    if not _has({"asyncio": "pytest_asyncio"}.get(name, name)):
        pytest.skip("its plugin is not installed")
    source = f"""
        import pytest, torch
        KEPT = []
        pytestmark = pytest.mark.{name}
        @pytest.fixture
        def anyio_backend(): return "asyncio"
        async def test_leaks(anyio_backend):
            KEPT.append(torch.ones(2))
        async def test_healthy(anyio_backend):
            torch.ones(2)
    """
    result = run(source, "--memguard", apart=True, beside=name)

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*KEPT.append(torch.ones(2))*"])


@pytest.mark.parametrize("value", ["0", "off"])
def test_the_environment_silences_the_plugin(
    run: Run, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Whoever runs the suite can always switch it off: options, markers and fixture alike."""
    monkeypatch.setenv("MEMGUARD", value)
    source = OWN_LEAK.replace("def test_leak()", "@pytest.mark.no_leak\ndef test_leak(memguard)")
    result = run(source, "--memguard")

    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*memguard*leak*")
