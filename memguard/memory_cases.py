"""A rise of memory looked into twice: what it consists of, who has it, and the finding about it.

Nothing here runs in a healthy loop.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from memguard.cases import Cases
from memguard.explain import containers, filling, lengthening
from memguard.explain.accumulation import Located, Question
from memguard.explain.containers import Grown, Snapshot
from memguard.explain.filling import Untouched
from memguard.explain.fingerprint import fingerprint
from memguard.explain.growing import locate_growing
from memguard.explain.lengthening import Storages
from memguard.explain.loaders import locate_loaders
from memguard.explain.wording import holder_of
from memguard.figures import Figures
from memguard.judge import growth as growing
from memguard.judge.levels import GOES_ON_BY, GOES_ON_FOR, Rise
from memguard.judge.reserved import Cache
from memguard.judge.verdict import Evidence, least_worth, rule
from memguard.records import Amount, Finding, Growth, Holder, Kind, Severity
from memguard.report import memory_words as words
from memguard.sensors.allocator import Allocation
from memguard.sensors.census import Census
from memguard.sensors.host import Host, trim

# Of a rise that was read, this share must be left once free memory was given back.
REAL = 0.3

# What explains this share of the growth is taken to be what grows.
EXPLAINS = 0.4

# A container that takes this share of the growth is named, even where others are not.
NAMED = 0.2

# A rise that consists of tensors, of which this many came in each step, is for those who count.
COUNTED = 0.5

# Buffers are taken into account from so many steps' growth of room in them.
FILLS_FOR = 16

# Of a rise that consists of cycles, this many objects came in each step.
CYCLES = 0.8

# Holders that are named.
MOST_HOLDERS = 3

Watched = Literal["host", "worker", "tensor"]


@dataclass(frozen=True, slots=True)
class Probe:
    """The first look into a rise; numbers only.

    Attributes:
        step: when.
        bytes: the level, what was free given back.
        containers: lengths of plain containers; None where they do not matter.
        storages: sizes of the tensors of the device; None where they do not matter.
        untouched: what buffers have that is not in memory yet; where there is enough of it nothing
            else was looked at.
    """

    step: int
    bytes: int
    containers: Snapshot | None = None
    storages: Storages | None = None
    untouched: Untouched = field(default_factory=dict)

    @property
    def is_first(self) -> bool:
        """Whether only buffers were looked at yet."""
        return bool(self.untouched)


@dataclass(frozen=True, slots=True)
class _Told:
    """What a finding says beyond the rise itself; of the first container its entries, and bytes."""

    kind: Kind
    summary: str
    located: Sequence[Located] = ()
    sizes: Sequence[int] = ()
    unnamed: str = ""
    advice: str = ""
    reason: str = ""
    finite: bool = False
    entries: int = 0
    each: int = 0


class MemoryCases:
    """Looks into rises of memory and tells what they are."""

    def __init__(self, census: Census, figures: Figures, cases: Cases) -> None:
        self._census = census
        self._figures = figures
        self._cases = cases
        self._host = Host()
        # Fingerprints of what was told from here, which is looked at again as it grows.
        self._own: set[str] = set()

    def is_told(self, device: str, per_step: float) -> bool:
        """Whether what survives, and was told, explains growth of a device's memory."""
        told = self._cases.told_per_step(_named(device), self._own)
        return told >= EXPLAINS * per_step

    def probe(
        self, kind: str, device: str, rise: Rise, now: int, fills: bool = True
    ) -> tuple[Probe, int]:
        """(the first look, bytes by which the level fell as what was free was given back).

        Where buffers have room for the rise, and it `fills` them as far as anybody knows, only
        their pages are looked at: the rest costs more.
        """
        if kind == "worker":
            return Probe(now, rise.last.bytes), 0
        if kind == "host" and fills:
            room = filling.untouched()
            if sum(room.values()) >= FILLS_FOR * rise.per_step:
                return Probe(now, rise.last.bytes, untouched=room), 0
        sizes = lengthening.storages(device)
        if kind != "host":
            return Probe(now, rise.last.bytes, None, sizes), 0
        lengths = containers.snapshot()
        trim()
        left = self._host.private()  # with what the look itself has taken
        return Probe(now, left, lengths, sizes), rise.last.bytes - left

    def to_come(self, probe: Probe, rise: Rise) -> int | None:
        """Bytes until the buffers that explain a rise are full; None when they do not."""
        filled, left = filling.filled_since(probe.untouched)
        gained = rise.last.bytes - probe.bytes
        return left if filled >= EXPLAINS * gained else None

    def conclude(
        self, kind: str, device: str, probe: Probe, rise: Rise, now: int, pids: Collection[int]
    ) -> tuple[int, bool]:
        """Look again, and tell what is certain: (bytes below which nothing is news, if any was)."""
        level = rise.last.bytes
        if kind == "worker":
            told: _Told | None = self._workers(rise, now, pids)
        else:
            if kind == "host":
                trim()
                level = self._host.private()
            real = (level - probe.bytes) / max(1, now - probe.step)
            if real < REAL * rise.per_step:
                return level + rise.gained, False
            if self.is_told(device, real):
                return level + rise.gained // 4, True
            rise = replace(rise, per_step=min(real, rise.per_step)) if kind == "host" else rise
            told = self._explained(kind, device, probe, rise, now)
        is_news = told is not None and self._tell(told, device, rise, now)
        return level + max(1, min(rise.gained // 4, self._to_leak(device, rise))), is_news

    def _to_leak(self, device: str, rise: Rise) -> int:
        """Bytes after which a look must be begun to be over when growth has become a leak."""
        missing = self._figures.max_growth(device) - rise.retained
        ahead = max(
            (GOES_ON_FOR + 1) * rise.per_step,
            GOES_ON_BY * least_worth(self._figures.max_growth(device), self._figures.limit(device)),
        )
        return int(missing - ahead) if missing > ahead else rise.gained // 4

    def tell_reserved(self, told: Allocation, cache: Cache, reason: str, now: int) -> None:
        """An allocator holds much that it cannot hand out again."""
        unused = cache.unused
        self._cases.add(
            Finding(
                "reserved",
                "warning",
                words.reserved(told.device, unused, told.retries),
                fingerprint("reserved", (), (told.device,)),
                now,
                now,
                Growth(Amount(), Amount(bytes=unused)),
                advice=words.reserved_advice(told.device, cache.is_split),
                reason=reason,
            )
        )

    # --- what it is ---

    def _explained(
        self, kind: str, device: str, probe: Probe, rise: Rise, now: int
    ) -> _Told | None:
        """What grows in the process or on a device; None where others tell it, or nothing does."""
        assert probe.storages is not None
        steps = max(1, now - probe.step)
        tensors = lengthening.storages(device)
        gained = rise.per_step * steps
        grown = tensors.total - probe.storages.total
        if grown >= EXPLAINS * gained:
            if tensors.count - probe.storages.count >= COUNTED * steps:
                return None  # whoever counts survivors tells of them
            return self._lengthened(device, probe.storages, rise, now, steps)
        if kind != "host":
            return None
        return self._plain(probe, rise, now, gained)

    def _lengthened(
        self, device: str, before: Storages, rise: Rise, now: int, steps: int
    ) -> _Told | None:
        longer = lengthening.longer_than(before, device)
        if longer is None or longer.gained < NAMED * rise.per_step * steps:
            return None
        located = locate_growing(self._question("tensor", rise, now), longer.tensor, [])
        size, sparse = longer.bytes, lengthening.is_sparse(longer.tensor)
        del longer
        if located is not None and sparse:
            located = replace(located, advice=lengthening.sparse_advice(located.place))
        found = [located] if located is not None else []
        return _Told("tensor", words.longer(rise.per_step), found, [size])

    def _plain(self, probe: Probe, rise: Rise, now: int, gained: float) -> _Told | None:
        """Plain objects, cycles of them, or nothing that Python knows of."""
        assert probe.containers is not None
        more = containers.more_than(probe.containers, gained)  # before our own search adds to them
        grown = containers.grown_since(probe.containers)[:MOST_HOLDERS]
        named = [one for one in grown if one.bytes >= NAMED * gained]
        grown.clear()
        found, sizes, entries = self._located(named, rise, now, now - probe.step)
        what = words.gathered([(one.entry, one.added, one.bytes) for one in named], more)
        named.clear()
        if found:
            told = _Told("host", words.host(rise.per_step), found, sizes, reason=what)
            return replace(told, entries=entries[0][0], each=entries[0][1])
        # Cycles are objects that become more: without those no collection is spent.
        may_be_cycles = containers.is_any_more(probe.containers, CYCLES * (now - probe.step))
        if may_be_cycles and self._goes_with_a_collection(rise, gained):
            if gc.isenabled():
                return None
            advice = words.CYCLES_ADVICE
            return _Told("host", words.host(rise.per_step), (), (), words.IN_CYCLES, advice, what)
        unnamed = words.unnamed(more)
        return _Told("host", words.host(rise.per_step), (), (), unnamed, words.HOST_ADVICE, what)

    def _located(
        self, named: list[Grown], rise: Rise, now: int, steps: int
    ) -> tuple[list[Located], list[int], list[tuple[int, int]]]:
        """(whom each is known by, bytes in it, its entries and the bytes of one)."""
        found: list[Located] = []
        sizes: list[int] = []
        entries: list[tuple[int, int]] = []
        for one in named:
            located = locate_growing(self._question("host", rise, now), one.container, [named])
            if located is not None:
                found.append(located)
                sizes.append(min(one.bytes * rise.steps // max(1, steps), rise.retained))
                entries.append((len(one.container), one.bytes // max(1, one.added)))
        return found, sizes, entries

    def _goes_with_a_collection(self, rise: Rise, gained: float) -> bool:
        """Whether a collection frees what has gathered; only one is ever made to find out."""
        if self._census.collected_at >= rise.first.step:
            return False  # the collector has been, and it grew all the same
        before = self._host.private()
        if not self._cases.collect():
            # The collector's own will tell, as long as there is room to wait for it.
            return gc.isenabled() and rise.retained < self._figures.max_growth("cpu")
        trim()
        return before - self._host.private() >= EXPLAINS * gained

    def _workers(self, rise: Rise, now: int, pids: Collection[int]) -> _Told:
        located = locate_loaders(self._question("worker", rise, now), list(pids))
        sizes = [rise.retained for _ in located]
        advice = words.WORKER_ADVICE
        unnamed = "" if located else words.UNKNOWN_CHILDREN
        summary = words.workers(rise.per_step, len(pids))
        finite = any(one.finite for one in located)
        return _Told("worker", summary, located, sizes, unnamed, advice, finite=finite)

    def _question(self, kind: str, rise: Rise, now: int) -> Question:
        births = range(max(rise.first.step, now - 8), now)
        return Question(kind, now, births, _no_step, 0)

    # --- telling ---

    def _tell(self, told: _Told, device: str, rise: Rise, now: int) -> bool:
        """Rule on a rise and hand it on; whether it was worth it."""
        limit = self._figures.limit(device)
        forecast = growing.outlook(rise, limit, self._figures.used(device), _named(device))
        first = told.located[0] if told.located else None
        release = first.statement.release if first and first.statement else None
        # A container's limit is in entries, of which a step may put in several.
        limited = first is not None and first.limit is not None and told.entries > 0
        ruling = rule(
            Evidence(
                told.kind,
                told.entries if limited else rise.steps,
                limit=first.limit if first else None,
                bound=release.bound if release else None,
                releases=release is not None and not release.outer,
                outer=release is not None and release.outer,
                retained=rise.retained,
                per_survivor=min(int(rise.per_step), told.each or int(rise.per_step)),
                max_growth=self._figures.max_growth(device),
                room=limit,
                steps_left=forecast.steps if forecast else None,
                named=bool(told.located) or told.unnamed == words.IN_CYCLES,
                finite=told.finite,
            )
        )
        if ruling.action == "hold":
            return False
        severity: Severity = "leak" if ruling.action == "leak" else "warning"
        holders = tuple(map(_holder, told.located, told.sizes))
        reason = "; ".join(filter(None, (rise.reason, told.reason, ruling.reason)))
        each, total = Amount(bytes=round(rise.per_step)), Amount(bytes=rise.retained)
        mark = fingerprint(told.kind, told.located, (_named(device),))
        self._own.add(mark)
        self._cases.add(
            Finding(
                told.kind,
                severity,
                told.summary,
                mark,
                rise.first.step,
                now,
                Growth(each, total),
                forecast,
                (),
                holders,
                _advice(told),
                reason,
                steps=(rise.first.step, now),
                unnamed=told.unnamed,
            )
        )
        return True


def _holder(located: Located, size: int) -> Holder:
    advice = located.advice
    return replace(
        holder_of(located.place, located.statement, located.type, located.chain),
        bytes=size,
        why=advice.why,
        fix=advice.fix,
        alternative=advice.alternative,
        modules=located.modules,
    )


def _advice(told: _Told) -> str:
    own = told.located[0].advice.advice if told.located else ""
    return "; ".join(filter(None, (own, told.advice)))


def _named(device: str) -> str:
    """How a forecast names it: the host needs no name."""
    return "" if device == "cpu" else device


def _no_step(_: int) -> int:
    return -1
