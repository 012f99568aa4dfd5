"""The compiled finish of the CPU, against the model: the same bytes, in the thread that selects, without Python."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from ksieve.model.epilogue import Finish

OPTIONS = (
    {"sorted": True},
    {"return_values": True, "return_raw": True, "index_dtype": "int64"},
    {"page_table": np.arange(16 * 600, dtype=np.int32).reshape(16, 600), "page_size": 8},
    {"offsets": np.arange(16, dtype=np.int32), "deterministic": True},
)


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_no_row_is_finished_in_python(monkeypatch, number):
    """The model's finish holds the GIL, so that two threads took longer than one."""
    scores = np.random.default_rng(3).random((16, 4096), np.float32)
    want = ksieve.topk(scores, k=20, backend="reference", **OPTIONS[number])
    finished = []
    real = Finish._write

    def write(self, rows, local):
        finished.append(rows)
        real(self, rows, local)

    monkeypatch.setattr(Finish, "_write", write)
    found = ksieve.topk(scores, k=20, backend="cpu", **OPTIONS[number])
    assert not finished
    for one, other in zip(*((a if isinstance(a, tuple) else (a,)) for a in (want, found)), strict=True):
        assert np.array_equal(np.sort(one, axis=1), np.sort(other, axis=1))
