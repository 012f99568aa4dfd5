"""Verdicts on every path of the verifier: NumPy, torch tensors, and sources of row blocks."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from flat_calls import verified

ENGINE = sys.modules["ksieve.checking.verify"]  # not the function, by which the package hides it


def on_torch(scores, lengths, indices, block_bytes=1 << 20, **options):
    """Run the device path on torch CPU tensors: the same steps a CUDA tensor takes."""
    torch = pytest.importorskip("torch")
    held = np.array(scores)
    tensor = torch.from_numpy(held.view(np.int16)).view(torch.bfloat16) if held.dtype == np.uint16 else held
    tensor = torch.as_tensor(tensor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ENGINE, "NumpyOps", lambda: ENGINE.TorchOps(tensor))
        return verified(tensor, lengths, indices, block_bytes=block_bytes, **options)


def same(one, two):
    assert str(one) == str(two)
    np.testing.assert_array_equal(one.reasons, two.reasons)


class Source:
    """Rows made on demand, as a capture on disk makes them."""

    def __init__(self, scores, lengths=None):
        self._scores, self.lengths = scores, lengths
        self.rows, self.width = scores.shape

    def rows_block(self, begin, end):
        return self._scores[begin:end].copy()
