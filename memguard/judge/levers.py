"""Which lever fits the shares that were measured; pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from memguard.judge.sharding import shard
from memguard.ledgers import HOST, Account, Ledger, Lever, LeverName, RowName
from memguard.records import Finding
from memguard.units import format_bytes, format_count, plural

# A share of a device's memory from which a kind is worth a lever of its own.
WORTHWHILE = 0.2

# A share of reserved memory that is not allocated from which it is called fragmented.
FRAGMENTED = 0.25

# A share of the host's memory from which children and page-locked memory are spoken of.
HOST_SHARE = 0.25

STATES: tuple[RowName, ...] = ("parameters", "gradients", "optimizer")

# Ranks for which the savings of sharding are told where nobody knows how many there are.
RANKS = (2, 8, 64)


def leaking_devices(findings: Iterable[Finding]) -> frozenset[str]:
    """The devices on which leaks were found; empty where that is not known of each."""
    leaks = [finding for finding in findings if finding.severity == "leak"]
    if any(finding.forecast is None for finding in leaks):
        return frozenset()
    return frozenset(leak.forecast.device or HOST for leak in leaks if leak.forecast is not None)


def advise(
    ledger: Ledger, *, leaking: bool = False, devices: Collection[str] = (), ranks: object = None
) -> tuple[Lever, ...]:
    """The levers that fit, the one that saves most first; none where nothing stands out.

    Args:
        ledger: where memory is; best taken while memory is short. What a step needs on top is read
            from the allocator's peak where the ledger was taken between steps.
        leaking: whether a leak was found. Then none of the others helps where it was found.
        devices: where leaks were found; everywhere when empty.
        ranks: how many train together, as the report's environment has it; below 2, or no number,
            where that is not known.
    """
    grown = [account for account in ledger.accounts if account.device in devices]
    if leaking and not grown:
        return (_plain_leak(ledger.account()),)
    leak = _leak(ledger) if not leaking else None
    if leak is not None:
        return (leak,)
    fixes = map(_plain_leak, grown if leaking else ())
    others = [account for account in ledger.accounts if not leaking or account not in grown]
    known = (ranks,) if isinstance(ranks, int) and ranks > 1 else RANKS
    return (*fixes, *_levers(others, known))


def _levers(accounts: Iterable[Account], ranks: Sequence[int]) -> tuple[Lever, ...]:
    levers: list[Lever] = []
    for account in accounts:
        if account.total <= 0:
            continue
        measured = _activations(account)
        found = [*_states(account, ranks), *_activation_levers(account, measured)]
        found += _host(account) if account.device == HOST else _fragmentation(account)
        levers += found
    return tuple(sorted(levers, key=lambda lever: -(lever.saves or 0)))


def _plain_leak(account: Account) -> Lever:
    retained = account.bytes_of("retained")
    said = "memory grows step by step"
    if retained:
        said += f", and past steps' graphs keep {_of(retained, account)}"
    return _fix(account, said, retained)


def _leak(ledger: Ledger) -> Lever | None:
    """Past steps' graphs that outweigh what anything else could save."""
    for account in ledger.accounts:
        retained = account.bytes_of("retained")
        if account.total > 0 and retained >= WORTHWHILE * account.total:
            return _fix(account, f"past steps' graphs keep {_of(retained, account)}", retained)
    return None


def _fix(account: Account, reason: str, retained: int) -> Lever:
    return Lever(
        "fix the leak",
        account.device,
        "it is a leak: any other lever only puts off the end; fix what the finding names",
        reason,
        retained or None,
        {"retained": retained, "total": account.total},
    )


def _activations(account: Account) -> int:
    """What a step needs beyond what stays: the graph's, or the peak over what is there now."""
    now = account.bytes_of("activations")
    if account.peak is None or account.allocated is None:
        return now
    return max(now, account.peak - account.allocated + now)


def _of(size: int, account: Account, whole: int | None = None) -> str:
    total = account.total if whole is None else whole
    # Nothing that was measured is larger than the whole by much; a file may say anything.
    share = f", {size / total:.0%}" if 0 < size <= 100 * total else ""
    return f"{format_bytes(size)} of {format_bytes(total)} on {account.device}{share}"


def _activation_levers(account: Account, size: int) -> list[Lever]:
    whole = max(account.total, account.peak or 0)
    if size < WORTHWHILE * whole or size <= account.bytes_of(*STATES):
        return []
    reason = f"activations take {_of(size, account, whole)}"
    numbers = {"activations": size, "total": whole}

    def lever(name: LeverName, advice: str, saves: int | None) -> Lever:
        return Lever(name, account.device, advice, reason, saves, numbers)

    return [
        lever(
            "smaller batch",
            "halve the batch and step the optimizer every second backward (gradient accumulation): "
            "activations grow in proportion to the batch",
            size // 2,
        ),
        lever(
            "checkpointing",
            "recompute activations in the backward (torch.utils.checkpoint) for the blocks that "
            "keep most: about a third more computing",
            None,
        ),
        lever(
            "attention",
            "where attention is written out by hand, use "
            "torch.nn.functional.scaled_dot_product_attention, which does not store its matrix",
            None,
        ),
    ]


