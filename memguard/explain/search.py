"""The upward search: from sampled survivors to the roots that hold them, one heap pass a level."""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Iterable, Sequence
from typing import Any

from memguard import _kinds
from memguard.explain.descent import Descent
from memguard.explain.edges import isinstance_exact, own_dict
from memguard.explain.frames import Frames, is_own_file, is_user_file

# A chain a user can follow is shorter than this; a linked list of graphs is cut here.
MAX_LEVELS = 14
# Objects looked at in one search, and the seconds it may take: what is found by then is used.
MAX_OBJECTS = 4000
MAX_SECONDS = 3.0


class Search:
    """Everything found above a few targets, until `release`.

    Attributes:
        objects: by identity, what was reached, the targets included.
        parents: identities of the objects that refer to each.
        below: bit set of the targets that each object keeps alive.
        module_names: name of the module whose variables a reached dict is.
        complete: False when a budget ended the search.
    """

    def __init__(self, frames: Frames, own: Iterable[object] = ()) -> None:
        self.frames = frames
        self.objects: dict[int, Any] = {}
        self.parents: dict[int, list[int]] = {}
        self.level: dict[int, int] = {}
        self.below: dict[int, int] = {}
        self.module_names: dict[int, str] = {}
        self.complete = True
        self._own = {id(item) for item in own} | frames.own_ids
        self._own |= {id(part) for part in (self.objects, self.parents, self.level, self.below)}
        self._modules = _module_dicts(frames)
        self._descent: Descent | None = None

    def run(self, targets: Sequence[Any]) -> None:
        """Search upward from `targets` until all have a root of the user's or nothing is left."""
        self._own.add(id(targets))
        deadline = time.perf_counter() + MAX_SECONDS
        for index, target in enumerate(targets):
            self.objects[id(target)] = target
            self.level[id(target)] = 0
            self.below[id(target)] = 1 << index
        frontier = list(self.objects.values())
        everything = (1 << len(targets)) - 1
        for level in range(1, MAX_LEVELS + 1):
            frontier = self._expand(frontier, level)
            self._own.add(id(frontier))
            self._propagate()
            if not frontier or self._rooted_by_user() == everything:
                break
            self._meet(frontier)
            if self._rooted_by_user() == everything:
                break
            if time.perf_counter() > deadline or len(self.objects) > MAX_OBJECTS:
                self.complete = False
                break
        else:
            self.complete = not frontier
        frontier.clear()

    def _expand(self, frontier: list[Any], level: int) -> list[Any]:
        wanted = {id(item) for item in frontier if not self.is_root(item)}
        sources = [item for item in frontier if id(item) in wanted]
        # From Python 3.13 on the tuple of arguments is a referrer like any other.
        arguments = tuple(sources)
        self._own |= {id(frontier), id(sources), id(wanted), id(arguments)}
        if not sources:
            return []
        referrers = gc.get_referrers(*arguments)
        self._own.add(id(referrers))
        following: list[Any] = []
        for referrer in referrers:
            if id(referrer) in self._own or self._is_ours(referrer):
                continue
            if len(self.objects) > MAX_OBJECTS:
                break
            self._link(referrer, wanted)
            if id(referrer) not in self.objects:
                self.objects[id(referrer)] = referrer
                self.level[id(referrer)] = level
                following.append(referrer)
        referrers.clear()
        return following

    def _meet(self, frontier: list[Any]) -> None:
        """Link what the way down from the user's variables has met already."""
        if self._descent is None:
            self._descent = Descent(self._users_roots(), self._is_foreign)
            self._own.add(id(self._descent.parents))
        for item in frontier:
            below = item
            for parent in reversed(self._descent.way_to(item)):
                key = id(parent)
                parents = self.parents.setdefault(id(below), [])
                if key not in parents:
                    parents.append(key)
                self.objects.setdefault(key, parent)
                self.level.setdefault(key, self.level[id(below)] + 1)
                below = parent
        self._propagate()

    def _users_roots(self) -> list[Any]:
        """Values of the variables of the user's functions, then the dicts of their modules."""
        values_of_user = self.frames.values_of_user()
        roots = [value for value in values_of_user if id(value) not in self._own]
        dicts = [view.frame.f_globals for view in self.frames.views if view.user]
        for name in sorted(set(self._modules.values())):
            values = own_dict(sys.modules.get(name))
            if values is not None and is_user_module(name, values):
                dicts.append(values)
        roots += {id(values): values for values in dicts}.values()
        return roots

    def _is_foreign(self, item: Any) -> bool:
        if id(item) in self._own or self._is_ours(item):
            return True
        return id(item) in self._modules

    def _link(self, referrer: Any, wanted: set[int]) -> None:
        for child in gc.get_referents(referrer):
            key = id(child)
            if key in wanted and child is not referrer:
                parents = self.parents.setdefault(key, [])
                if id(referrer) not in parents:
                    parents.append(id(referrer))

    @staticmethod
    def _is_ours(referrer: Any) -> bool:
        if type(referrer) is types.FrameType:
            return is_own_file(referrer.f_code.co_filename)
        module = type.__getattribute__(type(referrer), "__module__")
        return isinstance(module, str) and module.partition(".")[0] == "memguard"

    def is_root(self, item: Any) -> bool:
        """Whether the search ends here: a module's variables, a class, a running frame's local."""
        if id(item) in self._modules or isinstance_exact(item, (types.ModuleType, type)):
            return True
        if self.level.get(id(item), 0) == 0 and not _kinds.is_tensor_type(type(item)):
            return False
        return any(self.frames.views[index].user for index, _ in self.frames.holding(item))

    def root_module(self, item: Any) -> str | None:
        """Name of the module whose variables `item` is."""
        return self._modules.get(id(item))

    def is_user_root(self, item: Any) -> bool:
        """Whether a root the user knows: a local of their frame, a variable of their module."""
        name = self._modules.get(id(item))
        if name is not None:
            return is_user_module(name, item)
        if isinstance_exact(item, type):
            return is_user_module(str(type.__getattribute__(item, "__module__")), None)
        return any(self.frames.views[index].user for index, _ in self.frames.holding(item))

    def _rooted_by_user(self) -> int:
        rooted = 0
        for key, item in self.objects.items():
            if self.is_user_root(item):
                rooted |= self.below.get(key, 0)
        return rooted

    def has_root(self) -> int:
        """Bit set of the targets that something outside a cycle keeps alive."""
        rooted = 0
        for key, item in self.objects.items():
            held_elsewhere = isinstance_exact(item, types.FrameType)
            if self.is_root(item) or self.frames.holding(item) or held_elsewhere:
                rooted |= self.below.get(key, 0)
        return rooted

    def _propagate(self) -> None:
        """Tell every object which targets are below it, round cycles too."""
        below, changed = self.below, True
        while changed:
            changed = False
            for child, parents in self.parents.items():
                mask = below.get(child, 0)
                for parent in parents:
                    if mask & ~below.get(parent, 0):
                        below[parent] = below.get(parent, 0) | mask
                        changed = True

    def release(self) -> None:
        """Let go of everything that was looked at."""
        for table in (self.objects, self.parents, self.level, self.below, self._modules):
            table.clear()
        if self._descent is not None:
            self._descent.release()


def is_user_module(name: str, values: dict[str, Any] | None) -> bool:
    """Whether the module called `name` is the user's code."""
    if values is None:
        module = sys.modules.get(name)
        values = own_dict(module) if module is not None else None
    if values is None:
        return False
    file = values.get("__file__")
    if not isinstance(file, str):
        # A notebook's or an interactive session's __main__ has no file.
        return name == "__main__"
    return is_user_file(file)


def _module_dicts(frames: Frames) -> dict[int, str]:
    names: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        if isinstance_exact(module, types.ModuleType):
            values = own_dict(module)
            if values is not None:
                names.setdefault(id(values), name)
    for view in frames.views:
        variables = view.frame.f_globals
        names.setdefault(id(variables), str(variables.get("__name__", "__main__")))
    return names
