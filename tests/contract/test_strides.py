"""Scores with leading strides on the host, and what is refused; of other arrays, tests/contract/test_fuzz.py."""

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
