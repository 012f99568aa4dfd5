"""Names of the CUDA kernel families, algorithm and scope, and the former names that still work.

Their sources are in ``ksieve/kernels/<algorithm>/``.
"""

from __future__ import annotations

import sys
import warnings

ONE_CTA = ("register_block", "resident_block")
"""Families whose CTAs keep a row each on chip: in registers, and in shared memory."""

IN_REGISTERS = ("register_warp", "register_block")
"""Families whose rows stay in registers: of a warp, and of a CTA."""

SHARED_ROWS = ("resident_cluster", "resident_grid")
"""Families whose CTAs share a row, and keep it on chip if it fits."""

QUEUED = ("stream", "stream_unsampled")
"""Families whose CTAs take rows from a queue."""

SAMPLED = ("stream", "stream_split")
"""Families that sample a row in front of its scan."""

BY_POSITION = ("stream_unsampled", "resident_block", "resident_cluster")
"""Families that take scores with positions of their own (kernels/common/positions.cuh): none samples its rows."""

FORMER = {
    "persistent_sampled": "stream",
    "persistent_exact": "stream_unsampled",
    "split_sampled": "stream_split",
    "row_exact": "resident_block",
    "cluster_exact": "resident_cluster",
    "cooperative_exact": "resident_grid",
}
"""Former name -> name. ``row_exact`` stood for both families of `ONE_CTA`; the planner chooses between them."""

FORMER_FIELDS = {"held": "resident_width", "beside": "overflow_vectors", "bands": "bins", "band": "bin"}
"""Former name -> name of fields of a `Plan`."""

REMOVED_IN = "0.3"


def current(name: str) -> str:
    """Return the name of a family that is given by that or by its former name, as in an older result file."""
    return FORMER.get(name, name)


def warn_former(kind: str, former: str, now: str) -> None:
    """Warn of a former name, at the line outside of this package that has it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ksieve":
        level, frame = level + 1, frame.f_back
    message = f"{kind} {former!r} is now {now!r}; the former name will be removed in {REMOVED_IN}"
    warnings.warn(message, DeprecationWarning, stacklevel=level)
