"""Untrusted text from files (names, metadata, messages), made safe to print; and strict JSON."""

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

    The result holds no terminal control sequence, and every encoding of Unicode can represent it.

    Parameters
    ----------
    text : object
        Taken as ``str(text)``.
    lines : bool
        Keep line ends, for multi-line texts that ksieve itself wrote.
    """
    return "".join(
        c if c == "\n" and lines else _escaped(c) if unicodedata.category(c) in _UNSAFE else c for c in str(text)
    )


def read_utf8(path: str | os.PathLike[str], *, errors: str = "strict") -> str:
    """Read a text file; ValueError if it is not UTF-8, or a device, which may be endless."""
    if Path(path).is_char_device() or Path(path).is_block_device():
        raise ValueError("a device, not a file")
    return Path(path).read_text(encoding="utf-8", errors=errors)


def parse_json(text: str | bytes) -> Any:
    """Parse untrusted JSON.

    Raises
    ------
    ValueError
        If the text is no JSON, is nested too deeply, or holds an integer of thousands of digits.
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
