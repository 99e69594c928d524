"""Levels of memory: of the process, its children and its devices; read now and then, and judged.

Everything here waits for a look that is due anyway, and then for the time at which reading is worth
it: a reading of the process takes some ten microseconds, many times that with cold caches, and one
of a child as much.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from memguard.cases import Cases
from memguard.clock import discovery
from memguard.clock.sources import Sources
from memguard.figures import Figures, Seen
from memguard.judge.levels import FEWEST, Level, Reading, Rise, goes_on, rise
from memguard.judge.reserved import Cache, fragmented
from memguard.judge.verdict import least_worth
from memguard.memory_cases import MemoryCases, Probe
from memguard.pace import CLOSE_STEPS
from memguard.sensors.allocator import Allocation, allocations
from memguard.sensors.census import Census
from memguard.sensors.devices import used_backends
from memguard.sensors.governor import FREE_STEPS
from memguard.sensors.host import Host
from memguard.sensors.workers import Children
from memguard.settings import Settings

# Seconds between readings: at the least, at the most, and as a share of the time watched.
LEAST_GAP, MOST_GAP, GAP_SHARE = 0.001, 5.0, 1 / 256

# Share of the overhead that reading levels may have.
PART = 0.05

# The same share of the time in the first steps (up to `pace.CLOSE_STEPS`), where bugs show.
CLOSE_SHARE = 0.02

# A level climbs when its latest readings only rise, by at least this share of what is worth a word.
# Then it is read so many times as often: a rise is judged by readings that lie evenly.
CLIMBING = 4
CLIMBING_BY = 1 / 8
CLIMBING_FASTER = 4

# Seconds between questions to the system for children that `multiprocessing` has not started.
CHILDREN_EVERY = 30.0

# Seconds for which limits are taken to be as they were.
LIMITS_EVERY = 30.0

# A rise is looked for again when it has lasted so much longer.
AGAIN = 1 / 32

# One that is being looked into is given up after so many times the steps it had lasted before.
PATIENCE = 4


@dataclass(slots=True)
class Watch:
    """One level under watch.

    Attributes:
        kind: `host`, `worker`, or `tensor` for a device.
        device: as torch writes it; `cpu` for the host.
        level: what was read.
        judge_at: step before which no rise is looked for.
        hold_at: bytes below which nothing is said, as it was said before or was nothing.
        probe: the first look into a rise, while a second is awaited.
        fruitless: looks into rises that came to nothing.
    """

    kind: str
    device: str
    level: Level
    judge_at: int = 0
    hold_at: int = 0
    probe: Probe | None = None
    fruitless: int = 0

    def give_up(self, level: int, worth: int) -> None:
        """Nothing came of a look: the next one waits for twice the growth of this one."""
        self.probe = None
        self.hold_at = max(self.hold_at, level + (worth << min(self.fruitless, 30)))
        self.fruitless += 1

    def climbs(self, worth: int) -> bool:
        """Whether its latest readings rise fast, and that may be worth a word."""
        latest = [reading.bytes for reading in self.level.readings[-CLIMBING:]]
        return (
            len(latest) == CLIMBING
            and latest[-1] >= self.hold_at
            and latest[-1] - latest[0] >= worth * CLIMBING_BY
            and all(before < after for before, after in itertools.pairwise(latest))
        )

    def restart(self) -> None:
        """Forget all that was read."""
        self.level = Level()
        self.probe = None
        self.judge_at = 0


class Memory:
    """Reads and judges the levels of one loop.

    Args:
        clock: source of seconds; tests pass their own.

    Attributes:
        climbs: whether a level rises so fast that it must be read again soon.
    """

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        census: Census,
        figures: Figures,
        cases: Cases,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._share = settings.overhead * PART
        self._sources = sources
        self._figures = figures
        self._cases = cases
        self._clock = clock
        self._looking = MemoryCases(census, figures, cases)
        self._begun = self._due = clock()
        self._reads = Host()
        self._children = Children()
        self._children_due = self._begun + CHILDREN_EVERY
        self._host = Watch("host", "cpu", Level())
        self._workers = Watch("worker", "cpu", Level())
        # The children whose memory is added up, and since when others have been seen.
        self._crew: frozenset[int] = frozenset()
        self._others: dict[int, int] = {}
        self._devices: dict[str, Watch] = {}
        self._retries: dict[str, int] = {}
        self._peaks: dict[str, int] = {}
        self._fragmented: set[str] = set()
        self._least: dict[str, tuple[float, int]] = {}
        self._pauses = self._paused_at = 0
        self._epoch = 0
        self.climbs = False
        self._last_phase = ""

    @property
    def in_doubt(self) -> bool:
        """Whether a rise is being looked into."""
        return any(watch.probe is not None for watch in self._watches())

    def look(self, now: int) -> Seen | None:
        """Read the levels at the end of step `now` if it is time, and judge them.

        Returns:
            What was read; None when it was not time.
        """
        begun = self._clock()
        if begun < self._due and now > FREE_STEPS:
            return None
        phase = self._phase()
        seen = Seen(self._reads.read(), tuple(allocations(used_backends())))
        self._host.level.add(self._reading(now, begun, seen.host.private, phase))
        self._read_children(now, begun, phase)
        for allocation in seen.devices:
            self._read_device(allocation, now, begun, phase)
        self.climbs = any(watch.climbs(self._worth(watch.device)) for watch in self._watches())
        taken = self._clock() - begun
        gap = max(LEAST_GAP, min(MOST_GAP, (begun - self._begun) * GAP_SHARE))
        if now > FREE_STEPS:
            share = self._share if now > CLOSE_STEPS else max(self._share, CLOSE_SHARE)
            share *= CLIMBING_FASTER if self.climbs else 1
            gap = max(gap, taken / share if share > 0 else MOST_GAP)
        self._due = begun + gap
        for watch in self._watches():
            self._judge(watch, now)
        return seen

    def pause(self) -> None:
        """What is taken from now on until `resume` does not count."""
        self._pauses += 1
        if self._pauses == 1:  # pauses within one another are one
            self._paused_at = self._reads.private()

    def resume(self) -> None:
        """End the pause."""
        self._pauses -= 1
        if not self._pauses:
            self._host.level.shift(self._reads.private() - self._paused_at)

    def _watches(self) -> list[Watch]:
        return [self._host, self._workers, *self._devices.values()]

    def _phase(self) -> str:
        roots = self._sources.roots()
        phase = "training" if any(map(discovery.is_training, roots)) else "evaluation"
        self._epoch += phase == "training" and self._last_phase == "evaluation"
        self._last_phase = phase
        return phase

    def _reading(self, now: int, seconds: float, size: int, phase: str) -> Reading:
        return Reading(now, seconds, size, phase, self._epoch)

    # --- reading ---

    def _read_children(self, now: int, seconds: float, phase: str) -> None:
        if seconds >= self._children_due:
            self._children_due = seconds + CHILDREN_EVERY
            self._children.find_all()
            self._children_due += 1000 * (self._clock() - seconds)
        sizes = self._children.private()
        self._sign_on(sizes, now)
        if self._crew:
            total = sum(sizes[pid] for pid in self._crew)
            self._workers.level.add(self._reading(now, seconds, total, phase))

    def _sign_on(self, sizes: dict[int, int], now: int) -> None:
        """Decide whose memory is added up: those that stay, so that one that comes is no growth."""
        living = frozenset(sizes)
        if not living and not self._crew:
            return
        self._others = {pid: self._others.get(pid, now) for pid in living - self._crew}
        is_new = len(self._workers.level.readings) < FEWEST
        stays = any(now - since > 2 * FEWEST for since in self._others.values())
        if not self._crew <= living or (self._others and (is_new or stays)):
            self._crew, self._others = living, {}
            self._workers.restart()

    def _read_device(self, told: Allocation, now: int, seconds: float, phase: str) -> None:
        watch = self._devices.get(told.device)
        if watch is None:
            watch = self._devices[told.device] = Watch("tensor", told.device, Level())
        watch.level.add(self._reading(now, seconds, told.allocated, phase))
        # Whoever resets the peak must not make what was in use look unused.
        peak = self._peaks[told.device] = max(told.peak, self._peaks.get(told.device, 0))
        if now <= FREE_STEPS:
            self._retries[told.device] = told.retries
        retries = told.retries - self._retries.setdefault(told.device, told.retries)
        cache = Cache(told.reserved, peak, retries, told.limit, told.inactive)
        reason = fragmented(cache)
        if reason is not None and told.device not in self._fragmented:
            self._fragmented.add(told.device)
            self._looking.tell_reserved(told, cache, reason, now)

    # --- judging ---

    def _judge(self, watch: Watch, now: int) -> None:
        readings = watch.level.readings
        if len(readings) < FEWEST or now < watch.judge_at:
            return
        if watch.probe is None and readings[-1].bytes < watch.hold_at:
            return
        found = rise(readings, self._worth(watch.device))
        watch.judge_at = now + max(1, int((now - readings[0].step) * AGAIN)) if found else now
        if found is None:
            # Teeth hide a rise at times: a look into it is not given up at once.
            if watch.probe is not None and now - watch.probe.step > PATIENCE * FEWEST:
                watch.give_up(readings[-1].bytes, self._worth(watch.device))
        elif not self._cases.in_doubt:
            begun = self._clock()
            self._look_into(watch, found, now)
            self._cases.explaining += self._clock() - begun

    def _look_into(self, watch: Watch, found: Rise, now: int) -> None:
        """A first look into a rise, or, when it has gone on since, a second."""
        probe, level = watch.probe, watch.level
        if probe is None:
            if watch.kind != "worker" and self._looking.is_told(watch.device, found.per_step):
                watch.hold_at = found.last.bytes + found.gained // 4
                return
            watch.probe, given_back = self._looking.probe(watch.kind, watch.device, found, now)
            level.shift(-given_back)
            watch.judge_at = 0
            return
        watch.judge_at = 0
        since = replace(found.first, step=probe.step, bytes=probe.bytes)
        if not goes_on(since, found, self._worth(watch.device)):
            if now - probe.step > PATIENCE * max(FEWEST, found.steps):
                watch.give_up(found.last.bytes, self._worth(watch.device))
            return
        if probe.is_first:
            self._look_closer(watch, probe, found, now)
            return
        watch.probe = None
        kind, device = watch.kind, watch.device
        until, news = self._looking.conclude(kind, device, probe, found, now, self._crew)
        watch.hold_at = until
        if not news:
            watch.give_up(found.last.bytes, self._worth(device))
        level.shift(self._reads.private() - found.last.bytes if watch.kind == "host" else 0)

    def _look_closer(self, watch: Watch, probe: Probe, found: Rise, now: int) -> None:
        """Of a rise that buffers have room for: it fills them, or it is looked into after all."""
        to_come = self._looking.to_come(probe, found)
        if to_come is not None:
            worth = self._worth(watch.device)
            watch.hold_at = found.last.bytes + to_come + worth
            watch.give_up(found.last.bytes, worth)
            return
        watch.probe, given_back = self._looking.probe(
            watch.kind, watch.device, found, now, fills=False
        )
        watch.level.shift(-given_back)

    def _worth(self, device: str) -> int:
        """Bytes from which growth of a device is worth a word."""
        seconds = self._clock()
        at, least = self._least.get(device, (0.0, 0))
        if not least or seconds > at + LIMITS_EVERY:
            least = least_worth(self._figures.max_growth(device), self._figures.limit(device))
            self._least[device] = seconds, least
        return least
