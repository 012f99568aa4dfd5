"""Counts on a command line: 65536, 65_536, 64k, 1M or 2**16."""

from __future__ import annotations

import re

from ksieve.core.errors import ArgumentError

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
"""Factors of the suffixes k, M and G, in either case. Row widths are powers of two, so 64k is 65,536."""

TAKES = "an int such as 65536, 64k (65,536), 1M (1,048,576) or 2**16"

_COUNT = re.compile(r"([+-]?)([0-9]+(?:_[0-9]+)*)([kmg]?)", re.IGNORECASE | re.ASCII)
_POWER = re.compile(r"2\*\*([0-9]{1,2})", re.ASCII)
_MOST = (1 << 63) - 1


def parse_count(text: str | int, *, minimum: int | None = None) -> int:
    """Read a count.

    `text`: digits with an optional k, M or G (1,024, its square, its cube), or ``2**n``. `minimum`: smaller counts are
    refused. Raises `ValueError` if the text is no count, or exceeds 64-bit integers; the message gives the text and the
    accepted forms.
    """
    words = str(text).strip()
    value = None
    if power := _POWER.fullmatch(words):
        value = 1 << int(power[1])
    elif len(words) <= 30 and (found := _COUNT.fullmatch(words)):
        value = int(found[1] + found[2]) * UNITS[found[3].lower()]
    least = "" if minimum is None else f" of at least {minimum}"
    if value is None or abs(value) > _MOST or (minimum is not None and value < minimum):
        shown = words if len(words) <= 40 else words[:37] + "..."
        raise ValueError(f"got {shown!r}; takes {TAKES.replace('an int', f'an int{least}')}")
    return value


def parse_shape(option: str, text: str, takes: str = "rows x width, such as 64x131072 or 64x128k") -> tuple[int, int]:
    """Read a shape such as 64x131072 or 64x128k: rows, then width, both at least 1.

    Raises `ArgumentError`, which names `option`.
    """
    rows, _, width = text.lower().partition("x")
    try:
        return parse_count(rows, minimum=1), parse_count(width, minimum=1)
    except ValueError:
        raise ArgumentError(option, repr(text), takes) from None
