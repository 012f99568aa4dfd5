"""SGLang's calls, and what its documentation says of them."""

from __future__ import annotations

import numpy as np

from adapter_calls.base import ROWS, best, buffer, case, ends_of, lengths_of, ragged_inputs, same, scores_of, table_of
from ksieve.adapters import sglang


@case(ragged_inputs, ("float32", "bfloat16"))
class sglang_fast_topk_v2:  # noqa: N801
    @staticmethod
    def call(t, k):
        return {"out": sglang.fast_topk_v2(score=t["score"], lengths=t["lengths"], topk=k)}

    @staticmethod
    def check(a, k, o):
        assert o["out"].dtype == np.int32
        for r in range(ROWS):
            same(o["out"][r], best(a["score"][r], 0, int(a["lengths"][r]), k))


@case(ragged_inputs)
class sglang_fast_topk_v2_row_starts:  # noqa: N801
    @staticmethod
    def call(t, k):
        return {"out": sglang.fast_topk_v2(t["score"], t["lengths"], k, row_starts=t["starts"])}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r], best(a["score"][r], *ends_of(a, r), k))


@case(ragged_inputs)
class sglang_ragged_fused:  # noqa: N801
    @staticmethod
    def call(t, k):
        return {
            "out": sglang.fast_topk_transform_ragged_fused(
                score=t["score"], lengths=t["lengths"], topk_indices_offset=t["offsets"], topk=k, row_starts=t["starts"]
            ),
            "plain": sglang.fast_topk_transform_ragged_fused(t["score"], t["lengths"], t["offsets"], k),
        }

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            offset = int(a["offsets"][r])
            same(o["out"][r], [i + offset for i in best(a["score"][r], *ends_of(a, r), k)])
            same(o["plain"][r], [i + offset for i in best(a["score"][r], 0, int(a["lengths"][r]), k)])


@case(ragged_inputs)
class sglang_ragged_v2:  # noqa: N801
    @staticmethod
    def call(t, k):
        done = sglang.topk_transform_ragged_v2(
            t["score"], t["lengths"], out_offsets=t["offsets"], out_indices=t["out"], row_starts=t["starts"]
        )
        assert done is None
        return {"out": t["out"], "score": t["score"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r], [i + int(a["offsets"][r]) for i in best(a["score"][r], *ends_of(a, r), k)])
        assert np.array_equal(o["score"], a["score"]), "the scores were written to"


def _page_1_inputs(requests):
    def inputs(rng, width, k, dtype):
        boundaries = np.sort(rng.integers(0, ROWS, requests - 1))
        cu = np.concatenate([[0], boundaries, [ROWS - (requests < ROWS)]]).astype(np.int32)
        if requests == ROWS:
            cu = np.arange(ROWS + 1, dtype=np.int32)
        return ragged_inputs(rng, width, k, dtype) | {"table": table_of(rng, requests, width), "cu": cu}

    return inputs


@case(_page_1_inputs(ROWS))
class sglang_fused_decode:  # noqa: N801
    @staticmethod
    def call(t, k):
        options = {"page_table_size_1": t["table"], "cu_seqlens_q": t["cu"], "topk": k}
        return {
            "out": sglang.fast_topk_transform_fused(score=t["score"], lengths=t["lengths"], row_starts=None, **options),
            "extend": sglang.fast_topk_transform_fused(t["score"], t["lengths"], row_starts=t["starts"], **options),
        }

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r], a["table"][r, best(a["score"][r], 0, int(a["lengths"][r]), k)].tolist())
            same(o["extend"][r], a["table"][r, best(a["score"][r], *ends_of(a, r), k)].tolist())


def _check_fused(a, k, o, windows):
    for r in range(ROWS):
        owners = [q for q in range(len(a["cu"]) - 1) if a["cu"][q] <= r < a["cu"][q + 1]]
        start, end = ends_of(a, r) if windows else (0, int(a["lengths"][r]))
        found = best(a["score"][r], start, end, k)
        # SGLang leaves a row of no request undefined; ours is -1 throughout.
        same(o["out"][r], a["table"][owners[0], found].tolist() if owners else [])


@case(_page_1_inputs(5))
class sglang_fused_target_verify:  # noqa: N801
    @staticmethod
    def call(t, k):
        return {"out": sglang.fast_topk_transform_fused(t["score"], t["lengths"], t["table"], t["cu"], k)}

    @staticmethod
    def check(a, k, o):
        _check_fused(a, k, o, windows=False)


