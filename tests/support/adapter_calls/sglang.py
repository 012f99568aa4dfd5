"""SGLang's calls, and what its documentation says of them."""

from __future__ import annotations

import numpy as np
import torch

from adapter_calls.base import ROWS, Slots, best, case, of_rows, prefix, table_of, window
from ksieve.adapters import sglang


@case(of_rows, lambda a, k, r, o: {"out": prefix(a, r, k), "starts": window(a, r, k)}, "float32", "bfloat16")
def sglang_fast_topk_v2(t, k):
    out = sglang.fast_topk_v2(score=t["scores"], lengths=t["lengths"], topk=k)
    assert out.dtype is torch.int32
    return {"out": out, "starts": sglang.fast_topk_v2(t["scores"], t["lengths"], k, row_starts=t["starts"])}


def _ragged(a, k, r, o):
    offset = int(a["offsets"][r])
    expected = {"windows": [i + offset for i in window(a, r, k)], "plain": [i + offset for i in prefix(a, r, k)]}
    expected["v2"], expected["scores"] = expected["windows"], Slots(a["scores"][r].tolist())
    return expected


@case(of_rows, _ragged)
def sglang_ragged(t, k):
    x, lengths = t["scores"], t["lengths"]
    windows = sglang.fast_topk_transform_ragged_fused(
        score=x, lengths=lengths, topk_indices_offset=t["offsets"], topk=k, row_starts=t["starts"]
    )
    plain = sglang.fast_topk_transform_ragged_fused(x, lengths, t["offsets"], k)
    v2 = {"out_offsets": t["offsets"], "out_indices": t["out"], "row_starts": t["starts"]}
    assert sglang.topk_transform_ragged_v2(x, lengths, **v2) is None
    return {"windows": windows, "plain": plain, "v2": t["out"], "scores": x}


def _page_1_inputs(requests):
    def inputs(rng, width, k, dtype):
        boundaries = np.sort(rng.integers(0, ROWS, requests - 1))
        cu = np.concatenate([[0], boundaries, [ROWS - (requests < ROWS)]]).astype(np.int32)
        if requests == ROWS:
            cu = np.arange(ROWS + 1, dtype=np.int32)
        return of_rows(rng, width, k, dtype) | {"table": table_of(rng, requests, width), "cu": cu}

    return inputs


def _fused(a, k, r, o):
    owners = [q for q in range(len(a["cu"]) - 1) if a["cu"][q] <= r < a["cu"][q + 1]]
    # SGLang leaves a row of no request undefined; ours is -1 throughout.
    own = {"out": prefix(a, r, k), "extend": window(a, r, k)}
    return {name: a["table"][owners[0], found].tolist() if owners else [] for name, found in own.items()}


@case(_page_1_inputs(5), _fused, name="sglang_fused_target_verify")
@case(_page_1_inputs(ROWS), _fused)
def sglang_fused_decode(t, k):
    options = {"page_table_size_1": t["table"], "cu_seqlens_q": t["cu"], "topk": k}
    return {
        "out": sglang.fast_topk_transform_fused(score=t["scores"], lengths=t["lengths"], row_starts=None, **options),
        "extend": sglang.fast_topk_transform_fused(t["scores"], t["lengths"], row_starts=t["starts"], **options),
    }


PAGE = 64


def _paged_inputs(rng, width, k, dtype):
    return of_rows(rng, width, k, dtype) | {"table": table_of(rng, ROWS, -(-width // PAGE))}


def _paged(a, k, r, o):
    found = prefix(a, r, k)

    def pages(positions):
        return [int(a["table"][r, i // PAGE]) * PAGE + i % PAGE for i in positions]

    slot_for_slot = Slots(pages(o["raw"][: len(found)].tolist())) if "raw" in o else None
    expected = {"plain": pages(found), "raw": found, "out": slot_for_slot, "positions": found, "v1": found}
    return {name: expected[name] for name in o}


@case(_paged_inputs, _paged, "float32", "bfloat16")
def sglang_paged_v2(t, k):
    x, lengths, table, metadata = t["scores"], t["lengths"], t["table"], sglang.plan_topk_v2(t["lengths"], -1)
    outs = plain, positions, v1 = [torch.empty_like(t["out"]) for _ in range(3)]
    sglang.topk_transform_paged_v2(x, lengths, table, plain, PAGE, sglang.plan_topk_v2(lengths))
    sglang.topk_transform_paged_v2(x, lengths, table, t["out"], PAGE, metadata, out_raw_indices=t["raw"])
    sglang.topk_transform_paged_v2(x, lengths, None, positions, PAGE, None)
    sglang.topk_transform_paged(x, lengths, None, v1, PAGE)
    return dict(zip(("plain", "positions", "v1"), outs, strict=True)) | {"out": t["out"], "raw": t["raw"]}


@case(_paged_inputs, _paged, "float32", "bfloat16")
def sglang_paged(t, k):
    small = torch.empty_like(t["out"])
    sglang.topk_transform_paged(t["scores"], t["lengths"], t["table"], t["out"], PAGE, out_raw_indices=t["raw"])
    sglang.topk_transform_bf16_small(t["scores"], t["lengths"], t["table"], small, PAGE)
    return {"out": t["out"], "raw": t["raw"], "plain": small}


def _blocks(a, k, r, o):
    row = a["scores"][r, : max(int(a["lengths"][r]), 0)].astype(np.float64)
    keys = np.array([row[i : i + 8].max() for i in range(0, len(row), 8)])
    keys[-1:] = np.inf  # the newest
    return dict.fromkeys(o, best(keys, 0, len(keys), k))


@case(of_rows, _blocks, "float32", "bfloat16")
def sglang_candidate_blocks(t, k):
    x, lengths = t["scores"], t["lengths"]
    nblocks = (lengths.clamp(0, x.shape[1]) + 7) // 8
    return {
        "out": sglang.amax_topk_blocks(x, lengths, nblocks, k),
        "bounded": sglang.amax_topk_blocks(x, lengths, nblocks, k, max_seq_len=x.shape[1]),
    }
