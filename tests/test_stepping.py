"""Whether the program says itself when a step has ended, and what waits for it."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from programs import Run
from snippets import Snippet

from memguard.explain.stepping import Said, says_step


def asked(code: str, name: str = "__main__") -> Said:
    """What is read off a program when it calls `watch`."""
    answers: list[Said] = []

    def watch(*objects: Any) -> Any:
        answers.append(says_step(sys._getframe(1)))
        return MagicMock()

    snippet = Snippet(code)
    variables = {"memguard": types.SimpleNamespace(watch=watch), "watch": watch, "__name__": name}
    variables |= {"model": None, "contextlib": contextlib, "use": lambda *objects: None}
    exec(compile(snippet.code, snippet.file, "exec"), variables)
    return answers[0]


SAID = {
    "global": "guard = memguard.watch(model)\nfor _ in range(3):\n    guard.step()",
    "from another function": "guard = watch(model)\ndef f():\n    guard.step()",
    "local": "def f():\n    guard = watch(model)\n    guard.step()\nf()",
    "local of a function around": (
        "def f():\n    guard = watch(model)\n    def g():\n        guard.step()\nf()"
    ),
    "context": "with memguard.watch(model) as guard:\n    guard.step()",
    "attribute": (
        "class T:\n"
        "    def __init__(self):\n"
        "        self.guard = memguard.watch(\n"
        "            model,\n"
        "        )\n"
        "    def go(self):\n"
        "        self.guard.step()\n"
        "T()"
    ),
    "at once": "for _ in range(2):\n    memguard.watch(model).step()",
    "walrus": "if (guard := watch(model)) is not None:\n    guard.step()",
    "bound method": "guard = watch(model)\nstep = guard.step",
    "in the main program": "guard = watch(model)\nif __name__ == '__main__':\n    guard.step()",
    "where there is a guard": "guard = watch(model)\nif guard is not None:\n    guard.step()",
    "in the branch that watches": "if True:\n    guard = watch(model)\n    guard.step()",
    "in a try": "guard = watch(model)\ntry:\n    guard.step()\nfinally:\n    pass",
    "exit stack": (
        "with contextlib.ExitStack() as stack:\n"
        "    guard = stack.enter_context(watch(model))\n"
        "    guard.step()"
    ),
}
NOT_SAID = {
    "alone on its line": "memguard.watch(model)",
    "context without name": "with memguard.watch(model):\n    pass",
    "only a report": "guard = watch(model)\nguard.report()\nwith guard:\n    pass",
    "attribute": (
        "class T:\n"
        "    def __init__(self):\n"
        "        self.guard = watch(model)\n"
        "    def go(self):\n"
        "        self.guard.report()\n"
        "T()"
    ),
    "another's step": (
        "def f():\n    guard = watch(model)\n    guard.close()\nf()\n"
        "def g(guard):\n    guard.step()\n"
    ),
}
SOMETIMES = {
    "a flag": "guard = watch(model)\nfor _ in range(3):\n    if use():\n        guard.step()",
    "a case": "guard = watch(model)\nmatch use():\n    case 1:\n        guard.step()",
    "an error": "guard = watch(model)\ntry:\n    use()\nexcept OSError:\n    guard.step()",
}
UNKNOWN = {
    "handed on": "guard = watch(model)\nuse(guard)",
    "returned": "def f():\n    return watch(model)\nguard = f()",
    "kept in a list": "guards = []\nguards.append(watch(model))",
    "attribute beside other steps": (
        "class T:\n"
        "    def __init__(self):\n"
        "        self.guard = watch(model)\n"
        "    def go(self, other):\n"
        "        other.step()\n"
        "T()"
    ),
    "attribute handed on": "class T:\n    pass\nt = T()\nt.guard = watch(model)\nuse(t.guard)",
}


@pytest.mark.parametrize("code", SAID.values(), ids=SAID.keys())
def test_the_text_asks_for_a_step(code: str) -> None:
    """However the guard is bound, a step asked of it shows."""
    assert asked(code) == "always"


@pytest.mark.parametrize("code", NOT_SAID.values(), ids=NOT_SAID.keys())
def test_the_text_never_asks_for_a_step(code: str) -> None:
    """Then forwards are judged from the first on."""
    assert asked(code) == "never"


@pytest.mark.parametrize("code", SOMETIMES.values(), ids=SOMETIMES.keys())
def test_the_text_asks_for_a_step_in_a_branch(code: str) -> None:
    """It may never be taken."""
    assert asked(code) == "sometimes"


@pytest.mark.parametrize("code", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_the_text_does_not_tell(code: str) -> None:
    """The guard goes where it cannot be followed."""
    assert asked(code) == "perhaps"


def test_a_variable_of_a_module_is_at_hand_elsewhere() -> None:
    """Whoever imports the module may ask it for a step."""
    assert asked("guard = watch(model)", name="serving.state") == "perhaps"


def test_without_source_nothing_is_told() -> None:
    """At `python -c` there is no text."""
    answers = []
    code = compile("note(frame())", "<no such file>", "exec")
    exec(code, {"note": lambda f: answers.append(says_step(f)), "frame": lambda: sys._getframe(1)})

    assert answers == ["perhaps"]


SERVER = """
def generate(length):
    state = torch.zeros(1, 8)
    seen = []
    for _ in range(length):
        seen.append(model(state))
    return len(seen)
