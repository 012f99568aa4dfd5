"""What a call costs the host, beside reading the attributes of the tensors it is given."""

from __future__ import annotations

import statistics
import time

import pytest
import torch

import ksieve
from gpu import runner
from ksieve import dispatch
from ksieve.adapters import flashinfer, sglang, vllm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]

CALLS, BLOCKS = 200, 40


def attributes(*tensors):
    """What any launcher has to look at."""
    return [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in tensors]


def cost(call):
    """Median microseconds per call over blocks, and the least; the device catches up between blocks."""
    blocks = []
    for _ in range(BLOCKS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        blocks.append((time.perf_counter() - begin) / CALLS * 1e6)
    return {"median_us": statistics.median(blocks), "min_us": min(blocks)}


def engines(scores, lengths, out):
    """Calls of the adapters: a plain one, and with windows, page tables, pools of positions and new values."""
    rows, width = scores.shape
    starts = torch.zeros_like(lengths)
    table = torch.arange(rows * width // 64, dtype=torch.int32, device="cuda").view(rows, width // 64)
    calls = {
        "vllm decode": lambda: vllm.top_k_per_row_decode(scores, 1, lengths, out, rows, width, 1, 16),
        "vllm prefill": lambda: vllm.top_k_per_row_prefill(scores, starts, lengths, out, rows, width, 1, 16),
        "sglang pages": lambda: sglang.topk_transform_paged(scores, lengths, table, out, 64),
        "sglang pools": lambda: sglang.topk_transform_kpool_ragged_v2(scores, lengths, out, 4),
        "flashinfer values": lambda: flashinfer.top_k(scores, 16),
    }
    for call in calls.values():
        call()
    return calls


def test_an_eager_call_with_a_ready_plan(tally, monkeypatch):
    """Costs are recorded; what is asserted is that no argument of a repeated call is parsed again."""
    # So small that the device is never the slower one.
    scores = torch.randn(4, 1024, device="cuda")
    lengths = torch.full((4,), 1000, dtype=torch.int32, device="cuda")
    out = torch.empty(4, 16, dtype=torch.int32, device="cuda")
    found = {}
    for family in ("resident_block", "stream_unsampled"):
        plan = ksieve.plan(rows=4, width=1024, k=16, device="cuda", family=family)
        workspace = plan.workspace()
        ksieve.topk(scores, lengths, plan=plan, out=out, workspace=workspace)
        found[family] = cost(lambda p=plan, w=workspace: ksieve.topk(scores, lengths, plan=p, out=out, workspace=w))
    ksieve.topk(scores, lengths, 16)
    found["without plan, workspace and out"] = cost(lambda: ksieve.topk(scores, lengths, 16))
    found["attributes of three tensors"] = cost(lambda: attributes(scores, lengths, out))
    found["torch.topk"] = cost(lambda: torch.topk(scores, 16, sorted=False))
    ready = engines(scores, lengths, out)
    found |= {name: cost(call) for name, call in ready.items()}
    tally.facts["host_cost"] = found
    monkeypatch.setattr(dispatch.calls, "parse", lambda *_, **__: pytest.fail("parsed again"))
    ksieve.topk(scores, lengths, plan=plan, out=out, workspace=workspace)
    for name, call in ready.items():
        if name != "flashinfer values":  # new values of each call
            call()
