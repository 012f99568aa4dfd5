"""Windows of every alignment whose neighbours are better than all of their scores: none is selected, nor counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpu import runner, served
from gpu.served import Asked
from gpu.variants import Variant
from ksieve.planning.memory import with_workspace

pytestmark = pytest.mark.gpu

ROWS, WIDTH, K = (16, 304, 16) if runner.HOST else (64, 16_384, 512)
RANKINGS = {"largest": {}, "smallest": {"largest": False}, "nan-highest": {"nan": "highest"}}
CASES = [(name, dtype, 3) for name in RANKINGS for dtype in ("float32", "bfloat16")]
CASES += [("largest", "float32", 0), ("largest", "bfloat16", 0), ("largest", "float16", 8)]
"""A ranking, a dtype, and what is between two rows: nothing where the last vector of a row ends with it."""


def windows(ranking, dtype, padding):
    """Scores, then the windows of a call. The first row begins with the matrix, and the last one ends with it."""
    more = RANKINGS[ranking]
    best = {"largest": torch.inf, "smallest": -torch.inf, "nan-highest": torch.nan}[ranking]
    worst = torch.inf if ranking == "smallest" else -torch.inf
    generator = torch.Generator().manual_seed(padding + len(dtype))
    x = torch.randn(ROWS, WIDTH, generator=generator)
    number = torch.arange(ROWS)
    x[1::4] = (2 * x[1::4]).round()
    x[2::4] = worst
    x[3::4, K // 2 :] = worst if ranking == "nan-highest" else torch.nan
    starts, ends = number * 5 % 17, WIDTH - number.flip(0) * 3 % 19
    columns = torch.arange(WIDTH)
    x[(columns < starts[:, None]) | (columns >= ends[:, None])] = best
    pitch, offset = WIDTH + padding, 1 if padding else 0
    # The matrix is all that is allocated, so that a sanitizer sees what is read beside it.
    held = torch.full((offset + ROWS * pitch - padding,), best, device=runner.DEVICE).to(getattr(torch, dtype))
    scores = held.as_strided((ROWS, WIDTH), (pitch, 1), offset)
    scores.copy_(x)
    bounds = {"starts": starts, "ends": ends}
    return scores, more | {name: each.to(runner.DEVICE, torch.int32) for name, each in bounds.items()}


@pytest.mark.parametrize(("ranking", "dtype", "padding"), CASES)
@served.judged("windows")
def test_no_score_beside_a_window_is_selected(ranking, dtype, padding):
    """A row is copied while the one before is selected."""
    scores, call = windows(ranking, dtype, padding)
    plan = served.plan_for(Variant("resident", "resident_block"), scores, K, call)
    return [Asked(with_workspace(replace(plan, ctas=3)), scores, call)]
