"""A bound of the lengths that the engine's host knows: fewer columns are planned for, and none is trusted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import ksieve  # noqa: E402
from ksieve import dispatch  # noqa: E402
from ksieve.adapters import _select, vllm  # noqa: E402

ROWS, WIDTH, K = 4, 5000, 64


def columns_of(longest, width=1 << 20, cuda=False):
    return _select.columns_of(SimpleNamespace(shape=(ROWS, width), is_cuda=cuda), longest)


def test_columns_hold_the_longest_row_and_are_few():
    bounds = [*range(1, 3000), *(2**n + d for n in range(11, 20) for d in (-1, 0, 1)), 100_000]
    found = [columns_of(longest) for longest in bounds]
    for longest, columns in zip(bounds, found, strict=True):
        assert max(longest, 1024) <= columns <= max(1024, longest * 9 / 8 + 1)
    assert columns_of(16_384) == 16_384
    assert len({columns_of(longest) for longest in range(1, 1 << 18, 97)}) <= 1 + 8 * 8


def test_all_columns_where_the_bound_says_nothing(monkeypatch):
    assert [columns_of(longest, 5000) for longest in (-1, 0, 4999, 5000, 6000)] == [0] * 5
    assert columns_of(10, 1024) == 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert columns_of(100, cuda=True) == 0, "in a replay of the graph rows may be longer"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert columns_of(100, cuda=True) == 1024
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert columns_of(100) == 0


class _Layer:
    _backend = "auto"


def persistent(scores, lengths, out, bound):
    vllm.persistent_topk(scores, lengths, out, None, K, bound)


def layer(scores, lengths, out, bound):
    vllm._sparse_indexer_topk(_Layer(), scores, lengths.reshape(ROWS // 2, 2), 2, out, K, bound)


@pytest.mark.parametrize("call", [persistent, layer])
def test_answers_are_exact_and_nothing_behind_the_columns_is_read(call):
    draw = torch.Generator().manual_seed(3)
    scores = torch.randn(ROWS, WIDTH, generator=draw)
    lengths = torch.tensor([1500, 70, -3, 1200], dtype=torch.int32)
    out, columns = torch.full((ROWS, K), -7, dtype=torch.int32), columns_of(1500, WIDTH)
    assert columns == 1536
    scores[:, columns:] = torch.nan  # ranks first here, so that it would be selected
    call(scores, lengths, out, 1500)
    assert ksieve.verify(scores, lengths, out, nan="highest").ok
    lengths[0], lengths[3] = 1 << 30, columns + 1
    call(scores, lengths, out, 1500)
    assert ksieve.verify(scores[:, :columns], lengths, out, nan="highest").ok, (
        "a length above the bound counts as the columns"
    )


def test_the_engine_s_own_argument_is_named():
    with pytest.raises(ksieve.ArgumentError, match="logits: got dtype int32"):
        persistent(torch.zeros(ROWS, WIDTH).int(), torch.ones(ROWS).int(), torch.zeros(ROWS, K), 1)


def test_kernels_for_all_columns_are_loaded_once(monkeypatch):
    """An engine that warms up with short rows, and then captures a graph, finds that graph's kernel loaded."""
    prepared = []

    def choose(asked):
        return SimpleNamespace(prepare=lambda: prepared.append(asked))

    monkeypatch.setattr(dispatch, "choose", choose)
    monkeypatch.setattr(_select, "_whole", set())
    scores, lengths, names = torch.zeros(ROWS, WIDTH), torch.ones(ROWS, dtype=torch.int32), {}
    for _ in range(2):
        for options in ({"nan": "highest"}, {"nan": "highest", "next_n": 1}):
            _select._prepare_whole(names, scores, lengths, K, torch.zeros(ROWS, K).int(), options)
    assert [(p.width, p.k, p.options.ranking) for p in prepared] == [(WIDTH, K, "nan_first")] * 2
