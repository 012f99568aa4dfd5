"""Calls as frameworks make them, and what each framework documents of the result, in plain NumPy.

A `Case` can be called on any device and again with other inputs in the same tensors, so that the CPU suite and CUDA
graph replays share it. Expectations here are written from the frameworks' documentation, row by row, and use nothing of
ksieve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ksieve.adapters import flashinfer, sglang, vllm

POISON = 0x5A5A5A5A
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`inputs(rng)` makes NumPy arrays; `call(tensors)` returns named outputs; `check(arrays, outputs)` asserts."""

    name: str
    inputs: Callable[[np.random.Generator, int, int, str], Arrays]
    call: Callable[[Arrays, int], Arrays]
    check: Callable[[Arrays, int, Arrays], None]
    dtypes: tuple[str, ...] = ("float32",)


CASES: list[Case] = []


def case(inputs: Any, dtypes: tuple[str, ...] = ("float32",)) -> Any:
    """Register a class of three functions as a case."""

    def register(kind: Any) -> Any:
        CASES.append(Case(kind.__name__, inputs, kind.call, kind.check, dtypes))
        return kind

    return register


# ---- what every framework means by the top k of a window -------------------------------------------------------


def best(row: np.ndarray, start: int, end: int, k: int) -> list[int]:
    """Positions relative to the window's start of its k largest scores, ascending; scores are distinct."""
    start = min(max(start, 0), len(row))
    window = row[start : min(max(end, start), len(row))]
    return sorted(np.argsort(-window.astype(np.float64), kind="stable")[:k].tolist())


def same(slots: np.ndarray, expected: list[int], fill: int = -1) -> None:
    """The expected numbers in any order, then the fill value."""
    count = len(expected)
    assert sorted(slots[:count].tolist()) == sorted(expected)
    assert (slots[count:] == fill).all()


def same_in_order(slots: np.ndarray, expected: list[int], fill: int = -1) -> None:
    assert slots.tolist() == expected + [fill] * (len(slots) - len(expected))


ROWS = 12


def scores_of(rng: np.random.Generator, rows: int, width: int, dtype: str) -> np.ndarray:
    """Distinct scores in every row, exact in the dtype, as float32 (the runner converts them)."""
    if dtype == "float32":
        return rng.permuted(np.arange(rows * width, dtype=np.float32)).reshape(rows, width) / 8 - width
    bits = np.arange(1, 0x7B00 if dtype == "float16" else 0x7F00, dtype=np.uint16)
    bits = np.concatenate([bits, bits | 0x8000])
    picked = np.stack([rng.choice(bits, width, replace=False) for _ in range(rows)])
    return picked.view(np.float16).astype(np.float32) if dtype == "float16" else widen(picked)


def widen(bfloat16_bits: np.ndarray) -> np.ndarray:
    return (bfloat16_bits.astype(np.uint32) << 16).view(np.float32)


def lengths_of(rng: np.random.Generator, rows: int, width: int, k: int) -> np.ndarray:
    """Full, short, empty, negative and overlong lengths, in changing places."""
    special = [width, k, k + 1, k - 1, 1, 0, -1, -(2**31), width + 9, 2**31 - 1]
    out = rng.integers(1, width + 1, rows).astype(np.int32)
    where = rng.permutation(rows)[: len(special)]
    out[where] = np.array(special[: len(where)], np.int64).astype(np.int32)
    return out


