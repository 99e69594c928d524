"""Loops that a comprehension, a generator or a call consumes: what they build has no name yet."""

from __future__ import annotations

from holder_cases import Case


def _built(statement: str, what: str, *advice: str, name: str = "losses") -> Case:
    return Case(
        name,
        ("frame main (train.py:", what),
        advice,
        f"""
        def step(number):
            return train_step(model, optimizer)
        def main():
            {statement}  # grows
            return losses
        main()
        """,
        where="being built in main",
    )


CASES = {
    "list comprehension": _built(
        "losses = [step(n) for n in range(40)]",
        "losses: list being built",
        "losses = [step(n).item() for n in range(40)]",
    ),
    "set comprehension": _built(
        "losses = {step(n) for n in range(40)}",
        "losses: set being built",
        "losses = {step(n).item() for n in range(40)}",
    ),
    "dict comprehension": _built(
        "losses = {n: step(n) for n in range(40)}",
        "losses: dict being built",
        "losses = {n: step(n).item() for n in range(40)}",
    ),
    "sum of a generator": _built(
        "losses = sum(step(n) for n in range(40))",
        "losses: Tensor float32 [] AddBackward0 being built",
        "losses = sum(step(n).item() for n in range(40))",
    ),
    "list of a generator": _built(
        "losses = list(step(n) for n in range(40))",
        "losses: list being built",
        "losses = list(step(n).item() for n in range(40))",
    ),
    "tuple of a generator": _built(
        "losses = tuple(step(n) for n in range(40))",
        "losses: tuple being built",
        "losses = tuple(step(n).item() for n in range(40))",
    ),
    "list of a map": _built(
        "losses = list(map(step, range(40)))",
        "losses: list being built",
        ".item()",
    ),
    "dict of pairs": _built(
        "losses = dict((n, step(n)) for n in range(40))",
        "losses: dict being built",
        "losses = dict((n, step(n).item()) for n in range(40))",
    ),
    "stack of a list comprehension": _built(
        "losses = torch.stack([step(n) for n in range(40)])",
        "losses: list being built",
        "step(n).detach()",
    ),
    "reduce": _built(
        "losses = functools.reduce(lambda a, n: a + step(n), range(40), 0.0)",
        "losses: Tensor float32 [] AddBackward0 being built",
        ".detach()",
    ),
    "unpacked generator": _built(
        "losses = [*(step(n) for n in range(40))]",
        "losses: list being built",
        ".detach()",
    ),
    "comprehension in a return": Case(
        "losses",
        ("frame evaluate (train.py:", "losses: list being built"),
        (".item()",),
        """
        def evaluate():
            return [train_step(model, optimizer) for _ in range(40)]  # grows
        losses = evaluate()
        """,
        where="being built in evaluate",
    ),
}
