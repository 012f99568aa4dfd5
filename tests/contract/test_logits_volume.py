"""`ksieve.logits` on the CPU against the oracle: rows of joint random options, as many as `KSIEVE_FUZZ_ROWS` asks for.

tests/gpu/test_logits.py compares the bytes of the same calls on CUDA.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import numpy as np

from contract.test_logits import ROWS, check_call
from ksieve_lab.bench import record

SEED, ALL_ROWS = int(os.environ.get("KSIEVE_FUZZ_SEED", "58")), int(os.environ.get("KSIEVE_FUZZ_ROWS", "20000"))
WIDTHS = {1: 5, 2: 5, 7: 5, 31: 10, 32: 10, 33: 10, 64: 10, 65: 10, 100: 10, 200: 11, 1500: 12, 9000: 1.8, 32_000: 0.2}
"""Percent of the calls that have rows of each width."""


def draws(rows, each):
    """Arguments of `drawn_call` for calls of up to `each` rows, and of so many rows in all."""
    rng = np.random.default_rng(SEED)
    while rows > 0:
        width = int(rng.choice(list(WIDTHS), p=np.array(list(WIDTHS.values())) / 100))
        dtype = str(rng.choice(["float32", "float32", "float16", "bfloat16"]))
        own = min(rows, each, 10_000_000 // width)
        yield np.random.default_rng(rng.integers(1 << 62)), own, width, int(rng.integers(1, 51)), dtype
        rows -= own


def test_joint_random_options():
    """KSIEVE_FUZZ_ROWS asks for more rows, KSIEVE_RESULTS_DIR for a file of what was compared; -s shows progress."""
    counts, dtypes, widths, wrong, begin = Counter(), Counter(), Counter(), [], time.perf_counter()
    for number, draw in enumerate(draws(ALL_ROWS, max(ROWS, ALL_ROWS // 400))):
        _, rows, width, _, dtype = draw
        try:
            counts["near the margin"] += check_call(*draw, counts=counts)
        except AssertionError as error:
            wrong.append(f"call {number}, {draw[1:]}: {error}")
        dtypes[dtype], widths[width] = dtypes[dtype] + rows, widths[width] + rows
        if number % 20 == 0:
            print(f"{dtypes.total():,} rows, {len(wrong)} wrong calls, {time.perf_counter() - begin:.0f} s", flush=True)
    results = {
        "verified": {"rows": dtypes.total(), "failed": len(wrong)}, "first_violations": wrong[:20],
        "rows_by_dtype": dtypes, "rows_by_width": widths, "rows_of_functions": dict(sorted(counts.items())),
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip
    if folder := os.environ.get("KSIEVE_RESULTS_DIR"):
        payload = record.payload("logits-oracle", {"seed": SEED, "rows": ALL_ROWS}, results)
        record.write_json(Path(folder).absolute() / "logits-oracle.json", payload)
    assert not wrong, "\n".join(wrong[:20])
    assert dtypes.total() == ALL_ROWS and counts["near the margin"] < max(1, ALL_ROWS // 1000)
