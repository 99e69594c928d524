"""Objects that were declared dead, blocks that leave something behind, graphs kept for long."""

from __future__ import annotations

import gc
import linecache
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import KINDS, MOMENTS, Fault, Spot
from models import Mlp
from programs import Run
from things import Box, Thing

import memguard
from memguard import expectations
from memguard.expectations import GRACE, PATIENCE, Expectations
from memguard.judge.survivors import PINNED_MOST, PINNED_STEPS, is_pinned
from memguard.records import Finding
from memguard.sensors.governor import FREE_STEPS, Governor

HELD = """
class Sweep:
    def __init__(self):
        self.models = {}
    def fold(self, number):
        fold_model = Net()
        self.models[number] = fold_model  # grows
        guard.expect_freed(fold_model, "fold 3 model")
sweep = Sweep()
sweep.fold(3)
for _ in range(12):
    train_step(model, optimizer)
"""


def test_what_was_declared_dead_and_lives_is_told(tmp_path: Path) -> None:
    """Some steps later, as a warning with its chain, line, weight and a way out."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = Run(tmp_path, HELD)

    [finding] = run.report.findings
    [holder] = finding.holders
    parameters = sum(p.numel() for p in run_model().parameters())
    assert not run.stopped
    assert (finding.kind, finding.severity) == ("stale", "warning")
    assert finding.step - finding.first_step == 2 + GRACE
    assert finding.summary.startswith("fold 3 model was to be freed")
    assert finding.growth.total.bytes == 4 * parameters
    assert (holder.name, holder.line) == ("sweep.models", run.marked[0])
    assert holder.chain[-1].startswith("[")
    assert "take it out of sweep.models" in finding.advice
    assert len(told) == 1


def run_model() -> torch.nn.Module:
    """The model of `programs.PRELUDE`, by its sizes."""
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))


def test_what_dies_in_time_is_not_told(tmp_path: Path) -> None:
    """A batch that the next step replaces, and a model whose variable is deleted."""
    run = Run(
        tmp_path,
        """
        other = Net()
        guard.expect_freed(other, "the other model")
        del other
        for _ in range(20):
            x, y = batch()
            guard.expect_freed(x, "batch")
            optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()
        """,
    )
    assert not run.report.findings


@pytest.mark.parametrize("value", [[torch.ones(1)], {"x": 1}, 3, None])
def test_what_cannot_be_referred_to_weakly_is_refused(value: Any) -> None:
    """One error that names the object, its type and what is accepted."""
    with memguard.watch(Mlp()) as guard:
        with pytest.raises(memguard.UsageError, match=r"the batch is of type \w+, .* accepted"):
            guard.expect_freed(value, "the batch")
        with pytest.raises(memguard.UsageError, match="the batch is of type"):
            memguard.expect_freed(value, "the batch")


def test_a_name_is_wanted() -> None:
    """An object of which nobody knows what to call it is refused."""
    with pytest.raises(memguard.UsageError, match="name is ''"):
        memguard.expect_freed(Thing(), "")


class Waiting:
    """Expectations with a clock and a collector of the test's own."""

    def __init__(self) -> None:
        self.told: list[Finding] = []
        self.collected = -1
        self.expectations = Expectations(2, lambda: self.collected, self.told.append)

    def after(self, steps: int) -> list[Finding]:
        """What is told once so many steps have passed since a ring was declared dead."""
        self.expectations.expect(ring(), "a ring", 0)
        for step in range(steps):
            self.expectations.look(step + 1)
        return self.told


def ring() -> Thing:
    """A thing that only a collection frees."""
    thing = Thing()
    thing.itself = thing  # type: ignore[attr-defined]
    return thing


