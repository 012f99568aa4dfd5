"""The options' part of the fast path: their arrays, checked and packed, or None for the general path to judge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ksieve.backends.cuda.option_args import constants
from ksieve.core.options import Options
from ksieve.planning.plan import Plan

Spans = list[tuple[int, int]]
"""First byte and one past the last byte of arrays."""

Packer = Callable[[Mapping[str, Any], Any, int, Spans, Spans], "tuple[tuple[int, ...], tuple[Any, ...]] | None"]
"""Called with (keywords, scores, rows, inputs, outputs); the spans of the scores and lengths, and that of a given
`out`. Returns the fields of `launch.OPTIONS` and the further outputs, or None without any effect. It may raise where
it should return None: a table that is no matrix, a wrapped tensor."""


ARRAYS = frozenset(("starts", "ends", "page_table", "row_to_request", "offsets", "values_out", "raw_out"))
"""Optional arguments of a fast path that are arrays."""


def covers(options: Options, names: Collection[str]) -> bool:
    """Whether calls with options, and with the arrays `names`, can have a fast path."""
    others = options.per_row_k or options.entries or options.positions or options.counts or options.tail
    return options.length_dtype == "int32" and not others and ARRAYS.issuperset(names)


def make_packer(plan: Plan, names: Collection[str], device: Any) -> Packer:
    """Make the packer of calls that pass the arrays `names`; a closure, as the fast path is."""
    import torch

    from ksieve.core import gradients  # imports PyTorch

    options, slots, index = plan.problem.options, plan.problem.k, plan.problem.device.index
    tensor, int32, empty = torch.Tensor, torch.int32, torch.empty
    index_dtype = getattr(torch, options.index_dtype)
    dtypes = {"values": getattr(torch, plan.problem.dtype), "raw": index_dtype}
    further = [name for name in ("values", "raw") if getattr(options, name)]
    vectors = [name if name in names else "" for name in ("starts", "row_to_request", "offsets")]
    paged, given, carrying = "page_table" in names, {n for n in further if f"{n}_out" in names}, options.values
    next_n, shift, flags = constants(options)
    wanted = gradients.wanted

    def pack(
        keywords: Mapping[str, Any], scores: Any, rows: int, inputs: Spans, outputs: Spans
    ) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
        if carrying and wanted(scores):
            return None
        at = []
        for name in vectors:
            if not name:
                at.append(0)
                continue
            vector = keywords[name]
            if (
                type(vector) is not tensor
                or vector.dtype is not int32
                or vector.is_neg()
                or vector.get_device() != index
                or vector.shape != (rows,)
                or not vector.is_contiguous()
                or not (begin := vector.data_ptr())
            ):
                return None
            at.append(begin)
            inputs.append((begin, begin + 4 * rows))
        table_at = requests = pages = table_pitch = 0
        if paged:
            table = keywords["page_table"]
            if type(table) is not tensor or table.dtype is not int32 or table.is_neg() or table.get_device() != index:
                return None
            requests, pages = table.shape
            table_pitch, unit = table.stride()
            table_at = table.data_ptr()
            if (unit != 1 and pages > 1) or not table_at or not 0 < requests < 1 << 31 or not 0 < pages < 1 << 31:
                return None
            inputs.append((table_at, table_at + ((requests - 1) * table_pitch + pages) * 4))
        places, results = [0, 0], []
        pitches = [0, 0]
        for number, name in enumerate(("values", "raw")):
            if name not in further:
                continue
            dtype, pitch = dtypes[name], slots
            if name in given:
                found = keywords[f"{name}_out"]
                if (
                    type(found) is not tensor
                    or found.dtype is not dtype
                    or found.requires_grad
                    or found.is_neg()
                    or found.get_device() != index
                    or found.shape != (rows, slots)
                    or not (begin := found.data_ptr())
                ):
                    return None
                pitch, unit = found.stride()
                if (unit != 1 and slots > 1) or (pitch < slots and rows > 1):
                    return None
                outputs.append((begin, begin + ((rows - 1) * pitch + slots) * dtype.itemsize))
            else:
                found = empty((rows, slots), dtype=dtype, device=device)
            places[number], pitches[number] = found.data_ptr(), pitch
            results.append(found)
        for number, (begin, end) in enumerate(outputs):
            for first, last in (*inputs, *outputs[:number]):
                if first < end and begin < last:
                    return None
        starts_at, requests_at, offsets_at = at
        return (
            starts_at, 0, table_at, requests_at, offsets_at, *places, table_pitch, *pitches, next_n, requests, pages,
            shift, flags, 0,
        ), tuple(results)  # fmt: skip

    return pack