def windows_of(rng: np.random.Generator, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Unaligned windows, some empty, reversed, or reaching past the row."""
    starts = rng.integers(0, width // 2, rows).astype(np.int32)
    ends = (starts + rng.integers(0, width, rows)).astype(np.int32)
    ends[rng.integers(rows)] = -3
    return starts, ends


def buffer(rows: int, columns: int, dtype: Any = np.int32) -> np.ndarray:
    return np.full((rows, columns), POISON, dtype)


# ---- vLLM ------------------------------------------------------------------------------------------------------


def _prefill_inputs(rng, width, k, dtype):
    # vLLM's buffers are larger than the batch: a row of logits, two windows, two rows and three columns of output more.
    starts, ends = windows_of(rng, ROWS + 2, width)
    logits = scores_of(rng, ROWS + 1, width, dtype)
    return {"logits": logits, "starts": starts, "ends": ends, "out": buffer(ROWS + 2, k + 3)}


@case(_prefill_inputs, ("float32", "float16", "bfloat16"))
class vllm_prefill:  # noqa: N801
    @staticmethod
    def call(t, k):
        x = t["logits"]
        vllm.top_k_per_row_prefill(x, t["starts"], t["ends"], t["out"], ROWS, x.stride(0), x.stride(1), k)
        return {"out": t["out"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r, :k], best(a["logits"][r], int(a["starts"][r]), int(a["ends"][r]), k))
        assert (o["out"][ROWS:] == POISON).all() and (o["out"][:, k:] == POISON).all(), "written outside numRows x topK"


def _decode_inputs(next_n, per_row):
    def inputs(rng, width, k, dtype):
        entries = ROWS if per_row else ROWS // next_n
        lens = lengths_of(rng, entries, width, k)
        shape = (ROWS // next_n, next_n) if per_row else (entries,)
        return {
            "logits": scores_of(rng, ROWS, width, dtype), "seq_lens": lens.reshape(shape), "out": buffer(ROWS, k),
        }  # fmt: skip

    return inputs


def _decode(name, next_n, per_row, column=False):
    inputs = _decode_inputs(next_n, per_row)

    def with_column(rng, width, k, dtype):
        arrays = inputs(rng, width, k, dtype)
        return arrays | {"seq_lens": arrays["seq_lens"].reshape(-1, 1)} if column else arrays

    def call(t, k):
        x = t["logits"]
        vllm.top_k_per_row_decode(x, next_n, t["seq_lens"], t["out"], ROWS, x.stride(0), x.stride(1), k)
        return {"out": t["out"]}

    def check(a, k, o):
        lens = a["seq_lens"].reshape(-1).astype(np.int64)
        for r in range(ROWS):
            end = lens[r] if per_row else lens[r // next_n] - next_n + 1 + r % next_n
            same(o["out"][r], best(a["logits"][r], 0, max(0, int(end)), k))

    CASES.append(Case(name, with_column, call, check))


_decode("vllm_decode", 1, False)
_decode("vllm_decode_column", 1, False, column=True)
_decode("vllm_decode_next_n", 3, False)
_decode("vllm_decode_next_n_column", 2, False, column=True)
_decode("vllm_decode_lengths_per_row", 4, True)


def _flat(name, function):
    def inputs(rng, width, k, dtype):
        lens = lengths_of(rng, ROWS, width, k)
        return {
            "logits": scores_of(rng, ROWS, width, dtype), "lengths": lens.reshape(ROWS // 2, 2), "out": buffer(ROWS, k),
            "workspace": np.full(64, 0xAB, np.uint8),
        }  # fmt: skip

    def call(t, k):
        assert function(t["logits"], t["lengths"], t["out"], t["workspace"], k, t["logits"].shape[1]) is None
        return {"out": t["out"]}

    def check(a, k, o):
        for r, length in enumerate(a["lengths"].reshape(-1)):
            same(o["out"][r], best(a["logits"][r], 0, int(length), k))

    CASES.append(Case(name, inputs, call, check))


_flat("vllm_persistent", vllm.persistent_topk)
_flat("vllm_cooperative", vllm.cooperative_topk)


# ---- SGLang ----------------------------------------------------------------------------------------------------


def _ragged_inputs(rng, width, k, dtype):
    return {
        "score": scores_of(rng, ROWS, width, dtype),
        "lengths": lengths_of(rng, ROWS, width, k),
        "starts": rng.integers(0, width // 2, ROWS).astype(np.int32),
        "offsets": rng.integers(-5, 10**6, ROWS).astype(np.int32),
        "out": buffer(ROWS, k),
    }


def ends_of(a: Arrays, r: int) -> tuple[int, int]:
    """Window [start, start + length) of a row, in numbers that do not wrap."""
    start = int(a["starts"][r])
    return start, start + max(int(a["lengths"][r]), 0)


@case(_ragged_inputs, ("float32", "bfloat16"))
class sglang_fast_topk_v2:  # noqa: N801
    @staticmethod
    def call(t, k):
        return {"out": sglang.fast_topk_v2(score=t["score"], lengths=t["lengths"], topk=k)}

    @staticmethod
    def check(a, k, o):
        assert o["out"].dtype == np.int32
        for r in range(ROWS):
            same(o["out"][r], best(a["score"][r], 0, int(a["lengths"][r]), k))


@case(_ragged_inputs)
class sglang_fast_topk_v2_row_starts:  # noqa: N801
    @staticmethod
    def call(t, k):
        return {"out": sglang.fast_topk_v2(t["score"], t["lengths"], k, row_starts=t["starts"])}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r], best(a["score"][r], *ends_of(a, r), k))


@case(_ragged_inputs)
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


@case(_ragged_inputs)
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


def table_of(rng: np.random.Generator, requests: int, entries: int) -> np.ndarray:
    """Pages that occur once, so that a slot tells where it came from."""
    return rng.permutation(requests * entries).astype(np.int32).reshape(requests, entries)


def _page_1_inputs(requests):
    def inputs(rng, width, k, dtype):
        boundaries = np.sort(rng.integers(0, ROWS, requests - 1))
        cu = np.concatenate([[0], boundaries, [ROWS - (requests < ROWS)]]).astype(np.int32)
        if requests == ROWS:
            cu = np.arange(ROWS + 1, dtype=np.int32)
        return _ragged_inputs(rng, width, k, dtype) | {"table": table_of(rng, requests, width), "cu": cu}

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
        return {"out": t["out"]}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["out"][r], best(a["scores"][r], 0, int(a["seq_lens"][r]), k))


# ---- DeepSelect ------------------------------------------------------------------------------------------------

FILL = 2147483647


def _deepselect_inputs(rng, width, k, dtype):
    starts, ends = windows_of(rng, ROWS, width)
    return {
        "input": scores_of(rng, ROWS, width, dtype), "begin": starts, "end": lengths_of(rng, ROWS, width, k),
        "end_of_window": ends, "offset": rng.integers(-3 * width, 10**6, ROWS).astype(np.int32),
        "out": buffer(ROWS, k, np.int64),
    }  # fmt: skip


@case(_deepselect_inputs, ("float32", "bfloat16"))
class deepselect:  # noqa: N801
    @staticmethod
    def call(t, k):
        none, indices = sglang.topk(t["input"], k, end=t["end"])
        assert none is None
        _, offset = sglang.topk(t["input"], k, end=t["end"], output_idx_offset=t["offset"])
        _, vllm_style = sglang.topk(t["input"], k, end=t["end"], idx_oob_fill_value=-1)
        return {"indices": indices, "offset": offset, "vllm": vllm_style}

    @staticmethod
    def check(a, k, o):
        assert o["indices"].dtype == np.int32
        for r in range(ROWS):
            found = best(a["input"][r], 0, int(a["end"][r]), k)
            same(o["indices"][r], found, FILL)
            same(o["offset"][r], [i + int(a["offset"][r]) for i in found], FILL)
            same(o["vllm"][r], found)


@case(_deepselect_inputs)
class deepselect_sorted_values:  # noqa: N801
    @staticmethod
    def call(t, k):
        values, indices = sglang.topk(
            t["input"], k, sorted=True, end=t["end"], indices_type=torch.int64, output_idx=t["out"], return_value=True,
            value_oob_fill_value=-7.0,
        )  # fmt: skip
        assert indices is t["out"]
        return {"values": values, "indices": indices}

    @staticmethod
    def check(a, k, o):
        assert o["indices"].dtype == np.int64
        for r in range(ROWS):
            found = best(a["input"][r], 0, int(a["end"][r]), k)
            found.sort(key=lambda i: -a["input"][r, i])
            same_in_order(o["indices"][r], found, FILL)
            same_in_order(o["values"][r], a["input"][r, found].tolist(), -7)


@case(_deepselect_inputs)
class deepselect_sorted_index_of_a_window:  # noqa: N801
    @staticmethod
    def call(t, k):
        _, indices = sglang.topk(t["input"], k, begin=t["begin"], end=t["end_of_window"], sorted_index=True)
        return {"indices": indices}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            start = int(a["begin"][r])
            found = best(a["input"][r], start, int(a["end_of_window"][r]), k)
            same_in_order(o["indices"][r], [start + i for i in found], FILL)


@case(lambda rng, width, k, dtype: {"input": scores_of(rng, ROWS, k - 5, dtype)})
class deepselect_more_slots_than_scores:  # noqa: N801
    @staticmethod
    def call(t, k):
        values, indices = sglang.topk(t["input"], k, return_value=True)
        return {"values": values, "indices": indices}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            same(o["indices"][r], list(range(k - 5)), FILL)
            assert (o["values"][r, : k - 5] == a["input"][r, o["indices"][r, : k - 5]]).all()
            assert (o["values"][r, k - 5 :] == -np.inf).all()


# ---- FlashInfer ------------------------------------------------------------------------------------------------


@case(lambda rng, width, k, dtype: {"input": scores_of(rng, ROWS, width, dtype)}, ("float32", "float16", "bfloat16"))
class flashinfer_top_k:  # noqa: N801
    @staticmethod
    def call(t, k):
        values, indices = flashinfer.top_k(t["input"], k)
        best_first, where = flashinfer.top_k(t["input"], k, sorted=True, deterministic=True, dsa_graph_safe=True)
        return {"values": values, "indices": indices, "sorted values": best_first, "sorted": where}

    @staticmethod
    def check(a, k, o):
        assert o["indices"].dtype == o["sorted"].dtype == np.int64
        for r, row in enumerate(a["input"]):
            found = best(row, 0, len(row), k)
            same(o["indices"][r], found)
            assert (o["values"][r] == row[o["indices"][r]]).all(), "values belong to their indices"
            found.sort(key=lambda i: -row[i])
            same_in_order(o["sorted"][r], found)
            assert (o["sorted values"][r] == row[found]).all()


def _tied_inputs(rng, width, k, dtype):
    scores = rng.integers(-3, 3, (ROWS, width)).astype(np.float32)
    scores[0] = 0
    return {"input": scores, "lengths": lengths_of(rng, ROWS, width, k), "offsets": np.arange(ROWS, dtype=np.int32)}


@case(_tied_inputs, ("float32", "float16", "bfloat16"))
class flashinfer_tie_breaks:  # noqa: N801
    @staticmethod
    def call(t, k):
        x, n, zero = t["input"], t["lengths"], t["offsets"] * 0
        return {
            "any": flashinfer.top_k_ragged_transform(x, zero, n, k),
            "small": flashinfer.top_k_ragged_transform(x, zero, n, k, tie_break=1),
            "large": flashinfer.top_k_ragged_transform(x, zero, n, k, deterministic=True, tie_break=2),
            "deterministic": flashinfer.top_k_ragged_transform(x, zero, n, k, deterministic=True),
        }

    @staticmethod
    def check(a, k, o):
        for r, row in enumerate(a["input"]):
            window = row[: min(max(int(a["lengths"][r]), 0), len(row))]
            low = sorted(np.argsort(-window, kind="stable")[:k].tolist())
            high = sorted((len(window) - 1 - np.argsort(-window[::-1], kind="stable")[:k]).tolist())
            same(o["small"][r], low)
            same_in_order(o["large"][r], high)
            same_in_order(o["deterministic"][r], low)
            free = o["any"][r, : len(low)]
            assert len(set(free.tolist())) == len(low) and (o["any"][r, len(low) :] == -1).all()
            assert sorted(window[free]) == sorted(window[low])


def _table_inputs(page_size, requests):
    def inputs(rng, width, k, dtype):
        entries = -(-width // page_size)
        return {
            "input": scores_of(rng, ROWS, width, dtype),
            "lengths": lengths_of(rng, ROWS, width, k),
            "starts": rng.integers(0, width // 2, ROWS).astype(np.int32),
            # Starts so late that some lookups fall outside the table.
            "table_starts": rng.integers(0, entries // 2, ROWS).astype(np.int32),
            "row_to_batch": rng.integers(-1, requests + 1, ROWS).astype(np.int32),
            "table": table_of(rng, requests, entries),
            "out": buffer(ROWS, k),
            "raw": buffer(ROWS, k),
        }

    return inputs


def _lookup(a, r, batch, first_entry, found, page_size):
    """FlashInfer's formula; where it would read outside the table, -1."""
    table = a["table"]
    out = []
    for i in found:
        entry = first_entry + i // page_size
        inside = 0 <= batch < table.shape[0] and entry < table.shape[1]
        out.append(int(table[batch, entry]) * page_size + i % page_size if inside else -1)
    return out


@case(_table_inputs(1, ROWS))
class flashinfer_page_table:  # noqa: N801
    @staticmethod
    def call(t, k):
        out = flashinfer.top_k_page_table_transform(t["input"], t["table"], t["lengths"], k)
        windows = flashinfer.top_k_page_table_transform(
            t["input"], t["table"], t["lengths"], k, row_starts=t["starts"], dsa_graph_safe=True
        )
        raw = flashinfer.top_k_page_table_transform(
            t["input"], t["table"], t["lengths"], k, row_starts=t["starts"], out=t["out"], out_raw_indices=t["raw"]
        )
        assert raw is t["out"]
        return {"out": out, "windows": windows, "out of raw": t["out"], "raw": t["raw"]}

    @staticmethod
    def check(a, k, o):
        assert o["out"].dtype == np.int32
        for r in range(ROWS):
            found = best(a["input"][r], 0, int(a["lengths"][r]), k)
            same(o["out"][r], _lookup(a, r, r, 0, found, 1))
            start, end = ends_of(a, r)
            found = best(a["input"][r], start, end, k)
            looked_up = _lookup(a, r, r, start, found, 1)
            same(o["windows"][r], looked_up)
            same(o["out of raw"][r], looked_up)
            same(o["raw"][r], found)
            raw = o["raw"][r, : len(found)]
            assert (o["out of raw"][r, : len(found)] == a["table"][r, start + raw]).all(), "slot for slot"


@case(_table_inputs(16, 5))
class flashinfer_page_table_of_pages:  # noqa: N801
    @staticmethod
    def call(t, k):
        def transform(**options):
            return flashinfer.top_k_page_table_transform(
                t["input"], t["table"], t["lengths"], k, row_to_batch=t["row_to_batch"], page_size=16, **options
            )

        into = transform(out=t["out"], out_raw_indices=t["raw"])
        assert into is t["out"]
        both = transform(row_starts=t["starts"], page_table_row_starts=t["table_starts"], deterministic=True)
        entries = transform(page_table_row_starts=t["table_starts"], tie_break=1)
        return {"out": into, "raw": t["raw"], "both": both, "entries": entries}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            batch, first_entry = int(a["row_to_batch"][r]), int(a["table_starts"][r])
            found = best(a["input"][r], 0, int(a["lengths"][r]), k)
            same(o["raw"][r], found)
            in_slots = o["raw"][r, : len(found)].tolist()
            same_in_order(o["out"][r], _lookup(a, r, batch, 0, in_slots, 16))
            same(o["entries"][r], _lookup(a, r, batch, first_entry, found, 16))
            found = best(a["input"][r], *ends_of(a, r), k)
            same_in_order(o["both"][r], _lookup(a, r, batch, first_entry, found, 16))


@case(_ragged_inputs, ("float32", "float16"))
class flashinfer_ragged:  # noqa: N801
    @staticmethod
    def call(t, k):
        return {
            "out": flashinfer.top_k_ragged_transform(t["score"], t["offsets"], t["lengths"], k),
            "windows": flashinfer.top_k_ragged_transform(
                t["score"], t["offsets"], t["lengths"], k, deterministic=True, row_starts=t["starts"]
            ),
        }

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            offset = int(a["offsets"][r])
            same(o["out"][r], [i + offset for i in best(a["score"][r], 0, int(a["lengths"][r]), k)])
            same_in_order(o["windows"][r], [i + offset for i in best(a["score"][r], *ends_of(a, r), k)])


def _varlen(name, next_n, ratio, values, dtypes=("float32",)):
    def inputs(rng, width, k, dtype):
        return {
            "logits": scores_of(rng, ROWS, width, dtype),
            "seq_lens": lengths_of(rng, ROWS // next_n, width * ratio, k * ratio),
            "out": buffer(ROWS, k),
            "values": np.full((ROWS, k), 99, np.float32),
        }

    def call(t, k):
        if not values:
            indices, none = flashinfer.top_k_varlen(
                t["logits"], t["seq_lens"], k, compress_ratio=ratio, next_n=next_n, backend="radix"
            )
            assert none is None
            return {"indices": indices}
        picked = t["values"].to(t["logits"].dtype) if t["values"].dtype != t["logits"].dtype else t["values"]
        indices, found = flashinfer.top_k_varlen(
            t["logits"], t["seq_lens"], k, compress_ratio=ratio, next_n=next_n, return_values=True,
            out_indices=t["out"], out_values=picked,
        )  # fmt: skip
        assert indices is t["out"] and found is picked
        return {"indices": indices, "values": found}

    def check(a, k, o):
        assert o["indices"].dtype == np.int32
        for r, row in enumerate(a["logits"]):
            end = (int(a["seq_lens"][r // next_n]) - next_n + 1 + r % next_n) // ratio
            found = best(row, 0, end, k)
            same(o["indices"][r], found)
            if values:
                picked = o["values"][r]
                assert (picked[: len(found)] == row[o["indices"][r, : len(found)]]).all()
                assert (picked[len(found) :] == -np.inf).all()

    CASES.append(Case(name, inputs, call, check, dtypes))


_varlen("flashinfer_varlen", 1, 1, values=False, dtypes=("float32", "float16", "bfloat16"))
_varlen("flashinfer_varlen_next_n_values", 2, 1, values=True, dtypes=("float32", "bfloat16"))
_varlen("flashinfer_varlen_compressed", 1, 4, values=True)
_varlen("flashinfer_varlen_compressed_next_n", 3, 4, values=False)


# ---- running one -----------------------------------------------------------------------------------------------

SCORES = ("logits", "score", "scores", "input")


def make(case: Case, seed: int, width: int, k: int, dtype: str) -> Arrays:
    """Inputs of a case, as NumPy arrays."""
    return case.inputs(np.random.default_rng(seed), width, k, dtype)


def to_tensors(arrays: Arrays, dtype: str, device: str, pad: int = 3) -> Arrays:
    """The same on a device; scores in their dtype, in rows of an odd pitch."""
    tensors = {}
    for name, array in arrays.items():
        tensor = torch.from_numpy(array.copy()).to(device)
        if name in SCORES:
            rows, width = array.shape
            padded = torch.full((rows, width + pad), float("nan"), dtype=getattr(torch, dtype), device=device)
            padded[:, :width] = tensor
            tensor = padded[:, :width]
        tensors[name] = tensor
    return tensors


def refill(tensors: Arrays, arrays: Arrays) -> None:
    """Put other inputs where the old ones were."""
    for name, array in arrays.items():
        tensors[name].copy_(torch.from_numpy(array))


def to_arrays(outputs: Arrays) -> Arrays:
    """Outputs as NumPy arrays; 16-bit floats widened."""
    return {
        name: (t.float() if t.dtype in (torch.float16, torch.bfloat16) else t).cpu().numpy()
        for name, t in outputs.items()
    }


def warm(position: int, width: int, k: int, dtype: str) -> None:
    """Make a case's call on the GPU once, for the kernels that it leaves in the disk cache."""
    chosen = CASES[position]
    chosen.call(to_tensors(make(chosen, 0, width, k, dtype), dtype, "cuda"), k)
