"""A report as JSON, and as a file in whatever form the file's name asks for."""

from __future__ import annotations

import json
import math
import os
import secrets
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from memguard.errors import ReportError
from memguard.records import Report
from memguard.report.clean import clean

_READING = "reading a report"


def dumps(report: Report) -> str:
    """The report as JSON in ASCII, its fields always in the same order."""
    plain = report.to_dict()
    for part in ("findings", "libraries", "ignored"):
        plain[part] = [_finite(finding, 0) for finding in plain[part]]
    # ASCII lets file names that are no valid Unicode through and back.
    return json.dumps(_finite(plain, None), indent=1, ensure_ascii=True, default=str)


def _finite(value: Any, otherwise: float | None) -> Any:
    """`value` with what JSON has no word for, NaN and infinities, replaced."""
    if isinstance(value, dict):
        return {key: _finite(item, otherwise) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item, otherwise) for item in value]
    return otherwise if isinstance(value, float) and not math.isfinite(value) else value


def loads(text: str | bytes) -> Report:
    """The report that `dumps` wrote.

    Args:
        text: JSON, as text or as UTF-8 bytes.

    Raises:
        ReportError: `text` is no JSON, or holds no report; the message says what is wrong.
    """
    try:
        data = json.loads(text, parse_constant=_refuse)
    except ReportError:
        raise
    except RecursionError:
        raise ReportError(f"{_READING}: nested too deeply to be one") from None
    except UnicodeDecodeError:
        raise ReportError(f"{_READING}: found bytes that are no UTF-8 text, wanted JSON") from None
    except ValueError as error:
        raise ReportError(f"{_READING}: found no JSON ({clean(error)})") from None
    try:
        return Report.from_dict(data)
    except ReportError as error:
        # A message quotes what was found, and that may be a whole file.
        raise ReportError(clean(error, 400)) from None


def _refuse(constant: str) -> NoReturn:
    raise ReportError(f"{_READING}: found {constant}, which is no JSON")


def save(report: Report, path: str | os.PathLike[str]) -> None:
    """Write the report to a file, all of it or nothing.

    Args:
        report: the report to keep.
        path: where to; `.json` and `.html` choose those forms, any other ending is text. The
            folder must exist. A link is followed; a pipe or device is written to directly.

    Raises:
        OSError: the file cannot be written; one that was there before is unchanged.
    """
    put(path, _rendered(report, os.fspath(path)))


def put(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, all of it or nothing.

    Args:
        path: where to; a link is followed, a pipe or device is written to directly.
        content: what to write.

    Raises:
        OSError: the file cannot be written; one that was there before is unchanged.
    """
    target = Path(os.path.realpath(os.fspath(path)))
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    # Beside the target, so that the replacement stays on one file system and is atomic.
    draft = target.parent / f".memguard-{secrets.token_hex(8)}.tmp"
    try:
        with draft.open("xb") as file:
            file.write(content)
        draft.replace(target)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _rendered(report: Report, path: str) -> bytes:
    ending = Path(path).suffix.lower()
    if ending == ".json":
        whole = dumps(report)
    elif ending == ".html":
        from memguard.report import page

        whole = page.render(report)
    else:
        from memguard.report import text

        whole = text.render(report)
    return encoded(whole)


def encoded(text: str) -> bytes:
    """Text as a file holds it, with one newline at its end."""
    return (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace")


def expand(
    template: str | os.PathLike[str], *, rank: int = 0, pid: int | None = None, step: int = 0
) -> str:
    """A report's path with `{rank}`, `{pid}` and `{step}` filled in; other braces stay.

    Args:
        template: the path as the user set it.
        rank: rank of this process in the job.
        pid: process id; this process's when left out.
        step: steps ended so far.
    """
    values = {"rank": rank, "pid": os.getpid() if pid is None else pid, "step": step}
    path = os.fspath(template)
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", str(value))
    return path


def schema() -> dict[str, Any]:
    """The JSON Schema of a saved report (draft 2020-12)."""
    file = resources.files("memguard.report").joinpath("report.schema.json")
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded
