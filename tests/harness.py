"""Calls one backend with host arrays, whatever device it runs on, so that one test serves all of them."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve

HOST_BACKENDS = ("reference", "cpu")
BACKENDS = (*HOST_BACKENDS, pytest.param("cuda", marks=pytest.mark.gpu))
"""Parameter list for tests that hold on every backend."""


def to_cuda(array, offset=0):
    """Copy a host matrix or vector to the GPU in the same layout, `offset` elements past an aligned address."""
    torch = pytest.importorskip("torch")
    if array is None:
        return None
    flat = array.view(np.int16) if array.dtype in (np.uint16, np.float16) else array
    step = tuple(s // array.itemsize for s in array.strides)
    held = torch.from_numpy(np.ascontiguousarray(flat)).cuda()
    if array.ndim == 2 and array.size:
        span = offset + (array.shape[0] - 1) * step[0] + array.shape[1]
        buffer = torch.full((span,), 0x6000, dtype=held.dtype, device="cuda")
        held = buffer.as_strided(array.shape, (max(step[0], array.shape[1]), 1), offset).copy_(held)
    names = {np.dtype(np.uint16): torch.bfloat16, np.dtype(np.float16): torch.float16}
    return held.view(names[array.dtype]) if array.dtype in names else held


def topk_on(backend, scores, lengths, k=None, *, out=None, num_rows=None, offset=0, **options):
    """Call `ksieve.topk` on `backend` and return host indices, or (indices, stats) when asked for."""
    if backend != "cuda":
        return ksieve.topk(scores, lengths, k, backend=backend, out=out, num_rows=num_rows, **options)
    arrays = {"out": to_cuda(out), "num_rows": to_cuda(num_rows)}
    result = ksieve.topk(to_cuda(scores, offset), to_cuda(lengths), k, **arrays, **options)
    if isinstance(result, tuple):
        return result[0].cpu().numpy(), result[1]
    if out is not None:
        out[...] = arrays["out"].cpu().numpy()
    return result.cpu().numpy()
