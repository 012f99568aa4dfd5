"""The kernels' README says what the planner chooses."""

from __future__ import annotations

import itertools
import re

from conftest import ROOT

import ksieve
from ksieve.backends.cuda.jit.spec import STEMS

README = (ROOT / "src/ksieve/kernels/README.md").read_text(encoding="utf-8")
K = 2048


def cells(header: str) -> list[list[str]]:
    """Cells of the table with this first column."""
    (body,) = re.findall(rf"^\| {header} \|.*\n\|[ -|]*\|\n((?:\|.*\n)+)", README, flags=re.MULTILINE)
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in body.splitlines()]


def numbers(cell: str) -> range:
    """The numbers that a cell such as "up to 39", "32 to 33", "528 or more" or "any" stands for."""
    if cell == "any":
        return range(1, 1 << 40)
    low, high = re.fullmatch(r"(?:(up)|([\d,]+)) (?:to ([\d,]+)|or more)", cell).group(2, 3)
    return range(int((low or "1").replace(",", "")), int(high.replace(",", "")) + 1 if high else 1 << 40)


LINES = [(numbers(width), numbers(rows), family, file) for _, width, rows, family, file in cells("asked")]


def edges(ranges: list[range]) -> list[int]:
    near = {edge + step for found in ranges for edge in (found.start, found.stop) for step in (-1, 0, 1)}
    return sorted(number for number in near | {100, 5000, 300_000} if 1 <= number <= 4_000_000)


def test_the_first_line_that_suits_is_what_the_planner_chooses() -> None:
    """At every shape on or beside an edge of the table, so that no number in it can be off by one."""
    shapes = itertools.product(edges([line[1] for line in LINES]), edges([line[0] for line in LINES]))
    used = set()
    for rows, width in shapes:
        plan = ksieve.plan(rows=rows, width=width, k=K, device="h200")
        number = next(i for i, line in enumerate(LINES) if width in line[0] and rows in line[1])
        assert plan.family == LINES[number][2], (rows, width, LINES[number])
        used.add(number)
    assert used == set(range(len(LINES))), "each line decides for some shape"
    assert [int(line[0]) for line in cells("asked")] == list(range(1, len(LINES) + 1))


def test_every_family_is_named_with_its_file() -> None:
    assert {(family, file) for *_, family, file in LINES} == {
        (family, f"{stem}.cu") for family, stem in STEMS.items() if family not in ("stream_unsampled", "length_bins")
    }
    assert STEMS["stream_unsampled"] == STEMS["stream"]


def test_the_examples_are_plans() -> None:
    assert len(cells("example")) == 3
    for shape, family, ctas in cells("example"):
        rows, width = (int(number.replace(",", "")) for number in shape.split(" x "))
        plan = ksieve.plan(rows=rows, width=width, k=K, device="h200")
        assert (plan.family, plan.ctas) == (family, int(ctas))


def test_what_is_not_sampled_and_what_older_gpus_skip() -> None:
    def family(rows: int, width: int, k: int, device: str = "h200") -> str:
        return ksieve.plan(rows=rows, width=width, k=k, device=device).family

    wide = 1 << 20
    for rows, part in ((100, 2), (2047, 2), (2048, 4)):
        assert family(rows, wide, wide // part) == "stream"
        assert family(rows, wide, wide // part + 1) == "stream_unsampled"
    skipped = {line[2] for line in LINES[1:14]}
    for rows, width, device in itertools.product(
        (1, 8, 32, 64), (2000, 12_000, 60_000, 1_000_000), ("a100", "l40s", "rtx4090")
    ):
        assert family(rows, width, 512, device) not in skipped
