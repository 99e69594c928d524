"""From what was counted to accounts whose rows add up; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memguard.judge.growth import NODE_BYTES
from memguard.ledgers import HOST, ROW_NAMES, Account, Holding, Part, Row, RowName, Stray

# Parts of a row that are told; the rest is only in the sum.
MOST_PARTS = 12

# A share of an optimizer's state from which what it keeps for nothing is spoken of.
STRAY = 0.05


@dataclass(frozen=True, slots=True)
class HostFigures:
    """What the operating system says of this process.

    Attributes:
        private: its private memory; None where it could not be read.
        children: name and private bytes of each process below it.
        limit: bytes it may use; None when not known.
    """

    private: int | None = None
    children: Sequence[tuple[str, int]] = ()
    limit: int | None = None


def draw_up(
    holdings: Iterable[Holding],
    nodes: Mapping[str, int],
    devices: Iterable[Mapping[str, Any]],
    host: HostFigures,
    holders: Mapping[str, str] | None = None,
) -> tuple[Account, ...]:
    """The accounts of all devices, the one with most memory first and the host last.

    Args:
        holdings: what was counted; each storage is in one of them.
        nodes: living autograd nodes by whose they are; they take the host's memory.
        devices: what each allocator says: `name`, `allocated`, `reserved`, and where it is known
            `total`, `peak`, `retries` and `inactive`.
        host: what the operating system says.
        holders: by part of `other`, a variable that holds one of its tensors.
    """
    by_device: dict[str, list[Holding]] = {}
    for one in holdings:
        by_device.setdefault(one.device, []).append(one)
    figures = {str(figure["name"]): figure for figure in devices}
    names = dict.fromkeys([*figures, *by_device])
    accounts = [
        _of_device(name, _rows(by_device.get(name, ()), holders or {}), figures.get(name))
        for name in names
        if name != HOST
    ]
    accounts.sort(key=lambda account: -account.total)
    rows = _rows(by_device.get(HOST, ()), holders or {})
    count = sum(nodes.values())
    parts = tuple(Part(name, met * NODE_BYTES, met) for name, met in nodes.items() if met)
    rows.append(Row("nodes", count * NODE_BYTES, count, parts=parts if len(parts) > 1 else ()))
    return (*accounts, _of_host(rows, by_device.get(HOST, ()), host))


def is_worth_a_note(stray: Stray) -> bool:
    """Whether states of parameters that are not trained take much of all that is kept."""
    return stray.bytes >= STRAY * stray.whole > 0


def _rows(holdings: Iterable[Holding], holders: Mapping[str, str]) -> list[Row]:
    by_name: dict[RowName, list[Holding]] = {}
    for one in holdings:
        by_name.setdefault(one.row, []).append(one)
    return [_row(name, found, holders) for name, found in by_name.items()]


def _row(name: RowName, found: list[Holding], holders: Mapping[str, str]) -> Row:
    dtypes: dict[str, int] = {}
    parts: dict[str, list[int]] = {}
    for one in found:
        dtypes[one.dtype] = dtypes.get(one.dtype, 0) + one.bytes
        sums = parts.setdefault(one.part, [0, 0])
        sums[0] += one.bytes
        sums[1] += one.count
    parts.pop("", None)
    told = sorted(parts.items(), key=lambda item: (-item[1][0], item[0]))[:MOST_PARTS]
    return Row(
        name,
        sum(one.bytes for one in found),
        sum(one.count for one in found),
        dict(sorted(dtypes.items(), key=lambda item: -item[1])),
        sum(one.pinned for one in found),
        tuple(Part(part, size, count, holders.get(part, "")) for part, (size, count) in told),
    )


def _of_device(name: str, rows: list[Row], figure: Mapping[str, Any] | None) -> Account:
    counted = sum(row.bytes for row in rows)
    if figure is None:
        return Account(name, _in_order(rows), counted)
    allocated, reserved = int(figure["allocated"]), int(figure["reserved"])
    # Allocators round sizes up, and some memory was never theirs: what is left over may be below 0.
    rows.append(Row("unexplained", allocated - counted))
    rows.append(Row("cache", reserved - allocated))
    return Account(
        name,
        _in_order(rows),
        reserved,
        allocated,
        figure.get("peak"),
        None,
        figure.get("total") or None,
        int(figure.get("retries") or 0),
        int(figure.get("inactive") or 0),
    )


def _of_host(rows: list[Row], holdings: Iterable[Holding], host: HostFigures) -> Account:
    counted = sum(row.bytes for row in rows)
    # Page-locked, shared and mapped memory is no part of a process's private memory.
    apart = sum(one.pinned + one.shared for one in holdings)
    total = counted
    if host.private is not None:
        rows.append(Row("unexplained", host.private - (counted - apart)))
        total = host.private + apart
    if host.children:
        size = sum(size for _, size in host.children)
        most = sorted(host.children, key=lambda child: -child[1])[:MOST_PARTS]
        parts = tuple(Part(name, size, 1) for name, size in most)
        rows.append(Row("children", size, len(host.children), parts=parts))
        total += size
    return Account(HOST, _in_order(rows), total, private=host.private, limit=host.limit)


def _in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    kept = (row for row in rows if row.bytes)
    return tuple(sorted(kept, key=lambda row: ROW_NAMES.index(row.name)))
