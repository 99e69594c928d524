"""Which statement is seen to bound a holder, and what a loop has yet to do for its graphs."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import Any

import pytest
from snippets import Snippet

from memguard.explain.source import find_statement
from memguard.explain.syntax import forget_sources


@pytest.fixture(autouse=True)
def _no_sources_left() -> Iterator[None]:
    yield
    forget_sources()
    for file in [file for file in linecache.cache if file.startswith("<snippet")]:
        del linecache.cache[file]


LIST = {"kind": "local", "name": "kept", "where": "train", "container": "list"}
TENSOR = {"kind": "local", "name": "total", "where": "train", "container": "Tensor"}
METER = {
    "kind": "attribute",
    "name": "values",
    "where": "Meter",
    "container": "list",
    "expression": "meter.values",
}

# name, code, arguments of `Snippet.place`, expected bound; no line marked `frees`: no release
RELEASES: list[tuple[str, str, dict[str, Any], int | None]] = [
    (
        "cleared_every_eighth_step",
        """
        def train(loader, opt):
            kept = []
            for i, loss in enumerate(loader):
                kept.append(loss)  # at 0
                if (i + 1) % 8 == 0:
                    opt.step()
                    kept.clear()  # frees
        """,
        LIST,
        8,
    ),
    (
        "never_emptied",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                kept.append(loss)  # at 0
        """,
        LIST,
        None,
    ),
    (
        "emptied_in_an_outer_loop_only",
        """
        def train(loader, opt):
            for epoch in range(10):
                kept = []
                for loss in loader:
                    opt.step()  # at 0
                    kept.append(loss)
                kept.clear()
        """,
        LIST,
        None,
    ),
    (
        "outer_loop_around_few_turns",
        """
        CRITIC_STEPS = 5

        def train(loader, opt):
            for batch in loader:
                kept = []  # frees
                for _ in range(CRITIC_STEPS):
                    opt.step()  # at 0
                    kept.append(critic(batch))
        """,
        LIST,
        5,
    ),
    (
        "begun_anew_inside_the_loop",
        """
        def train(loader, opt):
            for episode in loader:
                kept = []  # frees
                while not done():
                    kept.append(act())
                opt.step()  # at 0
        """,
        LIST,
        None,
    ),
    (
        "several_put_in_and_one_popped",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                kept.extend([loss, 2 * loss])
                if len(kept) > 20:
                    kept.pop(0)
        """,
        LIST,
        None,
    ),
    (
        "appended_twice_and_popped_once",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
                kept.append(2 * loss)
                if len(kept) > 20:
                    kept.pop(0)
        """,
        LIST,
        None,
    ),
    (
        "appended_twice_and_popped_as_long_as_needed",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
                kept.append(2 * loss)
                while len(kept) > 20:
                    kept.pop(0)  # frees
        """,
        LIST,
        20,
    ),
    (
        "appended_one_way_or_the_other",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                if loss > 1:
                    kept.append(loss)
                else:
                    kept.append(2 * loss)
                if len(kept) > 20:
                    kept.pop(0)  # frees
        """,
        LIST,
        20,
    ),
    (
        "filled_first_and_then_replaced",
        """
        class Meter:
            def add(self, loss):
                if len(self.values) < 40:
                    self.values.append(loss)
                    return
                self.values.pop(0)  # frees
                self.values.append(loss)

        def train(loader, opt, meter):
            for loss in loader:
                opt.step()  # at 0
                meter.add(loss)
        """,
        METER,
        None,
    ),
    (
        "appended_before_a_continue_or_after_it",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                if len(kept) > 20:
                    kept.pop(0)  # frees
                if loss > 1:
                    kept.append(loss)
                    continue
                kept.append(2 * loss)
        """,
        LIST,
        20,
    ),
    (
        "begun_where_it_is_missing",
        """
        def train(loader, opt):
            kept = {}
            for i, loss in enumerate(loader):
                opt.step()  # at 0
                if i % 10 == 0:
                    if "a" not in kept:
                        kept["a"] = []
                kept["a"].append(loss)
        """,
        {**LIST, "container": "dict", "path": "['a'][...]"},
        None,
    ),
    (
        "begun_anew_every_tenth_step",
        """
        def train(loader, opt):
            kept = {}
            for i, loss in enumerate(loader):
                opt.step()  # at 0
                if i % 10 == 0:
                    kept["a"] = []  # frees
                kept["a"].append(loss)
        """,
        {**LIST, "container": "dict", "path": "['a'][...]"},
        10,
    ),
    (
        "bound_that_the_list_has_long_passed",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
                if len(kept) > 20:
                    kept.pop(0)
        """,
        {**LIST, "length": 2_405},
        None,
    ),
    (
        "oldest_popped",
        """
        LIMIT = 4

        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
                if len(kept) > 2 * LIMIT:
                    kept.pop(0)  # frees
        """,
        LIST,
        8,
    ),
    (
        "tail_kept_by_slice",
        """
        def train(loader, opt, window=6):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
                kept = kept[-window:]  # frees
        """,
        LIST,
        6,
    ),
    (
        "head_deleted_by_slice",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
                del kept[:-20]  # frees
        """,
        LIST,
        20,
    ),
    (
        "whole_deleted_by_slice",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
                if len(kept) == 5:
                    del kept[:]  # frees
        """,
        LIST,
        5,
    ),
    (
        "assigned_through_its_slice",
        """
        def train(loader, opt):
            kept = []
            for i, loss in enumerate(loader):
                opt.step()  # at 0
                kept.append(loss)
                if not i % 3:
                    kept[:] = []  # frees
        """,
        LIST,
        3,
    ),
    (
        "appended_while_there_is_room",
        """
        class Memory:
            def __init__(self, capacity):
                self.capacity = capacity
                self.items = []
                self.at = 0

            def push(self, item):
                if len(self.items) < self.capacity:
                    self.items.append(item)  # frees
                else:
                    self.items[self.at] = item
                self.at = (self.at + 1) % self.capacity

        memory = Memory(capacity=50)
        for x in stream():
            memory.push(x)
            opt.step()  # at 0
        """,
        {"kind": "attribute", "name": "items", "where": "Memory", "container": "list"},
        50,
    ),
    (
        "appended_in_the_other_branch",
        """
        def train(loader, opt):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                if len(kept) >= 30:
                    kept[0] = loss
                else:
                    kept.append(loss)  # frees
        """,
        LIST,
        30,
    ),
    (
        "written_round_a_ring",
        """
        def train(loader, opt, slots):
            kept = {}
            for i, loss in enumerate(loader):
                opt.step()  # at 0
                kept[i % slots] = loss  # frees
        """,
        {**LIST, "container": "dict", "numbers": {"slots": 12}},
        12,
    ),
    (
        "rows_of_a_tensor_are_no_ring",
        """
        def train(loader, opt):
            total = torch.zeros(8, 4)
            for i, row in enumerate(loader):
                opt.step()  # at 0
                total[i % 8] = row
        """,
        TENSOR,
        None,
    ),
    (
        "slice_of_a_tensor_frees_no_graph",
        """
        def train(loader, opt):
            total = torch.zeros(8)
            for row in loader:
                opt.step()  # at 0
                total = torch.cat([total, row])
                total = total[-8:]
        """,
        TENSOR,
        None,
    ),
    (
        "window_loss_set_to_zero",
        """
        def train(loader, opt):
            total = 0
            for step, x in enumerate(loader):
                total = total + model(x)  # at 0
                if step % WINDOW == 0:
                    total.backward()
                    opt.step()
                    total = 0  # frees
        """,
        {**TENSOR, "numbers": {"WINDOW": 7}},
        7,
    ),
    (
        "count_that_starts_over",
        """
        def train(loader, opt):
            total, seen = 0, 0
            for x in loader:
                total = total + model(x)  # at 0
                seen += 1
                if seen == 16:
                    opt.step()
                    total, seen = 0, 0  # frees
        """,
        TENSOR,
        16,
    ),
    (
        "state_detached_each_turn",
        """
        def train(loader, opt):
            total = None
            for x in loader:
                if total is not None:
                    total = total.detach()  # frees
                out, total = model(x, total)  # at 0
        """,
        TENSOR,
        None,
    ),
    (
        "state_cut_by_a_function_of_the_users",
        """
        def cut(h):
            if isinstance(h, tuple):
                return tuple(cut(part) for part in h)
            return h.detach()

        def train(loader, opt):
            total = model.init_hidden()
            for i, x in enumerate(loader):
                out, total = model(x, total)  # at 0
                if i % 35 == 0:
                    total = cut(total)  # frees
        """,
        TENSOR,
        35,
    ),
    (
        "detached_in_place",
        """
        def train(loader, opt):
            total = torch.zeros(1)
            for i, x in enumerate(loader):
                opt.step()  # at 0
                total = total + model(x)
                if i % 10 == 9:
                    total.detach_()  # frees
        """,
        TENSOR,
        10,
    ),
    (
        "emptied_by_a_function_it_is_handed_to",
        """
        def update(opt, losses):
            opt.step()  # at 0
            losses.clear()  # frees

        def train(loader, opt):
            kept = []
            for i, loss in enumerate(loader):
                kept.append(loss)
                if i % 4 == 3:
                    update(opt, kept)  # at 1
        """,
        LIST,
        4,
    ),
    (
        "function_empties_another_list",
        """
        def forget(losses):
            losses.clear()

        def train(loader, opt):
            kept, other = [], []
            for i, loss in enumerate(loader):
                kept.append(loss)  # at 0
                forget(other)
            forget(kept)
        """,
        LIST,
        None,
    ),
    (
        "method_that_resets_called_in_the_loop",
        """
        class Meter:
            def __init__(self):
                self.values = []

            def update(self, value):
                self.values.append(value)

            def reset(self):
                self.values = []  # frees

        def train(loader, opt):
            meter = Meter()
            for step, loss in enumerate(loader):
                opt.step()  # at 0
                meter.update(loss)
                if step % 20 == 0:
                    meter.reset()
        """,
        METER,
        20,
    ),
    (
        "method_that_resets_called_once_an_epoch",
        """
        class Meter:
            def __init__(self):
                self.values = []

            def update(self, value):
                self.values.append(value)

            def reset(self):
                self.values = []

        def train(loader, opt):
            meter = Meter()
            for epoch in range(9):
                meter.reset()
                for loss in loader:
                    opt.step()  # at 0
                    meter.update(loss)
        """,
        METER,
        None,
    ),
    (
        "method_that_resets_never_called",
        """
        class Meter:
            def __init__(self):
                self.values = []

            def update(self, value):
                self.values.append(value)

            def reset(self):
                self.values.clear()

        def train(loader, opt):
            meter = Meter()
            for loss in loader:
                opt.step()  # at 0
                meter.update(loss)
        """,
        METER,
        None,
    ),
    (
        "reset_of_something_else",
        """
        class Meter:
            def __init__(self):
                self.values = []

            def update(self, value):
                self.values.append(value)

            def reset(self):
                self.values.clear()

        class World:
            def reset(self):
                return 0

        def train(opt):
            meter = Meter()
            world = World()
            for episode in range(99):
                world.reset()
                opt.step()  # at 0
                meter.update(1)
        """,
        METER,
        None,
    ),
    (
        "reset_of_another_object_of_the_class",
        """
        class Meter:
            def __init__(self):
                self.values = []

            def update(self, value):
                self.values.append(value)

            def reset(self):
                self.values.clear()

        def train(loader, opt):
            meter = Meter()
            other = Meter()
            for loss in loader:
                opt.step()  # at 0
                meter.update(loss)
                other.update(loss)
                other.reset()
        """,
        METER,
        None,
    ),
    (
        "all_meters_reset_by_a_loop",
        """
        class Meter:
            def __init__(self):
                self.values = []

            def update(self, value):
                self.values.append(value)

            def reset(self):
                self.values.clear()  # frees

        def train(loader, opt):
            meter = Meter()
            other = Meter()
            for i, loss in enumerate(loader):
                opt.step()  # at 0
                meter.update(loss)
                if i % 6 == 0:
                    for one in (meter, other):
                        one.reset()
        """,
        METER,
        6,
    ),
    (
        "several_lists_cleared_by_a_loop",
        """
        class Meter:
            def __init__(self):
                self.values = []
                self.targets = []

            def update(self, value):
                self.values.append(value)

            def reset(self):
                for buffer in (self.values, self.targets):
                    buffer.clear()  # frees

        def train(loader, opt):
            meter = Meter()
            for step, loss in enumerate(loader):
                opt.step()  # at 0
                meter.update(loss)
                if step % 20 == 0:
                    meter.reset()
        """,
        METER,
        20,
    ),
    (
        "another_list_of_the_same_object_is_cleared",
        """
        class Policy:
            def __init__(self):
                self.rewards = []
                self.saved = []

        def main():
            policy = Policy()
            for episode in range(9):
                while running():
                    policy.saved.append(act(policy))
                    policy.rewards.append(1)
                opt.step()  # at 0
                policy.rewards.clear()
        """,
        {
            "kind": "attribute",
            "name": "saved",
            "where": "Policy",
            "container": "list",
            "expression": "policy.saved",
        },
        None,
    ),
    (
        "another_key_is_cleared",
        """
        def train(loader, opt):
            kept = {"loss": [], "acc": []}
            for loss in loader:
                opt.step()  # at 0
                kept["loss"].append(loss)
                kept["acc"].clear()
        """,
        {**LIST, "container": "dict", "path": "['loss'][...]"},
        None,
    ),
    (
        "bounded_queue",
        """
        from collections import deque

        class Display:
            def __init__(self, length=16):
                self.recent = deque(maxlen=length)  # frees

            def push(self, loss):
                self.recent.append(loss)

        display = Display(length=9)
        for loss in stream():
            opt.step()  # at 0
            display.push(loss)
        """,
        {"kind": "attribute", "name": "recent", "where": "Display", "container": "deque"},
        9,
    ),
    (
        "unbounded_queue",
        """
        from collections import deque

        def train(loader, opt):
            kept = deque()
            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
        """,
        {**LIST, "container": "deque"},
        None,
    ),
    (
        "cache_with_a_size",
        """
        from functools import lru_cache

        SIZE = 32

        @lru_cache(maxsize=SIZE)  # frees
        def encode(i):
            return model(i)
        """,
        {"kind": "cache", "name": "encode", "where": "encode"},
        32,
    ),
    (
        "cache_with_functools_own_size",
        """
        import functools

        @functools.lru_cache  # frees
        def encode(i):
            return model(i)
        """,
        {"kind": "cache", "name": "encode", "where": "encode"},
        128,
    ),
    (
        "cache_without_a_size",
        """
        import functools

        @functools.cache
        def encode(i):
            return model(i)
        """,
        {"kind": "cache", "name": "encode", "where": "encode"},
        None,
    ),
    (
        "method_that_a_library_calls",
        """
        class Model(LightningModule):
            def training_step(self, batch):
                self.values.append(self.net(batch))
                if len(self.values) >= 10:
                    self.values.pop(0)  # frees

        trainer.fit(Model())  # at 0
        """,
        {"kind": "attribute", "name": "values", "where": "Model", "container": "list"},
        10,
    ),
    (
        "epoch_method_that_a_library_calls",
        """
        class Model(LightningModule):
            def training_step(self, batch):
                self.values.append(self.net(batch))

            def on_train_epoch_end(self):
                self.values.clear()

        trainer.fit(Model())  # at 0
        """,
        {"kind": "attribute", "name": "values", "where": "Model", "container": "list"},
        None,
    ),
    (
        "limit_of_the_function_it_is_handed_to",
        """
        def trim(losses, n):
            del losses[:-n]  # frees

        def train(loader, opt, n=3):
            kept = []
            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
                trim(kept, 9)
        """,
        {**LIST, "numbers": {"n": 3}},
        9,
    ),
    (
        "emptied_by_a_callback_of_that_moment",
        """
        class Board:
            def __init__(self):
                self.values = []

            def add(self, value):
                self.values.append(value)

            def read(self):
                mean = sum(self.values) / len(self.values)
                self.values.clear()  # frees
                return mean

        def train(loader, opt, hooks):
            board = Board()

            @hooks.on("step_end")
            def measure(loss):
                board.add(loss)

            @hooks.on("epoch_end")
            def show():
                print(board.read())

            for step, loss in enumerate(loader):
                opt.step()  # at 0
                hooks.fire("step_end", loss)
                if step % 16 == 15:
                    hooks.fire("epoch_end")
        """,
        {
            "kind": "attribute",
            "name": "values",
            "where": "Board",
            "container": "list",
            "expression": "board.values",
        },
        16,
    ),
    (
        "callback_of_a_moment_that_never_comes",
        """
        def train(loader, opt, hooks):
            kept = []
            hooks.add("train_end", lambda: 0)

            @hooks.on("train_end")
            def show():
                kept.clear()

            for loss in loader:
                opt.step()  # at 0
                kept.append(loss)
                hooks.fire("step_end")
        """,
        LIST,
        None,
    ),
    (
        "callback_given_to_an_attribute",
        """
        class Trainer:
            def __init__(self, events):
                self.events = events
                self.kept = []
                self.events.add("window", self.forget)

            def forget(self):
                self.kept.clear()  # frees

            def fit(self, loader):
                for step, loss in enumerate(loader):
                    self.opt.step()  # at 0
                    self.kept.append(loss)
                    if step % 5 == 0:
                        self.events.fire("window")
        """,
        {"kind": "attribute", "name": "kept", "where": "Trainer", "container": "list"},
        5,
    ),
    (
        "hook_list_cleared_by_the_loop",
        """
        seen = []

        def hook(module, args, output):
            seen.append(output)

        model.register_forward_hook(hook)
        for x in stream():
            loss = model(x)
            loss.backward()
            opt.step()  # at 0
            seen.clear()  # frees
        """,
        {"kind": "global", "name": "seen", "container": "list"},
        None,
    ),
]


