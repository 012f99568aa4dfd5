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
from ksieve.core import call as calls
from ksieve.core.options import Options
from ksieve.core.problem import Problem

_ROWS, _WIDTH, _K = 4, 8, 2

Form = tuple[str, dict[str, Any]]
"""Name of an adapter's function, and its arguments without the scores, which come first."""


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
        yield "topk_transform_paged_v2", {
            "seq_lens": _vector(), "page_tables": table, "out_page_indices": _out(), "page_size": 1, "metadata": None,
            "out_raw_indices": raw,
        }  # fmt: skip
    orders: tuple[dict[str, bool], ...] = ({}, {"sorted": True}, {"sorted_index": True})
    for order, end, values, indices in itertools.product(
        orders, (None, _vector()), (False, True), (torch.int32, torch.int64)
    ):
        yield "topk", {"topk": _K, "end": end, "return_value": values, "indices_type": indices, **order}


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


FORMS: dict[str, Callable[[], Iterator[Form]]] = {"vllm": _vllm, "sglang": _sglang, "flashinfer": _flashinfer}


def options_of(engine: str) -> tuple[Options, ...]:
    """Return the distinct options that the calls of an engine have, or those of all engines with "all"."""
    engines = tuple(FORMS) if engine == "all" else (engine,)
    asked = [seen(name, *form).options for name in engines for form in FORMS[name]()]
    return tuple(dict.fromkeys(asked))


def seen(engine: str, function: str, arguments: dict[str, Any]) -> Problem:
    """Return the selection that a call of an adapter makes; it does not run."""
    call = getattr(importlib.import_module(f"ksieve.adapters.{engine}"), function)
    thread, before, found = threading.get_ident(), _select.observer, []

    def observe(scores: Any, lengths: Any, k: Any, options: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            keywords = dict(options)
            found.append(calls.parse(scores, lengths, k, out=keywords.pop("out", None), keywords=keywords).problem)
            raise _SeenError
        if before is not None:
            before(scores, lengths, k, options)

    _select.observer = observe
    try:
        with contextlib.suppress(_SeenError):
            call(torch.zeros(_ROWS, _WIDTH), **arguments)
    finally:
        _select.observer = before
    return found[0]
