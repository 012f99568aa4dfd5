"""Sampling policies: how a row's boundary is proposed. Data, read by the model and by every backend.

A policy may change how much work is done; it can never change which indices are exact, because the complete
scan certifies every proposal (paper, lemma "Validated Top-K Containment").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ksieve.errors import ArgumentError

Boundary = Literal["coarse", "exact"]


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """How phase 1 looks at a row and which sample ranks it turns into boundaries.

    Position ``i`` of row ``r`` is sampled when ``(i // group) % stride == phase(r)``: one aligned group of
    `group` adjacent scores out of every `stride` groups. ``group=1`` is the paper's regular view.

    Attributes
    ----------
    name : str
        What plans and result files print.
    stride : int
        One score in `stride` is sampled; a power of two.
    margin : float
        Requested complete-row rank of the primary boundary, in units of k (the paper's rho).
    rescue_margin : float or None
        The same for the rescue boundary; None sends every underfilled row to exact recovery.
    group : int
        Adjacent scores per sampled group; a power of two. Four floats fill one 16-byte load.
    boundary : {"coarse", "exact"}
        Whether a sample rank is turned into its coarse bin (inclusive) or into the sampled score itself, with
        scores equal to it counted apart so that a plateau is never materialised.
    min_rank : int
        Least sample rank ever requested: below it a view is too noisy, whatever k is.
    source : str
        Where the constants come from.
    """

    name: str
    stride: int
    margin: float = 1.5
    rescue_margin: float | None = None
    group: int = 1
    boundary: Boundary = "coarse"
    min_rank: int = 16
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("stride", "group"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 1 or value & (value - 1):
                raise ArgumentError(f"policy.{field}", value, "a positive power of two")
        if not self.margin > 0:
            raise ArgumentError("policy.margin", self.margin, "a positive number")
        if self.rescue_margin is not None and not self.rescue_margin >= self.margin:
            raise ArgumentError("policy.rescue_margin", self.rescue_margin, f"None or at least {self.margin}")
        if self.boundary not in ("coarse", "exact"):
            raise ArgumentError("policy.boundary", self.boundary, "'coarse' or 'exact'")
        if self.min_rank < 1:
            raise ArgumentError("policy.min_rank", self.min_rank, "an int of at least 1")

    def primary_rank(self, k: int) -> int:
        """Sample rank of the primary boundary: ``ceil(margin * k / stride)``, at least `min_rank`."""
        return max(math.ceil(self.margin * k / self.stride), self.min_rank)

    def rescue_rank(self, k: int) -> int | None:
        """Sample rank of the rescue boundary, at least 4 above the primary's; None when disabled."""
        if self.rescue_margin is None:
            return None
        return max(math.ceil(self.rescue_margin * k / self.stride), self.primary_rank(k) + 4)

    def phase(self, row: int) -> int:
        """Residue class sampled in `row`: a fixed permutation, so `stride` rows use each class once.

        Multiplication by an odd number near ``stride / golden ratio`` spreads neighbouring rows far apart and
        needs no table on the device.
        """
        return (row * self.phase_multiplier) % self.stride

    @property
    def phase_multiplier(self) -> int:
        """Odd multiplier of `phase`; exported so that kernels use the same one."""
        return round(self.stride * 0.6180339887) | 1

    def view(self, row: int, length: int) -> NDArray[np.int64]:
        """Sampled positions of a row with `length` valid scores, ascending."""
        period = self.stride * self.group
        starts = np.arange(self.phase(row) * self.group, length, period, dtype=np.int64)
        positions = (starts[:, None] + np.arange(self.group)).ravel()
        return positions[positions < length]

    def usable(self, samples: int, k: int) -> bool:
        """Whether a view of `samples` scores reaches the largest sample rank requested."""
        return samples >= (self.rescue_rank(k) or self.primary_rank(k))


PAPER_64 = SamplingPolicy("paper-64", 64, source="paper, Phase 1 on-chip localization: standard policy")
PAPER_128 = SamplingPolicy(
    "paper-128", 128, rescue_margin=1.75, source="paper, conditional rescue: 1.5K primary, 1.75K rescue"
)

POLICIES: dict[str, SamplingPolicy] = {p.name: p for p in (PAPER_64, PAPER_128)}
"""Policies that can be asked for by name."""


def resolve_policy(policy: SamplingPolicy | str | None) -> SamplingPolicy | None:
    """Turn a policy, its name or ``"direct"`` (no sampling) into a policy or None."""
    if policy is None or isinstance(policy, SamplingPolicy):
        return policy
    if policy == "direct":
        return None
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]
    raise ArgumentError("policy", repr(policy), f"a SamplingPolicy or one of {['direct', *POLICIES]}")
