"""Tables of the command line lose nothing, however narrow the terminal."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.cells import cell_len

from ksieve.cli import terminal

CAPTURES = ("layer_12_of_a_long_name_0001", "smooth_structured", "层数")
COMPARED = (
    ("", "paper", "predicted", *CAPTURES),
    [
        ("end regions whose phase counts differ by more than one", "-", "0", "0 of 10,240", "0 of 2,560", "1 of 2,560"),
        ("1/128 at 1.5 K: 5 to 95 % of ranks / K", "1.09 to 1.92", "-", "1.04 to 2.03", "1.10 to 1.91", "tied"),
        ("top K in the first and last tenth", "52 to 74 %", "20 % if uniform", "[19 %]", "63 %", "63.25 %"),
    ],
)
REQUESTS = (
    ("request", "invocations", "floor, ms", "selector", "sum, ms"),
    [("245K", "31", "12.25", "ksieve", "13.50"), ("", "", "", "torch.topk", "99.75"), ("430K", "77", "31", "x", "32")],
)


def plain(out: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


def printed(monkeypatch: pytest.MonkeyPatch, width: int | None, *arguments, **settings) -> str:
    """What `terminal.table` prints on a terminal of this width, or into a pipe."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    if width is not None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(width))
    terminal.table(*arguments, **settings)
    return plain(out)


@pytest.mark.parametrize("table", [COMPARED, REQUESTS])
def test_nothing_is_lost_and_no_line_too_wide_at_any_width(monkeypatch, table):
    columns, rows = table
    cells = [*columns, *(cell for row in rows for cell in row)]
    for width in range(40, 161):
        text = printed(monkeypatch, width, columns, rows)
        assert max(map(cell_len, text.splitlines())) <= width, (width, text)
        assert sorted("".join(text.split())) == sorted("".join(cells).replace(" ", "")), (width, text)
    assert all(cell in text for cell in cells), "the widest shows each on one line"


def test_a_pipe_gets_the_whole_table(monkeypatch):
    wide = (("name", *(f"column {i}" for i in range(200))), [("a", *("123456789" for _ in range(200)))])
    lines = printed(monkeypatch, None, *wide).splitlines()
    assert len(lines) == 2
    assert lines[1].split() == ["a", *["123456789"] * 200]


def test_facts_are_whole_on_a_narrow_terminal(monkeypatch):
    pairs = {"resident growth per thread and row": "1,234,567 bytes of 2,345,678", "name": "layer_12.safetensors"}
    for width in range(40, 161):
        out = io.StringIO()
        printed(monkeypatch, width, ("a",), [])
        monkeypatch.setattr(sys, "stdout", out)
        terminal.facts(pairs, indent=2)
        text = plain(out)
        assert max(map(cell_len, text.splitlines())) <= width
        assert sorted("".join(text.split())) == sorted("".join((*pairs, *pairs.values())).replace(" ", ""))


def test_a_note_breaks_between_words_and_nowhere_in_a_path(monkeypatch):
    path = "/tmp/" + "long-name/" * 12
    said = f"compiling the CPU kernels, once per machine and version, into {path}\nand more"
    for width, expected in (
        (30, ["compiling the CPU kernels,", "once per machine and version,", "into", path, "  and more"]),
        (None, [said.splitlines()[0], "  and more"]),
    ):
        printed(monkeypatch, width, ("a",), [])
        if width is None:
            monkeypatch.delenv("FORCE_COLOR", raising=False)
        out = io.StringIO()
        monkeypatch.setattr(sys, "stderr", out)
        terminal.note(said)
        assert plain(out).splitlines() == expected
