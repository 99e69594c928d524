"""Whether a device's allocator holds much that it cannot hand out again; pure functions."""

from __future__ import annotations

from dataclasses import dataclass

# Share of the limit from which reserved memory that was never allocated at once is worth a word.
SHARE = 0.1

# Times that the cache was given back in a loop that has warmed up, from which it is no accident.
RETRIES = 3


@dataclass(frozen=True, slots=True)
class Cache:
    """A device's allocator when a step ended.

    Attributes:
        reserved: bytes taken from the driver.
        peak: most bytes that tensors ever took at once; 0 when unknown. What is free when a step
            ends is no measure: the next step takes it again.
        retries: times the cache was given back since the loop was warm.
        limit: bytes there are; 0 when unknown.
        inactive: bytes of free parts of blocks of which another part is in use, which the allocator
            cannot give back (inactive splits); 0 when unknown.
    """

    reserved: int
    peak: int
    retries: int
    limit: int
    inactive: int = 0

    @property
    def unused(self) -> int:
        """Bytes that were reserved and never in use at once."""
        return max(0, self.reserved - self.peak)

    @property
    def is_split(self) -> bool:
        """Whether most of what is unused is inactive: emptying the cache then frees little of it.

        What is inactive when a step ends is not all unused: in the next step some is taken again.
        """
        return 2 * min(self.inactive, self.unused) >= self.unused > 0


def fragmented(cache: Cache) -> str | None:
    """Why the allocator is in trouble, in words; None when it is not."""
    if not cache.peak:
        return None
    unused = cache.unused
    waste = f"{unused / 2**20:,.0f} MiB of {cache.reserved / 2**20:,.0f} MiB reserved"
    split = ""
    if cache.inactive:
        split = f"; {cache.inactive / 2**20:,.0f} MiB are free parts of blocks that are in use"
    if cache.retries >= RETRIES:
        return (
            f"the allocator gave back its whole cache {cache.retries} times because nothing in it "
            f"fitted; {waste} were never in use at once{split}"
        )
    if cache.limit and unused >= SHARE * cache.limit and 2 * cache.reserved >= cache.limit:
        return f"{waste} were never in use at once, and half of the device is reserved{split}"
    return None
