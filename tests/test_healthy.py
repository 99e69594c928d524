"""Loops that look guilty and are not: each runs to its end without a leak."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import IN_CONTEXT, Run, staying

# name of the case: program
CASES: dict[str, str] = {
    "floats of losses": """
        losses = []
        for _ in range(80):
            losses.append(train_step(model, optimizer).item())
        """,
    "detached losses": """
        losses = []
        for _ in range(80):
            losses.append(train_step(model, optimizer).detach())
        """,
    "contexts and nodes that are let go": """
        last = None
        for _ in range(80):
            x, y = batch()
            loss = (model(x) - y).pow(2).mean()
            last = loss.grad_fn
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    "a name of the moment for each result": """
        import types
        board = types.SimpleNamespace()
        for step in range(80):
            loss = train_step(model, optimizer)
            setattr(board, f"loss{step}", loss.item())
            globals()[f"loss{step}"] = loss.detach()
        """,
    "a context variable with the loss of the moment": """
        import contextvars
        current = contextvars.ContextVar("current")
        for _ in range(80):
            current.set(train_step(model, optimizer))
        """,
    "a list in the optimizer's state": """
        first = model.first.weight
        for _ in range(80):
            loss = train_step(model, optimizer)
            optimizer.state[first].setdefault("losses", []).append(loss.item())
        """,
    "a list of few, shortened by one each step": """
        kept = []
        for step in range(80):
            loss = train_step(model, optimizer).detach()
            if step % 2:
                kept.append(loss)
            else:
                kept.append(-loss)
            if len(kept) > 20:
                kept.pop(0)
        """,
    "accumulation over sixteen micro-batches": """
        def fit():
            pending = []
            for step in range(160):
                x, y = batch()
                loss = (model(x) - y).pow(2).mean()
                (loss / 16).backward()
                pending.append(loss)
                if step % 16 == 15:
                    optimizer.step(); optimizer.zero_grad()
                    pending = []
        fit()
        """,
    "a rollout of many calls, handed to the function that goes backward": """
        class Simulation:
            def rollout(self, steps):
                state, cost = torch.ones(4, 8), 0.0
                for _ in range(steps):
                    out = model(state)
                    state = state * 0.9 + out[:, :1]
                    cost += out.pow(2).mean()
                return cost / steps
            def learn(self, loss):
                optimizer.zero_grad(); loss.backward(); optimizer.step()
            def train(self, rounds):
                for _ in range(rounds): self.learn(self.rollout(40))
        Simulation().train(4)
        """,
    "a rollout and its backward on one line": """
        def rollout(steps):
            state, cost = torch.ones(4, 8), 0.0
            for _ in range(steps):
                out = model(state); state = state * 0.9 + out[:, :1]; cost = cost + out.mean()
            return cost
        for _ in range(4): cost = rollout(40); cost.backward(); optimizer.step()
        """,
    "the last loss of each class, as classes come": """
        import random
        random.seed(3)
        last = {}
        for _ in range(300):
            label = random.randrange(40)
            last[label] = train_step(model, optimizer)
        """,
    "the last loss of each class, with a place for each from the start": """
        import random
        random.seed(4)
        last = {label: None for label in range(40)}
        for _ in range(300):
            label = random.randrange(40)
            last[label] = train_step(model, optimizer)
        """,
    "the last loss of each class, over those of an earlier phase": """
        import random
        random.seed(5)
        last = {label: torch.zeros(()) for label in range(40)}
        for _ in range(300):
            label = random.randrange(40)
            last[label] = train_step(model, optimizer)
        """,
    "numbers gathered by a comprehension": """
        losses = [train_step(model, optimizer).item() for _ in range(80)]
        """,
    "detached losses summed up by a generator": """
        total = sum(train_step(model, optimizer).detach() for _ in range(80))
        """,
    "micro-batches gathered by a comprehension before one backward": """
        for _ in range(40):
            losses = [(model(batch()[0])).pow(2).mean() for _ in range(8)]
            optimizer.zero_grad(); sum(losses).backward(); optimizer.step()
        """,
    "an autocast block in each step": """
        for _ in range(60):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                extra = torch.randn(64, 64, requires_grad=True)
                (torch.randn(8, 64) @ extra).sum().backward()
            train_step(model, optimizer)
        """,
    "an exception raised anew each time, its text kept": """
        told = []
        def fail():
            loss = train_step(model, optimizer)
            raise ValueError("bad batch")
        for _ in range(60):
            try:
                fail()
            except ValueError as error:
                told.append(repr(error))
        """,
    "hooks that are removed": """
        def make(loss):
            return lambda *args: None
        for _ in range(60):
            handle = model.register_forward_hook(make(train_step(model, optimizer)))
            handle.remove()
        """,
    "the best loss, kept with its graph": """
        best = None
        for _ in range(80):
            loss = train_step(model, optimizer)
            if best is None or loss < best:
                best = loss
        """,
    "an attribute that holds the last output": """
        class Keeper(nn.Module):
            def forward(self, x):
                self.last = model(x)
                return self.last
        keeper = Keeper()
        for _ in range(80):
            x, y = batch()
            loss = (keeper(x) - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    "a second-order penalty": """
        for _ in range(60):
            x, y = batch()
            x.requires_grad_()
            out = model(x)
            grad, = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = (out - y).pow(2).mean() + grad.pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    "inner loops of second order": """
        for _ in range(40):
            fast = {n: p for n, p in model.named_parameters()}
            for _ in range(6):
                x, y = batch()
                inner = (torch.func.functional_call(model, fast, (x,)) - y).pow(2).mean()
                grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
                fast = {n: p - 0.01 * g for (n, p), g in zip(fast.items(), grads)}
            x, y = batch()
            loss = (torch.func.functional_call(model, fast, (x,)) - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    "evaluation without no_grad that keeps nothing": """
        for epoch in range(4):
            model.train()
            for _ in range(10):
                train_step(model, optimizer)
            model.eval()
            for _ in range(20):
                x, y = batch()
                error = (model(x) - y).pow(2).mean()
        """,
    "rollouts of varying length": """
        def play(length):
            rewards = []
            for _ in range(length):
                x, y = batch()
                rewards.append((model(x) - y).pow(2).mean())
            return rewards
        for episode in range(40):
            rewards = play(5 + 7 * episode % 50)
            loss = torch.stack(rewards).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    "a target network stepped in evaluation mode": """
        import copy
        target = copy.deepcopy(model).eval()
        memory = []
        for step in range(60):
            x, y = batch()
            wanted = target(x)
            loss = (model(x) - wanted.detach() - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            with torch.no_grad():
                for a, b in zip(target.parameters(), model.parameters()):
                    a.mul_(0.9).add_(b, alpha=0.1)
        """,
    "a parameter average without gradients": """
        average = {n: p.detach().clone() for n, p in model.named_parameters()}
        for _ in range(80):
            train_step(model, optimizer)
            with torch.no_grad():
                for n, p in model.named_parameters():
                    average[n] = 0.9 * average[n] + 0.1 * p
        """,
    "copies of the best weights": """
        import copy
        best, weights = 1e9, None
        for _ in range(80):
            loss = train_step(model, optimizer).item()
            if loss < best:
                best, weights = loss, copy.deepcopy(model.state_dict())
        """,
    "a list of state dicts that share storage": """
        history = []
        for _ in range(80):
            train_step(model, optimizer)
            history.append(model.state_dict())
        """,
    "layers unfrozen late": """
        model.first.requires_grad_(False)
        for step in range(80):
            if step == 40:
                model.first.requires_grad_(True)
            train_step(model, optimizer)
        """,
    "state detached at each step": """
        cell = nn.GRUCell(8, 8)
        head = nn.Linear(8, 1)
        optimizer.add_param_group({"params": [*cell.parameters(), *head.parameters()]})
        state = torch.zeros(32, 8)
        for _ in range(60):
            x, y = batch()
            state = cell(x, state.detach())
            loss = (head(state) - y).pow(2).mean() + model(x).mean() * 0
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    "a closure called many times a step": """
        optimizer.zero_grad()
        lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=8)
        x, y = batch()
        def closure():
            lbfgs.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            return loss
        for _ in range(30):
            lbfgs.step(closure)
        """,
    "masks cached by length": """
        masks = {}
        def mask(n):
            if n not in masks:
                masks[n] = torch.ones(n, n).tril()
            return masks[n]
        for step in range(80):
            mask(step % 11 + 1)
            train_step(model, optimizer)
        """,
    "cycles that the collector frees": """
        class Box:
            def __init__(self, value):
                self.value, self.me = value, self
        for _ in range(400):
            Box(train_step(model, optimizer).detach())
        """,
}

# name of the case: program, most graphs its holder ever keeps
WARNS: dict[str, tuple[str, int]] = {
    "a log handler that hands its records on": (
        """
        import logging.handlers
        memory = logging.handlers.MemoryHandler(20, target=logging.NullHandler())
        log = logging.Logger("quiet", logging.DEBUG)
        log.addHandler(memory)
        for _ in range(60):
            loss = train_step(model, optimizer)
            log.debug("loss %s", loss)
        """,
        20,
    ),
    "the outputs of a generator that clears them": (
        """
        def stream(count):
            recent = []
            for _ in range(count):
                x, y = batch()
                out = model(x)
                recent.append(out)
                if len(recent) > 12:
                    recent.clear()
                yield out, y
        for out, y in stream(60):
            loss = (out - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
        12,
    ),
    "a list cleared every 30 steps": (
        """
        losses = []
        for step in range(120):
            losses.append(train_step(model, optimizer))
            if step % 30 == 29:
                print(torch.stack(losses).mean().item())
                losses.clear()
        """,
        30,
    ),
    "a sum started anew every 25 steps": (
        """
        def fit():
            running = 0.0
            for step in range(100):
                running += train_step(model, optimizer)
                if (step + 1) % 25 == 0:
                    print(running.item() / 25)
                    running = 0.0
        fit()
        """,
        25,
    ),
    "a helper that clears what it was given": (
        """
        def flush(rows):
            print(torch.stack(rows).mean().item())
            rows.clear()
        def fit():
            losses = []
            for step in range(90):
                losses.append(train_step(model, optimizer))
                if len(losses) == 20:
                    flush(losses)
        fit()
        """,
        20,
    ),
    "a queue with a bound that another thread empties late": (
        """
        import queue, threading
        losses = queue.Queue(maxsize=30)
        def drain():
            while losses.get() is not None: pass
        for _ in range(30):
            losses.put(train_step(model, optimizer))  # grows
        thread = threading.Thread(target=drain); thread.start()
        for _ in range(30):
            losses.put(train_step(model, optimizer))
        losses.put(None); thread.join()
        """,
        30,
    ),
    "a deque of sixteen": (
        """
        recent = collections.deque(maxlen=16)
        for _ in range(80):
            recent.append(train_step(model, optimizer))
        """,
        16,
    ),
    "a list cut at twenty": (
        """
        recent = []
        for _ in range(80):
            recent.append(train_step(model, optimizer))
            if len(recent) > 20:
                recent.pop(0)
        """,
        20,
    ),
    "a ring of twelve": (
        """
        ring = [None] * 12
        for step in range(80):
            ring[step % 12] = train_step(model, optimizer)
        """,
        12,
    ),
    "a memory with capacity": (
        """
        class Memory:
            def __init__(self, capacity):
                self.capacity, self.items, self.at = capacity, [], 0
            def push(self, item):
                if len(self.items) < self.capacity:
                    self.items.append(item)
                else:
                    self.items[self.at] = item
                self.at = (self.at + 1) % self.capacity
        memory = Memory(30)
        for _ in range(120):
            memory.push(train_step(model, optimizer))
        """,
        30,
    ),
    "a memory that makes room for each entry, and what is drawn from it": (
        """
        import random
        class Memory:
            def __init__(self, capacity):
                self.capacity, self.items, self.at = capacity, [], 0
            def push(self, item):
                if len(self.items) < self.capacity:
                    self.items.append(None)
                self.items[self.at] = item
                self.at = (self.at + 1) % self.capacity
        memory = Memory(40)
        for _ in range(60):
            memory.push((train_step(model, optimizer), 1))
            b = random.choices(memory.items, k=64)
        """,
        40,
    ),
}


