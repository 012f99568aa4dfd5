"""The compiled finish of the CPU, against the model: the same bytes, in the thread that selects, without Python."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from ksieve.core.options import Options
from ksieve.model.epilogue import Finish

RANGE = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 1000], np.int32)


def padded(rng, rows, columns, dtype):
    """An output whose rows lie apart, at an address that is a multiple of nothing."""
    pitch = (columns + 3) * np.dtype(dtype).itemsize
    memory = rng.integers(0, 256, rows * pitch + 1, dtype=np.uint8)
    shape, strides = (rows, columns), (pitch, np.dtype(dtype).itemsize)
    return memory, np.ndarray(shape, dtype, memory, 1, strides)


def both(rng, options, scores, begins, local, **tables):
    """What the model and the kernels write, memory between rows included."""
    from ksieve.backends.cpu import runner

    rows, k = local.shape
    index, state = np.dtype(options.index_dtype), rng.bit_generator.state
    written = []
    for kind in ("model", "kernel"):
        rng.bit_generator.state = state  # the same bytes before
        outputs = [padded(rng, rows, k, dtype) for dtype in (index, index, scores.dtype)]
        out, raw, values = (array for _, array in outputs)
        finish = Finish(
            options, scores, begins, out, raw if options.raw else None, values if options.values else None, **tables
        )
        if kind == "model":
            with np.errstate(over="ignore"):
                finish.write(0, rows, local)
        else:

            def select(begin, end, address, pitch):
                slots = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int32 * ((end - begin) * k)).from_address(
                    address + begin * pitch
                ))  # fmt: skip
                slots[:] = local[begin:end].ravel()

            runner._finishing(select, k, begins, finish)(0, rows)
        written.append([memory for memory, _ in outputs])
    return written


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16"])
@pytest.mark.parametrize("order", ["any", "value", "index"])
@pytest.mark.parametrize("transform", ["none", "pages", "offsets"])
@pytest.mark.parametrize("k", [1, 7, 300, 9000])
def test_compiled_finish_writes_the_models_bytes(dtype, order, transform, k):
    """Any positions in any order, with ties, NaN, zeros of both signs, subnormals, and tables of any numbers."""
    rng = np.random.default_rng(k)
    rows, width = 6, 2 * k + 5
    for number in range(8):
        words = rng.integers(0, 1 << 32 if number % 2 else 4, (rows, width)).astype(np.uint32)
        scores = words.view(np.float32) if dtype == "float32" else words.astype(np.uint16).view(dtype)
        scores.view(np.uint32 if dtype == "float32" else np.uint16)[0, ::3] ^= (1 << 8 * scores.dtype.itemsize) >> 1
        begins = rng.integers(0, 5, rows)
        local = np.stack([rng.permutation(width - 5)[:k] for _ in range(rows)]).astype(np.int32)
        if number > 2:
            local.sort(axis=1)
        for row in range(rows):
            local[row, k - rng.integers(0, k + 1) if row % 2 else k :] = -1
        options = Options(
            windows="lengths", index_base=("row", "start")[number % 2], transform=transform, order=order,
            page_size=1 << int(rng.integers(0, 4)) if transform == "pages" else 1, next_n=(1, 2)[number // 4],
            raw=number % 3 > 0, values=number % 3 < 2, tie_break=("any", "low", "high")[number % 3],
            index_dtype=("int32", "int64")[number // 2 % 2], mapped=transform == "pages" and number % 2 > 0,
        )  # fmt: skip
        tables = {}
        if transform == "offsets":
            tables["offsets"] = rng.choice(RANGE, rows)
        if transform == "pages":
            tables["page_table"] = rng.choice(RANGE, (4, 3 * max(1, width // 8) + 1))[::2, :-1]
            if options.mapped:
                tables["row_to_request"] = np.array([-1, 0, 1, 2, 2**31 - 1, 1], np.int32)
        model, kernel = both(rng, options, scores, begins, local, **tables)
        for name, one, other in zip(("out", "raw", "values"), model, kernel, strict=True):
            assert np.array_equal(one, other), (name, options)


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
