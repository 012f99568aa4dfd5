"""The forms in which the engines call the adapters, and the options that each passes to `ksieve.topk`.

The adapters themselves are called, on tensors of a few elements, and their selections are stopped before they run:
so the options are those of the code that serves. Numbers that no kernel is compiled for, such as a page size, are any.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ksieve.adapters import _select
from ksieve.adapters._rows import on_cuda
from ksieve.core import call as calls
from ksieve.core.options import Options
from ksieve.core.problem import Problem

_ROWS, _WIDTH, _K = 4, 8, 2

Form = tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], Any]
"""Name of an adapter's function, its arguments without the scores, which come first, and these if not of a matrix."""


class _SeenError(Exception):
    """Stops a selection whose options are known."""


def _vector(count: int = _ROWS) -> Any:
    return torch.ones(count, dtype=torch.int32)


def _out() -> Any:
    return torch.zeros(_ROWS, _K, dtype=torch.int32)


def _table(rows: int = _ROWS) -> Any:
    return torch.zeros(rows, _WIDTH, dtype=torch.int32)


def _vllm() -> Iterator[Form]:
    both = {"indices": _out(), "numRows": _ROWS, "stride0": _WIDTH, "stride1": 1, "topK": _K}
    yield "top_k_per_row_prefill", {"rowStarts": _vector(), "rowEnds": _vector(), **both}
    for next_n in (1, 2):
        yield "top_k_per_row_decode", {"next_n": next_n, "seq_lens": _vector(_ROWS // next_n), **both}
    flat = {"lengths": _vector(), "output": _out(), "workspace": None, "k": _K, "max_seq_len": _WIDTH}
    yield "persistent_topk", flat
    yield "cooperative_topk", flat
    yield "deep_select_topk", {"topk": _K, "end": _vector(), "output_idx": _out()}


def _sglang() -> Iterator[Form]:
    for starts in (None, _vector()):
        fast = {"lengths": _vector(), "topk": _K, "row_starts": starts}
        yield "fast_topk_v2", fast
        for requests in (_ROWS, 2):
            pages = {"page_table_size_1": _table(requests), "cu_seqlens_q": torch.arange(requests + 1)}
            yield "fast_topk_transform_fused", fast | pages
        yield "fast_topk_transform_ragged_fused", {**fast, "topk_indices_offset": _vector()}
        yield "topk_transform_ragged_v2", {
            "seq_lens": _vector(), "out_offsets": _vector(), "out_indices": _out(), "row_starts": starts
        }  # fmt: skip
    for table, raw in itertools.product((None, _table()), (None, _out())):
        paged = {"seq_lens": _vector(), "page_tables": table, "out_page_indices": _out(), "page_size": 1}
        yield "topk_transform_paged", {**paged, "out_raw_indices": raw}
        yield "topk_transform_paged_v2", {**paged, "out_raw_indices": raw, "metadata": None}
    small = {"seq_lens": _vector(), "page_table": _table(), "out_page_indices": _out(), "page_size": 1}
    yield "topk_transform_bf16_small", small
    yield "amax_topk_blocks", {"seq_lens": _vector(), "nblocks": _vector(), "topk_blocks": _K}
    for end, by_index in itertools.product((None, _vector()), (False, True)):
        pages = {"topk": _K, "page_table": _table(), "page_size": 1}
        yield "topk_page_transform", {**pages, "end": end, "sorted_index": by_index}
    yield from _pools()
    orders: tuple[dict[str, bool], ...] = ({}, {"sorted": True}, {"sorted_index": True})
    for order, end, values, indices in itertools.product(
        orders, (None, _vector()), (False, True), (torch.int32, torch.int64)
    ):
        yield "topk", {"topk": _K, "end": end, "return_value": values, "indices_type": indices, **order}


def _pools() -> Iterator[Form]:
    """SGLang's calls for pools of positions."""
    where: tuple[dict[str, Any], ...] = ({}, {"offsets": _vector()}, {"table": _table()})
    mapped = {"table": _table(), "row": _vector()}
    names = {"offsets": "topk_indices_offset", "table": "page_table", "row": "page_table_row_index"}
    for starts, tail, maps in itertools.product((None, _vector()), (None, _vector()), (*where, mapped)):
        yield "fast_kpool_topk_transform_fused", {
            "lengths": _vector(), "kpool": 2, "topk": 2 * _K, "row_starts": starts, "seq_lens": tail,
            **{names[name]: array for name, array in maps.items()},
        }  # fmt: skip
        out = torch.zeros(_ROWS, 2 * _K + (tail is not None), dtype=torch.int32)
        pools = {
            "pool_lens": _vector(), "out": out, "pool_size": 2, "token_seq_lens": tail,
            **{names[name] if name != "offsets" else "out_offsets": array for name, array in maps.items()},
        }  # fmt: skip
        yield "topk_transform_kpool_ragged_v2", {**pools, "row_starts": starts}
        if starts is None and maps is not mapped:
            yield "topk_transform_kpool_v2", {**pools, "metadata": None}


def _flashinfer() -> Iterator[Form]:
    for deterministic, ties in itertools.product((False, True), (0, 1, 2)):
        order = {"k": _K, "deterministic": deterministic, "tie_break": ties}
        for by_value in (False, True):
            yield "top_k", {"sorted": by_value, **order}
        for starts in (None, _vector()):
            window = {"lengths": _vector(), "row_starts": starts, **order}
            yield "top_k_ragged_transform", {"offsets": _vector(), **window}
            for request, raw in itertools.product((None, _vector()), (None, _out())):
                pages = {"src_page_table": _table(), "row_to_batch": request, "out_raw_indices": raw}
                yield "top_k_page_table_transform", pages | window
    for next_n, values in itertools.product((1, 2), (False, True)):
        lengths = _vector(_ROWS // next_n)
        yield "top_k_varlen", {"seq_lens": lengths, "top_k": _K, "next_n": next_n, "return_values": values}
    for values, absolute in itertools.product((False, True), (False, True)):
        window = {"seq_lens": _vector(), "row_starts": _vector(), "absolute_indices": absolute}
        yield "top_k_varlen", {**window, "top_k": _K, "return_values": values}
    for first, last in itertools.product((0, 1), (0, 1)):
        forced = {"force_begin_blocks": first, "force_end_blocks": last}
        yield "msa_topk_select", {"topk": _K, **forced}, torch.zeros(1, _WIDTH, _ROWS)
        yield "msa_topk_select", {"topk": _K, "num_valid_pages": _vector(), **forced}, torch.zeros(1, _WIDTH, _ROWS)


def _tensorrt_llm() -> Iterator[Form]:
    yield "indexer_topk_prefill", {
        "row_starts": _vector(), "row_ends": _vector(), "indices": _out(), "index_topk": _K
    }  # fmt: skip
    for next_n, ratio in itertools.product((1, 2), (1, 4)):
        yield "indexer_topk_decode", {
            "seq_lens": _vector(_ROWS // next_n), "indices": _out(), "next_n": next_n, "index_topk": _K,
            "compress_ratio": ratio,
        }  # fmt: skip


FORMS: dict[str, Callable[[], Iterator[Form]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "flashinfer": _flashinfer,
    "tensorrt_llm": _tensorrt_llm,
}


def options_of(engine: str) -> tuple[Options, ...]:
    """Return the distinct options for which an engine's calls take kernels; with "all" those of every engine."""
    engines = tuple(FORMS) if engine == "all" else (engine,)
    asked = [seen(name, *form).options for name in engines for form in FORMS[name]()]
    return tuple(dict.fromkeys(options for options in asked if on_cuda(options)))


def seen(engine: str, function: str, arguments: dict[str, Any], scores: Any = None) -> Problem:
    """Return the selection that a call of an adapter makes; it does not run."""
    call = getattr(importlib.import_module(f"ksieve.adapters.{engine}"), function)
    thread, before, found = threading.get_ident(), _select.observer, []

    def observe(key: Any, scores: Any, lengths: Any, k: Any, out: Any, options: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            found.append(calls.parse(scores, lengths, k, out=out, keywords=options).problem)
            raise _SeenError
        if before is not None:
            before(key, scores, lengths, k, out, options)

    _select.observer = observe
    try:
        with contextlib.suppress(_SeenError):
            call(torch.zeros(_ROWS, _WIDTH) if scores is None else scores, **arguments)
    finally:
        _select.observer = before
    return found[0]
