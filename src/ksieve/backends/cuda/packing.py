"""From a call to the arguments of its launch: output arrays, and the fields of the structs in `runtime.launch`."""

from __future__ import annotations

from typing import Any

from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.runtime.launch import ARRAYS, Arguments, Launcher
from ksieve.core import problem
from ksieve.core.arrays import ArrayInfo
from ksieve.core.call import NUMBERS, Call
from ksieve.core.leading import numbers, of_numbers, of_rows
from ksieve.planning.plan import Plan

_ENDS, _ABSOLUTE, _WIDE, _HIGHEST, _PAGED, _UNFILLED, _WIDE_STARTS = 1, 2, 4, 8, 16, 32, 64
"""`OptionFlags` of kernels/common/options.cuh."""


def outputs(plan: Plan, call: Call) -> dict[str, Any]:
    """Return the output arrays by the names of their arguments, in the order of the result: the caller's, or new ones.

    Raises `ArgumentError` if a new array is needed and cannot be made.
    """
    options, scores, index = plan.problem.options, call.scores, plan.problem.device.index
    asked: dict[str, tuple[tuple[int, ...], str]] = {"out": (call.shape, options.index_dtype)}
    asked |= {"values": (call.shape, scores.dtype)} if options.values else {}
    asked |= {"raw": (call.shape, options.index_dtype)} if options.raw else {}
    asked |= {"counts": (call.leading, "int32")} if options.counts else {}
    return {
        name: call.arrays[name] if name in call.arrays else arrays.new(scores.library, shape, dtype, index, name)
        for name, (shape, dtype) in asked.items()
    }


def launched(
    launcher: Launcher, plan: Plan, call: Call, results: dict[str, Any], live: int = 0, stats: int = 0, memory: int = 0
) -> Arguments:
    """Arguments of the launch of a call with rows and slots; `results` as `outputs` returns them.

    `live`, `stats`, `memory`: addresses of the live row count, the statistics and the workspace.
    """
    made = {
        name: of_numbers(info, name) if name in NUMBERS else of_rows(info, name)
        for name, array in results.items()
        if name not in call.described and (info := problem.inspect(array, name))
    }
    infos, asked = {**call.described, **made}, call.problem
    options = _options(plan, call, infos) if launcher.extended else ()
    options += _slots(call, infos) if launcher.with_slots else ()
    if launcher.leading:
        infos = {"positions": infos["block_table"], **infos} if "block_table" in infos else infos
        options += tuple(number for name in ARRAYS for number in numbers(infos.get(name), name in NUMBERS))
    at = (call.scores.pointer, call.address("lengths"), live, infos["out"].pointer, stats, memory)
    pitches = asked.pitch, problem.row_pitch(infos["out"])
    return Arguments(*at, *pitches, asked.rows, asked.width, options, None if asked.k else 0)


def _options(plan: Plan, call: Call, infos: dict[str, ArrayInfo]) -> tuple[int, ...]:
    """Fields of `launch.OPTIONS`."""
    options = plan.problem.options
    windows = "indptr" if options.windows == "segments" else "starts"
    addresses = [call.address(name) for name in (windows, "k", "page_table", "row_to_request", "offsets")]
    further = [infos.get(name) for name in ("values", "raw")]
    addresses += [info.pointer if info else 0 for info in further]
    pitches = [problem.row_pitch(info) if info else 0 for info in further]
    requests, pages, table_pitch = 0, 0, 0
    if table := infos.get("page_table"):
        (requests, pages), (table_pitch, _) = table.shape, table.strides
    starts = infos.get(windows)
    flags = (
        (_ENDS if options.windows == "ends" else 0)
        | (_ABSOLUTE if options.index_base == "row" else 0)
        | (_WIDE if options.index_dtype == "int64" else 0)
        | (_HIGHEST if options.tie_break == "high" else 0)
        | (_PAGED if options.transform == "pages" else 0)
        | (0 if options.filled else _UNFILLED)
        | (_WIDE_STARTS if starts and starts.dtype == "int64" else 0)
    )
    shift = options.page_size.bit_length() - 1
    return (*addresses, table_pitch, *pitches, options.next_n, requests, pages, shift, flags, 0)


def _slots(call: Call, infos: dict[str, ArrayInfo]) -> tuple[int, ...]:
    """Fields of `launch.SLOTS`."""
    at, pitch, block = 0, 0, 0
    if positions := infos.get("positions") or infos.get("block_table"):
        at, pitch, width = positions.pointer, problem.row_pitch(positions), positions.shape[-1]
        block = call.problem.width // width if "block_table" in infos and width else 0
    counts = infos["counts"].pointer if "counts" in infos else 0
    return counts, call.address("tail"), at, pitch, call.problem.options.expand, block
