"""The epilogue in CUDA C++, on the emulator, against what it has to keep and count."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from emulator import build
from ksieve.running import include_path

pytestmark = [pytest.mark.extended, pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present")]

PRODUCER = """
#include "candidates.cuh"
struct Args {
  ksieve::Candidates<SCORE> into;
  const SCORE* scores;
  int rows, width, largest, nan_first;
};
// A producer of scores that exist: each thread has every 64th score of all rows, row by row.
extern "C" __global__ void produce(const __grid_constant__ Args a) {
  const int all = a.rows * a.width;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x)
    ksieve::keep(a.into, i / a.width, a.scores[i], i % a.width, a.largest != 0, a.nan_first != 0);
}
"""


class Args(ctypes.Structure):
    _fields_ = (
        ("cutoff", ctypes.c_void_p), ("counts", ctypes.c_void_p), ("kept", ctypes.c_void_p),
        ("positions", ctypes.c_void_p), ("pitch", ctypes.c_longlong), ("capacity", ctypes.c_int),
        ("scores", ctypes.c_void_p), ("rows", ctypes.c_int), ("width", ctypes.c_int), ("largest", ctypes.c_int),
        ("nan_first", ctypes.c_int),
    )  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    target = tmp_path_factory.mktemp("candidates") / "float.so"
    options = ["--gpu-architecture=compute_80", "-std=c++17", f"-I{include_path()}", "-DSCORE=float"]
    build.build(build.ptx_of(PRODUCER, "produce.cu", options), target)
    return build.load(target)


@pytest.mark.parametrize(("largest", "nan_first"), [(True, False), (False, False), (True, True)])
def test_what_is_kept_and_counted(library, largest, nan_first):
    rows, width, capacity = 5, 77, 12
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((rows, width)).astype(np.float32)
    scores[4] = np.where(np.arange(width) % 3 == 0, np.nan, -np.inf)
    scores[2, 40:] = scores[2, 40]
    cutoff = np.float32(
        [0.7, np.inf, scores[2, 40], -np.inf, -3] if largest else [-0.7, -np.inf, scores[2, 40], np.inf, 3]
    )
    counts = np.zeros(rows, np.int32)
    counts[0] = 2  # a second kernel appends behind the first one
    kept, positions = np.full((rows, capacity + 3), 7, np.float32), np.full((rows, capacity + 3), -9, np.int32)
    arrays = (cutoff, counts, kept, positions)
    addresses = (a.ctypes.data for a in arrays)
    args = Args(*addresses, capacity + 3, capacity, scores.ctypes.data, rows, width, int(largest), int(nan_first))
    build.run(library, build.Launch(1, 64, 1, 1, 0, 5, ctypes.addressof(args)))
    for r in range(rows):
        reaches = scores[r] >= cutoff[r] if largest else scores[r] <= cutoff[r]
        wanted = np.flatnonzero(reaches | (nan_first & np.isnan(scores[r])))
        begin = 2 * (r == 0)
        assert counts[r] == begin + len(wanted)
        listed = positions[r, begin : min(counts[r], capacity)]
        assert set(listed.tolist()) <= set(wanted.tolist())
        assert len(set(listed.tolist())) == len(listed)
        assert kept[r, begin : min(counts[r], capacity)].tobytes() == scores[r, listed].tobytes()
        assert (positions[r, min(counts[r], capacity) :] == -9).all()
        assert (positions[r, :begin] == -9).all()
