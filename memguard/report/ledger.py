"""A ledger as a table, as rows for a page, and as the one line of a report."""

from __future__ import annotations

from collections.abc import Iterable

from memguard.ledgers import HOST, Account, Ledger, Lever, Row, Stray
from memguard.records import Amount
from memguard.report.clean import clean
from memguard.units import format_bytes, format_count, plural

# Columns of a table, and how far parts are told.
_NAME, _SIZE = 18, 12
_MOST_PARTS, _MOST_DTYPES, _MOST_ACCOUNTS, _MOST_NOTES = 5, 4, 16, 8

_WORDS = {
    "optimizer": "optimizer state",
    "retained": "past steps' graphs",
    "other": "other tensors",
    "pinned": "pinned tensors",
    "shared": "shared tensors",
    "nodes": "autograd nodes",
    "cache": "allocator's cache",
}
_ONE_LINE = {"retained": "retained", "other": "other", "cache": "cache", "optimizer": "optimizer"}

Line = tuple[str, str, str]


def render(ledger: Ledger, levers: Iterable[Lever] = ()) -> str:
    """The ledger as text, without a final newline.

    Args:
        ledger: where memory is.
        levers: what would help, told after it.
    """
    blocks = ["\n".join(_account(one)) for one in ledger.accounts[:_MOST_ACCOUNTS]]
    notes = [clean(note, 300) for note in ledger.notes[:_MOST_NOTES]]
    if not ledger.complete:
        notes.append("not everything was met before the budget for counting ended")
    blocks += ["\n".join(f"note: {note}" for note in notes)] if notes else []
    blocks += ["\n".join(_lever(lever)) for lever in levers]
    return "\n\n".join(blocks) or "nothing was counted"


def strays(stray: Stray) -> str:
    """A note on states that an optimizer keeps for parameters that are not trained."""
    is_gone = stray.why == "gone"
    whose = "that its groups do not have any more" if is_gone else "that no module here has"
    way = (
        f"pop them from {stray.optimizer}.state"
        if is_gone
        else "make the optimizer anew, or count its model as well"
    )
    return (
        f"{stray.optimizer} keeps {format_bytes(stray.bytes)} of its {format_bytes(stray.whole)} "
        f"of state for {plural(stray.parameters, 'parameter')} {whose}: {way}"
    )


def unwalked(walked: int, ends: int, beyond: Amount) -> str:
    """A note on graphs too deep to be walked.

    Args:
        walked: nodes that were.
        ends: tensors and nodes whose graphs were not followed.
        beyond: what is known to lie behind them; nothing where that is not known.
    """
    said = f"{plural(walked, 'autograd node')} were walked"
    if not beyond.nodes:
        return f"{said}; the graphs behind {ends:,} more nodes or tensors were not"
    kept = f", which keep some {format_bytes(beyond.bytes)}" if beyond.bytes else ""
    return f"{said}; about {beyond.nodes:,} more of past steps were not{kept} in no row of theirs"


def _account(account: Account) -> list[str]:
    lines = [headline(account)]
    for name, size, said in lines_of(account):
        lines.append(f"  {name:<{_NAME}} {size:>{_SIZE}}  {said}".rstrip())
    return lines


def headline(account: Account) -> str:
    """A device with its whole: `cuda:0: 3.1 GiB given out of 4 GiB reserved; limit 8 GiB`."""
    name = "host" if account.device == HOST else clean(account.device, 40)
    if account.allocated is not None:
        whole = f"{format_bytes(account.allocated)} given out of {format_bytes(account.total)} "
        whole += "reserved"
    elif account.private is not None:
        whole = f"{format_bytes(account.total)}, {format_bytes(account.private)} of it private to "
        whole += "this process"
    else:
        whole = f"{format_bytes(account.total)} counted"
    if account.peak:
        whole += f"; peak {format_bytes(account.peak)}"
    if account.retries:
        whole += f"; {plural(account.retries, 'retry', 'retries')}"
    return f"{name}: {whole}" + (f"; limit {format_bytes(account.limit)}" if account.limit else "")


def lines_of(account: Account) -> list[Line]:
    """Each row and its largest parts: name, size, and what else is known."""
    lines: list[Line] = []
    for row in account.rows:
        lines.append((_word(row, account), format_bytes(row.bytes), _more(row, account)))
        for part in row.parts[:_MOST_PARTS]:
            said = plural(part.count, _noun(row)) if part.count > 1 else ""
            if part.holder:
                said = f"{said}, held by " if said else "held by "
                said += clean(part.holder, 80)
            lines.append((f"  {clean(part.name, 60)}", format_bytes(part.bytes), said))
        if len(row.parts) > _MOST_PARTS:
            rest = row.bytes - sum(part.bytes for part in row.parts[:_MOST_PARTS])
            lines.append(("  the rest", format_bytes(rest), ""))
    return lines


def _word(row: Row, account: Account) -> str:
    if row.name == "unexplained" and account.device == HOST:
        return "no tensor's"
    return _WORDS.get(row.name, row.name)


def _noun(row: Row) -> str:
    return "node" if row.name == "nodes" else "tensor"


def _more(row: Row, account: Account) -> str:
    if row.name == "unexplained":
        return _unexplained(row, account)
    if row.name == "cache" and account.inactive:
        return f"{format_bytes(account.inactive)} in free parts of blocks that are in use"
    dtypes = list(row.dtypes.items())[:_MOST_DTYPES]
    said = []
    if len(dtypes) == 1:
        said.append(clean(dtypes[0][0], 40))
    else:
        said += [f"{clean(name, 40)} {_size(size)}" for name, size in dtypes]
    if row.name == "nodes":
        said.append(f"{format_count(row.count)}, estimated")
    if row.pinned and row.name != "pinned":
        said.append(f"{format_bytes(row.pinned)} pinned")
    return ", ".join(said)


def _size(size: object) -> str:
    # A file from elsewhere may hold anything here.
    return format_bytes(size) if isinstance(size, (int, float)) else clean(size, 20)


def _unexplained(row: Row, account: Account) -> str:
    if account.device == HOST:
        if row.bytes < 0:
            return "tensors have pages that were never written, or that no longer are in RAM"
        return "Python, libraries, freed memory that was kept"
    if row.bytes < 0:
        return "tensors lie outside this allocator"
    return "rounding, workspaces, tensors that only C++ holds"


def _lever(lever: Lever) -> list[str]:
    saves = f" (saves about {format_bytes(lever.saves)})" if lever.saves else ""
    return [
        f"lever: {clean(lever.name, 40)}{saves}",
        f"  why  {clean(lever.reason, 400)}",
        f"  how  {clean(lever.advice, 600)}",
    ]


def one_line(ledger: Ledger) -> str:
    """The shares of each device in one line: `parameters 1.2 GiB · gradients 1.2 GiB · …`."""
    told = [one for one in ledger.accounts[:_MOST_ACCOUNTS] if one.rows]
    if len(told) > 1 and told[-1].device == HOST:
        told = told[:-1]
    return "; ".join(_named(account, len(told) > 1) + _shares(account) for account in told)


def _named(account: Account, among_several: bool) -> str:
    return f"{clean(account.device, 40)}: " if among_several else ""


def _shares(account: Account) -> str:
    parts = []
    for row in account.rows:
        word = _ONE_LINE.get(row.name, row.name)
        if row.name == "unexplained":
            word = "rest"
        if row.bytes > 0:
            parts.append(f"{word} {format_bytes(row.bytes)}")
    return " · ".join(parts)
