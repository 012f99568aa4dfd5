"""Arrays with leading strides on the host: every call equals that of contiguous copies, and nothing else is written."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import ksieve
from flat_calls import ask
from ksieve.core.errors import ArgumentError

H, T, WIDTH, K = 3, 14, 97, 6
RNG = np.random.default_rng(5)
BUFFER = RNG.standard_normal((H, T, WIDTH + 3)).astype(np.float32)
LINE = RNG.standard_normal(400).astype(np.float32)
SCORES = {
    "transposed": BUFFER.transpose(1, 0, 2),
    "transposed slice": BUFFER[:, 1:, 2:-1].transpose(1, 0, 2),
    "padded": BUFFER[:, :-2, :-3],
    "half": BUFFER.astype(np.float16).transpose(1, 0, 2),
    "bfloat16": (BUFFER.view(np.uint32) >> 16).astype(np.uint16).transpose(1, 0, 2),
    "expanded inside": np.broadcast_to(BUFFER[0, :, None], (T, H, WIDTH + 3)),
    "expanded outside": np.broadcast_to(BUFFER[0, :-1], (H, T - 1, WIDTH + 3)),
    "all one row": np.broadcast_to(BUFFER[0, 0], (T, H, WIDTH + 3)),
    "backwards": BUFFER[0, ::-1],
    "backwards twice": BUFFER[::-1, ::-2],
    "sliding": sliding_window_view(LINE, 300),
    "three that merge": BUFFER.reshape(H, 2, T // 2, WIDTH + 3).transpose(1, 2, 0, 3),
    "no rows": BUFFER.transpose(1, 0, 2)[:0],
    "few groups": RNG.standard_normal((900, 2, 300)).astype(np.float32)[:, :1].transpose(1, 0, 2),
    "threads": RNG.standard_normal((5, 300, 301)).astype(np.float32)[:, 1:, :300],
}  # fmt: skip


def numbers(shape, low, high, dtype=np.int32):
    return RNG.integers(low, high, shape, dtype)


def spread(array):
    """The same numbers as columns of a larger array, its dimensions in another order."""
    held = np.full((*array.shape[::-1], 3), -7, array.dtype)[..., 1].transpose()
    held[...] = array
    return held


def each_row(leading):
    """Numbers of each row, equal along the last leading dimension: (T, 1) expanded over heads."""
    column = numbers((*leading[:-1], 1), 0, 90)
    return np.broadcast_to(column, leading)


CALLS = {
    "lengths": lambda s: {"lengths": each_row(s)},
    "long lengths": lambda s: {"lengths": spread(numbers(s, -3, 120, np.int64))},
    "windows": lambda s: {"starts": spread(numbers(s, 0, 40)), "ends": each_row(s), "values": True},
    "own k": lambda s: {"k": spread(numbers(s, 0, K + 1)), "max_k": K, "raw": True},
    "offsets": lambda s: {"offsets": each_row(s)},
    "pages": lambda s: {
        "page_table": numbers((40, 9), 0, 99), "page_size": 16, "row_to_request": spread(numbers(s, 0, 44)),
    },
    "tail": lambda s: {"tail": spread(numbers(s, 0, 200)), "expand": 2},
    "forced": lambda s: {"force_first": 2, "force_last": 1, "values": True, "lengths": each_row(s)},
    "blocks": lambda s: {"block_size": 8, "lengths": spread(numbers(s, 0, 100))},
    "live": lambda s: {"num_rows": 7, "values": True},
}  # fmt: skip


def compact(call):
    return {name: np.ascontiguousarray(v) if isinstance(v, np.ndarray) else v for name, v in call.items()}


def equal(got, expected):
    got, expected = (each if isinstance(each, tuple) else (each,) for each in (got, expected))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", SCORES)
def test_scores_of_any_leading_strides(name, backend):
    x = SCORES[name]
    options = {"sorted": True, "tie_break": "low", "k": K, "backend": backend}
    got = ask(x, **options)
    equal(got, ask(np.ascontiguousarray(x), **options))
    verdict = ksieve.verify(x, None, got, sorted=True, tie_break="low")
    assert verdict and verdict.rows == np.prod(x.shape[:-1])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("scores", ["transposed", "padded", "expanded inside", "backwards"])
@pytest.mark.parametrize("name", CALLS)
def test_numbers_of_any_strides(name, scores, backend):
    x = SCORES[scores]
    call = {"k": K, "sorted": True, "tie_break": "low", "backend": backend, **CALLS[name](x.shape[:-1])}
    equal(ask(x, **call), ask(np.ascontiguousarray(x), **compact(call)))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_positions_and_requests(backend):
    x = SCORES["transposed"]
    places = numbers((H, T, WIDTH + 3), -200, 1000).transpose(1, 0, 2)
    table = np.broadcast_to(numbers((T, 1, 10), -1, 30), (T, H, 10))
    for call in ({"positions": places}, {"block_table": table}, {"positions": places, "force_last": 1}):
        call = {"k": K, "sorted": True, "tie_break": "low", "backend": backend, **call}
        equal(ask(x, **call), ask(np.ascontiguousarray(x), **compact(call)))
    lengths = numbers((T, 2), 5, 90)[:, 0]
    call = {"k": K, "sorted": True, "tie_break": "low", "next_n": H, "backend": backend}
    equal(ask(x, lengths, **call), ask(np.ascontiguousarray(x), lengths.copy(), **call))


OUTPUTS = {
    "transposed": lambda dtype: np.full((H, T, K + 4), 99, dtype)[:, :, 2 : K + 2].transpose(1, 0, 2),
    "padded": lambda dtype: np.full((T + 1, H + 1, K + 1), 99, dtype)[1:, 1:, 1:],
    "backwards": lambda dtype: np.full((T, H, K), 99, dtype)[::-1, ::-1],
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_written_in_place_and_nothing_between(name, backend):
    x, call = SCORES["transposed"], {"sorted": True, "tie_break": "low", "backend": backend}
    expected = ask(np.ascontiguousarray(x), None, K, values=True, raw=True, **call)
    outputs = {"out": OUTPUTS[name](np.int32), "values": OUTPUTS[name](np.float32)}
    outputs["raw"], counts = OUTPUTS[name](np.int32), spread(np.full((T, H), 99, np.int32))
    got = ask(x, None, K, counts=counts, **outputs, **call)
    equal(got, expected)
    for array in outputs.values():
        base = array.base if array.base.base is None else array.base.base
        assert (base == 99).sum() >= base.size - array.size
        array[...] = 99
        assert (base == 99).all()
    assert (counts == K).all() and np.count_nonzero(counts.base == -7) == 2 * counts.size


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.tensor(BUFFER).to(dtype).transpose(0, 1)
        lengths = torch.tensor(numbers((T, 1), 0, 90)).expand(T, H)
        out = torch.full((H, T, K), 99, dtype=torch.int32).transpose(0, 1)
        options = {"sorted": True, "tie_break": "low", "values": True}
        got = ask(x, lengths, K, out=out, **options)
        expected = ask(x.contiguous(), lengths.contiguous(), K, **options)
        assert got[0] is out and all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        assert ksieve.verify(x, lengths, out, sorted=True, tie_break="low")


MANY = np.zeros((4, 5, 6, 9), np.float32)[:3, :4, :5, :8]
ODD = np.zeros((T, 6), np.uint8)[:, :4].view("i4")[:, 0]
REFUSED = {
    "scores": (lambda: ksieve.topk(MANY, None, 2), r"scores: .*merge to at most two.*: np.ascontiguousarray\(scores\)"),
    "lengths": (
        lambda: ksieve.topk(np.array(MANY), np.zeros((4, 5, 6), np.int32)[:3, :4, :5], 2),
        r"lengths: .*merge to at most two.*: np.ascontiguousarray\(lengths\)",
    ),
    "many strides of out": (
        lambda: ksieve.topk(np.array(MANY), None, 8, out=np.zeros((4, 5, 6, 9), "i4")[:3, :4, :5, :8]),
        "out: .*merge to at most two, each with one stride$",
    ),
    "one row for all": (
        lambda: ksieve.topk(BUFFER, None, 5, out=as_strided(np.zeros(99, "i4"), (H, T, 5), (4 * 20, 0, 4))),
        "out: .*contiguous rows that do not overlap",
    ),
    "groups that overlap": (
        lambda: ksieve.topk(BUFFER, None, 5, out=as_strided(np.zeros(999, "i4"), (H, T, 5), (4 * 8, 4 * 10, 4))),
        "out: .*contiguous rows that do not overlap",
    ),
    "one count for all": (
        lambda: ask(BUFFER, None, 5, counts=as_strided(np.zeros(99, "i4"), (H, T), (4, 0))),
        "counts: .*does not overlap itself",
    ),
    "no whole elements": (lambda: ksieve.topk(BUFFER[0], ODD, 5), "lengths: .*no multiple of 4 bytes.*whole elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        call()
