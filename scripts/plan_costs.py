"""Write the table of `ksieve.planning.cost` from result files of benches; ``--check`` compares, and writes nothing.

Of a shape that several files measured, the newest file counts. Benches give rows of 84 to 100 % of the width; the table
is of full rows: times grow as the modelled plain read does.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from ksieve.core import atomic
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.planning.cost import plain_read_us

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "src" / "ksieve" / "planning" / "data" / "cost.json"
NAME, CARD = "NVIDIA H200", "h200"
FILES = ("gpu-operator-k*", "gpu-decode-*", "gpu-short-*", "gpu-dtypes-*", "gpu-tuned-operator-*", "gpu-general")
"""Results of calls without options, on scores whose best ones are near both ends of a row, or normal."""


def measured() -> dict[tuple[str, int, int, int], tuple[float, float]]:
    """Time of full rows in us, and share of the plain read's speed, by dtype, k, width and rows."""
    paths = {path for name in FILES for path in (ROOT / "benchmarks" / "results").glob(f"{name}.json")}
    payloads = [json.loads(path.read_text("utf-8")) for path in paths]
    found = {}
    for payload in sorted(payloads, key=lambda payload: payload["environment"]["date"]):
        settings = payload["settings"]
        assert {device["name"] for device in payload["environment"]["gpu"]["devices"]} == {NAME}
        for case in payload["results"]["shapes"]:
            own, dtype = case["selectors"]["ksieve"], case.get("dtype", settings.get("dtype"))
            if not own.get("exact"):
                continue
            full = case["rows"] * case["width"] * SCORE_DTYPES[dtype].size
            us = own["median_us"] * plain_read_us(full, CARD) / plain_read_us(case["read_bytes"], CARD)
            key = (dtype, case.get("k", settings.get("k")), case["width"], case["rows"])
            found[key] = (float(f"{us:.4g}"), round(own["of_floor"], 3))
    return found


def text() -> str:
    """The table as JSON, one line for each width."""
    grids: dict[str, dict[int, dict[int, list[Any]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for (dtype, k, width, rows), (us, share) in sorted(measured().items()):
        grids[dtype][k][width].append([rows, us, share])
    dtypes = ",\n".join(
        f'  "{dtype}": {{\n'
        + ",\n".join(
            f'   "{k}": {{\n'
            + ",\n".join(f'    "{width}": {json.dumps(listed)}' for width, listed in grid.items())
            + "\n   }"
            for k, grid in of_k.items()
        )
        + "\n  }"
        for dtype, of_k in grids.items()
    )
    about = "scripts/plan_costs.py writes this file; of each width: rows, microseconds, share of the plain read's speed"
    return f'{{\n "about": "{about}",\n "measured_on": "{CARD}",\n "shapes": {{\n{dtypes}\n }}\n}}\n'


def main(arguments: list[str]) -> int:
    """Write the table, or compare it; 1 if it is out of date."""
    if "--check" in arguments:
        current = TABLE.read_text("utf-8") == text()
        print(f"{TABLE.relative_to(ROOT)} is {'current' if current else 'out of date: run scripts/plan_costs.py'}")
        return 0 if current else 1
    atomic.write_text(TABLE, text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
