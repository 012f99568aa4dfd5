"""The adapters on CPU tensors: called as the frameworks call, compared with what the frameworks document."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from conftest import ROOT  # noqa: E402

import adapter_calls as cases  # noqa: E402
from ksieve.adapters import flashinfer, sglang, tensorrt_llm, vllm  # noqa: E402
from ksieve.core.errors import ArgumentError  # noqa: E402

SWITCH = {"install", "uninstall", "warm_up"}
MODULES = (vllm, sglang, flashinfer, tensorrt_llm)
FUNCTIONS = [getattr(module, name) for module in MODULES for name in module.__all__ if name not in SWITCH]
GRID = [pytest.param(case, dtype, id=f"{case.name}-{dtype}") for case in cases.CASES for dtype in case.dtypes]


@pytest.mark.parametrize(("case", "dtype"), GRID)
def test_documented_semantics(case, dtype):
    """Rows that are sampled and rows that are not, k below and above typical lengths."""
    for seed, (width, k) in enumerate([(2500, 64), (700, 128), (300, 300)]):
        arrays = cases.make(case, seed, width, k, dtype)
        outputs = case.call(cases.to_tensors(arrays, dtype, "cpu"), k)
        case.check(arrays, k, cases.to_arrays(outputs))


@pytest.mark.parametrize("case", [c for c in cases.CASES if c.name in ("vllm_decode", "flashinfer_top_k")])
def test_long_rows(case):
    arrays = cases.make(case, 9, 40_000, 512, "float32")
    case.check(arrays, 512, cases.to_arrays(case.call(cases.to_tensors(arrays, "float32", "cpu"), 512)))


# ---- signatures: test_signatures.py compares them with the engines' ------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_parameter_is_explained(function):
    text = inspect.getdoc(function)
    if text.startswith("Do the same as `"):
        text += inspect.getdoc(getattr(sys.modules[function.__module__], text.split("`")[1]))
    for parameter in inspect.signature(function).parameters:
        assert parameter in text, parameter


# ---- what is refused, in the framework's words -----------------------------------------------------------------


def operands(rows=4, width=100, k=8):
    x = torch.randn(rows, width)
    n = torch.full((rows,), width, dtype=torch.int32)
    return x, n, torch.zeros(rows, k, dtype=torch.int32)


def decode(**changes):
    x, n, out = operands()
    arguments = {"logits": x, "next_n": 1, "seq_lens": n, "indices": out, "numRows": 4, "stride0": 100, "stride1": 1}
    return vllm.top_k_per_row_decode(**arguments | {"topK": 8} | changes)


X, N, OUT = operands()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decode(stride1=2), r"stride1: got 2; takes 1"),
        (lambda: decode(stride0=128), r"stride0: got 128; takes 100"),
        (lambda: decode(numRows=5), r"logits: got shape \(4, 100\); takes 5 rows"),
        (lambda: decode(topK=9), r"indices: got 8 columns; takes at least 9"),
        (lambda: decode(next_n=3), r"next_n: got 3; takes a divisor of numRows, 4"),
        (lambda: decode(next_n=2, seq_lens=N[:1]), r"seq_lens: got shape \(1,\)"),
        (lambda: decode(seq_lens=N.short()), r"seq_lens: got dtype int16; takes dtype int32 or int64"),
        (lambda: decode(logits=X.double()), r"logits: got dtype float64"),
        (lambda: decode(indices=OUT.float()), r"indices: got dtype float32"),
        (lambda: vllm.top_k_per_row_prefill(X, N.short(), N, OUT, 4, 100, 1, 8), r"rowStarts: got dtype int16"),
        (lambda: vllm.top_k_per_row_prefill(X, N, N[:2], OUT, 4, 100, 1, 8), r"rowEnds: got shape \(2,\)"),
        (lambda: vllm.persistent_topk(X, N[:3], OUT, None, 8, 100), r"lengths: got 3 entries; takes one per row .* 4"),
        (lambda: sglang.fast_topk_v2(X, N[:3], 8), r"lengths: got shape \(3,\)"),
        (lambda: sglang.fast_topk_v2(X, N, 8, row_starts=N.float()), r"row_starts: got dtype float32"),
        (lambda: sglang.fast_topk_v2(X, N, -1), r"topk: got -1"),
        (lambda: sglang.fast_topk_transform_fused(X, N, OUT, N, 8), r"cu_seqlens_q: got 4 entries; takes 5"),
        (lambda: sglang.fast_topk_transform_ragged_fused(X, N, N[:1], 8), r"topk_indices_offset: got shape \(1,\)"),
        (lambda: sglang.topk_transform_paged_v2(X, N, OUT, OUT.clone(), 48, None), r"page_size: got 48"),
        (lambda: sglang.topk_transform_paged_v2(X, N, OUT.long(), OUT.clone(), 1, None), r"page_tables: got"),
        (lambda: sglang.topk_transform_ragged_v2(X, N, out_offsets=N, out_indices=OUT.float()), r"out_indices: got"),
        (lambda: sglang.plan_topk_v2(N, out=OUT), r"out: got shape \(4, 8\); takes shape \(5, 2\)"),
        (lambda: sglang.topk(X, 8, hint=N), r"hint: got Tensor; takes None"),
        (lambda: sglang.topk(X, 8, sorted=True, sorted_index=True), r"sorted_index: got True; takes False"),
        (lambda: sglang.topk(X, 8, indices_type=torch.int16), r"indices_type: got torch.int16; takes torch.int32 or"),
        (lambda: sglang.topk(X, 8, output_idx=OUT, indices_type=torch.int64), r"output_idx: got dtype torch.int32"),
        (lambda: sglang.topk(X, 8, end=N.short()), r"end: got dtype int16"),
        (lambda: flashinfer.top_k(X, 8, tie_break=3), r"tie_break: got 3; takes 0 \(none\), 1"),
        (lambda: flashinfer.top_k(X[0, 0], 8), r"input: got shape \(\)"),
        (lambda: flashinfer.top_k_page_table_transform(X, OUT, N, 8, row_starts=N, page_size=4),
         r"page_table_row_starts: got None"),
        (lambda: flashinfer.top_k_page_table_transform(X, OUT, N, 8, row_to_batch=N.long()), r"row_to_batch: got"),
        (lambda: flashinfer.top_k_page_table_transform(X, OUT, N, 8, page_table_row_starts=N, out=OUT[:2]), "out: got"),
        (lambda: flashinfer.top_k_ragged_transform(X, N.long(), N, 8), r"offsets: got dtype int64"),
        (lambda: flashinfer.top_k_varlen(X, N, 8, next_n=2), r"seq_lens: got 4 entries; takes 4 rows of logits"),
        (lambda: flashinfer.top_k_varlen(X, N, 8, compress_ratio=0), r"compress_ratio: got 0"),
        (lambda: flashinfer.top_k_varlen(X, N, 8, out_indices=OUT.float()), r"out_indices: got dtype float32"),
        (lambda: flashinfer.top_k_varlen(X, N[:2], 8, next_n=2, row_starts=N), r"next_n: got 2; takes 1 with"),
        (lambda: flashinfer.top_k_varlen(X, N, 8, absolute_indices=True), r"absolute_indices: got True; takes False"),
        (lambda: flashinfer.msa_topk_select(X, 8), r"max_score: got shape \(4, 100\)"),
        (lambda: flashinfer.msa_topk_select(X[None], 8, 101), r"num_valid_pages: got 101; takes an int from 1 to 4"),
        (lambda: flashinfer.msa_topk_select(X[None], 2, N), r"num_valid_pages: got shape \(4,\); takes shape \(100,"),
        (lambda: flashinfer.msa_topk_select(X[None], 2, force_end_blocks=3), r"force_end_blocks: got|topk: got 2"),
        (lambda: flashinfer.msa_topk_select(X[None], 8, output=OUT), r"output: got shape \(4, 8\)"),
        (lambda: vllm.deep_select_topk(X, 8, output_idx=OUT.long()), r"output_idx: got dtype torch.int64; takes"),
        (lambda: vllm.deep_select_topk(X, 9, output_idx=OUT), r"output_idx: got 8 columns; takes at least 9"),
        (lambda: sglang.topk_page_transform(X, 8, page_table=OUT, page_size=3), r"page_size: got 3"),
        (lambda: sglang.amax_topk_blocks(X, N, N, 0), r"topk_blocks: got"),
        (lambda: sglang.amax_topk_blocks(X, N.long()[:2], N, 4), r"seq_lens: got shape \(2,\)"),
        (lambda: sglang.fast_kpool_topk_transform_fused(X, N, 3, 8), r"topk: got 8; takes a multiple of kpool, 3"),
        (lambda: sglang.fast_kpool_topk_transform_fused(X, N, 2, 8, OUT, N), r"topk_indices_offset: got an array"),
        (lambda: sglang.topk_transform_kpool_ragged_v2(X, N, OUT, 4, token_seq_lens=N), r"out: got 8 columns; takes"),
        (lambda: tensorrt_llm.indexer_topk_decode(X, N, OUT, 2, 8), r"seq_lens: got 4 entries; takes 4 rows of logits"),
        (lambda: tensorrt_llm.indexer_topk_prefill(X, N, N[:2], OUT, 8), r"row_ends: got shape \(2,\)"),
    ],
)  # fmt: skip
def test_errors_name_the_framework_s_argument(call, message):
    with pytest.raises(ArgumentError, match=rf"^{message}"):
        call()


def test_an_enum_of_tie_breaks_is_a_number():
    from enum import IntEnum

    class TopKTieBreak(IntEnum):
        LARGE = 2

    zeros = torch.zeros(1, 50)
    _, indices = flashinfer.top_k(zeros, 3, tie_break=TopKTieBreak.LARGE)
    assert sorted(indices[0].tolist()) == [47, 48, 49]


def test_some_engines_select_nan_first():
    x = torch.randn(6, 100)
    x[:, ::10] = float("nan")
    lengths = torch.full((6,), 100, dtype=torch.int32)
    ends, strides = torch.arange(95, 101, dtype=torch.int32), x.stride()
    for call in (
        lambda out: vllm.top_k_per_row_prefill(x, torch.zeros_like(ends), ends, out, 6, *strides, 12),
        lambda out: vllm.top_k_per_row_decode(x, 1, lengths, out, 6, *strides, 12),
        lambda out: vllm.top_k_per_row_decode(x, 2, lengths[:3], out, 6, *strides, 12),
        lambda out: vllm.persistent_topk(x, lengths, out, None, 12, 100),
        lambda out: tensorrt_llm.indexer_topk_prefill(x, torch.zeros_like(ends), ends, out, 12),
        lambda out: tensorrt_llm.indexer_topk_decode(x, lengths[:3], out, 2, 12),
    ):
        out = torch.zeros(6, 12, dtype=torch.int32)
        call(out)
        assert (x.gather(1, out.long()).isnan().sum(1) == 10).all()


def test_a_length_below_all_others_does_not_wrap():
    """The rows of a request end one after another, and the first of them before the smallest int32."""
    out = torch.zeros(2, 8, dtype=torch.int32)
    lengths = torch.tensor([-(2**31)], dtype=torch.int32)
    tensorrt_llm.indexer_topk_decode(X[:2], lengths, out, 2, 8, compress_ratio=4)
    assert (out == -1).all()


def test_nan_is_selected_only_when_nothing_else_is_left():
    x, n, _ = operands()
    x[:, ::3] = float("nan")
    assert (sglang.fast_topk_v2(x, n, 8) % 3 != 0).all()
    assert (vllm.deep_select_topk(x, 8, n) % 3 != 0).all()
    values, indices = sglang.topk(x, 80, return_value=True, abort_when_nan_found=True)
    assert (values.isnan().sum(1) == 80 - 66).all()
    assert torch.equal(x.gather(1, indices.long()).isnan(), values.isnan())


def test_under_torch_compile():
    """Options are part of the traced program, without a graph break."""
    x, n = torch.randn(4, 3000), torch.full((4,), 1500, dtype=torch.int32)

    def step(x, n, starts):
        return sglang.fast_topk_v2(x * 1.0, n, 64, row_starts=starts) + 0

    expected = step(x, n, n // 2).sort(1).values
    assert torch.equal(torch.compile(step, backend="aot_eager", fullgraph=True)(x, n, n // 2).sort(1).values, expected)
    plain = torch.compile(lambda x, n: sglang.fast_topk_v2(x, n, 64), backend="aot_eager", fullgraph=True)
    assert torch.equal(plain(x, n).sort(1).values, sglang.fast_topk_v2(x, n, 64).sort(1).values)


def test_no_rows():
    x, n, out = torch.empty(0, 100), torch.empty(0, dtype=torch.int32), torch.empty(0, 8, dtype=torch.int32)
    vllm.top_k_per_row_prefill(x, n, n, out, 0, 100, 1, 8)
    vllm.top_k_per_row_decode(x, 1, n, out, 0, 100, 1, 8)
    assert sglang.fast_topk_v2(x, n, 8).shape == (0, 8)
    cu = torch.zeros(1, dtype=torch.int32)
    assert sglang.fast_topk_transform_fused(x, n, torch.empty(0, 100, dtype=torch.int32), cu, 8).shape == (0, 8)
    assert [t.shape for t in flashinfer.top_k(x, 8)] == [(0, 8), (0, 8)]
    assert flashinfer.top_k_varlen(x, n, 8, compress_ratio=4, next_n=2)[0].shape == (0, 8)


def test_the_page_of_engines():
    """Its Python runs, and it names every function and argument of the adapters."""
    page = ROOT / "docs" / "guide" / "engines.md"
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, str(page), "exec"), {})
    words = set(re.findall(r"\w+", text))
    obvious = {"logits", "score", "scores", "input", "lengths", "k", "out_page_indices", "out_offsets", "out_indices"}
    obvious |= {"output", "src_page_table", "topk", "top_k", "out", "seq_lens"}
    for function in FUNCTIONS:
        assert function.__name__ in words
        for parameter in inspect.signature(function).parameters:
            assert parameter in words or parameter in obvious, f"{function.__name__}: {parameter}"


def test_the_example_runs_or_says_why_not():
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / "serving_graph.py"],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    expected = "every row exact" if torch.cuda.is_available() else "skipped: PyTorch sees no CUDA GPU here"
    assert expected in ran.stdout