@pytest.mark.parametrize(
    ("code", "place", "bound"), [case[1:] for case in RELEASES], ids=[case[0] for case in RELEASES]
)
def test_release(code: str, place: dict[str, Any], bound: int | None) -> None:
    """The statement that empties the holder in the same loop is found, and its bound read."""
    snippet = Snippet(code)

    found = find_statement(snippet.place(**place), snippet.stack())

    assert found is not None
    release = None if found.release and found.release.outer else found.release
    assert (snippet.marked("frees"), bound) == (release and release.line, release and release.bound)


@pytest.mark.parametrize("emptying", ["kept = []", "kept.clear()", "pass"])
def test_what_an_outer_loop_empties_is_told_apart(emptying: str) -> None:
    """Nobody knows how long an epoch is, but with its end the holder is emptied."""
    code = f"""
        def train(loader, opt):
            kept = []
            for epoch in range(1_000):
                {emptying}
                for loss in loader:
                    opt.step()  # at 0
                    kept.append(loss)
        """
    snippet = Snippet(code)
    found = find_statement(snippet.place(**LIST), snippet.stack())
    assert found is not None
    release = found.release
    assert (release is not None and release.outer) is (emptying != "pass")
    assert release is None or (release.code, release.bound) == (emptying, None)


PENDING: list[tuple[str, str, dict[str, Any], str | None]] = [
    (
        "backward_on_every_turn",
        """
        def train(loader, opt):
            kept = []
            for x in loader:
                loss = model(x)
                loss.backward()
                opt.step()  # at 0
                kept.append(loss)
        """,
        LIST,
        None,
    ),
    (
        "backward_every_few_turns",
        """
        def train(loader, opt):
            kept = []
            for i, x in enumerate(loader):
                kept.append(model(x))  # at 0
                if i % 4 == 3:
                    torch.stack(kept).sum().backward()
                    opt.step()
        """,
        LIST,
        "torch.stack(kept).sum().backward() at line 6",
    ),
    (
        "step_every_few_turns_in_a_method",
        """
        class Trainer:
            def update(self):
                self.optimizer.step()

            def fit(self, loader):
                kept = []
                for i, x in enumerate(loader):
                    loss = model(x)  # at 0
                    loss.backward()
                    kept.append(loss)
                    if (i + 1) % self.every == 0:
                        self.update()
        """,
        {**LIST, "where": "Trainer.fit"},
        "self.optimizer.step() at line 3",
    ),
    (
        "turns_left_out_by_continue",
        """
        def train(loader, opt):
            kept = []
            for i, x in enumerate(loader):
                kept.append(model(x))  # at 0
                if i % 4 != 3:
                    continue
                sum(kept).backward()
        """,
        LIST,
        "sum(kept).backward() at line 7",
    ),
    (
        "either_branch_goes_backward",
        """
        def train(loader, opt, scaler):
            kept = []
            for x in loader:
                loss = model(x)
                if scaler.fast % 2:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
                opt.step()  # at 0
                kept.append(loss)
        """,
        LIST,
        None,
    ),
    (
        "a_setting_and_a_check_are_no_period",
        """
        def train(loader, opt, training):
            kept = []
            for x in loader:
                loss = model(x)
                if training and loss.requires_grad:
                    loss.backward()
                if torch.isfinite(loss):
                    opt.step()  # at 0
                kept.append(loss)
        """,
        LIST,
        None,
    ),
    (
        "warm_up_is_no_period",
        """
        def train(env, opt):
            kept = []
            for step in range(99):
                kept.append(env.step())
                if len(kept) >= 64:
                    loss = learn(kept)
                    loss.backward()
                    opt.step()  # at 0
        """,
        LIST,
        None,
    ),
    (
        "full_window_is_a_period",
        """
        def train(env, opt):
            kept = []
            for step in range(99):
                kept.append(model(step))  # at 0
                if len(kept) == 64:
                    sum(kept).backward()
                    opt.step()
                    kept.clear()
        """,
        LIST,
        "sum(kept).backward() at line 6",
    ),
    (
        "rollout_before_one_backward",
        """
        def train(env, opt):
            for episode in range(99):
                kept = []
                done = False
                while not done:
                    value, done = model(env)
                    kept.append(value)
                loss = sum(kept)
                loss.backward()
                opt.step()  # at 0
        """,
        LIST,
        "loss.backward() at line 9",
    ),
    (
        "rollout_that_is_running",
        """
        def train(env, opt):
            for episode in range(99):
                kept = []
                done = False
                while not done:
                    value, done = model(env)  # at 0
                    kept.append(value)
                finish(kept, opt)

        def finish(values, opt):
            sum(values).backward()
            opt.step()
        """,
        LIST,
        "sum(values).backward() at line 11",
    ),
    (
        "backward_of_another_function_frees_no_local",
        """
        def train(loader):
            kept = []
            for x in loader:
                kept.append(model(x))  # at 0
            return len(kept)

        def main(loader, opt):
            for epoch in range(9):
                train(loader)  # at 1
                fit(loader).backward()
        """,
        LIST,
        None,
    ),
    (
        "environments_and_schedules_step_too",
        """
        def train(env, scheduler):
            kept = []
            for i in range(99):
                kept.append(model(i))  # at 0
                if i % 4 == 0:
                    env.step(i)
                    scheduler.step()
        """,
        LIST,
        None,
    ),
    (
        "long_call_is_shortened",
        """
        def train(loader, opt):
            kept = []
            for i, x in enumerate(loader):
                kept.append(model(x))  # at 0
                if i % 4 == 3:
                    accelerator.backward(criterion(torch.stack(kept), torch.stack(targets)) / 4)
        """,
        LIST,
        "accelerator.backward(...) at line 6",
    ),
]


@pytest.mark.parametrize(
    ("code", "place", "words"), [case[1:] for case in PENDING], ids=[case[0] for case in PENDING]
)
def test_pending(code: str, place: dict[str, Any], words: str | None) -> None:
    """What the running loop will yet do to free graphs is told when the source shows it."""
    snippet = Snippet(code)

    found = find_statement(snippet.place(**place), snippet.stack())

    assert found is not None
    assert words == found.pending
