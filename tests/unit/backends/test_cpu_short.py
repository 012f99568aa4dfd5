"""Rows whose keys stay in cache: bisection against sorted keys, for every length and value where it may go wrong."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from ksieve.backends.cpu import runner, simd
from ksieve.backends.cpu.short import select_short
from ksieve.core.keys import order_key

LENGTHS = (2, 3, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096)
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 3e38], np.float32)
FILLS = {
    "normal": lambda rng, n: rng.standard_normal(n).astype(np.float32),
    "few values": lambda rng, n: rng.integers(0, 3, n).astype(np.float32),
    "equal": lambda rng, n: np.full(n, -2.5, np.float32),
    "special": lambda rng, n: rng.choice(SPECIAL, n),
    "all NaN": lambda rng, n: np.full(n, np.nan, np.float32),
    "NaN and one": lambda rng, n: np.where(np.arange(n) == n - 1, np.float32(-np.inf), np.float32(np.nan)),
    "any bits": lambda rng, n: rng.integers(0, 1 << 32, n, np.uint32).view(np.float32),
    "two ends": lambda rng, n: np.where(np.arange(n) % 2, np.float32(3e38), np.float32(-3e38)),
}


def expected(row: np.ndarray, k: int) -> list[int]:
    """Positions of the k best, ties by ascending position."""
    return sorted(np.argsort(order_key(row), kind="stable")[:k].tolist())


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("length", LENGTHS)
def test_bisection_finds_the_best_and_the_first_ties(fill, length):
    rng = np.random.default_rng(length)
    memory = np.empty(length + 1, np.float32)
    for k in sorted({1, 2, length // 2, length - 1} & set(range(1, length))):
        memory[1:] = row = FILLS[fill](rng, length)
        slots = np.full(k + 2, -7, np.int32)
        key = np.empty(simd.TILE, np.uint32)
        select_short(memory[1:].ctypes.data, length, 0, slots[1:].ctypes.data, k, key.ctypes.data)
        assert (slots[0], slots[-1]) == (-7, -7)
        assert sorted(slots[1:-1].tolist()) == expected(row, k)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("tie_break", ["any", "low", "high"])
def test_short_rows_give_the_slots_of_calls_with_statistics_and_the_sets_of_the_model(dtype, tie_break):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    drawn = np.round(rng.standard_normal((40, 4200)) * 8).astype(np.float32)  # many equal scores
    drawn[:, ::50], drawn[::2, 7], drawn[::3, 9] = np.nan, np.inf, -0.0
    scores = torch.from_numpy(drawn).to(getattr(torch, dtype))
    lengths = torch.from_numpy(rng.integers(0, 4201, 40, np.int32))
    lengths[:6] = torch.tensor([0, 1, 64, 4096, 4097, 4200])
    for k in (1, 30, 2000):
        found = ksieve.topk(scores, lengths, k, tie_break=tie_break)
        counted, _ = ksieve.topk(scores, lengths, k, tie_break=tie_break, return_stats=True)
        assert torch.equal(found, counted)
        assert ksieve.verify(scores, lengths, found, k=k).ok
        if tie_break != "any":
            model = ksieve.topk(scores, lengths, k, tie_break=tie_break, backend="reference")
            assert torch.equal(found.sort(1).values, model.sort(1).values)


def test_calls_that_count_their_work_do_not_bisect():
    """`row_work` counts what a row costs beyond its reads; bisection counts nothing."""
    plan = ksieve.plan(rows=2, width=1000, k=10)
    assert (runner.row_work(plan, np.random.default_rng(0).random((2, 1000), np.float32)) > 0).all()
