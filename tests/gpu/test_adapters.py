"""The adapters on CUDA: the frameworks' calls as they are, and captured in CUDA graphs and replayed on other inputs."""

from __future__ import annotations

import importlib.util
from functools import partial

import pytest
import torch
from conftest import ROOT

import adapter_calls as cases
from gpu import runner
from ksieve.adapters import flashinfer, sglang, tensorrt_llm, vllm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]

SHAPES = {"short": (2500, 64), "long": (40_000, 512)}
"""(width, k): rows that a kernel holds on chip, and rows that are sampled."""

GRID = [
    pytest.param(case, shape, dtype, id=f"{case.name}-{shape}-{dtype}")
    for case in cases.CASES
    for shape in SHAPES
    for dtype in case.dtypes
    # 16 bits hold 62,000 different scores: enough for a row of distinct ones, but too slow to draw for the long rows.
    if dtype == "float32" or shape == "short"
]


def calls_ahead():
    """Every case once, for its kernels."""
    for case, shape, dtype in (p.values for p in GRID):
        yield partial(cases.warm, case, *SHAPES[shape], dtype)
    yield test_a_graph_captured_after_short_rows_sees_long_ones
    yield from in_place_calls().values()


@pytest.mark.parametrize(("case", "shape", "dtype"), GRID)
def test_documented_semantics(case, shape, dtype, tally):
    width, k = SHAPES[shape]
    for seed in (1, 2):
        arrays = cases.make(case, seed, width, k, dtype)
        outputs = case.call(cases.to_tensors(arrays, dtype, "cuda"), k)
        case.check(arrays, k, cases.to_arrays(outputs))
        tally.add(f"adapter {case.name}", cases.ROWS, [])


@pytest.mark.parametrize(("case", "shape", "dtype"), [p for p in GRID if p.values[2] == "float32"])
def test_captured_and_replayed(case, shape, dtype, tally):
    """One capture serves other scores, lengths, windows, tables and offsets; outputs are poisoned in between."""
    width, k = SHAPES[shape]
    tensors = cases.to_tensors(cases.make(case, 3, width, k, dtype), dtype, "cuda")
    graph, outputs = runner.captured(lambda: case.call(tensors, k))
    for seed in (4, 5, 6):
        arrays = cases.make(case, seed, width, k, dtype)
        cases.refill(tensors, arrays)
        graph.replay()
        torch.cuda.synchronize()
        case.check(arrays, k, cases.to_arrays(outputs))
        tally.add(f"adapter {case.name}, replayed", cases.ROWS, [])


def operands(rows=8, width=4096, k=64):
    scores = torch.randn(rows, width, device="cuda")
    lengths = torch.full((rows,), width, dtype=torch.int32, device="cuda")
    return scores, lengths, torch.empty(rows, k, dtype=torch.int32, device="cuda")


def in_place_calls():
    x, n, out = operands()
    table = torch.arange(8 * 64, dtype=torch.int32, device="cuda").reshape(8, 64)
    raw, starts, workspace = out.clone(), n // 4, torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    return {
        "prefill": lambda: vllm.top_k_per_row_prefill(x, starts, n, out, 8, 4096, 1, 64),
        "decode": lambda: vllm.top_k_per_row_decode(x, 1, n, out, 8, 4096, 1, 64),
        "next_n": lambda: vllm.top_k_per_row_decode(x, 2, n[:4], out, 8, 4096, 1, 64),
        "persistent": lambda: vllm.persistent_topk(x, n, out, workspace, 64, 4096),
        "paged_v2": lambda: sglang.topk_transform_paged_v2(x, n, table, out, 64, None),
        "paged_v2 raw": lambda: sglang.topk_transform_paged_v2(x, n, table, out, 64, None, raw),
        "paged": lambda: sglang.topk_transform_paged(x, n, table, out, 64),
        "page_transform": lambda: sglang.topk_page_transform(x, 64, page_table=table, page_size=64, output_idx=out),
        "deep_select": lambda: vllm.deep_select_topk(x, 64, n, out),
        "trtllm": lambda: tensorrt_llm.indexer_topk_decode(x, n[:4], out, 2, 64),
        "ragged_v2": lambda: sglang.topk_transform_ragged_v2(x, n, out_offsets=n, out_indices=out, row_starts=starts),
        "deepselect": lambda: sglang.topk(x, 64, end=n, output_idx=out, idx_oob_fill_value=-1),
        "page table": lambda: flashinfer.top_k_page_table_transform(x, table, n, 64, page_size=64, out=out),
        "varlen": lambda: flashinfer.top_k_varlen(x, n, 64, out_indices=out),
    }


def test_in_place_calls_allocate_and_synchronise_nothing():
    for name, call in in_place_calls().items():
        call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before, name


def test_a_graph_captured_after_short_rows_sees_long_ones():
    """A bound holds for its call and not for replays, and the kernel for all columns is loaded before the capture."""
    x, n, out = operands(4, 70_000, 512)
    for length, bound in ((1000, 1000), (70_000, 1000)):  # the second length is none that the bound allows
        n.fill_(length)
        vllm.persistent_topk(x, n, out, None, 512, bound)
        for row in range(4):
            cases.same(out[row].cpu().numpy(), cases.best(x[row].cpu().numpy(), 0, min(length, 1024), 512))
    graph, _ = runner.captured(lambda: vllm.persistent_topk(x, n, out, None, 512, 1000))
    for length in (1000, 70_000):
        n.fill_(length)
        graph.replay()
        for row in range(4):
            cases.same(out[row].cpu().numpy(), cases.best(x[row].cpu().numpy(), 0, length, 512))


def test_the_example_runs(capsys):
    path = ROOT / "examples" / "serving_graph.py"
    spec = importlib.util.spec_from_file_location("serving_graph", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main() == 0
    assert "3 replays, every row exact" in capsys.readouterr().out
