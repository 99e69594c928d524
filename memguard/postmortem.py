"""The post-mortem: written when memory is near its end, or has ended.

What it needs is made ready while there is memory: modules are loaded, and some address space is set
aside to be given back at the end. A short form is written first, so that there is something on disk
if the whole one cannot be made any more.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import PurePath

from memguard import _events, _torch
from memguard._torch import Undo
from memguard.figures import Figures, Seen
from memguard.judge.levers import advise, leaking_devices
from memguard.judge.verdict import is_near_the_end
from memguard.records import Finding, Report
from memguard.report import data, postmortem
from memguard.report.clean import fit
from memguard.report.postmortem import Moment
from memguard.settings import Settings
from memguard.units import format_bytes

# Address space set aside: a count of the ledger lists some million objects at 8 bytes each. Nothing
# of it is ever in RAM.
SET_ASIDE = 24 << 20

# Readings that are remembered; seconds between those at the least.
MOMENTS, MOMENTS_EVERY = 32, 0.5

# The first ones come as they are read: a job that runs out of memory at once has no others.
FIRST_MOMENTS = 16

# Post-mortems of one guard: a program that looks for the largest batch runs out again and again.
MOST = 3


class PostMortem:
    """Remembers the last readings of one guard, and writes when memory ends.

    Args:
        settings: the settings in force; the file stands beside `report`.
        figures: what is in use, and what there is.
        findings: what was found so far.
        report: makes the whole report, the ledger of this moment in it.
    """

    def __init__(
        self,
        settings: Settings,
        figures: Figures,
        findings: Callable[[], Iterable[Finding]],
        report: Callable[[], Report],
    ) -> None:
        self._template = settings.report
        self._figures = figures
        self._findings = findings
        self._report = report
        self._moments: deque[Moment] = deque(maxlen=MOMENTS)
        self._begun = time.monotonic()
        self._moment_due = 0.0
        self._written = 0
        self._was_near = False
        self._peaks: dict[str, int] = {}
        self._process = os.getpid()
        self._aside: mmap.mmap | None = None
        self._unhook: Undo | None = None

    def prepare(self) -> None:
        """Set address space aside."""
        if self._aside is None:
            with suppress(OSError, ValueError):
                self._aside = mmap.mmap(-1, SET_ASIDE)

    def hear(self, step: int, seen: Seen) -> None:
        """Memory was read: remember what is in use, and write when the end is near."""
        now = time.monotonic() - self._begun
        if now < self._moment_due:
            return
        if len(self._moments) >= FIRST_MOMENTS:
            self._moment_due = now + MOMENTS_EVERY
        devices = ((one.device, one.allocated) for one in seen.devices)
        self._moments.append(Moment(step, now, (("cpu", seen.host.resident), *devices)))
        if seen.devices and self._unhook is None:
            self._unhook = _events.on_device_out_of_memory(self._device_ended)
        if not self._was_near and self._template is not None:
            end = self._end_in_sight(seen)
            if end is not None:
                self._was_near = True
                self.write(f"the end is near: {end}")
        self._peaks = {one.device: one.peak for one in seen.devices}

    def _end_in_sight(self, seen: Seen) -> str | None:
        """What is nearly full, in words; None where there is room."""
        used, limit = self._figures.host_standing(seen.host)
        if is_near_the_end(used, limit):
            return f"{format_bytes(used)} of {format_bytes(limit)} of the host are in use"
        for one in seen.devices:
            # Activations are gone when a step has ended: what it took is in the peak. That goes
            # back to the process's start, so only one that has risen is of a step.
            has_risen = one.peak > self._peaks.get(one.device, one.peak)
            used = max(one.allocated, one.peak) if has_risen else one.allocated
            limit = self._figures.wanted_limit(one.limit)
            if is_near_the_end(used, limit):
                amounts = f"{format_bytes(used)} of {format_bytes(limit)} of {one.device}"
                if used > one.allocated:
                    return f"{amounts} were in use at the peak of a step"
                return f"{amounts} are in use"
        return None

    def _device_ended(self, device: int, wanted: int, total: int, free: int) -> None:
        self.write(
            f"out of memory on device {device}: {format_bytes(wanted)} were wanted, "
            f"{format_bytes(free)} of {format_bytes(total)} were free"
        )

    def ended(self, error: BaseException) -> None:
        """The program runs out of memory: told on standard error where no file is asked for."""
        said = (str(error).strip() or "no memory left").splitlines()[0]
        self.write(f"{type(error).__name__}: {said}", aloud=True)

    def write(self, reason: str, *, aloud: bool = False) -> str | None:
        """Write the post-mortem beside the report; whatever goes wrong, nothing is raised.

        Args:
            reason: what ended the memory.
            aloud: tell it on standard error where no report is asked for.

        Returns:
            The file; None where none was written.
        """
        if self._written >= MOST or os.getpid() != self._process:
            return None
        self._written += 1
        self._give_back()
        path = None
        # Where the whole cannot be made, the short form is what could be had.
        with suppress(Exception):
            wanted = self._path()
            if wanted is not None:
                short = postmortem.brief(reason, list(self._moments), self._findings())
                data.put(wanted, data.encoded(short))
                path = wanted
                data.put(wanted, data.encoded(self._whole(reason)))
        if path is None and aloud:
            self._tell(reason)
        self.prepare()
        return path

    def _whole(self, reason: str) -> str:
        report = self._report()
        devices = leaking_devices(report.findings)
        levers = advise(
            report.ledger,
            leaking=report.verdict == "leak",
            devices=devices,
            ranks=report.environment.get("world_size"),
        )
        return postmortem.render(reason, list(self._moments), report, levers)

    def _tell(self, reason: str) -> None:
        if sys.stderr is None:
            return
        try:
            said = self._whole(reason)
        except Exception:
            said = f"memguard: post-mortem: {reason}"
        with suppress(OSError, ValueError, MemoryError):  # closed, or its reader gone
            print(fit(said, getattr(sys.stderr, "encoding", None)), file=sys.stderr)

    def _path(self) -> str | None:
        if self._template is None:
            return None
        step = self._moments[-1].step if self._moments else 0
        path = PurePath(data.expand(self._template, rank=_torch.rank(), step=step))
        return str(path.with_name(f"{path.stem}.postmortem.txt"))

    def _give_back(self) -> None:
        if self._aside is not None:
            self._aside.close()
            self._aside = None

    def end(self) -> None:
        """Let go of everything; harmless when done twice."""
        self._give_back()
        unhook, self._unhook = self._unhook, None
        if unhook is not None:
            unhook()