"""
WATCH = "model.eval()\nguard = memguard.watch(model)\n"


def test_a_first_request_of_many_forwards_is_no_leak(tmp_path: Any) -> None:
    """A generation keeps its graphs until it ends; the loop says itself when a step has ended."""
    program = SERVER + "for _ in range(3):\n    generate(40)\n    guard.step()\n"
    run = Run(tmp_path, program, watch=WATCH)

    assert (run.stopped, run.report.verdict) == (False, "clean")
    assert (run.report.step, run.report.clock["beat"]) == (3, "manual")


def test_a_leak_of_each_request_is_still_found(tmp_path: Any) -> None:
    """What is kept from request to request is told some ten requests in."""
    program = SERVER + (
        "kept = []\n"
        "for _ in range(30):\n"
        "    generate(3)\n"
        "    kept.append(model(torch.zeros(1, 8)))  # grows\n"
        "    guard.step()\n"
    )
    run = Run(tmp_path, program, watch=WATCH)

    assert run.stopped
    assert [run.report.findings[0].holders[0].line] == run.marked


def test_forwards_are_judged_after_all_when_the_word_never_comes(tmp_path: Any) -> None:
    """Where the text does not tell, 24 forwards without a word are an evaluation loop."""
    program = (
        "print(guard)\n"
        "kept = []\n"
        "for count in range(400):\n"
        "    kept.append(model(torch.zeros(1, 8)))  # grows\n"
    )
    run = Run(tmp_path, program, watch=WATCH)

    assert run.stopped
    assert run.report.clock["forwards"] in range(25, 60)


def test_a_word_in_a_branch_is_not_waited_for_long(tmp_path: Any) -> None:
    """The flag is never set: after 256 forwards the loop is judged."""
    program = (
        "kept = []\n"
        "for count in range(400):\n"
        "    kept.append(model(torch.zeros(1, 8)))  # grows\n"
        "    if count < 0:\n"
        "        guard.step()\n"
    )
    run = Run(tmp_path, program, watch=WATCH)

    assert run.stopped
    assert run.report.clock["forwards"] in range(257, 300)


def test_an_evaluation_loop_is_judged_from_the_first_forward_on(tmp_path: Any) -> None:
    """Where nothing asks for a step, a leak is told within ten or so."""
    program = (
        "kept = []\n"
        "for count in range(40):\n"
        "    kept.append(model(torch.zeros(1, 8)))  # grows\n"
        "report = guard.report()\n"
    )
    run = Run(tmp_path, program, watch=WATCH)

    assert run.stopped
    assert run.report.step < 16


def test_a_guard_that_may_be_asked_for_a_step_hears_an_optimizer() -> None:
    """Nothing waits once an optimizer steps."""
    import memguard

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = memguard.watch(model)
    for _ in range(3):
        model(torch.ones(1, 4)).mean().backward()
        optimizer.step()
    report = guard.report()
    guard.close()
    str(guard)

    assert (report.step, report.clock["beat"]) == (3, "optimizer")
