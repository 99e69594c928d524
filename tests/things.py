"""Things to be kept alive, things that keep them, and how an answer names its holders."""

from __future__ import annotations

from typing import Any, ClassVar

import memguard


class Thing:
    """Something to be kept alive."""


class Part(Thing):
    """A special thing."""


class Box:
    """Something that keeps others."""

    shared: ClassVar[list[Any]] = []
    __slots__ = ("content", "slot")

    def __init__(self) -> None:
        self.content: list[Any] = []

    def put(self, thing: Any) -> None:
        self.content.append(thing)  # puts


def names(answer: memguard.WhyAlive) -> list[str]:
    return [f"{holder.name}, {holder.where}" for holder in answer.holders]
