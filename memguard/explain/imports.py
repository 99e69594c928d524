"""Where imported names of the user's files come from, by looking at files beside them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence

from memguard.explain.frames import is_user_file
from memguard.explain.syntax import Scope, Source, read_source

# Files beside the stack's are read as long as their text stays within this many bytes: parsing it
# takes about a tenth of a second.
_MOST_TEXT = 400_000
_PARENTS = 4
_HOPS = 3


class Imports:
    """Import statements of the user's files, followed into files beside them."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        self._names: dict[int, dict[str, tuple[str, str | None, int]]] = {}
        self._left = _MOST_TEXT
        self._starred: dict[int, list[tuple[str, int]]] = {}
        self._modules: dict[tuple[str, str, int], Source | None] = {}

    def is_imported(self, name: str, source: Source) -> bool:
        """Whether an import statement of the file binds the name."""
        return name in self._table(source)

    def scope_of(self, name: str, source: Source) -> Scope | None:
        """The function or class that an imported name stands for, when its file can be read."""
        found = self.origin(name, source)
        if found is not None:
            return self.member(*found)
        for module, level in self._stars(source):
            other = self._module(module, level, source)
            if other is not None and name in other.module.children:
                return other.module.children[name]
        return None

    def member(self, source: Source, name: str, hops: int = _HOPS) -> Scope | None:
        """The function or class of that name in a file, or where the file has it from."""
        if name in source.module.children:
            return source.module.children[name]
        found = self.origin(name, source) if hops else None
        return None if found is None else self.member(*found, hops - 1)

    def origin(self, name: str, source: Source) -> tuple[Source, str] | None:
        """The file and the name there that `from module import name` brought in."""
        entry = self._table(source).get(name)
        if entry is None or entry[1] is None:
            return None
        other = self._module(entry[0], entry[2], source)
        return None if other is None else (other, entry[1])

    def aliases(
        self, source: Source, home: Source, name: str
    ) -> tuple[frozenset[str], frozenset[str]]:
        """How a file names a variable of another: the variable's names, and the module's."""
        known = list(self._table(source))
        variables = [word for word in known if self.origin(word, source) == (home, name)]
        modules = [word for word in known if self.module_of(word, source) is home]
        return frozenset(variables), frozenset(modules)

    def module_of(self, name: str, source: Source) -> Source | None:
        """The file a dotted name stands for when it is an imported module."""
        entry = self._table(source).get(name) if name else None
        if entry is None:
            return None
        module, member, level = entry
        if member is None:
            return self._module(module, level, source)
        return self._module(f"{module}.{member}" if module else member, level, source)

    def _stars(self, source: Source) -> list[tuple[str, int]]:
        if id(source) not in self._starred:
            nodes = [piece.node for piece in source.module.pieces]
            imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
            starred = [node for node in imports if node.names[0].name == "*"]
            self._starred[id(source)] = [(node.module or "", node.level) for node in starred]
        return self._starred[id(source)]

    def _table(self, source: Source) -> dict[str, tuple[str, str | None, int]]:
        table = self._names.get(id(source))
        if table is None:
            table = self._names[id(source)] = {}
            for scope in source.scopes:
                for piece in scope.pieces:
                    table.update(_imported(piece.node))
        return table

    def _module(self, module: str, level: int, source: Source) -> Source | None:
        key = (source.file, module, level)
        if key not in self._modules:
            try:
                self._modules[key] = self._find_module(module, level, source)
            except OSError:  # a folder that was there when the job began
                self._modules[key] = None
        return self._modules[key]

    def _find_module(self, module: str, level: int, source: Source) -> Source | None:
        if source.file.startswith("<") or not module:
            return None
        tail = module.replace(".", os.sep)
        folder = os.path.dirname(os.path.abspath(source.file))
        folders = [folder]
        while len(folders) < (level or _PARENTS):
            folders.append(os.path.dirname(folders[-1]))
        for base in folders[-1:] if level else folders:
            for path in (f"{base}/{tail}.py", f"{base}/{tail}/__init__.py"):
                known = next((s for s in self.sources if os.path.abspath(s.file) == path), None)
                if known is not None:
                    return known
                if os.path.isfile(path):
                    # What libraries do, and memguard beside a checkout, is not the user's doing.
                    return self._read(path) if is_user_file(path) else None
        return None

    def _read(self, path: str) -> Source | None:
        size = os.path.getsize(path)
        if size > self._left:
            return None
        self._left -= size
        found = read_source(path)
        self.sources += [found] if found is not None else []
        return found


def _imported(node: ast.stmt) -> Iterator[tuple[str, tuple[str, str | None, int]]]:
    if isinstance(node, ast.Import):
        for name in node.names:
            yield name.asname or name.name, (name.name, None, 0)
            top = name.name.partition(".")[0]
            yield from () if name.asname else ((top, (top, None, 0)),)
    elif isinstance(node, ast.ImportFrom):
        for name in node.names:
            yield name.asname or name.name, (node.module or "", name.name, node.level)
