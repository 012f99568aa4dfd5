"""The kernel of `ksieve.Running` on the emulator, against `ksieve.topk` on whole rows."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from answers import RANKINGS, reaches
from emulator import build, driver
from flat_calls import ask, finished
from ksieve.backends.cuda import arrays, keep
from ksieve.core.groups import grouped
from ksieve.running import Candidates
from ksieve.running.device import DeviceBest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present")

K = 24
DTYPES = ("float32", "float16", "bfloat16")
PAIRS = [*(("float32", ranking) for ranking in RANKINGS), ("float16", "smallest"), ("bfloat16", "nan_first")]
dtypes_and_rankings = pytest.mark.parametrize(("dtype", "ranking"), PAIRS)
"""A kernel each; a GPU has all of them (tests/gpu/test_tiles.py)."""


@pytest.fixture(autouse=True)
def on_the_emulator(monkeypatch):
    """Tensors of the CPU stand in for those of a device: the kernel takes addresses."""
    gpu = driver.install(monkeypatch)
    monkeypatch.setattr(arrays, "place_of", lambda device: (0, 0))
    monkeypatch.setattr(ksieve.Running, "_lists_of", lambda running, device, most: DeviceBest)
    monkeypatch.setattr(keep, "FEWEST", 0)  # lists are full sooner
    return gpu


def rows_of(dtype, width=700, seed=0):
    """Rows of many kinds, and the order of the best of tiles: none, ascending, descending."""
    rng = np.random.default_rng(seed)
    few = np.float32([-np.inf, -1.5, -0.0, 0.0, 0.25, 1, 3, np.inf, np.nan])
    normal = rng.standard_normal((5, width)).astype(np.float32)
    subnormal = rng.integers(0, 50, width).astype(np.float32) * np.float32(6e-8 if dtype == "float16" else 1e-39)
    rows = [
        *normal[:2], np.sort(normal[2]), -np.sort(normal[3]), np.maximum(normal[4], 0), rng.choice(few, width),
        np.full(width, 7), np.full(width, np.nan), np.full(width, -np.inf), subnormal, -subnormal,
    ]  # fmt: skip
    scores = torch.from_numpy(np.stack(rows).astype(np.float32)).to(getattr(torch, dtype))
    bits = scores.view(torch.int32 if dtype == "float32" else torch.int16)
    bits[7] -= torch.arange(width, dtype=bits.dtype) % 5  # NaN keep their bits
    return scores


def cut(width, most, seed):
    """Tiles of a row, in any order and of any width."""
    rng = np.random.default_rng(seed)
    ends = np.unique(np.append(rng.integers(1, width, 4), [*range(most, width, most), width]))
    pieces = list(zip([0, *ends[:-1]], ends, strict=True))
    return [tuple(map(int, pieces[i])) for i in rng.permutation(len(pieces))]


def check(found, expected):
    """Compare bits, also of NaN."""
    for got, right in zip(found, expected, strict=True):
        bits = torch.int16 if got.element_size() == 2 else torch.int32
        assert torch.equal(got.view(bits), right.view(bits))


@dtypes_and_rankings
@pytest.mark.parametrize("ties", ["low", "high"])
def test_the_answer_of_whole_rows(ties, dtype, ranking):
    scores = rows_of(dtype)
    rows, width = scores.shape
    how = RANKINGS[ranking] | {"tie_break": ties, "deterministic": True}
    running = ksieve.Running(rows, K, 300, dtype=scores.dtype, **grouped(how))
    expected = ask(scores, k=K, values=True, **how)
    for seed in range(2):
        running.reset()
        for begin, end in cut(width, 300, seed):
            running.push(scores[:, begin:end], begin)
        check(finished(running, values=True), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_own_k_and_live_rows(dtype):
    scores, rng = rows_of(dtype), np.random.default_rng(1)
    rows, width = scores.shape
    ranges = (-9, 300), (-5, width + 9), (-1, K + 4)
    starts, ends, ks = (torch.from_numpy(rng.integers(*ends, rows).astype(np.int32)) for ends in ranges)
    ks[0], ends[:2] = 0, width
    how = {"tie_break": "high", "deterministic": True}
    of_device = {"num_rows": torch.tensor([4], dtype=torch.int32)}
    for windows in ({"starts": starts, "ends": ends.long()}, {"lengths": ends}, {"num_rows": 4}, of_device):
        live = {name: value for name, value in windows.items() if name == "num_rows"}
        running = ksieve.Running(rows, ks, 300, max_k=K, dtype=scores.dtype, **grouped(how))
        for begin, end in cut(width, 300, 2):
            running.push(scores[:, begin:end], begin, **grouped(windows))
        check([finished(running, **live)], [ask(scores, k=ks, max_k=K, **windows, **how)])


@dtypes_and_rankings
def test_the_cutoff_of_a_first_tile(dtype, ranking):
    """That of the selection: a row without slots needs no score, and NaN bounds nothing."""
    scores = rows_of(dtype, 60)
    ks = torch.full((len(scores),), K, dtype=torch.int32)
    ks[0], ks[1] = 0, 1
    running = ksieve.Running(len(scores), ks, 60, max_k=K, dtype=scores.dtype, **grouped(RANKINGS[ranking]))
    running.push(scores, 0)
    values = finished(running, values=True)[1]
    expected = running._best.worst(values)
    if ranking == "nan_first":  # NaN does not hide the k-th best, which it is not
        expected[5] = values[5].float().nan_to_num(torch.inf, posinf=torch.inf, neginf=-torch.inf).amin()
    assert torch.equal(running.cutoff, expected)
    assert torch.isinf(running.cutoff[[0, 7]]).all()


def test_a_full_list_in_each_round_of_wide_tiles(monkeypatch):
    """Ascending rows, all of whose scores are better than the bound, at any alignment; nothing else is written."""
    scores = torch.arange(2 * 10_001, dtype=torch.float32).reshape(2, 10_001)
    running = ksieve.Running(2, 300, 9000, dtype=torch.float32)
    running.push(scores[:, 1001:], 1001)
    running.push(scores[:, :1001], 0)
    assert running.finish(sorted=True)[:, :2].tolist() == [[10_000, 9999]] * 2
    assert (running._best._held <= running._best._capacity).all()
    assert running.cutoff.tolist() <= [9701.0, 19_702.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_guess_of_a_first_tile(dtype, on_the_emulator):
    """Sampled columns are better than the others, worse, and like them: too few scores pass, too many, enough."""
    sampled = torch.arange(4096) % 64 < 32 if dtype == "float32" else torch.arange(4096) % 128 < 64
    scores = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 4096)).astype(np.float32))
    scores += sampled * torch.tensor([[100], [-100], [0], [0]])
    scores[3, 1::2] = np.nan
    scores = scores.to(getattr(torch, dtype))
    for ties in (None, "high"):
        running = ksieve.Running(4, K, 4096, dtype=scores.dtype, tie_break=ties)
        before = on_the_emulator.bytes_read
        running.push(scores[2:3].expand(4, -1).contiguous(), 4096)
        assert on_the_emulator.bytes_read - before < 2.5 * scores.nbytes
        running.reset()
        running.push(scores, 0)
        assert (running._best._held >= K).all()
        ksieve.verify(scores, None, running.finish(), k=K, tie_break=ties or "any").raise_if_failed()


@pytest.mark.parametrize("ties", [None, "low"])
def test_compactions_of_full_lists(ties, monkeypatch):
    """They keep an eighth more than k, or exactly k where more are equal."""
    monkeypatch.setattr(keep, "FEWEST", 2048)
    scores = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 9000)).astype(np.float32))
    scores[0], scores[1] = scores[0].sort()[0], (scores[1].sort()[0] * 2).round()
    running = ksieve.Running(3, 1600, 3000, dtype=torch.float32, tie_break=ties)
    for first in (0, 3000, 6000):
        running.push(scores[:, first : first + 3000], first)
    ksieve.verify(scores, None, running.finish(), k=1600, tie_break=ties or "any").raise_if_failed()


def test_windows_beyond_32_bits():
    scores = rows_of("float32")
    rows, width = scores.shape
    starts = torch.tensor([-(2**40), 2**40, 300, *[0] * (rows - 3)])
    ends = torch.tensor([2**40, 2**41, 2**33, -(2**40), *[2**31] * (rows - 4)])
    running = ksieve.Running(rows, K, 300, dtype=torch.float32, tie_break="low", deterministic=True)
    for begin in range(0, width, 300):
        running.push(scores[:, begin : begin + 300], begin, bounds=ksieve.RowBounds(starts=starts, ends=ends))
    clipped = {"starts": starts.clamp(0, width).int(), "ends": ends.clamp(0, width).int()}
    check([running.finish()], [ask(scores, k=K, tie_break="low", deterministic=True, **clipped)])


def test_late_tiles_are_read_once(on_the_emulator):
    scores = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32))
    running = ksieve.Running(2, 8, 4096, dtype=torch.float32)
    running.push(scores, 0)
    before, launches = on_the_emulator.bytes_read, on_the_emulator.seed
    running.push(scores - 20, 4096)
    assert on_the_emulator.seed == launches + 1
    assert on_the_emulator.bytes_read - before < 1.2 * scores.nbytes  # each thread reads its row's bound


@pytest.mark.parametrize("capacity", [None, 60, 200])  # the slots of the lists, fewer, more
@pytest.mark.parametrize("own_k", [False, True])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_candidates(ranking, own_k, capacity):
    """Lists of a producer are taken over, and tiles follow."""
    scores = rows_of("float32", 3000)
    rows, width = scores.shape
    how = RANKINGS[ranking] | {"deterministic": True}
    slots = {"k": (torch.arange(rows, dtype=torch.int32) * 7) % (K + 3), "max_k": K} if own_k else {"k": K}
    running = ksieve.Running(rows, max_tile=1500, dtype=torch.float32, **grouped(slots), **grouped(how))
    candidates = Candidates(running, width, capacity=capacity, share=8)
    assert (candidates.scores.data_ptr() == running._best._values[0].data_ptr()) == (capacity != 200)
    running.push(scores[:, :1500], 0)  # forgotten, but still in the lists
    candidates.propose(scores[:, candidates.columns.long()].contiguous())
    for _ in range(2):
        for row in range(rows):
            kept = reaches(scores[row], candidates.cutoff[row], ranking)
            at = torch.nonzero(kept & (torch.arange(width) < candidates.left[row]))[:, 0]
            first = at[: candidates.capacity]
            candidates.counts[row] = len(at)
            candidates.scores[row, : len(first)] = scores[row, first]
            candidates.positions[row, : len(first)] = first.int()
        candidates.certify(check=True)
    assert 0 < (candidates.left > 0).sum() < rows
    for begin in (1500, 0):
        running.push(scores[:, begin : begin + 1500], begin, candidates.left)
    check(finished(running, values=True), ask(scores, values=True, **slots, **how))
