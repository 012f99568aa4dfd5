"""Untrusted text from files (names, metadata, messages), made safe to print; and strict JSON."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np

_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories: control, format (such as the direction overrides), surrogate, line and paragraph separator."""


def printable(text: object, *, lines: bool = False) -> str:
    r"""Write control, format and surrogate characters as escapes such as ``\x1b``.

    The result holds no terminal control sequence, and every encoding of Unicode can represent it.

    `text`: taken as ``str(text)``. `lines`: keep line ends, for multi-line texts that ksieve itself wrote.
    """
    unsafe = {c for c in str(text) if unicodedata.category(c) in _UNSAFE} - {"\n" if lines else ""}
    return str(text).translate({ord(c): c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in unsafe})


def parse_json(text: str | bytes) -> Any:
    """Parse untrusted JSON.

    Raises `ValueError` if the text is no JSON, is nested too deeply, or holds an integer of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def plain(value: Any) -> Any:
    """Convert a value for JSON: arrays become lists, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def seconds_text(seconds: float) -> str:
    """Write a duration with three significant digits: ``1.23 s``, ``45.6 ms``, ``7.89 us``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def bytes_text(size: int) -> str:
    """Write a size: ``512 bytes``, ``42.8 MiB (44,876,032 bytes)``."""
    for scale, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << scale:
            return f"{size / (1 << scale):.1f} {unit} ({size:,} bytes)"
    return f"{size:,} bytes"
