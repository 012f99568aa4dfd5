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
    return "".join(
        c if c == "\n" and lines else _escaped(c) if unicodedata.category(c) in _UNSAFE else c for c in str(text)
    )


def parse_json(text: str | bytes) -> Any:
    """Parse untrusted JSON.

    Raises `ValueError` if the text is no JSON, is nested too deeply, or holds an integer of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


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
