"""Rows far wider than the usual: how sparse their views are, and how many CTAs share one."""

from __future__ import annotations

from ksieve.core.device import DeviceInfo
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.policy import SamplingPolicy, with_stride
from ksieve.core.problem import Problem
from ksieve.planning.memory import CANDIDATE_BYTES, statistics_bound, storage_of
from ksieve.planning.shapes import Geometry
from ksieve.planning.switch_points import MOST_SLICES, MOST_SPLITS, MOST_STATISTICS


def bounded(policy: SamplingPolicy | None, problem: Problem) -> SamplingPolicy | None:
    """Return a policy whose view can be ranked on chip, or that admits as many candidates as it ranks samples.

    Every CTA of a row ranks the whole view, and what its columns cannot hold it reads from memory again. A sparser view
    admits more candidates, which the last CTA has to read. Their sum is least where both are about as many.
    """
    if policy is None:
        return None
    kind, k = "bursts" if policy.peaks else "quads", problem.k
    while (ranked := statistics_bound(problem.width, policy)) > MOST_STATISTICS:
        if ranked <= policy.primary_rank(k) * policy.stride - k:
            break
        policy = with_stride(kind, 2 * policy.stride)
    return policy


def splits(problem: Problem, device: DeviceInfo, policy: SamplingPolicy, geometry: Geometry, usual: int) -> int:
    """Return the CTAs a row that run at once, not only powers of two: 64 leave half of 132 multiprocessors idle.

    Fewer where the slices for their candidates would take more memory than the rows, and more than `MOST_SLICES`.
    """
    rows, count = max(problem.rows, 1), device.sm_count
    slice_bytes = CANDIDATE_BYTES * storage_of(problem, device, geometry, "stream_split", policy).spill
    room = max(SCORE_DTYPES[problem.dtype].size * problem.width * rows, MOST_SLICES)
    asked = (min(ctas // rows, MOST_SPLITS) for ctas in (count * geometry.ctas_per_sm, count))
    return next((s for s in asked if s > usual and rows * s * slice_bytes <= room), usual)
