"""FlashInfer's calls, and what its documentation says of them."""

from __future__ import annotations

import numpy as np

from adapter_calls.base import (
    CASES,
    ROWS,
    Case,
    best,
    buffer,
    case,
    ends_of,
    lengths_of,
    ragged_inputs,
    same,
    same_in_order,
    scores_of,
    table_of,
)
from ksieve.adapters import flashinfer


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
        table = table_of(rng, requests, entries)
        if page_size > 1:
            table[:, ::5] = rng.choice([-1, -(2**31)])  # no page
        return {
            "input": scores_of(rng, ROWS, width, dtype),
            "lengths": lengths_of(rng, ROWS, width, k),
            "starts": rng.integers(0, width // 2, ROWS).astype(np.int32),
            # Starts so late that some lookups fall outside the table.
            "table_starts": rng.integers(0, entries // 2, ROWS).astype(np.int32),
            "row_to_batch": rng.integers(-1, requests + 1, ROWS).astype(np.int32),
            "table": table,
            "out": buffer(ROWS, k),
            "raw": buffer(ROWS, k),
        }

    return inputs


def _lookup(a, r, batch, first_entry, found, page_size):
    """FlashInfer's formula; where it would read outside the table, or an entry is negative, -1."""
    table = a["table"]
    out = []
    for i in found:
        entry = first_entry + i // page_size
        inside = 0 <= batch < table.shape[0] and entry < table.shape[1] and table[batch, entry] >= 0
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


@case(ragged_inputs, ("float32", "float16"))
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


def _varlen(name, next_n, ratio, values, dtypes=("float32",), backend="auto", fill=-np.inf):
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
            out_indices=t["out"], out_values=picked, backend=backend, skip_check=True,
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
                assert (picked[len(found) :] == fill).all()

    CASES.append(Case(name, inputs, call, check, dtypes))


_varlen("flashinfer_varlen", 1, 1, values=False, dtypes=("float32", "float16", "bfloat16"))
_varlen("flashinfer_varlen_next_n_values", 2, 1, values=True, dtypes=("float32", "bfloat16"))
_varlen("flashinfer_varlen_compressed", 1, 4, values=True)
_varlen("flashinfer_varlen_compressed_next_n", 3, 4, values=False)
_varlen("flashinfer_varlen_radix_cutlass", 1, 1, values=True, backend="radix_cutlass", fill=0)


def _windows_inputs(rng, width, k, dtype):
    return ragged_inputs(rng, width, k, dtype) | {
        "flat": buffer(1, ROWS * k)[0],
        "values": np.zeros((ROWS, k), np.float32),
    }


@case(_windows_inputs)
class flashinfer_varlen_windows:  # noqa: N801
    @staticmethod
    def call(t, k):
        x, lengths, starts = t["score"], t["lengths"], t["starts"]
        relative, none = flashinfer.top_k_varlen(x, lengths, k, row_starts=starts, max_seq_len=5, out_indices=t["flat"])
        assert none is None and relative.data_ptr() == t["flat"].data_ptr()
        absolute, values = flashinfer.top_k_varlen(
            x, lengths, k, row_starts=starts, absolute_indices=True, return_values=True, out_values=t["values"]
        )
        return {"relative": relative, "absolute": absolute, "values": values}

    @staticmethod
    def check(a, k, o):
        for r in range(ROWS):
            start = int(a["starts"][r])
            found = best(a["score"][r], *ends_of(a, r), k)
            same(o["relative"][r], found)
            same(o["absolute"][r], [start + i for i in found])
            assert (o["values"][r, : len(found)] == a["score"][r, o["absolute"][r, : len(found)]]).all()
            assert (o["values"][r, len(found) :] == -np.inf).all()


HEADS, TOKENS = 2, ROWS // 2


def _msa_inputs(rng, width, k, dtype):
    scores = scores_of(rng, ROWS, width, dtype).reshape(TOKENS, HEADS, width).transpose(1, 2, 0)
    valid = np.array([width + 5, k // 2, 0, 1, width, -1], np.int32)
    return {"max_score": np.ascontiguousarray(scores), "valid": valid, "out": buffer(ROWS, k).reshape(TOKENS, HEADS, k)}


def _msa(name, first, last):
    def call(t, k):
        ends = {"force_begin_blocks": first, "force_end_blocks": last}
        few = max(first + last, t["max_score"].shape[1] // 2)
        out = flashinfer.msa_topk_select(t["max_score"], k, output=t["out"], **ends)
        assert out is t["out"]
        return {
            "out": out,
            "few": flashinfer.msa_topk_select(t["max_score"], k, few, **ends),
            "each": flashinfer.msa_topk_select(t["max_score"], k, t["valid"], **ends),
        }

    def check(a, k, o):
        blocks = a["max_score"].shape[1]
        valid = {"out": [blocks] * TOKENS, "few": [max(first + last, blocks // 2)] * TOKENS, "each": a["valid"]}
        for name, slots in o.items():
            for token, head in np.ndindex(TOKENS, HEADS):
                n = min(max(int(valid[name][token]), 0), blocks)
                row = a["max_score"][head, :n, token].copy()
                row[:first] = row[max(n - last, 0) :] = np.inf
                same_in_order(slots[token, head], best(row, 0, n, k))

    CASES.append(Case(name, _msa_inputs, call, check))


_msa("flashinfer_msa", 0, 0)
_msa("flashinfer_msa_forced", 1, 2)