def test_a_cycle_is_given_time_for_a_collection() -> None:
    """It is told when none has come for long, as the cycle it is."""
    gc.collect()
    gc.disable()
    try:
        assert not Waiting().after(PATIENCE // 2)
        [finding] = Waiting().after(PATIENCE + 2 * GRACE)
    finally:
        gc.enable()
    assert "reference cycle" in finding.unnamed
    assert "gc.collect()" in finding.advice
    gc.collect()


def test_expectations_hold_nothing() -> None:
    """What is waited for dies at once, and is forgotten."""
    waiting = Waiting()
    thing = Thing()
    seen = weakref.ref(thing)
    waiting.expectations.expect(thing, "a thing", 0)
    del thing
    assert seen() is None
    waiting.expectations.look(100)
    assert not waiting.told


class Asked:
    """How often somebody was asked who holds an object."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self._original = expectations.finding_of
        patch.setattr(expectations, "finding_of", self._finding_of)

    def _finding_of(self, *args: Any) -> Finding | None:
        self.times += 1
        return self._original(*args)


def test_what_lives_on_at_each_step_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same name or held by the same variable one is told, and the others are counted."""
    asked, waiting = Asked(monkeypatch), Waiting()
    box = Box()
    for step in range(40):
        box.put(Thing())
        waiting.expectations.expect(box.content[-1], "a batch", step)
        waiting.expectations.look(step + 1)
    assert asked.times == 1
    assert len({finding.fingerprint for finding in waiting.told}) == 1
    assert waiting.told[-1].reason.endswith("and 32 more like it")

    waiting.expectations.expect(box.content[0], "another name", 40)
    waiting.expectations.look(80)
    assert asked.times == 2
    assert len({finding.fingerprint for finding in waiting.told}) == 1


def test_one_object_is_asked_for_at_a_look_and_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many are declared dead, each with a name and a holder of its own."""
    asked, waiting = Asked(monkeypatch), Waiting()
    boxes = [Box() for _ in range(30)]
    for number, box in enumerate(boxes):
        box.put(Thing())
        waiting.expectations.expect(box.content[0], f"thing {number}", 0)
    at = []
    for step in range(5, 70):
        before = asked.times
        waiting.expectations.look(step)
        at += [step] * (asked.times - before)
    assert at == [5, 6, 8, 12, 20, 36, 68]


def test_cycles_are_not_searched_for_before_a_collection_has_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first shows that it is one; others like it are waited for without asking."""
    gc.collect()
    gc.disable()
    try:
        asked, waiting = Asked(monkeypatch), Waiting()
        for step in range(PATIENCE // 2):
            waiting.expectations.expect(ring(), "a ring", step)
            waiting.expectations.look(step + 1)
        assert asked.times == 1
        gc.collect()
        waiting.collected = step
        waiting.expectations.look(step + 10)
    finally:
        gc.enable()
    assert asked.times == 1
    assert not waiting.told


def test_what_is_asked_later_is_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first explanation is a finding's; the next waits until the time for it is earned."""
    now = [0.0]
    governor = Governor(0.01, lambda: now[0])
    for _ in range(FREE_STEPS + 1):
        governor.end_step()
    asked, waiting = Asked(monkeypatch), Waiting()
    expected = Expectations(2, lambda: -1, waiting.told.append, governor)
    boxes = [Box(), Box()]
    for number, box in enumerate(boxes):
        box.put(Thing())
        expected.expect(box.content[0], f"thing {number}", 0)
    for step in range(5, 50):
        expected.look(step)
    assert asked.times == 1
    assert governor.sensing == 0
    now[0] = 1e6
    expected.look(50)
    assert asked.times == 2
    assert governor.sensing > 0


# --- blocks ---


def test_a_block_that_leaves_nothing_is_clean() -> None:
    """A whole training in a function of its own is gone with it."""

    def fold() -> float:
        model = Mlp()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).sum()
            loss.backward()
            optimizer.step()
        return float(loss.item())

    with memguard.scope("fold 3", action="raise") as found:
        assert str(found) == "memguard: fold 3 is not over yet"
        fold()
    assert not found.findings
    assert found.report.verdict == "clean"
    assert str(found) == "memguard: clean: fold 3 leaves nothing behind"


def test_a_block_tells_of_the_model_it_leaves() -> None:
    """The outermost module alone, with who holds it and how to let go."""
    box = Box()
    telling = pytest.warns(memguard.LeakWarning, match="fold 3 leaves 1 module behind")
    with telling, memguard.scope("fold 3") as found:
        box.put(Mlp())

    [finding] = found.findings
    [holder] = finding.holders
    assert (finding.kind, finding.severity) == ("stale", "warning")
    assert holder.name == "box.content"
    assert holder.code == "self.content.append(thing)"
    assert "take it out of box.content" in finding.advice
    assert finding.growth.total.bytes == 4 * sum(p.numel() for p in box.content[0].parameters())


def test_a_variable_is_told_with_the_assignment_that_ran_last() -> None:
    """Of two blocks that assign one name, each is told its own line; of a graph, too."""
    found = []
    with memguard.scope("first", action="off") as scope:
        model = Mlp()
    found.append(scope.findings[0].holders[0])
    with memguard.scope("second", action="off") as scope:
        model = Mlp()  # the second
    found.append(scope.findings[0].holders[0])
    with memguard.scope("third", action="off") as scope:
        model = model(torch.ones(1, 8)).sum()
    found.append(scope.findings[0].holders[0])
    assert [holder.name for holder in found] == ["model"] * 3
    first, second, third = (linecache.getline(one.file or "", one.line or 0) for one in found)
    assert first == "        model = Mlp()\n"
    assert second == "        model = Mlp()  # the second\n"
    assert third == "        model = model(torch.ones(1, 8)).sum()\n"


BEFORE_AND_AFTER = """
for turn in range(2):
    picture = torch.zeros(4)  # grows
    for step in range(12):
        train_step(model, optimizer)
        if step == turn == 1:
            guard.expect_freed(picture, "the picture")
picture = torch.ones(4)
"""


def test_a_variable_is_told_with_the_nearest_assignment_above(tmp_path: Path) -> None:
    """Not with one that has not run yet."""
    run = Run(
        tmp_path, BEFORE_AND_AFTER, watch="guard = memguard.watch(model, optimizer, action='log')\n"
    )
    [finding] = run.report.findings
    assert (finding.holders[0].name, finding.holders[0].line) == ("picture", run.marked[0])


def test_a_block_tells_graphs_and_tensors_apart_from_models() -> None:
    """An optimizer that is kept, and a graph that somebody else keeps, are two findings."""
    box, losses = Box(), []
    with memguard.scope("trial", action="off") as found:
        model = Mlp()
        losses.append(model(torch.ones(1, 8)).sum())
        box.put(torch.optim.SGD(model.parameters()))
        del model
    assert [finding.holders[0].name for finding in found.findings] == ["box.content", "losses[...]"]
    assert "optimizer" in found.findings[0].summary
    assert "graph" in found.findings[1].summary


def test_a_single_tensor_is_told_with_its_variable() -> None:
    """A variable of the block lives on after it, and counts."""
    with memguard.scope("cell", action="off") as found:
        left = torch.zeros(1000)
    [finding] = found.findings
    assert finding.holders[0].name == "left"
    assert finding.holders[0].fix == "del left"
    assert finding.growth.total.bytes == left.untyped_storage().nbytes()


def test_what_is_to_be_kept_is_not_told() -> None:
    """A model, with all that is inside it."""
    with memguard.scope("fold 3", action="raise") as fold:
        best = Mlp()
        fold.keep(best, best(torch.ones(1, 8)).detach())
    assert not fold.findings
    assert best.head is not None


def test_a_block_can_raise() -> None:
    """A leak, with its report."""
    leaking = pytest.raises(memguard.LeakError, match="leaves 1 module behind")
    with leaking as caught, memguard.scope("fold 3", action="raise"):
        left = Mlp()
    assert caught.value.report.verdict == "leak"
    assert left is not None


def test_a_block_left_by_an_exception_is_not_judged() -> None:
    """The exception comes through, and holds the frames it has passed."""
    found = memguard.scope("fold 3", action="raise")
    with pytest.raises(KeyError), found:
        left = Mlp()
        raise KeyError(left)
    assert not found.findings


@pytest.mark.parametrize("said_by", ["argument", "variable", "guard"])
def test_a_block_shows_no_source_where_that_is_not_wanted(
    said_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the block, the settings or the guard says so: names and lines stay, code goes."""
    if said_by == "variable":
        monkeypatch.setenv("MEMGUARD_SOURCE", "0")
    model = Mlp()
    guard = memguard.watch(model, source=False) if said_by == "guard" else None
    box = Box()
    source = False if said_by == "argument" else None
    with memguard.scope("fold 3", action="off", source=source) as found:
        box.put(Mlp())
    if guard is not None:
        guard.close()
    [holder] = found.findings[0].holders
    assert holder.name == "box.content"
    assert holder.line
    assert (holder.code, holder.context, found.findings[0].advice) == (None, (), "")


@pytest.mark.parametrize("given", [{"name": 3}, {"name": ""}, {"action": "shout"}])
def test_a_wrong_block_is_refused(given: dict[str, Any]) -> None:
    """Before it begins."""
    with pytest.raises(memguard.UsageError, match=r"memguard\.scope: .* accepted: "):
        memguard.scope(**given)


def test_what_a_block_expects_to_be_freed_is_asked_for_at_its_end() -> None:
    """Also what was born before it."""
    box = Box()
    box.put(Thing())
    with memguard.scope("fold 3", action="off") as found:
        memguard.expect_freed(box.content[0], "the thing")
    [finding] = found.findings
    assert finding.summary == "the thing was to be freed and is still alive"
    assert finding.holders[0].name == "box.content"


def test_the_guard_asks_for_what_is_expected_outside_a_block() -> None:
    """The one that was opened last."""
    thing = Thing()
    with memguard.watch(action="warn") as guard:
        memguard.expect_freed(thing, "the thing")
        for _ in range(2 + GRACE - 1):
            guard.step()
        with pytest.warns(memguard.LeakWarning, match="the thing was to be freed"):
            guard.step()
    assert [finding.kind for finding in guard.report().findings] == ["stale"]
    assert guard.report().verdict == "suspect"


def test_the_next_loop_asks_for_what_is_declared_between_two() -> None:
    """The first loop's guard is open still, and steps no more."""
    box, first, second = Box(), Mlp(), Mlp()
    box.put(Thing())
    with memguard.watch(first, action="log") as silent, memguard.watch(second, action="log"):
        memguard.expect_freed(box.content[0], "the thing")
        with memguard.watch(action="log") as guard:
            for _ in range(2 + GRACE):
                guard.step()
    assert not silent.report().findings
    assert [finding.holders[0].name for finding in guard.report().findings] == ["box.content"]


def test_a_guard_that_closes_asks_for_what_is_kept() -> None:
    """At once, where more than a variable holds it; a variable has time until the next loop."""
    box, early, late = Box(), Thing(), Thing()
    box.put(Thing())
    with memguard.watch(action="log") as first:
        first.step()
        first.expect_freed(box.content[0], "the kept")
        first.expect_freed(early, "the early")
        first.expect_freed(late, "the late")
    del early
    with memguard.watch(action="log") as second:
        for _ in range(2 + GRACE):
            second.step()
    told = [found.summary.partition(" was")[0] for found in first.report().findings]
    assert told == ["the kept"]
    told = [found.summary.partition(" was")[0] for found in second.report().findings]
    assert told == ["the late"]
    assert late


def test_a_loop_that_ends_in_an_exception_is_not_asked() -> None:
    """The exception holds the frames it has passed."""
    box = Box()
    box.put(Thing())
    guard = memguard.watch(action="log")
    with pytest.raises(KeyError), guard:
        guard.expect_freed(box.content[0], "the thing")
        raise KeyError
    assert not guard.report().findings


def test_at_the_end_of_a_program_what_a_loop_left_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where more than a variable holds it, as its guard's settings say, and once."""
    box, variable = Box(), Thing()
    for settings in ({"source": False}, {"action": "off"}, {"ignore": "holder:box.content"}):
        guard = memguard.watch(**{"action": "log", **settings})
        guard.expect_freed(variable, "the variable")
        box.put(Thing())
        guard.expect_freed(box.content[-1], f"by {next(iter(settings))}")
        guard.finish()
    expectations.tell_left()
    told = capsys.readouterr().err
    assert "by source" in told
    assert "content.append" not in told
    assert "by action" not in told
    assert "by ignore" not in told
    assert "the variable" not in told
    expectations.tell_left()
    assert not capsys.readouterr().err
    assert variable


def test_without_a_guard_it_is_asked_for_when_the_program_ends(python: Any, tmp_path: Path) -> None:
    """On standard error, with the script's line; what has died by then is not told."""
    script = tmp_path / "script.py"
    script.write_text(
        "import memguard\n"
        "class Thing: pass\n"
        "held, gone = Thing(), Thing()\n"
        "memguard.expect_freed(held, 'the first')\n"
        "memguard.expect_freed(gone, 'the second')\n"
        "del gone\n"
    )
    done = python(str(script))
    assert done.returncode == 0
    assert "the first was to be freed and is still alive" in done.stderr
    assert "global held" in done.stderr
    assert "script.py:3\n" in done.stderr
    assert "the second" not in done.stderr


@pytest.mark.parametrize(
    ("where", "part"),
    [
        ("sensors.births:Births.install", "scope"),
        ("testing.runs:Runs.end", "scope"),
        ("testing.runs:Runs.survivors", "scope"),
        ("scoping:_of_whole", "scope: modules"),
        ("expectations:why_alive", "scope: modules"),
        ("reactions:react", "reaction"),
        ("sensors.births:Births.remove", "scope removal"),
    ],
)
def test_a_failure_of_ours_stays_out_of_the_users_block(
    where: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block ends as without it, and the report names the part."""
    box = Box()
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", memguard.LeakWarning)
        spot = Spot(f"memguard.{where}", (part,), is_exit=part == "scope removal")
        fault = Fault(spot, KINDS["ValueError"], MOMENTS["always"]).install(patch)
        with memguard.scope("fold 3") as found:
            box.put(Mlp())
    assert fault.struck
    assert [failure.part for failure in found.report.failures] == [part]
    assert part in str(found)


def test_an_optimizer_of_no_usual_form_is_told_like_any_other() -> None:
    """Its groups are gone, or no dicts; the block goes on."""
    box = Box()
    with memguard.scope("fold 3", action="off") as found:
        for groups in (None, [None, {"params": 3}]):
            optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
            optimizer.param_groups = groups  # type: ignore[assignment]
            box.put(optimizer)
        del optimizer
    assert not found.report.failures
    assert "2 optimizers" in found.findings[0].summary


def test_at_the_end_of_a_program_a_failure_of_ours_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is raised out of the exit."""
    thing = Thing()
    memguard.expect_freed(thing, "the thing")
    with monkeypatch.context() as patch:
        spot = Spot("memguard.expectations:why_alive", ("expectations",))
        Fault(spot, KINDS["ValueError"], MOMENTS["always"]).install(patch)
        expectations.tell_left()
    assert "expectations" in capsys.readouterr().err


class Trials:
    """Blocks in two threads, the second within the time of the first."""

    def __init__(self) -> None:
        self.scopes: dict[str, memguard.Scope] = {}
        self.made, self.ended = threading.Event(), threading.Event()
        self.box, self.thing = Box(), Thing()

    def first(self) -> None:
        """Begins first and ends last; keeps nothing but its own variable."""
        with memguard.scope("first", action="off") as self.scopes["first"]:
            mine = Mlp()
            self.made.set()
            assert self.ended.wait(10)
        assert mine.head

    def second(self) -> None:
        """Leaves a model in a box."""
        with memguard.scope("second", action="off") as self.scopes["second"]:
            assert self.made.wait(10)
            model = Mlp()
            self.box.put(model)
            memguard.expect_freed(self.thing, "the second's thing")
            del model
        self.ended.set()


def test_blocks_in_threads_are_not_blamed_for_one_another() -> None:
    """Each tells of its own model alone, and asks for what was expected in its own thread."""
    trials = Trials()
    threads = [threading.Thread(target=one) for one in (trials.first, trials.second)]
    threads[1].start()
    threads[0].start()
    for thread in threads:
        thread.join()
    told = {
        name: [
            (one.summary.replace(" was", ",").partition(",")[0], one.holders[0].name)
            for one in found.findings
        ]
        for name, found in trials.scopes.items()
    }
    assert told["first"] == [("first leaves 1 module behind", "mine")]
    assert ("second leaves 1 module behind", "self.box.content") in told["second"]
    assert [name for name, _ in told["second"] if "thing" in name] == ["the second's thing"]


def test_a_thread_that_the_block_has_started_works_for_it() -> None:
    """What its functions still hold when the block ends was left behind by the block."""
    held, done = threading.Event(), threading.Event()

    def hold(thing: torch.nn.Module) -> None:
        held.set()
        assert done.wait(10)
        assert thing.training

    with memguard.scope("fold 3", action="off") as found:
        thread = threading.Thread(target=hold, args=(Mlp(),))
        thread.start()
        assert held.wait(10)
    done.set()
    thread.join()
    assert len(found.findings) == 1


# --- graphs kept for long ---


def test_a_graph_kept_for_long_is_a_note(tmp_path: Path) -> None:
    """Told to nobody, and the verdict is clean; the report has its holder and weight."""
    run = Run(
        tmp_path,
        f"""
        best = None
        for _ in range({PINNED_STEPS + 60}):
            loss = train_step(model, optimizer)
            if best is None:
                best = loss
        """,
    )
    [finding] = run.report.findings
    assert run.report.verdict == "clean"
    assert (finding.kind, finding.severity) == ("stale", "info")
    assert finding.holders[0].name == "best"
    assert finding.steps == (0, 0)
    assert "1 autograd graph has been kept for" in finding.summary


@pytest.mark.parametrize(
    ("births", "pinned"),
    [
        ([3], True),
        ([3, 4, 5, 6], True),
        (list(range(PINNED_MOST + 1)), False),
        ([3, PINNED_STEPS], False),
        ([3, PINNED_STEPS + 4, PINNED_STEPS + 5], True),
        ([PINNED_STEPS + 5], False),
        ([], False),
    ],
)
def test_pinned_are_few_and_old(births: list[int], pinned: bool) -> None:
    """Those of the present do not count; one of last year and one of yesterday are growth."""
    assert is_pinned(PINNED_STEPS + 6, births, 2) is pinned
