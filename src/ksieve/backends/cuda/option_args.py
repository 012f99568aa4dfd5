"""What the options of a plan add to a call: arrays to fill, and the fields of `launch.OPTIONS`."""

from __future__ import annotations

from typing import Any

from ksieve.backends.cuda import arrays
from ksieve.core import problem
from ksieve.core.problem import ArrayInfo, Extras
from ksieve.planning.plan import Plan

_ENDS, _ABSOLUTE, _WIDE, _HIGHEST, _PAGED = 1, 2, 4, 8, 16
"""`OptionFlags` of kernels/options.cuh."""


def outputs(plan: Plan, extras: Extras, scores: ArrayInfo, shape: tuple[int, int], index: int) -> dict[str, Any]:
    """Arrays to fill beside the indices, by name and in the order of the answer: the caller's, or new ones.

    Raises
    ------
    ArgumentError
        If a new array is needed and cannot be made.
    """
    options = plan.problem.options
    found: dict[str, Any] = {}
    for name, wanted, dtype in (("values", options.values, scores.dtype), ("raw", options.raw, options.index_dtype)):
        if wanted:
            given = extras.objects.get(f"{name}_out")
            found[name] = arrays.new(scores.library, shape, dtype, index, f"{name}_out") if given is None else given
    return found


def packed(plan: Plan, extras: Extras, filled: dict[str, Any]) -> tuple[int, ...]:
    """Fields of `launch.OPTIONS`; `filled` as `outputs` returns it."""
    options, k = plan.problem.options, plan.problem.k
    addresses = [
        array.pointer if array is not None else 0
        for array in (extras.starts, extras.ks, extras.page_table, extras.row_to_request, extras.offsets)
    ]
    pitches = []
    for name in ("values", "raw"):
        info = problem.inspect(filled[name], f"{name}_out") if name in filled else None
        addresses.append(info.pointer if info is not None else 0)
        # One row has no next one: whatever pitch its array reports must not be mistaken for a short one.
        pitches.append(max(info.strides[0], k) if info is not None else 0)
    requests, pages, table_pitch = 0, 0, 0
    if extras.page_table is not None:
        (requests, pages), (table_pitch, _) = extras.page_table.shape, extras.page_table.strides
    flags = (
        (_ENDS if options.windows == "ends" else 0)
        | (_ABSOLUTE if options.index_base == "row" else 0)
        | (_WIDE if options.index_dtype == "int64" else 0)
        | (_HIGHEST if options.tie_break == "high" else 0)
        | (_PAGED if options.transform == "pages" else 0)
    )
    shift = options.page_size.bit_length() - 1
    return (*addresses, table_pitch, *pitches, options.next_n, requests, pages, shift, flags, 0)
