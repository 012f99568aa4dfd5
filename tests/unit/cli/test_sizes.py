"""Counts as they are written on a command line."""

from __future__ import annotations

import pytest

from ksieve.cli.options import parse_count, parse_shape
from ksieve.core.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "value"),
    [("65536", 65_536), ("64k", 65_536), ("64K", 65_536), ("1M", 1 << 20), ("2g", 2 << 30), ("131_072", 131_072),
     ("2**17", 131_072), ("2**0", 1), ("0", 0), ("-4", -4), (" 7 ", 7), (12, 12)],
)  # fmt: skip
def test_counts(text: str | int, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text", ["", "k", "²", "٣", "1.5k", "1e6", "64kk", "64 k", "0x10", "2**64", "2**-1", "3**2", "_1", "1__0",
             "9" * 20, "9" * 6000, "8589934592g", "\x1b", "nan"],
)  # fmt: skip
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="takes an int") as refused:
        parse_count(text)
    assert len(str(refused.value)) < 160


def test_the_least_count() -> None:
    assert parse_count("1k", minimum=1024) == 1024
    with pytest.raises(ValueError, match="an int of at least 1025"):
        parse_count("1k", minimum=1025)


def test_shapes() -> None:
    assert parse_shape("--shape", "64x128k") == (64, 131_072)
    assert parse_shape("--shape", "2**3X1M") == (8, 1 << 20)
    for text in ("64", "x", "0x4", "4x0", "²x3", "3x4x5", "-1x4"):
        with pytest.raises(ArgumentError, match=r"--shape: got .*; takes rows x width"):
            parse_shape("--shape", text)
