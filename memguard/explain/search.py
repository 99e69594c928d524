"""The upward search: from sampled survivors to the roots that hold them, one heap pass a level."""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from memguard.explain import building, iterating
from memguard.explain.building import Built
from memguard.explain.descent import Descent
from memguard.explain.frames import Frames, is_own_file, is_user_file
from memguard.explain.reading import (
    class_module,
    entries,
    is_tensor,
    isinstance_exact,
    module_file,
    own_dict,
    text_entry,
)
from memguard.explain.unseen import references

# A chain a user can follow is shorter than this; a linked list of graphs is cut here.
MAX_LEVELS = 14
# Levels looked at beyond a function's parameter, for the variable of whoever handed it over.
BORROWED_LEVELS = 4
# Objects looked at in one search, and the seconds it may take: what is found by then is used.
MAX_OBJECTS = 4000
MAX_SECONDS = 3.0


class Search:
    """Everything found above a few targets, until `release`.

    Attributes:
        objects: by identity, what was reached, the targets included.
        parents: identities of the objects that refer to each.
        below: bit set of the targets that each object keeps alive.
        built: containers that a statement is still building, which no variable names yet, and
            iterators that only a running loop holds.
        complete: False when a budget ended the search.
    """

    def __init__(self, frames: Frames, own: Iterable[object] = ()) -> None:
        self.frames = frames
        self.objects: dict[int, Any] = {}
        self.parents: dict[int, list[int]] = {}
        self.level: dict[int, int] = {}
        self.below: dict[int, int] = {}
        self.built: dict[int, Built] = {}
        self.complete = True
        self._expanded: set[int] = set()
        self._deadline = 0.0
        self._own = {id(item) for item in own} | frames.own_ids
        self._own |= {id(part) for part in (self.objects, self.parents, self.level, self.below)}
        self._modules = _module_dicts(frames)
        self._own |= {key for key, name in self._modules.items() if _is_memguards(name)}
        self._descent: Descent | None = None

    def run(self, targets: Sequence[Any]) -> None:
        """Search upward from `targets` until all have a root of the user's or nothing is left."""
        self._own.add(id(targets))
        self._deadline = deadline = time.perf_counter() + MAX_SECONDS
        for index, target in enumerate(targets):
            self.objects[id(target)] = target
            self.level[id(target)] = 0
            self.below[id(target)] = 1 << index
        everything = (1 << len(targets)) - 1
        frontier = list(self.objects.values())
        self._climb(frontier, everything, deadline)
        if self._rooted(self.is_user_root) != everything:
            frontier = self._adopt(references(self))
            self._climb(frontier, everything, deadline)
        if self._rooted(self.is_owned_root) != everything:
            self.built = building.containers(self) | iterating.iterators(self)
        frontier.clear()

    def _climb(self, frontier: list[Any], everything: int, deadline: float) -> None:
        level = max((self.level[id(item)] for item in frontier), default=0)
        self._propagate()
        beyond = 0
        while frontier:
            if self._rooted(self.is_owned_root) == everything:
                return
            beyond += self._rooted(self.is_user_root) == everything
            if beyond > BORROWED_LEVELS:
                return
            level += 1
            if level > MAX_LEVELS or time.perf_counter() > deadline:
                self.complete = False
                return
            frontier = self._expand(frontier, level)
            self._own.add(id(frontier))
            self._propagate()
            if self._rooted(self.is_owned_root) != everything:
                self._meet(frontier)
            if len(self.objects) > MAX_OBJECTS:
                self.complete = False
                return

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
        owned = self.frames.owned_values()
        roots = [value for value in owned if id(value) not in self._own]
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

    def deepen(self, *keys: int) -> bool:
        """Look one level further up from some objects; False when all above them is known."""
        ancestors, pending = set(keys), list(keys)
        while pending:
            above = [p for p in self.parents.get(pending.pop(), ()) if p not in ancestors]
            ancestors.update(above)
            pending += above
        level = max(self.level[one] for one in ancestors) + 1
        frontier = [self.objects[one] for one in ancestors - self._expanded]
        frontier = [item for item in frontier if not self.is_root(item)]
        self._own.add(id(frontier))
        if not frontier or level > MAX_LEVELS or time.perf_counter() > self._deadline:
            return False
        self._expand(frontier, level)
        self._propagate()
        return True

    def _adopt(self, pairs: list[tuple[Any, Any]]) -> list[Any]:
        """Take in references that the collector does not show; what is new is looked into next."""
        self._own.add(id(pairs))
        following: list[Any] = []
        for holder, child in pairs:
            parents = self.parents.setdefault(id(child), [])
            if id(holder) not in parents:
                parents.append(id(holder))
            if id(holder) not in self.objects:
                self.objects[id(holder)] = holder
                self.level[id(holder)] = self.level[id(child)] + 1
                following.append(holder)
        pairs.clear()
        return following

    def _expand(self, frontier: list[Any], level: int) -> list[Any]:
        wanted = {id(item) for item in frontier if not self.is_root(item)}
        sources = [item for item in frontier if id(item) in wanted]
        # From Python 3.13 on the tuple of arguments is a referrer like any other.
        arguments = tuple(sources)
        self._own |= {id(frontier), id(sources), id(wanted), id(arguments)}
        self._expanded |= wanted
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
        return _is_memguards(class_module(type(referrer)))

    def is_root(self, item: Any) -> bool:
        """Whether the search ends here: a module's variables, a class, a running frame's local."""
        if id(item) in self._modules or isinstance_exact(item, (types.ModuleType, type)):
            return True
        if self.level.get(id(item), 0) == 0 and not is_tensor(item):
            return False
        return self.frames.owned(item)

    def root_module(self, item: Any) -> str | None:
        """Name of the module whose variables `item` is."""
        return self._modules.get(id(item))

    def user_variables(self) -> Iterator[Any]:
        """What the variables of the user's frames and modules hold."""
        for view in self.frames.views:
            if view.user and view.is_module_level:
                yield from (value for _, value in entries(view.frame.f_globals))
        yield from self.frames.user_values()
        for name, module in list(sys.modules.items()):
            values = own_dict(module) if isinstance_exact(module, types.ModuleType) else None
            if values is not None and is_user_module(name, values):
                yield from (value for _, value in entries(values))

    def is_user_module(self, name: str) -> bool:
        """Whether the module of that name is the user's code."""
        found = (self.objects.get(key) for key, module in self._modules.items() if module == name)
        return any(is_user_module(name, values) for values in found if values is not None)

    def is_user_root(self, item: Any) -> bool:
        """Whether a root the user knows: a local of their frame, a variable of their module."""
        return self.is_owned_root(item) or self.frames.known(item) or id(item) in self.built

    def is_owned_root(self, item: Any) -> bool:
        """The same, parameters left out: whoever handed the object over is to be found."""
        name = self._modules.get(id(item))
        if name is not None:
            return is_user_module(name, item)
        if isinstance_exact(item, type):
            return is_user_module(class_module(item), None)
        return self.frames.owned(item)

    def _rooted(self, counts: Callable[[Any], bool]) -> int:
        """Bit set of the targets below an object that counts as a root."""
        rooted = 0
        for key, item in self.objects.items():
            mask = self.below.get(key, 0)
            if mask & ~rooted and counts(item):
                rooted |= mask
        return rooted

    def has_root(self) -> int:
        """Bit set of the targets that something outside a cycle keeps alive."""
        rooted = 0
        for key, item in self.objects.items():
            held_elsewhere = isinstance_exact(item, types.FrameType)
            held = self.is_root(item) or self.frames.holding(item) or key in self.built
            if held or held_elsewhere:
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
        for table in (
            self.objects,
            self.parents,
            self.level,
            self.below,
            self.built,
            self._modules,
        ):
            table.clear()
        if self._descent is not None:
            self._descent.release()


def _is_memguards(module: str) -> bool:
    return module.partition(".")[0] == "memguard"


def is_user_module(name: str, values: dict[str, Any] | None) -> bool:
    """Whether the module called `name` is the user's code."""
    if values is None:
        module = sys.modules.get(name)
        values = own_dict(module) if module is not None else None
    if values is None:
        return False
    file = module_file(values)
    # A notebook's or an interactive session's __main__ has no file.
    return is_user_file(file) if file else name == "__main__"


def _module_dicts(frames: Frames) -> dict[int, str]:
    names: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        if isinstance_exact(module, types.ModuleType):
            values = own_dict(module)
            if values is not None:
                names.setdefault(id(values), name)
    for view in frames.views:
        variables = view.frame.f_globals
        names.setdefault(id(variables), text_entry(variables, "__name__") or "__main__")
    return names