def _states(account: Account, ranks: Sequence[int]) -> list[Lever]:
    """The levers where parameters, gradients and optimizer states weigh most."""
    kinds: dict[str, int] = {name: account.bytes_of(name) for name in STATES}
    size = sum(kinds.values())
    if size < WORTHWHILE * account.total or size <= _activations(account):
        return []
    reason = (
        f"parameters, gradients and optimizer state take {_of(size, account)} "
        f"(optimizer {format_bytes(kinds['optimizer'])})"
    )
    numbers: dict[str, float] = {**kinds, "total": account.total}
    levers = []
    wide = sum(account.row(name).dtypes.get("float32", 0) for name in STATES)
    if wide >= size // 2:
        levers.append(
            Lever(
                "bf16",
                account.device,
                "keep parameters in bfloat16, and the optimizer's states with them where accuracy "
                "allows: half the bytes of what is float32 now",
                f"{reason}; {format_bytes(wide)} of it float32",
                wide // 2,
                {**numbers, "float32": wide},
            )
        )
    sharding = _sharding(account, kinds, reason, numbers, ranks)
    return [*levers, sharding, *_offload(account, kinds, reason)]


def _sharding(
    account: Account,
    kinds: dict[str, int],
    reason: str,
    numbers: dict[str, float],
    ranks: Sequence[int],
) -> Lever:
    said, most = [], 0
    for stage in (1, 2, 3):
        saved = {n: shard(*kinds.values(), ranks=n, stage=stage).saves for n in ranks}
        numbers = {**numbers, **{f"stage {stage}, {n} ranks": size for n, size in saved.items()}}
        most = max(most, *saved.values())
        at = ", ".join(f"{format_bytes(size)} at {n}" for n, size in saved.items())
        said.append(f"stage {stage} saves {at} ranks")
    advice = "shard over the ranks (FSDP, or ZeRO by stage): each rank's " + "; ".join(said)
    return Lever("sharding", account.device, advice, reason, most, numbers)


def _offload(account: Account, kinds: dict[str, int], reason: str) -> list[Lever]:
    if account.device == HOST or not kinds["optimizer"]:
        return []
    return [
        Lever(
            "offload",
            account.device,
            "keep the optimizer's states on the host (FSDP's CPU offload, ZeRO-Offload): slower "
            "steps",
            reason,
            kinds["optimizer"],
            {"optimizer": kinds["optimizer"], "total": account.total},
        )
    ]


def _fragmentation(account: Account) -> list[Lever]:
    cache = account.bytes_of("cache")
    # A cache the size of the peak is only what the last step gave back.
    idle = account.total - max(account.peak or 0, account.allocated or 0)
    if account.retries <= 0 and (
        not account.peak  # nobody knows what a step takes
        or cache < FRAGMENTED * account.total
        or idle < FRAGMENTED * account.total
    ):
        return []
    # Other allocators have no such setting.
    is_cuda = account.device.startswith("cuda")
    setting = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, " if is_cuda else ""
    reason = f"the allocator has reserved {_of(cache, account)} without giving it out"
    if account.inactive:
        reason += f" ({format_bytes(account.inactive)} in free parts of blocks that are in use)"
    if account.retries:
        reason += f", and had to empty its cache {plural(account.retries, 'time')} to go on"
    return [
        Lever(
            "expandable segments",
            account.device,
            f"{setting}pad batches to a few fixed shapes (buckets), and call empty_cache() after "
            "validation only, never each step",
            reason,
            cache,
            {
                "cache": cache,
                "inactive": account.inactive,
                "retries": account.retries,
                "total": account.total,
            },
        )
    ]


def _host(account: Account) -> list[Lever]:
    levers = []
    children = account.row("children")
    if children.bytes >= HOST_SHARE * account.total:
        levers.append(
            Lever(
                "workers",
                account.device,
                "fewer DataLoader workers or a smaller prefetch_factor; keep the data set in "
                "arrays or tensors, of which forked workers share the pages, not in lists",
                f"{format_count(children.count)} child processes take "
                f"{_of(children.bytes, account)}",
                children.bytes // 2,
                {"children": children.bytes, "count": children.count, "total": account.total},
            )
        )
    pinned = sum(row.pinned for row in account.rows)
    if pinned >= HOST_SHARE * account.total:
        levers.append(
            Lever(
                "pinned memory",
                account.device,
                "pin fewer batches (pin_memory=False, or a smaller prefetch_factor): page-locked "
                "memory is never given back",
                f"page-locked memory takes {_of(pinned, account)}",
                pinned // 2,
                {"pinned": pinned, "total": account.total},
            )
        )
    return levers
