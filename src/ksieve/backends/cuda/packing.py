"""Option arguments of a kernel: further output arrays, and the fields of `launch.OPTIONS`."""

from __future__ import annotations

from typing import Any

from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.runtime.launch import ARRAYS
from ksieve.core import problem
from ksieve.core.arrays import ArrayInfo
from ksieve.core.call import NUMBERS, Call
from ksieve.core.leading import numbers, of_rows
from ksieve.core.options import Options
from ksieve.planning.plan import Plan

_ENDS, _ABSOLUTE, _WIDE, _HIGHEST, _PAGED, _UNFILLED, _WIDE_STARTS = 1, 2, 4, 8, 16, 32, 64
"""`OptionFlags` of kernels/common/options.cuh."""


def outputs(plan: Plan, call: Call) -> dict[str, Any]:
    """Return the further output arrays by name, in the order of the result: the caller's, or new ones.

    Raises `ArgumentError` if a new array is needed and cannot be made.
    """
    options, scores = plan.problem.options, call.scores
    shape, index = call.shape, plan.problem.device.index
    found: dict[str, Any] = {}
    for name, wanted, dtype in (("values", options.values, scores.dtype), ("raw", options.raw, options.index_dtype)):
        if wanted:
            given = call.arrays.get(f"{name}_out")
            found[name] = arrays.new(scores.library, shape, dtype, index, f"{name}_out") if given is None else given
    return found


def packed(plan: Plan, call: Call, filled: dict[str, Any], with_slots: bool) -> tuple[int, ...]:
    """Fields of `launch.OPTIONS`, and `with_slots` those of `launch.SLOTS`; `filled` as `outputs` returns it."""
    options = plan.problem.options
    addresses = [call.address(name) for name in ("starts", "k", "page_table", "row_to_request", "offsets")]
    pitches = []
    for name in ("values", "raw"):
        info = call.described.get(f"{name}_out")
        if info is None and name in filled:
            info = of_rows(problem.inspect(filled[name], f"{name}_out"), f"{name}_out")
        addresses.append(info.pointer if info is not None else 0)
        pitches.append(problem.row_pitch(info) if info is not None else 0)
    requests, pages, table_pitch = 0, 0, 0
    if table := call.described.get("page_table"):
        (requests, pages), (table_pitch, _) = table.shape, table.strides
    next_n, shift, flags = constants(options)
    if (starts := call.described.get("starts")) and starts.dtype == "int64":
        flags |= _WIDE_STARTS
    slots = _slots(call) if with_slots else ()
    return (*addresses, table_pitch, *pitches, next_n, requests, pages, shift, flags, 0, *slots)


def constants(options: Options) -> tuple[int, int, int]:
    """Fields of `launch.OPTIONS` that no array decides: next_n, page_shift and flags."""
    flags = (
        (_ENDS if options.windows == "ends" else 0)
        | (_ABSOLUTE if options.index_base == "row" else 0)
        | (_WIDE if options.index_dtype == "int64" else 0)
        | (_HIGHEST if options.tie_break == "high" else 0)
        | (_PAGED if options.transform == "pages" else 0)
        | (0 if options.filled else _UNFILLED)
    )
    return options.next_n, options.page_size.bit_length() - 1, flags


def leading(call: Call, target: ArrayInfo, filled: dict[str, Any]) -> tuple[int, ...]:
    """Fields of `launch.LEADING`; `target` describes the indices, `filled` is as `outputs` returns it."""
    made = {f"{name}_out": of_rows(problem.inspect(array, name), name) for name, array in filled.items()}
    found: dict[str, ArrayInfo] = {**made, "out": target, **call.described}
    if "block_table" in found:
        found["positions"] = found["block_table"]
    return tuple(number for name in ARRAYS for number in numbers(found.get(name), name in NUMBERS))


def _slots(call: Call) -> tuple[int, ...]:
    """Fields of `launch.SLOTS`."""
    at, pitch, block = 0, 0, 0
    if positions := call.described.get("positions") or call.described.get("block_table"):
        at, pitch, width = positions.pointer, problem.row_pitch(positions), positions.shape[-1]
        block = call.problem.width // width if "block_table" in call.described and width else 0
    return call.address("counts_out"), call.address("tail"), at, pitch, call.problem.options.expand, block
