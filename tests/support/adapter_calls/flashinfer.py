"""FlashInfer's calls, and what its documentation says of them."""

from __future__ import annotations

import numpy as np
import torch

from adapter_calls.base import (
    ROWS,
    Slots,
    best,
    buffer,
    case,
    lengths_of,
    of_rows,
    prefix,
    scores_of,
    table_of,
    values_of,
    window,
)
from ksieve.adapters import flashinfer


def _of_row(a, k, r, o):
    row = a["scores"][r]
    found = best(row, 0, len(row), k)
    ordered = sorted(found, key=lambda i: -row[i])
    return {
        "indices": found, "values": values_of(a, r, o["indices"], found),
        "sorted": Slots(ordered), "sorted values": values_of(a, r, o["sorted"], ordered),
    }  # fmt: skip


@case(of_rows, _of_row, "float32", "float16", "bfloat16")
def flashinfer_top_k(t, k):
    values, indices = flashinfer.top_k(t["scores"], k)
    best_first, where = flashinfer.top_k(t["scores"], k, sorted=True, deterministic=True, dsa_graph_safe=True)
    assert indices.dtype is where.dtype is torch.int64
    return {"values": values, "indices": indices, "sorted values": best_first, "sorted": where}


def _tied_inputs(rng, width, k, dtype):
    scores = rng.integers(-3, 3, (ROWS, width)).astype(np.float32)
    scores[0] = 0
    return {"scores": scores, "lengths": lengths_of(rng, ROWS, width, k), "offsets": np.arange(ROWS, dtype=np.int32)}


def _tied(a, k, r, o):
    row = a["scores"][r, : max(int(a["lengths"][r]), 0)]
    low = sorted(np.argsort(-row, kind="stable")[:k].tolist())
    high = sorted((len(row) - 1 - np.argsort(-row[::-1], kind="stable")[:k]).tolist())
    free = o["any"][: len(low)].tolist()
    assert len(set(free)) == len(low) and sorted(row[free]) == sorted(row[low])
    return {"any": free, "small": low, "large": Slots(high), "deterministic": Slots(low)}


@case(_tied_inputs, _tied, "float32", "float16", "bfloat16")
def flashinfer_tie_breaks(t, k):
    x, n, zero = t["scores"], t["lengths"], t["offsets"] * 0
    return {
        "any": flashinfer.top_k_ragged_transform(x, zero, n, k),
        "small": flashinfer.top_k_ragged_transform(x, zero, n, k, tie_break=1),
        "large": flashinfer.top_k_ragged_transform(x, zero, n, k, deterministic=True, tie_break=2),
        "deterministic": flashinfer.top_k_ragged_transform(x, zero, n, k, deterministic=True),
    }


