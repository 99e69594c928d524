"""What a place is called in a report."""

from __future__ import annotations

from memguard.explain.hooks import defined_at
from memguard.explain.places import Place, Statement
from memguard.records import CodeLine, Holder
from memguard.units import plural


def holder_of(
    place: Place, statement: Statement | None, kind: str, chain: tuple[str, ...]
) -> Holder:
    """The record of a place and the statement that makes it grow; the rest is for the caller.

    Args:
        place: where the holder lives.
        statement: what makes it grow; None when it was not found.
        kind: type of the holder, as reports have it.
        chain: references from a root to the survivors.
    """
    name, where = name_of(place), where_of(place)
    if statement is None:
        return Holder(name, where, file=place.file, type=kind, chain=chain, function=place.function)
    return Holder(
        name,
        where,
        file=statement.file,
        line=statement.line,
        code=statement.code,
        type=kind,
        chain=chain,
        function=statement.function,
        context=tuple(CodeLine(line, text) for line, text in statement.context),
    )


def name_of(place: Place) -> str:
    """What the user typed: `total_loss`, `self.history`, `cache`."""
    if place.kind in ("ctx", "cycle", "hook"):
        return place.expression if place.kind != "hook" else place.name
    if place.container == "Tensor" and place.path.startswith("["):
        return f"{place.expression}{place.path}"  # a sum that is an entry of a dict
    return place.expression or place.name


def where_of(place: Place) -> str:
    """Where that lives: `local of train_epoch`, `attribute of Trainer`."""
    function = place.function or "<module>"
    module = "this script" if place.module in (None, "__main__") else place.module
    words = {
        "local": f"local of {function}",
        "global": f"global of {module}",
        "attribute": f"attribute of {place.owner}",
        "buffer": f"buffer of {place.owner}",
        "state": f"state of {place.owner}",
        "class": f"class attribute of {place.owner}",
        "closure": f"variable captured by {function}",
        "default": f"default argument of {function}",
        "argument": f"argument that a partial binds to {function}",
        "hook": _hooks_in_words(place),
        "cache": f"cache of {function}{_size_in_words(place)}",
        "built": f"being built in {function}",
        "native": "held by C++",
        "ctx": f"ctx of {place.owner}",
        "cycle": f"reference cycle through {place.owner}",
    }
    return words[place.kind]


def _hooks_in_words(place: Place) -> str:
    # One hook on each of many tensors is counted nowhere.
    often = f"{place.entries} times" if (place.entries or 0) > 1 else "again and again"
    return f"hook {defined_at(place)}, registered on {place.owner} {often}"


def _size_in_words(place: Place) -> str:
    if place.entries is None:
        return ""
    limit = "no limit" if place.limit is None else f"at most {place.limit}"
    return f", {plural(place.entries, 'entry', 'entries')} and {limit}"
