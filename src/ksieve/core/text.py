"""Text that comes from files: names, metadata and messages of others, made harmless before anyone sees it."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories: control, format (such as the direction overrides), surrogate, line and paragraph separator."""


def printable(text: object, *, lines: bool = False) -> str:
    r"""Write control, format and surrogate characters as escapes such as ``\x1b``.

    No terminal is steered by the result, and every encoding of Unicode can hold it.

    Parameters
    ----------
    text : object
        Taken as ``str(text)``.
    lines : bool
        Keep line ends, for texts of several lines that this program wrote itself.
    """
    return "".join(
        c if c == "\n" and lines else _escaped(c) if unicodedata.category(c) in _UNSAFE else c for c in str(text)
    )


def read_utf8(path: str | os.PathLike[str], *, errors: str = "strict") -> str:
    """Read a text file; ValueError if it is a device, which may have no end, or no UTF-8."""
    if Path(path).is_char_device() or Path(path).is_block_device():
        raise ValueError("a device, not a file")
    return Path(path).read_text(encoding="utf-8", errors=errors)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON of a file of others.

    Raises
    ------
    ValueError
        If it is none, is nested too deeply to be read, or holds an integer of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def plain(value: Any) -> Any:
    """Turn a value into what JSON knows: arrays into lists, NaN and infinities into null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
