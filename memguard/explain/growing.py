"""Who has one object that grows, and the statement that makes it grow."""

from __future__ import annotations

from typing import Any

from memguard import _torch
from memguard.explain import paths
from memguard.explain.accumulation import Located, Question, locate
from memguard.explain.frames import Frames
from memguard.explain.graph import Weight
from memguard.explain.search import Search


def locate_growing(question: Question, growing: Any, own: list[Any]) -> Located | None:
    """The variable a user knows it by; None when none was found.

    Args:
        question: what is to be explained.
        growing: a container or a tensor.
        own: containers of the caller's that refer to it for the sake of asking.
    """
    with Frames() as frames, _torch.without_overrides():
        stack = frames.stack()
        targets = [growing]
        search = Search(frames, [targets, own, *own])
        search.run(targets)
        try:
            path = paths.best_path(search, id(growing))
            return locate(question, search, path, 0, stack, Weight())
        finally:
            search.release()
            targets.clear()