def _table_inputs(page_size, requests):
    def inputs(rng, width, k, dtype):
        entries = -(-width // page_size)
        table = table_of(rng, requests, entries)
        if page_size > 1:
            table[:, ::5] = rng.choice([-1, -(2**31)])  # no page
        return of_rows(rng, width, k, dtype) | {
            # Starts so late that some lookups fall outside the table.
            "table_starts": rng.integers(0, entries // 2, ROWS).astype(np.int32),
            "row_to_batch": rng.integers(-1, requests + 1, ROWS).astype(np.int32),
            "table": table,
        }

    return inputs


def _lookup(a, batch, first_entry, found, page_size):
    """FlashInfer's formula; where it would read outside the table, or an entry is negative, -1."""
    table = a["table"]
    out = []
    for i in found:
        entry = first_entry + i // page_size
        inside = 0 <= batch < table.shape[0] and entry < table.shape[1] and table[batch, entry] >= 0
        out.append(int(table[batch, entry]) * page_size + i % page_size if inside else -1)
    return out


def _table(a, k, r, o):
    found, start = window(a, r, k), int(a["starts"][r])
    return {
        "out": _lookup(a, r, 0, prefix(a, r, k), 1), "windows": _lookup(a, r, start, found, 1), "raw": found,
        "of raw": Slots(_lookup(a, r, start, o["raw"][: len(found)].tolist(), 1)),
    }  # fmt: skip


@case(_table_inputs(1, ROWS), _table)
def flashinfer_page_table(t, k):
    pages, windows = (t["scores"], t["table"], t["lengths"], k), {"row_starts": t["starts"]}
    out = flashinfer.top_k_page_table_transform(*pages)
    assert out.dtype is torch.int32
    of_raw = flashinfer.top_k_page_table_transform(*pages, **windows, out=t["out"], out_raw_indices=t["raw"])
    assert of_raw is t["out"]
    windows = flashinfer.top_k_page_table_transform(*pages, **windows, dsa_graph_safe=True)
    return {"out": out, "windows": windows, "of raw": of_raw, "raw": t["raw"]}


def _table_of_pages(a, k, r, o):
    batch, first_entry, found = int(a["row_to_batch"][r]), int(a["table_starts"][r]), prefix(a, r, k)
    return {
        "raw": found, "out": Slots(_lookup(a, batch, 0, o["raw"][: len(found)].tolist(), 16)),
        "entries": _lookup(a, batch, first_entry, found, 16),
        "both": Slots(_lookup(a, batch, first_entry, window(a, r, k), 16)),
    }  # fmt: skip


@case(_table_inputs(16, 5), _table_of_pages)
def flashinfer_page_table_of_pages(t, k):
    def transform(**options):
        return flashinfer.top_k_page_table_transform(
            t["scores"], t["table"], t["lengths"], k, row_to_batch=t["row_to_batch"], page_size=16, **options
        )

    into = transform(out=t["out"], out_raw_indices=t["raw"])
    assert into is t["out"]
    both = transform(row_starts=t["starts"], page_table_row_starts=t["table_starts"], deterministic=True)
    entries = transform(page_table_row_starts=t["table_starts"], tie_break=1)
    return {"out": into, "raw": t["raw"], "both": both, "entries": entries}


def _ragged(a, k, r, o):
    offset = int(a["offsets"][r])
    return {"out": [i + offset for i in prefix(a, r, k)], "windows": Slots([i + offset for i in window(a, r, k)])}


@case(of_rows, _ragged, "float32", "float16")
def flashinfer_ragged(t, k):
    rows = (t["scores"], t["offsets"], t["lengths"], k)
    windows = flashinfer.top_k_ragged_transform(*rows, deterministic=True, row_starts=t["starts"])
    return {"out": flashinfer.top_k_ragged_transform(*rows), "windows": windows}


def _varlen(name, next_n, ratio, *dtypes, values=True, backend="auto", fill=-np.inf):
    def inputs(rng, width, k, dtype):
        lengths = lengths_of(rng, ROWS // next_n, width * ratio, k * ratio)
        return of_rows(rng, width, k, dtype) | {"lengths": lengths, "values": np.full((ROWS, k), 99, np.float32)}

    def row(a, k, r, o):
        end = (int(a["lengths"][r // next_n]) - next_n + 1 + r % next_n) // ratio
        found = best(a["scores"][r], 0, end, k)
        return {"indices": found} | ({"values": values_of(a, r, o["indices"], found, fill)} if values else {})

    @case(inputs, row, *dtypes, name=name)
    def call(t, k):
        rows = {"compress_ratio": ratio, "next_n": next_n}
        if not values:
            indices, none = flashinfer.top_k_varlen(t["scores"], t["lengths"], k, **rows, backend="radix")
            assert none is None and indices.dtype is torch.int32
            return {"indices": indices}
        picked = t["values"].to(t["scores"].dtype)
        indices, found = flashinfer.top_k_varlen(
            t["scores"], t["lengths"], k, **rows, return_values=True, out_indices=t["out"], out_values=picked,
            backend=backend, skip_check=True,
        )  # fmt: skip
        assert indices is t["out"] and found is picked
        return {"indices": indices, "values": found}


_varlen("flashinfer_varlen", 1, 1, "float32", "float16", "bfloat16", values=False)
_varlen("flashinfer_varlen_next_n_values", 2, 1, "float32", "bfloat16")
_varlen("flashinfer_varlen_compressed", 1, 4)
_varlen("flashinfer_varlen_compressed_next_n", 3, 4, values=False)
_varlen("flashinfer_varlen_radix_cutlass", 1, 1, backend="radix_cutlass", fill=0)


def _windows_inputs(rng, width, k, dtype):
    outputs = {"flat": buffer(1, ROWS * k)[0], "values": np.zeros((ROWS, k), np.float32)}
    return of_rows(rng, width, k, dtype) | outputs


def _windows(a, k, r, o):
    found, start = window(a, r, k), int(a["starts"][r])
    values = values_of(a, r, o["absolute"], found)
    return {"relative": found, "absolute": [start + i for i in found], "values": values}


@case(_windows_inputs, _windows)
def flashinfer_varlen_windows(t, k):
    x, lengths, starts = t["scores"], t["lengths"], t["starts"]
    relative, none = flashinfer.top_k_varlen(x, lengths, k, row_starts=starts, max_seq_len=5, out_indices=t["flat"])
    assert none is None and relative.data_ptr() == t["flat"].data_ptr()
    absolute, values = flashinfer.top_k_varlen(
        x, lengths, k, row_starts=starts, absolute_indices=True, return_values=True, out_values=t["values"]
    )
    return {"relative": relative, "absolute": absolute, "values": values}


HEADS, TOKENS = 2, ROWS // 2


def _msa_inputs(rng, width, k, dtype):
    scores = scores_of(rng, ROWS, width, dtype).reshape(TOKENS, HEADS, width).transpose(1, 2, 0)
    valid = np.array([width + 5, k // 2, 0, 1, width, -1], np.int32)
    return {"max_score": np.ascontiguousarray(scores), "valid": valid, "out": buffer(ROWS, k).reshape(TOKENS, HEADS, k)}


def _msa(name, first, last):
    def row(a, k, r, o):
        (token, head), blocks = divmod(r, HEADS), a["max_score"].shape[1]

        def slots(valid):
            n = min(max(int(valid), 0), blocks)
            row = a["max_score"][head, :n, token].copy()
            row[:first] = row[max(n - last, 0) :] = np.inf
            return Slots(best(row, 0, n, k))

        return {"out": slots(blocks), "few": slots(max(first + last, blocks // 2)), "each": slots(a["valid"][token])}

    @case(_msa_inputs, row, name=name)
    def call(t, k):
        ends = {"force_begin_blocks": first, "force_end_blocks": last}
        few = max(first + last, t["max_score"].shape[1] // 2)
        assert flashinfer.msa_topk_select(t["max_score"], k, output=t["out"], **ends) is t["out"]
        valid = {"few": few, "each": t["valid"]}
        found = {name: flashinfer.msa_topk_select(t["max_score"], k, n, **ends) for name, n in valid.items()}
        return {name: slots.flatten(0, 1) for name, slots in ({"out": t["out"]} | found).items()}


_msa("flashinfer_msa", 0, 0)
_msa("flashinfer_msa_forced", 1, 2)
