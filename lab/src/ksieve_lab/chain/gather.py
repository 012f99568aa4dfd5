"""A consumer of selected positions: partial sums of the cached values at them, as a Triton kernel.

It reads what sparse attention reads, and computes nearly nothing. Triton is imported when this module is.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gather(  # type: ignore[no-untyped-def]
    cache_ptr, at_ptr, out_ptr, k, tokens,
    VALUES: tl.constexpr, POSITIONS: tl.constexpr, PART: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    at = tl.load(at_ptr + row * k + slot, mask=slot < k, other=-1)
    known = (at >= 0) & (at < tokens)  # a wrong answer must not fault
    out_ptr += (row * tl.num_programs(1) + tl.program_id(1)) * VALUES
    for first in tl.static_range(0, VALUES, PART):
        value = first + tl.arange(0, PART)
        found = tl.load(cache_ptr + at.to(tl.int64)[:, None] * VALUES + value[None, :], mask=known[:, None], other=0.0)
        tl.store(out_ptr + value, tl.sum(found.to(tl.float32), axis=0))


def gather(cache: Any, at: Any, out: Any, overlap: bool = False) -> None:
    """Sum the values at every 32 positions; enqueued on the current stream, capturable.

    Contiguous are `cache` (tokens, values), values a multiple of 64, `at` (rows, k) of int32, and `out` (rows,
    ceil(k / 32), values) of float32. `overlap`: a programmatic dependent launch.
    """
    _gather[out.shape[:2]](
        cache, at, out, at.shape[1], len(cache), VALUES=cache.shape[1], POSITIONS=32, PART=64, OVERLAP=overlap,
        **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
