"""Adversarial families for whole matrices on a device.

Families of `ksieve_lab.workloads` are made on the host, a few rows that come again and again. Those that aim at a
policy are made on the device, row by row: what a view samples goes by the row. They have the period of the policy's
view (`stride_*`), regular or jittered, or are made against the positions that it samples (`view_*`). A regular view
samples periodic positions too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ksieve.core.policy import LINES_64, SamplingPolicy
from ksieve.tuning.tasks import CHUNK, blocks
from ksieve_lab.workloads.adversarial import ADVERSARIAL
from ksieve_lab.workloads.producers import find_producer

FAR = 60.0
"""Raises or lowers a standard normal score beyond all others."""

BASE = 24
"""Rows that are made on the host: families alternate between two or three kinds of rows."""


def klass(row: Any, width: int, policy: SamplingPolicy, shift: Any = 0) -> Any:
    """Mask of one class of positions: a group in every period of the policy's view, the same in each.

    It is the one that a regular view samples in that row, or `shift` groups further; `row` is a column of row numbers.
    """
    import torch

    phase = (row * policy.phase_multiplier + shift) % policy.stride
    return (torch.arange(width, device=row.device)[None] // policy.group) % policy.stride == phase


def view(row: Any, width: int, policy: SamplingPolicy) -> Any:
    """Mask of the positions that the policy samples: `SamplingPolicy.view` of every row."""
    import torch

    periods = np.arange(-(-width // (policy.stride * policy.group)))
    offsets = np.stack([policy.offsets(number, periods) for number in row.flatten().tolist()])
    offset = torch.from_numpy(offsets).to(row.device)
    groups = offset[..., None] == torch.arange(policy.stride, device=row.device)
    return groups.flatten(1).repeat_interleave(policy.group, 1)[:, :width]


def _residue(row: Any, width: int, policy: SamplingPolicy) -> Any:
    import torch

    return torch.arange(width, device=row.device)[None] % 128 == row % 128


Mask = Callable[[Any, int, SamplingPolicy], Any]
AIMED: dict[str, tuple[Mask, float]] = {
    "normal": (lambda row, width, policy: row != row, 0.0),
    "stride_peak": (klass, FAR),
    "stride_hole": (klass, -FAR),
    # Rows go through every phase relative to a regular view.
    "stride_every_phase": (lambda row, width, policy: klass(row, width, policy, row), FAR),
    "view_peak": (view, FAR),
    "view_hole": (view, -FAR),
    # Locked to one position in 128, another one in each row.
    "residue_128": (_residue, 8.0),
}
"""Families of normal scores that are raised, or lowered, where a mask says."""

OF_BLOCKS = ("equal_blocks", "one_block", "forced_best", "forced_worst")
FAMILIES = (
    *AIMED, "relu_plateau", "all_nan",
    *(each.name for each in ADVERSARIAL if each.name not in (*AIMED, *OF_BLOCKS)),
)  # fmt: skip
"""Names; families of blocks are a matter of calls with blocks."""


def fill(name: str, matrix: Any, lengths: Any, k: int, policy: SamplingPolicy | None, seed: int = 0) -> None:
    """Fill a float32 matrix with a family of `FAMILIES`.

    Families with a boundary of their own put it at rank `k`. Others aim at the period or the sampled positions of
    `policy`, by default `LINES_64`.
    """
    import torch

    if name == "all_nan":
        matrix.fill_(float("nan"))
        return
    (rows, width), device = matrix.shape, matrix.device
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    mask, raised = AIMED.get(name, (None, 0.0))
    if mask is None:
        made = find_producer(name)(min(rows, BASE), width, seed=seed, k=k)
        # Through integers: a copy of floats might quieten a signalling NaN.
        base = torch.from_numpy(made.view(np.int32)).to(device)
    for part in blocks(rows, width, CHUNK // 2):
        row = torch.arange(part.start, part.stop, device=device)
        if mask is None:
            matrix.view(torch.int32)[part] = base[row % BASE]
        else:
            noise = torch.randn((len(row), width), device=device, generator=generator)
            matrix[part] = noise + raised * mask(row[:, None], width, policy or LINES_64)
