"""What bounds the host's memory, found by itself: RAM, cgroups of either version, `RLIMIT_AS`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# cgroup v1 writes "no limit" as a page-rounded 2**63 - 1.
_NO_LIMIT = 1 << 60

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Bound:
    """One thing that bounds the process's memory.

    Attributes:
        name: `RAM`, `cgroup` or `RLIMIT_AS`.
        limit: bytes.
        room: bytes of it that are left.
    """

    name: str
    limit: int
    room: int


def host_bound(resident: int, virtual: int, mount: Path = _MOUNT, own: Path = _OWN) -> Bound:
    """What the process will run into first, at the cost of reading a few small files.

    Args:
        resident: bytes of the process that are in RAM.
        virtual: bytes of its address space, which is what `RLIMIT_AS` is about. The part of it that
            is not in RAM is taken off that limit, so that all limits are about bytes in RAM.
        mount: where cgroups are mounted.
        own: which cgroups the process is in.
    """
    import psutil

    memory = psutil.virtual_memory()
    bounds = [Bound("RAM", int(memory.total), int(memory.available))]
    bounds += _cgroups(mount, own)
    space = _address_space()
    if space is not None:
        room = max(0, space - virtual)
        bounds.append(Bound("RLIMIT_AS", resident + room, room))
    return min(bounds, key=lambda bound: bound.room)


def _cgroups(mount: Path, own: Path) -> Iterator[Bound]:
    """The limits of the process's cgroup and of those around it."""
    for folder, limit, usage, cache in _folders(mount, own):
        most = _number(folder / limit)
        if most is None or most >= _NO_LIMIT:
            continue
        used = (_number(folder / usage) or 0) - _reclaimable(folder / "memory.stat", cache)
        yield Bound("cgroup", most, max(0, most - max(0, used)))


def _folders(mount: Path, own: Path) -> Iterator[tuple[Path, str, str, str]]:
    """(folder, file of the limit, file of the use, entry of what files in it can be let go)."""
    for line in _text(own).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            bases = [mount, mount / "unified"]
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            bases = [mount / "memory"]
        else:
            continue
        for base in bases:
            # In a container the path may be that of the host; then the mount itself is the group.
            folder = base / path.lstrip("/")
            for group in (folder, *folder.parents):
                yield (group, *names)
                if group == base:
                    break


def _reclaimable(file: Path, entry: str) -> int:
    for line in _text(file).splitlines():
        name, _, value = line.partition(" ")
        if name == entry and value.isdigit():
            return int(value)
    return 0


def _address_space() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None  # "max" is none


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
