"""The Triton score producer against the formula; run on a GPU, and by Triton's interpreter on the host."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from ksieve.captures import factors
from ksieve.lab.chain.mqa_logits import Tile, mqa_logits

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
