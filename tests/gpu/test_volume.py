"""Millions of rows, each a different one: a pool of all value families, rows drawn, rotated and cut at random.

A million narrow ones in calls with all options at once.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import any_call
from gpu import material, runner, served
from gpu.served import Asked
from gpu.test_options import ALL_NAMES, asked, device_call
from gpu.variants import ALL, Variant, possible
from harness import to_cuda

pytestmark = pytest.mark.gpu

ROWS = 200_000
BATCHES = ((3000, 512), (1024, 64), (2500, 1000))
"""(width, k). With the variants they make more than 6 million rows."""

ANY, CALLS = 6_500, 12
"""Rows of each of so many calls of a family with all options: a million in all."""

if runner.HOST:
    ROWS, BATCHES, ANY, CALLS = 300, ((1000, 64),), 20, 3


WORKSPACE = 16 << 30
"""A forced split of so many rows would need hundreds of gigabytes: it gets as many rows as fit here, in bytes."""


def rows_of(variant: Variant, width: int, k: int) -> int:
    rows = ROWS
    while any(p.workspace_bytes > WORKSPACE for p in possible(variant, rows, width, k)):
        rows //= 2
    return rows


def draw(pool: torch.Tensor, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Rows of the pool in random order, each rotated by a random distance."""
    width = pool.shape[1]
    out = torch.empty(rows, width, dtype=pool.dtype, device=pool.device)
    columns = torch.arange(width, device=pool.device)
    for begin in range(0, rows, 50_000):
        part = slice(begin, min(begin + 50_000, rows))
        count = part.stop - begin
        which = torch.randint(len(pool), (count,), device=pool.device, generator=generator)
        shift = torch.randint(width, (count, 1), device=pool.device, generator=generator)
        torch.gather(pool[which], 1, (columns + shift) % width, out=out[part])
    return out


def random_lengths(rows: int, width: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """A third full, a third anything from 0 on, a third around k; some below 0 and beyond the width."""
    random = lambda low, high: torch.randint(low, high, (rows,), device=runner.DEVICE, generator=generator)  # noqa: E731
    kind = random(0, 3)
    lengths = torch.where(kind == 0, width, torch.where(kind == 1, random(0, width + 1), k + random(-3, 40)))
    lengths = torch.where(random(0, 50) == 0, random(-(2**31), 2**31), lengths)
    return lengths.to(torch.int32)


@pytest.mark.parametrize("name", [name for name in ALL if name != "warp"])  # tests/gpu/test_narrow.py has its rows
@served.judged("{name}")
def test_many_rows(name):
    generator = torch.Generator(device=runner.DEVICE)
    generator.manual_seed(sum(name.encode()))
    for width, k in BATCHES:
        pool = material.on_device(width, k, 8, "float32", runner.DEVICE)
        rows = rows_of(ALL[name], width, k)
        scores = draw(pool, rows, generator).view(torch.float32)
        call = {"lengths": random_lengths(rows, width, k, generator)}
        yield Asked(runner.plan_for(ALL[name], scores, k), scores, call, runs=1)


@pytest.mark.parametrize("name", ALL_NAMES)
@served.judged("any call {name}")
def test_any_call(name):
    d, calls = any_call.Draw(np.random.default_rng(sum(name.encode()))), 0
    while calls < CALLS:
        x, k, call = any_call.draw(d, ANY)
        call = {name: value for name, value in call.items() if name not in any_call.SEGMENTS}  # test_segments.py
        for one in asked(name, to_cuda(x, calls % 2, runner.DEVICE), k, [device_call(call)], stats=runner.HOST):
            if one.plan.workspace_bytes <= WORKSPACE:
                calls += 1
                yield one