@case(_page_1_inputs(5))
class sglang_fused_extend:  # noqa: N801
    @staticmethod
    def call(t, k):
        return {
            "out": sglang.fast_topk_transform_fused(
                t["score"], t["lengths"], t["table"], t["cu"], k, row_starts=t["starts"]
            )
        }

    @staticmethod
    def check(a, k, o):
        _check_fused(a, k, o, windows=True)


PAGE = 64


def _paged_inputs(rng, width, k, dtype):
    return {
        "scores": scores_of(rng, ROWS, width, dtype),
        "seq_lens": lengths_of(rng, ROWS, width, k),
        "table": table_of(rng, ROWS, -(-width // PAGE)),
        "out": buffer(ROWS, k),
        "raw": buffer(ROWS, k),
    }


@case(_paged_inputs)
class sglang_paged_v2:  # noqa: N801
    @staticmethod
    def call(t, k):
        metadata = sglang.plan_topk_v2(t["seq_lens"])
        sglang.topk_transform_paged_v2(t["scores"], t["seq_lens"], t["table"], t["out"], PAGE, metadata)
        return {"out": t["out"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            found = best(a["scores"][r], 0, int(a["seq_lens"][r]), k)
            same(o["out"][r], [int(a["table"][r, i // PAGE]) * PAGE + i % PAGE for i in found])


@case(_paged_inputs, ("float32", "bfloat16"))
class sglang_paged_v2_with_raw:  # noqa: N801
    @staticmethod
    def call(t, k):
        metadata = sglang.plan_topk_v2(t["seq_lens"], -1)
        sglang.topk_transform_paged_v2(
            t["scores"], t["seq_lens"], t["table"], t["out"], PAGE, metadata, out_raw_indices=t["raw"]
        )
        return {"out": t["out"], "raw": t["raw"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            found = best(a["scores"][r], 0, int(a["seq_lens"][r]), k)
            same(o["raw"][r], found)
            raw = o["raw"][r, : len(found)]
            assert (o["out"][r, : len(found)] == a["table"][r, raw // PAGE] * PAGE + raw % PAGE).all(), "slot for slot"
            assert (o["out"][r, len(found) :] == -1).all()


@case(_paged_inputs)
class sglang_paged_v2_without_a_table:  # noqa: N801
    @staticmethod
    def call(t, k):
        sglang.topk_transform_paged_v2(t["scores"], t["seq_lens"], None, t["out"], PAGE, None)
        sglang.topk_transform_paged(t["scores"], t["seq_lens"], None, t["raw"], PAGE)
        return {"out": t["out"], "v1": t["raw"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r], best(a["scores"][r], 0, int(a["seq_lens"][r]), k))
            same(o["v1"][r], best(a["scores"][r], 0, int(a["seq_lens"][r]), k))


@case(_paged_inputs, ("float32", "bfloat16"))
class sglang_paged:  # noqa: N801
    @staticmethod
    def call(t, k):
        v1, raw = t["out"].clone(), t["raw"]
        sglang.topk_transform_paged(t["scores"], t["seq_lens"], t["table"], v1, PAGE, out_raw_indices=raw)
        sglang.topk_transform_bf16_small(t["scores"], t["seq_lens"], t["table"], t["out"], PAGE)
        return {"out": v1, "raw": raw, "small": t["out"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            found = best(a["scores"][r], 0, int(a["seq_lens"][r]), k)
            same(o["raw"][r], found)
            raw = o["raw"][r, : len(found)]
            assert (o["out"][r, : len(found)] == a["table"][r, raw // PAGE] * PAGE + raw % PAGE).all(), "slot for slot"
            assert (o["out"][r, len(found) :] == -1).all()
            same(o["small"][r], o["out"][r, : len(found)].tolist())


@case(ragged_inputs, ("float32", "bfloat16"))
class sglang_candidate_blocks:  # noqa: N801
    @staticmethod
    def call(t, k):
        x, lengths = t["score"], t["lengths"]
        nblocks = (lengths.clamp(0, x.shape[1]) + 7) // 8
        return {
            "out": sglang.amax_topk_blocks(x, lengths, nblocks, k),
            "bounded": sglang.amax_topk_blocks(x, lengths, nblocks, k, max_seq_len=x.shape[1]),
        }

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            row = a["score"][r, : max(int(a["lengths"][r]), 0)].astype(np.float64)
            keys = np.array([row[i : i + 8].max() for i in range(0, len(row), 8)])
            keys[-1:] = np.inf  # the newest
            for name in ("out", "bounded"):
                same(o[name][r], best(keys, 0, len(keys), k))
