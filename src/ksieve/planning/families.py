"""Names of the CUDA kernel families: algorithm and scope.

Their sources are in ``ksieve/kernels/<algorithm>/``.
"""

ONE_CTA = ("register_block", "resident_block")
"""Families whose CTAs keep a row each on chip: in registers, and in shared memory."""

IN_REGISTERS = ("register_warp", "register_block")
"""Families whose rows stay in registers: of a warp, and of a CTA."""

SHARED_ROWS = ("resident_cluster", "resident_grid")
"""Families whose CTAs share a row, and keep it on chip if it fits."""

RESIDENT = (*ONE_CTA, *SHARED_ROWS)
"""Families that keep rows on chip, in shapes for each width."""

QUEUED = ("stream", "stream_unsampled")
"""Families whose CTAs take rows from a queue."""

SAMPLED = ("stream", "stream_split")
"""Families that sample a row in front of its scan."""

BY_POSITION = ("stream_unsampled", "resident_block", "resident_cluster")
"""Families that take scores with positions of their own (kernels/common/positions.cuh): none samples its rows."""
