"""Foreign text made harmless: nothing it says can move a cursor, forge a line or fill a screen."""

from __future__ import annotations

import unicodedata

# Drawing characters and their stand-ins for streams that cannot write them.
_PLAIN = str.maketrans({"└": "+", "─": "-", "…": "...", "·": "|", "µ": "u"})


def clean(text: object, limit: int = 200, *, keep_end: bool = False) -> str:
    """Any text on one line, with control characters escaped, shortened to `limit` characters.

    Args:
        text: whatever was found; anything but text is written with `str`.
        limit: most characters of the result.
        keep_end: shorten at the front (a path's end says most) instead of at the end.
    """
    whole = text if isinstance(text, str) else str(text)
    # A character escapes to one or more, so nothing beyond the limit can be shown.
    part = whole[-limit - 1 :] if keep_end else whole[: limit + 1]
    if not part.isprintable():
        part = "".join(c if c.isprintable() else _escaped(c) for c in part)
    if len(part) <= limit:
        return part
    return "…" + part[len(part) - limit + 1 :] if keep_end else part[: limit - 1] + "…"


def _escaped(character: str) -> str:
    # Spaces of other widths come from editors, not from malice.
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")


def clean_lines(text: str, limit: int = 200, most: int = 6) -> list[str]:
    """Source text as harmless lines: at most `most`, each of at most `limit` characters."""
    # No more than this can be shown, whatever the text's size.
    lines = text[: limit * (most + 1)].expandtabs(4).split("\n")
    kept = [clean(line.rstrip("\r"), limit) for line in lines[:most]]
    return [*kept, "…"] if len(lines) > most else kept


def columns(text: str) -> int:
    """Columns a terminal needs for `text`: two for wide characters, none for combining ones."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def fit(text: str, encoding: str | None) -> str:
    """`text` as a stream of this encoding can write it, tree drawn in ASCII where it must be."""
    name = encoding or "utf-8"
    try:
        text.encode(name)
        return text
    except UnicodeError:
        plain = text.translate(_PLAIN)
        return plain.encode(name, "backslashreplace").decode(name)
    except LookupError:
        return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")
