"""The CPU kernels' rankings: what they rank, and calls with `largest` and `nan`, against the model and by sorting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ksieve
from cases import DTYPES, POLICIES, scores_of
from ksieve import Options
from ksieve.backends.cpu.converting import converter
from ksieve.core.keys import widen
from ksieve.core.ranking import RANKINGS, ranked

ARGUMENTS = {"largest": {}, "smallest": {"largest": False}, "nan_first": {"nan": "highest"}}
FAMILIES = ("random_bits", "few_values", "mostly_nan", "infinities", "signed_zero", "subnormal")
SHAPES = ((5, 40, 50), (4, 300, 64), (3, 4096, 100), (3, 4097, 33), (2, 9001, 512))


def every_pattern(dtype):
    if dtype != "float32":
        bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
        return bits if dtype == "bfloat16" else bits.view(np.float16)
    rng = np.random.default_rng(1)
    edges = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF], np.uint32)
    drawn = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    return np.concatenate([edges, edges | np.uint32(1 << 31), drawn]).view(np.float32)


@pytest.mark.parametrize("number", range(len(RANKINGS)), ids=RANKINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_converters_rank_every_score_as_the_model_does(dtype, number):
    scores = every_pattern(dtype)
    expected = widen(ranked(scores, RANKINGS[number])).view(np.uint32)
    is_nan = np.isnan(expected.view(np.float32))
    address = scores.__array_interface__["data"][0]
    for first in range(0, scores.size, 4095):
        last = min(first + 4095, scores.size)
        wide = np.zeros(4096, np.uint32)
        converter(DTYPES.index(dtype), number)(address + scores.itemsize * first, last - first, wide.ctypes.data)
        tile, after = wide[: last - first], wide[last - first :]
        assert not after.any()
        np.testing.assert_array_equal(np.isnan(tile.view(np.float32)), is_nan[first:last])
        np.testing.assert_array_equal(
            np.where(is_nan[first:last], 0, tile), np.where(is_nan[first:last], 0, expected[first:last])
        )


def calls():
    k_of_rows = np.array([3, 0, 99, 7, 20], np.int32)
    yield {}
    yield {"sorted": True}
    yield {"sorted": True, "tie_break": "high", "return_values": True}
    yield {"deterministic": True, "return_values": True, "index_dtype": "int64"}
    yield {"tie_break": "high", "sorted": "index"}
    yield {"sorted": True, "tie_break": "low", "starts": True, "lengths": True, "return_values": True}
    yield {"sorted": True, "tie_break": "low", "ks": k_of_rows, "return_values": True}


@pytest.mark.parametrize("ranking", ["smallest", "nan_first"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_the_models(family, dtype, ranking):
    rng = np.random.default_rng(2)
    for rows, width, k in SHAPES:
        scores = scores_of(family, rows, width, k, dtype)
        for call in calls():
            more = call | ARGUMENTS[ranking]
            lengths, slots = None, k
            if more.pop("lengths", None) is not None:
                lengths = rng.integers(-1, width + 2, rows).astype(np.int32)
                more["starts"] = rng.integers(-1, width // 2, rows).astype(np.int32)
            if "ks" in more:
                slots, more["max_k"] = more.pop("ks")[:rows], k
            model = ksieve.topk(scores, lengths, slots, backend="reference", return_stats=True, **more)
            counted = ksieve.topk(scores, lengths, slots, return_stats=True, **more)
            plain = ksieve.topk(scores, lengths, slots, **more)
            plain = plain if isinstance(plain, tuple) else (plain,)
            np.testing.assert_array_equal(counted[-1].raw, model[-1].raw)
            judged = {name: more[name] for name in ("largest", "nan", "starts", "sorted", "tie_break") if name in more}
            if "deterministic" in more:
                judged |= {"sorted": "index", "tie_break": "low"}
            for answer in (model, counted, plain):
                verdict = ksieve.verify(scores, lengths, answer[0], k=slots, **judged)
                assert verdict, (rows, width, k, call, verdict)
                if "return_values" in more:
                    check_values(scores, answer[0], answer[1], ranking)
                if judged.get("tie_break") and judged.get("sorted"):
                    np.testing.assert_array_equal(answer[0], model[0])


def check_values(scores, indices, values, ranking):
    """The scores bit for bit, and the worst number in unused slots."""
    bits = np.dtype(f"u{scores.itemsize}")
    worst = np.inf if ranking == "smallest" else -np.inf
    unused = np.uint16(0x7F80 if ranking == "smallest" else 0xFF80)
    unused = unused if scores.dtype == np.uint16 else np.array(worst, scores.dtype)
    chosen = np.take_along_axis(scores, np.maximum(indices, 0).astype(np.int64), axis=1)
    expected = np.where(indices >= 0, chosen.view(bits), np.asarray(unused).view(bits))
    np.testing.assert_array_equal(values.view(bits), expected)


@pytest.mark.extended
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name if p else "direct")
@pytest.mark.parametrize("ranking", ["smallest", "nan_first"])
def test_every_route_and_little_storage(ranking, policy):
    for family in ("normal", "some_nan", "mostly_nan", "few_values"):
        for dtype, tie_break in zip(DTYPES, ("any", "low", "high"), strict=True):
            rows, width, k = 4, 3000, 64
            scores = scores_of(family, rows, width, k, dtype)
            options = Options(order="value", tie_break=tie_break, **ARGUMENTS[ranking])
            plan = ksieve.plan(rows=rows, width=width, k=k, dtype=dtype, policy=policy or "direct", options=options)
            plan = replace(plan, capacity=2 * k + 2)
            found = ksieve.topk(scores, plan=plan, return_stats=True)
            model = ksieve.topk(scores, plan=plan, return_stats=True, backend="reference")
            np.testing.assert_array_equal(found[1].raw, model[1].raw)
            for indices in (found[0], model[0], ksieve.topk(scores, plan=plan)):
                verdict = ksieve.verify(
                    scores,
                    None,
                    indices,
                    k=k,
                    sorted=True,
                    tie_break=None if tie_break == "any" else tie_break,
                    **ARGUMENTS[ranking],
                )
                assert verdict, (family, dtype, verdict)
