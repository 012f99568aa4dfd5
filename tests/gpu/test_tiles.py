"""`ksieve.Running` and `ksieve.running.Candidates` on the GPU, against `ksieve.topk` on whole rows; in graphs too."""

from __future__ import annotations

import itertools
from functools import cache, partial

import numpy as np
import pytest
import torch

import ksieve
from answers import RANKINGS, reaches
from flat_calls import ask, finished
from gpu import material, runner
from ksieve.core.groups import grouped
from ksieve.running import Candidates

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]

ROWS, WIDTH, K = 40, 30_000, 300
FORCED_TILE = 16_384
FORCED_K = (1, 300, 2048, 4096)
FULL_K = (1, 2048, 4096, 4097)  # a kernel takes up to 4,096 slots
DTYPES, TIES = ("float32", "float16", "bfloat16"), (None, "low", "high")
CAPACITIES = (0, 1000, 3000)


def rows_of(dtype, seed=0):
    """Rows of the value families, in another order for each seed, and lengths."""
    bits = material.on_device(WIDTH, K, 2, dtype, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(seed)
    order = torch.randint(len(bits), (ROWS,), device="cuda", generator=generator)
    lengths = torch.randint(-5, WIDTH + 50, (ROWS,), dtype=torch.int32, device="cuda", generator=generator)
    lengths[::3] = WIDTH
    return material.place(bits[order], dtype, "cuda"), lengths


def push(running, scores, lengths, tile=4096):
    for first in reversed(range(0, WIDTH, tile)):
        running.push(scores[:, first : first + tile], first, lengths)


def keep(scores, lengths, candidates, ranking="largest"):
    """What the epilogue of a producer does, by operations of PyTorch that read nothing back."""
    wide, cutoff = scores.float(), candidates.cutoff[:, None]
    column = torch.arange(WIDTH, dtype=torch.int32, device="cuda")
    kept = reaches(wide, cutoff, ranking) & (column < lengths[:, None])
    candidates.counts += kept.sum(1, dtype=torch.int32)
    slot = kept.cumsum(1).sub_(1).where(kept, candidates.capacity).clamp_(max=candidates.capacity)
    filled = torch.arange(candidates.capacity, device="cuda") < kept.sum(1)[:, None]
    bits = torch.int32 if scores.dtype == torch.float32 else torch.int16  # of NaN, which copies may change
    lists = ((candidates.scores.view(bits), scores.view(bits)), (candidates.positions, column.expand_as(scores)))
    for target, source in lists:
        wider = torch.empty(ROWS, candidates.capacity + 1, dtype=target.dtype, device="cuda")
        target.copy_(torch.where(filled, wider.scatter_(1, slot, source)[:, :-1], target))


@cache
def forced_rows(k, dtype):
    """Rows on the host that take each path of kernels/running/keep.cu in a first tile, and in those that follow.

    Its guess of a bound samples 32 columns of 256 (64 of 512 with 16 bits).
    """
    width = 2 * FORCED_TILE + 3001
    normal = np.random.default_rng(k).standard_normal((9, width)).astype(np.float32)
    column, spacing = np.arange(width), 256 if dtype == "float32" else 512
    sampled = np.float32(column % spacing < spacing // 8)
    rows = [
        normal[0],
        normal[1] + 100 * sampled,  # too few scores are better than the guess
        normal[2] - 100 * sampled,  # nearly all are: lists are full
        np.where(column % 2, normal[3], np.nan),
        np.where(column % 97, np.nan, normal[4]),  # fewer than k numbers in a tile, for most k
        np.sort(normal[5]),
        np.round(2 * np.sort(normal[6])),  # full lists, of which many are equal
        np.float32(column // FORCED_TILE),
        np.full(width, 7),
        np.full(width, np.nan),
        np.maximum(normal[7], 0),
        -np.sort(-normal[8]),
    ]
    return torch.from_numpy(np.stack(rows).astype(np.float32)).to(getattr(torch, dtype))


def forced_answers(k, dtype, ties):
    """Push forced rows in two orders; yield positions and bounds of each answer."""
    scores = forced_rows(k, dtype).cuda()
    running = ksieve.Running(len(scores), k, FORCED_TILE, dtype=scores.dtype, device="cuda", tie_break=ties)
    for backwards in (False, True):
        running.reset()
        for first in sorted(range(0, scores.shape[1], FORCED_TILE), reverse=backwards):
            running.push(scores[:, first : first + FORCED_TILE], first)
        yield running.finish(), running.cutoff


def check_forced(k, dtype, ties):
    """Judge the answers of forced rows; returns how many there were."""
    host, count = forced_rows(k, dtype), 0
    numbers = (~host.isnan()).sum(1) >= k
    for found, cutoff in forced_answers(k, dtype, ties):
        ksieve.verify(host, None, found.cpu(), k=k, tie_break=ties or "any").raise_if_failed()
        assert ((host.float() >= cutoff.cpu()[:, None]).sum(1)[numbers] >= k).all()
        count += len(host)
    return count


def calls_ahead():
    """What the tests call, for its kernels."""
    for case in itertools.product(FORCED_K, DTYPES, TIES):
        yield lambda case=case: list(forced_answers(*case))
    for case in itertools.product(DTYPES, RANKINGS):
        yield lambda case=case: next(in_every_way(*case))
    for case in itertools.product(FULL_K, DTYPES):
        yield partial(test_full_lists_and_tiles_at_any_alignment, *case)
    yield from [partial(test_windows_and_own_k, long) for long in (False, True)]
    yield from [partial(test_a_graph_replays_with_other_rows, capacity) for capacity in CAPACITIES]


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", FORCED_K)
def test_every_path_of_the_kernel(k, dtype, ties, tally):
    tally.add("tiles, forced", check_forced(k, dtype, ties), [])


def in_every_way(dtype, ranking):
    """Yield answers to whole rows, to their tiles, and to their candidates: positions and values of each."""
    how = RANKINGS[ranking] | {"deterministic": True}
    running = ksieve.Running(ROWS, K, 4096, dtype=getattr(torch, dtype), device="cuda", **grouped(how))
    candidates = Candidates(running, WIDTH, capacity=1000)
    for seed in range(3):
        scores, lengths = rows_of(dtype, seed)
        answers = [ask(scores, lengths, k=K, values=True, **how)]
        running.reset()
        push(running, scores, lengths)
        answers.append(finished(running, values=True))
        candidates.propose(scores[:, candidates.columns.long()].contiguous(), lengths)
        for _ in range(2):
            keep(scores, candidates.left, candidates, ranking)
            candidates.certify(check=True)
        push(running, scores, candidates.left)
        yield [*answers, finished(running, values=True)]


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_answer_of_whole_rows(dtype, ranking, tally):
    bits = torch.int32 if dtype == "float32" else torch.int16
    for seed, (expected, *answers) in enumerate(in_every_way(dtype, ranking)):
        wrong = [
            f"{way}, seed {seed}"
            for way, (indices, values) in zip(("tiles", "candidates"), answers, strict=True)
            if not torch.equal(indices, expected[0]) or not torch.equal(values.view(bits), expected[1].view(bits))
        ]
        tally.judge("tiles", 2 * ROWS, wrong)


@pytest.mark.parametrize("long", [False, True])
def test_windows_and_own_k(long):
    """Bounds of 64 bits may be outside of int32."""
    scores, ends = rows_of("float32")
    starts = (torch.arange(ROWS, dtype=torch.int32, device="cuda") * 977) % WIDTH
    expected = {"starts": starts, "ends": ends}
    if long:
        starts, ends = starts - 2**40 * (starts == 0), ends + 2**40 * (ends >= WIDTH)
    ks = (torch.arange(ROWS, dtype=torch.int32, device="cuda") * 31) % (K + 9)
    how = {"max_k": K, "tie_break": "high", "deterministic": True}
    running = ksieve.Running(ROWS, ks, 7000, dtype=torch.float32, device="cuda", **grouped(how))
    for first in range(0, WIDTH, 7000):
        running.push(scores[:, first : first + 7000], first, bounds=ksieve.RowBounds(starts=starts, ends=ends))
    assert torch.equal(running.finish(), ask(scores, **expected, k=ks, **how))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", FULL_K)
def test_full_lists_and_tiles_at_any_alignment(k, dtype):
    """Rows whose best scores come last fill lists in each tile, so do equal ones; tiles begin at odd columns."""
    wide = torch.randn(8, WIDTH + 3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(k))
    wide[0], wide[1], wide[2] = wide[0].sort()[0], wide[1].sort(descending=True)[0], wide[2].relu()
    wide[3], wide[4], wide[5] = 1, torch.nan, torch.arange(WIDTH + 3, device="cuda") // 4096
    scores = wide.to(getattr(torch, dtype))[:, 1 : WIDTH + 1]
    for ties in ("low", "high"):
        running = ksieve.Running(8, k, 9001, dtype=scores.dtype, device="cuda", tie_break=ties, deterministic=True)
        expected = ask(scores, k=k, tie_break=ties, deterministic=True, values=True)
        for backwards in (False, True):
            running.reset()
            for first in sorted(range(0, WIDTH, 9001), reverse=backwards):
                running.push(scores[:, first : first + 9001], first)
            indices, values = finished(running, values=True)
            bits = torch.int32 if dtype == "float32" else torch.int16
            assert torch.equal(indices, expected[0])
            assert torch.equal(values.view(bits), expected[1].view(bits))
    running = ksieve.Running(8, k, 9001, dtype=scores.dtype, device="cuda")
    for first in range(0, WIDTH, 9001):
        running.push(scores[:, first : first + 9001], first)
    ksieve.verify(scores, None, running.finish(), k=k).raise_if_failed()


@pytest.mark.parametrize("capacity", CAPACITIES, ids=["tiles", "lists of the running", "other lists"])
def test_a_graph_replays_with_other_rows(capacity):
    scores, lengths = rows_of("float32")
    running = ksieve.Running(ROWS, K, 8192, dtype=torch.float32, device="cuda", deterministic=True)
    candidates = Candidates(running, WIDTH, capacity=capacity or None)
    shared = candidates.scores.data_ptr() == running._best._values[0].data_ptr()
    assert shared == (capacity != 3000)
    out = torch.empty(ROWS, K, dtype=torch.int32, device="cuda")

    def select():
        left = lengths
        if not capacity:
            running.reset()
        else:
            candidates.propose(scores[:, candidates.columns.long()].contiguous(), lengths)
            for _ in range(2):
                keep(scores, candidates.left, candidates)
                candidates.certify()
            left = candidates.left
        push(running, scores, left, 8192)
        running.finish(out=out)

    graph, _ = runner.captured(select)
    for seed in range(1, 30):
        fresh, valid = rows_of("float32", seed)
        scores.copy_(fresh)
        lengths.copy_(valid)
        out.fill_(runner.POISON)
        graph.replay()
        assert torch.equal(out, ksieve.topk(scores, lengths, k=K, deterministic=True)), seed
