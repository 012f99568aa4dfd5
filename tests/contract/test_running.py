"""`ksieve.Running` against `ksieve.topk` on whole rows (contract C66 to C68)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ksieve
from flat_calls import ask, finished, verified
from ksieve import ArgumentError, BackendError, Running
from ksieve.core.groups import grouped

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
        running = Running(ROWS, max_tile=77, dtype=scores.dtype, tie_break=tie_break, **grouped(slots), **grouped(how))
        for begin, end in tiles(WIDTH, 77, how.get("block_size", 1), seed):
            running.push(scores[:, begin:end], begin, **grouped(windows))
        assert not live or set(np.abs(running.cutoff[7:])) == {np.inf}
        found = finished(running, values=True, **live)
        expected = ask(scores, values=True, tie_break=tie_break, **windows, **slots, **how)
        for got, right in zip(found, expected, strict=True):
            assert got.tobytes() == right.tobytes()


@pytest.mark.parametrize("ranking", RANKINGS)
def test_scores_worse_than_the_cutoff_decide_nothing(ranking):
    scores, rng = rows_of("float32"), np.random.default_rng(2)
    scores[6:] = rng.standard_normal((ROWS - 6, WIDTH))
    how = RANKINGS[ranking] | {"deterministic": True}
    running = Running(ROWS, K, WIDTH, **grouped(how))
    running.push(scores[:, 100:], 100)
    assert np.isfinite(running.cutoff[6:]).all()
    early, bound = scores[:, :100].copy(), running.cutoff[:, None]
    worse = early > bound if ranking == "smallest" else early < bound
    assert worse[6:].mean() > 0.8
    early[worse] = -np.inf if ranking == "nan_first" else np.nan
    running.push(early, 0)
    assert running.finish().tobytes() == ask(scores, k=K, **how).tobytes()


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_tiles_of_many_rows(dtype, ranking, monkeypatch):
    """Late tiles hold few scores that can be selected: most pushes append them, and select nothing."""
    rng, width = np.random.default_rng(3), 3000
    scores = np.round(rng.standard_normal((ROWS, width)).astype(np.float32), 2)
    scores[rng.random((ROWS, width)) < 0.001] = np.nan
    scores[0] = np.sort(scores[0])
    scores[1] = -np.sort(-scores[1])
    scores[2], scores[3, ::9] = 0, -0.0
    scores = (scores.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else scores.astype(dtype)
    starts, ends = rng.integers(0, 99, ROWS).astype(np.int32), rng.integers(width // 2, width, ROWS).astype(np.int32)
    for begin_row in (0, 4):  # with rows for which lists are too short, and without
        rows, how = slice(begin_row, None), RANKINGS[ranking] | {"tie_break": "high", "deterministic": True}
        windows = {"starts": starts[rows], "ends": ends[rows]}
        running = Running(ROWS - begin_row, K, 20, dtype=scores.dtype, **grouped(how))
        calls = []
        plain = ksieve.api.topk
        monkeypatch.setattr(ksieve.api, "topk", lambda *a, **b: calls.append(0) or plain(*a, **b))  # noqa: B023
        for begin in range(0, width, 20):
            running.push(scores[rows, begin : begin + 20], begin, **grouped(windows))
        monkeypatch.undo()
        if begin_row and ranking != "nan_first":
            assert len(calls) < 40
        found = finished(running, values=True)
        expected = ask(scores[rows], k=K, values=True, **windows, **how)
        for got, right in zip(found, expected, strict=True):
            assert got.tobytes() == right.tobytes()


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("own", [False, True])
def test_equal_scores_without_a_tie_break(own, dtype, ranking):
    """Those that are equal to the k-th best are dropped, once there are k."""
    scores = np.tile(rows_of(dtype), 3)
    scores[6] = rows_of(dtype, 1)[3, :1]
    scores[7, :400], scores[8, 400:] = scores[0, 0], scores[1, 0]  # 7 and NaN
    slots = {"k": np.random.default_rng(5).integers(-1, K + 3, ROWS).astype(np.int32), "max_k": K} if own else {"k": K}
    for seed in range(3):
        running = Running(ROWS, max_tile=20, dtype=scores.dtype, **grouped(slots), **grouped(RANKINGS[ranking]))
        for begin, end in tiles(scores.shape[1], 20, 1, seed):
            running.push(scores[:, begin:end], begin)
        verified(scores, None, running.finish(), k=slots["k"], **RANKINGS[ranking]).raise_if_failed()


@pytest.mark.parametrize("slots", [{"k": K}, {"k": np.int32([0, 1, K]), "max_k": K}])
@pytest.mark.parametrize("value", [0.0, 5.0, np.inf])
def test_equal_scores_are_selected_from_once(slots, value, monkeypatch):
    scores, plain, calls = np.full((3, 900), value, np.float32), ksieve.api.topk, []
    running = Running(3, max_tile=100, **grouped(slots))
    running.push(scores[:, :100], 0)
    monkeypatch.setattr(ksieve.api, "topk", lambda *a, **b: calls.append(0) or plain(*a, **b))
    for begin in range(100, 900, 100):
        running.push(scores[:, begin : begin + 100], begin, num_rows=2)
    assert not calls


@pytest.mark.parametrize("ranking", RANKINGS)
def test_subnormal_scores_in_a_flush_to_zero_mode(ranking):
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(0).integers(1, 40, (4, 900)).astype(np.uint32)
    bits[2:] |= np.uint32(1 << 31)
    scores = bits.view(np.float32)
    how = RANKINGS[ranking] | {"deterministic": True}
    expected = ask(scores, k=K, **how)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    try:
        running = Running(4, K, 30, **grouped(how))
        for begin in range(0, 900, 30):
            running.push(scores[:, begin : begin + 30], begin)
        found = running.finish()
    finally:
        torch.set_flush_denormal(False)
    assert found.tobytes() == expected.tobytes()


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
    assert finished(running, sorted=True, offsets=np.array([100], np.int32)).tolist() == [[106, 105, -1]]


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
    "live rows of another shape": (
        lambda r: r.push(np.zeros((3, 4), np.float32), 0, num_rows=np.ones(2, np.int32)), "num_rows: got shape (2,)"
    ),
    "starts alone": (
        lambda r: r.push(np.zeros((3, 4), np.float32), 0, bounds=ksieve.RowBounds(np.zeros(3, np.int32))), "ends: got"
    ),
    "segments": (
        lambda r: r.push(np.zeros((3, 4), np.float32), 0, bounds=ksieve.Segments(np.zeros(4, np.int32))), "bounds: got"
    ),
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


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"device": "mps"}, "device: got 'mps'; takes 'cpu', 'cuda' or 'cuda:<ordinal>'"),
        ({"device": "cuda:x"}, "device: got 'cuda:x'; takes 'cpu', 'cuda' or 'cuda:<ordinal>'"),
        ({"device": None}, "device: got None; takes 'cpu', 'cuda' or 'cuda:<ordinal>'"),
        ({"deterministic": 1}, "deterministic: got 1; takes True or False"),
        ({"k": [1, 2]}, "k: got list [1, 2]; takes an int from 1 to 1048576"),
        ({"max_k": 9}, "max_k: got 9, which is not taken unless k is an array"),
        ({"block_size": 5}, "max_tile: got 4; takes at least block_size, 5: tiles begin at whole blocks"),
    ],
)
def test_arguments_that_cannot_be_used(wrong, text):
    with pytest.raises(ArgumentError) as caught:
        Running(**(grouped({"rows": 2, "k": 3, "max_tile": 4} | wrong)))
    assert str(caught.value) == text


def test_a_device_that_is_not_there():
    torch = pytest.importorskip("torch")
    device = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(BackendError, match=rf"^tiles on {device}: PyTorch sees \d CUDA GPUs; device='cpu' needs none"):
        Running(2, 3, 4, device=device)


def test_the_device_of_the_host_has_two_names():
    assert isinstance(Running(1, 2, 4, device="cpu:0").cutoff, np.ndarray)
    torch = pytest.importorskip("torch")
    running = Running(1, 2, 4, dtype=torch.float32, device=torch.device("cpu", 0))
    running.push(torch.tensor([[1.0, 3, 2]]), 0)
    assert running.finish(sorted=True).tolist() == [[1, 2]]
    with pytest.raises(ArgumentError, match=r"^tile: got an array of torch .* \(tensors: dtype=torch.float32\)$"):
        Running(1, 2, 4).push(torch.zeros(1, 4), 0)


def test_a_k_of_another_library_or_shape():
    torch = pytest.importorskip("torch")
    running = Running(2, torch.tensor([1, 2], dtype=torch.int32), 4, max_k=3)
    running.push(np.tile(np.float32([4, 1, 3, 2]), (2, 1)), 0)
    assert running.finish(sorted=True).tolist() == [[0, -1, -1], [0, 2, -1]]
    with pytest.raises(ArgumentError, match=r"k: got shape \(3,\); takes shape \(2,\)"):
        Running(2, np.ones(3, np.int32), 4, max_k=3)


def test_blocks_are_whole():
    running = Running(1, 2, 8, blocks=ksieve.Blocks(4))
    running.push(np.zeros((1, 6), np.float32), 8)
    for first, width, text in (
        (2, 4, "a multiple of block_size"),
        (16, 4, "tiles up to column 14"),
        (0, 6, "tile: got 6"),
    ):
        with pytest.raises(ArgumentError, match=text):
            running.push(np.zeros((1, width), np.float32), first)
