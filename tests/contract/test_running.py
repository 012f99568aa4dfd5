"""`ksieve.Running` against `ksieve.topk` on whole rows (contract C66 to C68)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ksieve
from ksieve import ArgumentError, Running

ROWS, WIDTH, K = 12, 331, 24
RANKINGS = {"largest": {}, "smallest": {"largest": False}, "nan_first": {"nan": "highest"}}


def rows_of(dtype, seed=0):
    """Rows of few different scores, with NaN, both zeros and infinities; the first ones all equal, or all NaN."""
    rng = np.random.default_rng(seed)
    scores = rng.choice(np.float32([-np.inf, -1.5, -0.0, 0.0, 0.25, 1, 3, np.inf, np.nan]), (ROWS, WIDTH))
    scores[3:6] = rng.standard_normal((3, WIDTH))
    scores[0], scores[1] = 7, np.nan
    if dtype == "bfloat16":
        return (scores.view(np.uint32) >> 16).astype(np.uint16)
    return scores.astype(dtype)


def tiles(width, most, whole, seed):
    """A partition of [0, width) in any order; tiles begin at multiples of `whole`."""
    rng = np.random.default_rng(seed)
    cuts = np.unique(np.append(rng.integers(0, width, 9) // whole * whole, [0, width]))
    pieces = [(a + i, min(a + i + most, b)) for a, b in itertools.pairwise(cuts) for i in range(0, b - a, most)]
    return [pieces[i] for i in rng.permutation(len(pieces))]


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", ["plain", "lengths", "windows", "own k", "blocks", "live rows"])
def test_the_answer_of_whole_rows(case, dtype, ranking):
    scores, rng = rows_of(dtype), np.random.default_rng(5)
    lengths = rng.integers(-3, WIDTH + 9, ROWS).astype(np.int32)
    lengths[:3] = -(2**31), 2**31 - 1, 0
    starts = rng.integers(-2, WIDTH, ROWS).astype(np.int32)
    windows = {
        "lengths": {"lengths": lengths}, "windows": {"starts": starts, "ends": lengths.astype(np.int64)},
        "blocks": {"lengths": lengths}, "live rows": {"num_rows": 7},
    }.get(case, {})  # fmt: skip
    slots = {"k": rng.integers(-1, K + 3, ROWS).astype(np.int32), "max_k": K} if case == "own k" else {"k": K}
    how = RANKINGS[ranking] | {"deterministic": True} | ({"block_size": 7} if case == "blocks" else {})
    live = {"num_rows": 7} if case == "live rows" else {}
    for seed, tie_break in enumerate(("low", "high")):
        running = Running(ROWS, max_tile=77, dtype=scores.dtype, tie_break=tie_break, **slots, **how)
        for begin, end in tiles(WIDTH, 77, how.get("block_size", 1), seed):
            running.push(scores[:, begin:end], begin, **windows)
        found = running.finish(return_values=True, **live)
        expected = ksieve.topk(scores, return_values=True, tie_break=tie_break, **windows, **slots, **how)
        for got, right in zip(found, expected, strict=True):
            assert got.tobytes() == right.tobytes()


@pytest.mark.parametrize("ranking", RANKINGS)
def test_scores_worse_than_the_cutoff_decide_nothing(ranking):
    scores, rng = rows_of("float32"), np.random.default_rng(2)
    scores[6:] = rng.standard_normal((ROWS - 6, WIDTH))
    how = RANKINGS[ranking] | {"deterministic": True}
    running = Running(ROWS, K, WIDTH, **how)
    running.push(scores[:, 100:], 100)
    assert np.isfinite(running.cutoff[6:]).all()
    early, bound = scores[:, :100].copy(), running.cutoff[:, None]
    worse = early > bound if ranking == "smallest" else early < bound
    assert worse[6:].mean() > 0.8
    early[worse] = -np.inf if ranking == "nan_first" else np.nan
    running.push(early, 0)
    assert running.finish().tobytes() == ksieve.topk(scores, k=K, **how).tobytes()


def test_again_after_reset_and_between():
    scores = np.arange(20, dtype=np.float32)[None]
    running = Running(1, 3, 10)
    running.push(scores[:, :10], 0)
    assert running.finish(sorted=True).tolist() == [[9, 8, 7]]
    running.push(scores[:, 10:], 10)
    assert running.finish(sorted=True).tolist() == [[19, 18, 17]]
    running.reset()
    assert running.cutoff.tolist() == [-np.inf]
    assert running.finish().tolist() == [[-1, -1, -1]]
    running.push(scores[:, 5:7], 5)
    assert running.finish(sorted=True, offsets=np.array([100], np.int32)).tolist() == [[106, 105, -1]]


def test_tensors():
    torch = pytest.importorskip("torch")
    scores = torch.from_numpy(rows_of("float32")).bfloat16()
    running = Running(ROWS, K, 100, dtype=torch.bfloat16, deterministic=True)
    for begin in (200, 0, 300, 100):
        running.push(scores[:, begin : begin + 100], begin)
    assert torch.equal(running.finish(), ksieve.topk(scores, k=K, deterministic=True))
    assert running.cutoff.dtype == torch.float32
    assert running.cutoff[1] == -np.inf


WRONG = {
    "another row count": (lambda r: r.push(np.zeros((2, 4), np.float32), 0), "tile: got shape (2, 4)"),
    "too wide": (lambda r: r.push(np.zeros((3, 9), np.float32), 0), "with n from 1 to max_tile, 8"),
    "another dtype": (lambda r: r.push(np.zeros((3, 4), np.float16), 0), "tile: got dtype float16"),
    "columns again": (lambda r: r.push(np.zeros((3, 4), np.float32), 18), "not those of [16, 20)"),
    "columns before": (lambda r: r.push(np.zeros((3, 6), np.float32), 12), "not those of [16, 20)"),
    "a negative column": (lambda r: r.push(np.zeros((3, 4), np.float32), -4), "first_column: got -4"),
    "lengths of another shape": (
        lambda r: r.push(np.zeros((3, 4), np.float32), 0, np.zeros(2, np.int32)), "lengths: got shape (2,)"
    ),
    "starts alone": (lambda r: r.push(np.zeros((3, 4), np.float32), 0, starts=np.zeros(3, np.int32)), "ends: got"),
    "an option of the selection": (lambda r: r.finish(largest=False), "largest: got False; takes only"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_leave_everything_as_it_was(wrong):
    running = Running(3, 2, 8)
    running.push(np.tile(np.float32([1, 4, 2, 3]), (3, 1)), 16)
    before = running.finish(sorted=True).tolist()
    act, text = WRONG[wrong]
    with pytest.raises(ArgumentError) as caught:
        act(running)
    assert text in str(caught.value)
    assert running.finish(sorted=True).tolist() == before == [[17, 19]] * 3


def test_a_k_of_another_library_or_shape():
    torch = pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match="k: got an array of torch; takes an array of numpy"):
        Running(2, torch.ones(2, dtype=torch.int32), 4, max_k=3)
    with pytest.raises(ArgumentError, match=r"k: got shape \(3,\); takes shape \(2,\)"):
        Running(2, np.ones(3, np.int32), 4, max_k=3)


def test_blocks_are_whole():
    running = Running(1, 2, 8, block_size=4)
    running.push(np.zeros((1, 6), np.float32), 8)
    for first, width, text in (
        (2, 4, "a multiple of block_size"),
        (16, 4, "tiles up to column 14"),
        (0, 6, "tile: got 6"),
    ):
        with pytest.raises(ArgumentError, match=text):
            running.push(np.zeros((1, width), np.float32), first)