# What outlives its program, and why.
STAYING = {"a context variable with the loss of the moment": IN_CONTEXT}


@pytest.mark.parametrize("case", [staying(case, STAYING.get(case, "")) for case in CASES])
def test_a_healthy_loop_is_left_alone(case: str, tmp_path: Path) -> None:
    """No leak, no warning, no failed part."""
    run = Run(tmp_path, CASES[case])
    assert not run.stopped, run.report.findings
    assert not run.report.findings
    assert not run.report.failures


@pytest.mark.parametrize("case", WARNS)
@pytest.mark.filterwarnings("ignore::memguard.LeakWarning")
def test_graphs_in_a_bounded_holder_are_a_warning(case: str, tmp_path: Path) -> None:
    """A ring of attached tensors is told once, with its bound, and the loop goes on."""
    source, bound = WARNS[case]
    run = Run(tmp_path, source)
    assert not run.stopped, run.report.findings
    [finding] = run.report.findings
    assert finding.severity == "warning"
    assert [holder.bound for holder in finding.holders] == [bound]
    assert f"at most {bound}" in finding.summary


BOUNDED = """
replay = collections.deque(maxlen=4_000)
for _ in range(60):
    for _ in range(10):
        replay.append(torch.zeros(25_000))  # 400 MB at the most
    train_step(model, optimizer)
"""


def test_a_limit_in_entries_is_not_taken_for_steps(tmp_path: Path) -> None:
    """Each step puts in ten tensors: the deque is weighed by its entries, and fits."""
    watch = 'guard = memguard.watch(model, optimizer, limit="2GiB", max_growth="2MiB")\n'
    run = Run(tmp_path, BOUNDED, watch=watch)
    assert not run.report.findings
