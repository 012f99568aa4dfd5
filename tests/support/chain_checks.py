"""The Triton score producer against the formula; run on a GPU, and by Triton's interpreter on the host."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from ksieve import Running, verify
from ksieve.running import Candidates
from ksieve_lab.captures import factors
from ksieve_lab.chain import producers, ways
from ksieve_lab.chain.mqa_logits import Tile, mqa_candidates, mqa_logits

UNTOUCHED = -77.0


def check(device, queries, heads, dim, width, *, scaled=True, masked=False, tile=None, pitch=None, seed=0):
    """One matrix of scores: close to the float64 statement where seen, untouched or -inf where not."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    q = torch.randn(queries, heads, dim, generator=generator).to(torch.float8_e4m3fn)
    keys = torch.randn(width, dim, generator=generator).to(torch.float8_e4m3fn)
    weights = torch.randn(queries, heads, generator=generator)
    scale = torch.rand(width, generator=generator) if scaled else None
    lengths = torch.randint(-3, width + 50, (queries,), dtype=torch.int32, generator=generator)
    lengths[0] = width
    out = torch.full((queries, pitch or width), UNTOUCHED, device=device)
    mqa_logits(
        q.to(device), keys.to(device), weights.to(device), lengths.to(device),
        key_scale=None if scale is None else scale.to(device), out=out[:, :width], masked=masked, tile=tile or Tile(),
    )  # fmt: skip
    found, key_values = out.cpu().numpy(), keys.float().numpy()
    want = factors.evaluate(
        q.float().numpy(),
        weights.numpy(),
        width,
        lambda a, b: key_values[a:b],
        None if scale is None else scale.numpy(),
    )
    seen = np.arange(width) < lengths.clamp(0, width).numpy()[:, None]
    # Tensor cores keep fewer bits of fp8 products than float32: about 2**-13 of the largest partial sum.
    np.testing.assert_allclose(found[:, :width][seen], want[seen], rtol=2e-3, atol=2e-3 * float(np.abs(want).max()))
    hidden = found[:, :width][~seen]
    assert (hidden == (-np.inf if masked else UNTOUCHED)).all()
    assert (found[:, width:] == UNTOUCHED).all()


def check_all(device):
    """Shapes around every edge: single queries and keys, ragged tails, pitches, stretches, both maskings."""
    check(device, 3, 64, 128, 300)
    check(device, 1, 64, 128, 1, scaled=False)
    check(device, 5, 4, 32, 333, pitch=400)
    for masked, (tile, width) in itertools.product(
        (False, True), ((Tile(2, 64, 4, 2, 128), 300), (Tile(1, 128, 4, 3), 129), (Tile(4, 64, 4, 2), 64))
    ):
        check(device, 7, 16, 64, width, masked=masked, tile=tile)


def check_candidates(device, *, queries=7, width=300, k=9, capacity=40, seed=0, tile=None):
    """What the epilogue keeps and counts, against the scores that the same kernel writes to a matrix."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    q = torch.randn(queries, 16, 64, generator=generator).to(torch.float8_e4m3fn).to(device)
    keys = torch.randn(width, 64, generator=generator).to(torch.float8_e4m3fn).to(device)
    weights = torch.randn(queries, 16, generator=generator).to(device)
    lengths = torch.randint(-3, width + 50, (queries,), dtype=torch.int32, generator=generator).to(device)
    lengths[0], lengths[1] = width, capacity
    scores = mqa_logits(q, keys, weights, lengths, masked=True, tile=tile or Tile())
    candidates = Candidates(
        Running(queries, k, 64, dtype=torch.float32, device=device), width, capacity=capacity, share=8
    )
    candidates.propose(scores[:, candidates.columns.long()].contiguous(), lengths)
    # A cutoff that all scores reach, and one that none does.
    candidates.cutoff[2], candidates.cutoff[3] = -float("inf"), float("inf")
    candidates.positions.fill_(-9)
    mqa_candidates(q, keys, weights, lengths, candidates, tile=tile or Tile())
    found = {name: getattr(candidates, name).cpu().numpy() for name in ("counts", "positions", "scores", "cutoff")}
    for r, row in enumerate(scores.cpu().numpy()):
        length = min(max(int(lengths[r]), 0), width)
        kept = np.flatnonzero(row[:length] >= found["cutoff"][r])
        assert found["counts"][r] == len(kept)
        listed = found["positions"][r, : min(len(kept), capacity)]
        assert len(set(listed.tolist())) == len(listed)
        assert set(listed.tolist()) <= set(kept.tolist())
        assert (row[listed].view(np.int32) == found["scores"][r, : len(listed)].view(np.int32)).all()
        assert (found["positions"][r, len(listed) :] == -9).all()


def check_ways(device, *, queries=23, width=700, k=20):
    """Tiles and candidates have the bits of the selection from the matrix; every other row needs another cutoff."""
    keys = producers.make_keys(width, 64, device=device)
    lengths = np.random.default_rng(0).integers(0, width + 1, queries).astype(np.int32)
    made = producers.make_queries(keys, lengths, 16, device=device)
    made.q[::2] = made.q[0].clone()  # the same scores for each
    whole = ways.joined([producers.rows_of(made, 0, 9), producers.rows_of(made, 9, queries)])
    produce, keep = producers.load("triton"), producers.load_keep()
    scores = produce(made, torch.zeros(queries, width, device=device), False)
    for way in (
        ways.Tiles(whole, k, produce, rows=10, tile=130),
        ways.Kept(whole, k, produce, keep, rows=10, tile=130),
    ):
        way.run()
        verify(scores, made.lengths, way.out).raise_if_failed()


def check_example(device, *, rows=20, width=10_000, k=60, tile=3000):
    """The producer that the guide shows, whose lists decide every row but the one of equal scores."""
    path = Path(__file__).parents[2] / "examples" / "triton_producer.py"
    spec = importlib.util.spec_from_file_location("triton_producer", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with mock.patch.object(Running, "push", autospec=True, side_effect=Running.push) as push:
        example.check(device, rows, width, k, tile)
    assert push.call_count == -(-width // tile)
    for call in push.call_args_list:
        assert call.args[3].nonzero().tolist() == [[1]]
