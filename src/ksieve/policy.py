"""Sampling policies: how a row's boundary is proposed. Data, read by the model and by every backend.

A policy may change how much work is done; it can never change which indices are exact, because the complete
scan certifies every proposal (paper, lemma "Validated Top-K Containment").
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ksieve import atomic
from ksieve.errors import ArgumentError

Boundary = Literal["coarse", "exact"]


POLICY_VERSION = 1
"""Version of the policy file format, stored under "ksieve_policy"."""

PEAK = 4
"""Adjacent scores that one peak stands for: one 16-byte load of float32."""

JITTER_ROW, JITTER_PERIOD, JITTER_MIX = 0xC2B2AE35, 0x85EBCA6B, 0x9E3779B1
JITTER_SHIFT = 13
"""Constants of the jitter's hash, `SamplingPolicy.offsets`: odd ones of MurmurHash3 and of the golden ratio. With this
shift, differences between neighbouring periods and rows, and drifts over them, are spread as by chance. Mirrored in
kernels/params.cuh.
"""


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """How phase 1 looks at a row and which sample ranks it turns into boundaries.

    One aligned group of `group` adjacent scores is sampled in each *period* of `stride` groups. Position ``i`` of row
    ``r`` is sampled when ``(i // group) % stride == offsets(r, i // (stride * group))``. Without `jitter` that is the
    row's phase in every period; ``group=1`` is then the paper's regular view.

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
    sigmas : float
        Requests at least ``k / stride``, the samples expected among the top k, plus this many standard deviations
        of their number, which is about Poisson's: ``z * sqrt(k / stride) + (z * z - 1) / 6``, whose last term is
        the skew (Cornish and Fisher). Without it a small expectation underfills ten times as often. Makes one
        policy fit every k.
    peaks : bool
        Whether each `PEAK` adjacent sampled scores stand for their best one alone: a quarter of the statistics to
        rank, and clumped scores count once. `group` must then be a multiple of `PEAK`.
    boundary : {"coarse", "exact"}
        Whether a sample rank is turned into its coarse bin (inclusive) or into the sampled score itself. An exact
        boundary that the view saw more than once is taken for a plateau: scores equal to it are counted apart and
        never stored.
    min_rank : int
        Least sample rank ever requested: below it a view is too noisy, whatever k is.
    source : str
        Where the constants come from.
    jitter : bool
        Whether each period takes a group of its own, by a hash of row and period. No period in the scores can then
        hide them from the view, or show it nothing else.
    """

    name: str
    stride: int
    margin: float = 1.5
    rescue_margin: float | None = None
    group: int = 1
    sigmas: float = 0.0
    peaks: bool = False
    boundary: Boundary = "coarse"
    min_rank: int = 16
    source: str = ""
    jitter: bool = False

    def __post_init__(self) -> None:
        for field in ("stride", "group"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 1 or value & (value - 1):
                raise ArgumentError(f"policy.{field}", value, "a positive power of two")
        if not self.margin > 0:
            raise ArgumentError("policy.margin", self.margin, "a positive number")
        if self.rescue_margin is not None and not self.rescue_margin >= self.margin:
            raise ArgumentError("policy.rescue_margin", self.rescue_margin, f"None or at least {self.margin}")
        if self.peaks and self.group % PEAK:
            raise ArgumentError("policy.group", self.group, f"a multiple of {PEAK} with peaks")
        if not self.sigmas >= 0:
            raise ArgumentError("policy.sigmas", self.sigmas, "a number of at least 0")
        if self.boundary not in ("coarse", "exact"):
            raise ArgumentError("policy.boundary", self.boundary, "'coarse' or 'exact'")
        if self.min_rank < 1:
            raise ArgumentError("policy.min_rank", self.min_rank, "an int of at least 1")
        if not isinstance(self.jitter, bool):
            raise ArgumentError("policy.jitter", repr(self.jitter), "True or False")

    def primary_rank(self, k: int) -> int:
        """Sample rank of the primary boundary: the most that `margin`, `sigmas` and `min_rank` ask for."""
        expected = k / self.stride
        skew = max(self.sigmas * self.sigmas - 1, 0) / 6
        spread = math.ceil(expected + self.sigmas * math.sqrt(expected) + skew)
        return max(math.ceil(self.margin * k / self.stride), spread if self.sigmas else 0, self.min_rank)

    def rescue_rank(self, k: int) -> int | None:
        """Sample rank of the rescue boundary, at least 4 above the primary's; None when disabled."""
        if self.rescue_margin is None:
            return None
        return max(math.ceil(self.rescue_margin * k / self.stride), self.primary_rank(k) + 4)

    def phase(self, row: int) -> int:
        """Group that every period of `row` samples without jitter: a fixed permutation, so `stride` rows use each once.

        Multiplication by an odd number near ``stride / golden ratio`` spreads neighbouring rows far apart and
        needs no table on the device.
        """
        return (row * self.phase_multiplier) % self.stride

    @property
    def phase_multiplier(self) -> int:
        """Odd multiplier of `phase`; exported so that kernels use the same one."""
        return round(self.stride * 0.6180339887) | 1

    def offsets(self, row: int, periods: ArrayLike) -> NDArray[np.int64]:
        """Group, from 0 to `stride` - 1, that `row` samples in each of these periods.

        Parameters
        ----------
        row : int
        periods : array_like of int
            Numbers of periods, from 0. The row's last one may be cut off by its end.
        """
        numbers = np.asarray(periods)
        if not self.jitter:
            return np.full(numbers.shape, self.phase(row), dtype=np.int64)
        low = np.uint64(0xFFFFFFFF)  # 32-bit arithmetic that wraps, in 64 bits
        mixed = (np.uint64(row * JITTER_ROW & 0xFFFFFFFF) + numbers.astype(np.uint64) * np.uint64(JITTER_PERIOD)) & low
        mixed = (mixed ^ mixed >> np.uint64(JITTER_SHIFT)) * np.uint64(JITTER_MIX) & low
        return (mixed * np.uint64(self.stride) >> np.uint64(32)).astype(np.int64)

    def view(self, row: int, length: int) -> NDArray[np.int64]:
        """Sampled positions of a row with `length` valid scores, ascending."""
        return self.positions(self.offsets(row, np.arange(-(-length // (self.stride * self.group)))), length)

    def view_of_phase(self, phase: int, length: int) -> NDArray[np.int64]:
        """Positions of one regular class, whatever the `jitter`: group `phase`, from 0 to `stride` - 1, of each period.

        Without jitter, this is what rows of that phase sample.
        """
        return self.positions(np.full(-(-length // (self.stride * self.group)), phase), length)

    def positions(self, offsets: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Positions, ascending, of the first `length` that lie in the given group of each period."""
        groups = np.arange(offsets.size) * self.stride + offsets
        found: NDArray[np.int64] = (groups[:, None] * self.group + np.arange(self.group)).ravel()
        return found[found < length]

    def statistics(self, view_keys: NDArray[Any]) -> NDArray[Any]:
        """Ordered keys, or coarse bins, that are ranked: those of a view's scores, or of each group's best."""
        if not self.peaks:
            return view_keys
        starts = np.arange(0, view_keys.size, PEAK)
        return np.minimum.reduceat(view_keys, starts) if view_keys.size else view_keys

    def usable(self, samples: int, k: int) -> bool:
        """Whether a view of `samples` statistics has the largest sample rank requested among its first two thirds.

        A boundary from further down admits most of a row: rows of 16,384 scores, whose lines-64 view has 64 statistics
        for a rank of 61, took 29 us, and 12 with the two scans of the exact route (docs/tuning.md, section 18).
        """
        return 3 * (self.rescue_rank(k) or self.primary_rank(k)) <= 2 * samples

    def save(self, path: str | os.PathLike[str], *, extra: Mapping[str, Any] | None = None) -> None:
        """Write the policy as a JSON file that `load`, ``ksieve.plan`` and ``ksieve.topk`` take.

        Parameters
        ----------
        path : path
            Ends in ``.json``, which is how a plan tells a file from a name.
        extra : mapping, optional
            Further JSON-able entries beside the policy, for readers: how it was found.
        """
        target = Path(path)
        if target.suffix != ".json":
            raise ArgumentError("path", str(target), "a file name ending in .json")
        content = {"ksieve_policy": POLICY_VERSION, "policy": asdict(self), **(extra or {})}
        atomic.write_text(target, json.dumps(content, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy file.

        Raises
        ------
        ArgumentError
            If there is no such file, it is no policy file of this version, or a field is unknown or out of range.
        """
        takes = "a policy file, as SamplingPolicy.save and `ksieve calibrate` write it"
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ArgumentError("policy", f"{str(path)!r}, which does not exist", takes) from None
        except (ValueError, OSError) as error:
            raise ArgumentError("policy", f"{str(path)!r} ({error})", takes) from error
        if not isinstance(content, dict) or not isinstance(content.get("policy"), dict):
            raise ArgumentError("policy", f"{str(path)!r}, JSON of another kind", takes)
        if content.get("ksieve_policy") != POLICY_VERSION:
            version = content.get("ksieve_policy")
            raise ArgumentError("policy", f"{str(path)!r} of version {version!r}", f"version {POLICY_VERSION}")
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(content["policy"]) - set(names))
        if unknown or not {"name", "stride"} <= set(content["policy"]):
            raise ArgumentError("policy", f"{str(path)!r} with fields {sorted(content['policy'])}", f"some of {names}")
        try:
            return cls(**content["policy"])
        except TypeError as error:  # a field of another type, such as a text where a number belongs
            raise ArgumentError("policy", f"{str(path)!r} ({error})", takes) from error


PAPER_64 = SamplingPolicy("paper-64", 64, source="paper, Phase 1 on-chip localization: standard policy")
PAPER_128 = SamplingPolicy(
    "paper-128", 128, rescue_margin=1.75, source="paper, conditional rescue: 1.5K primary, 1.75K rescue"
)
LINES_64 = SamplingPolicy(
    "lines-64",
    64,
    margin=1.0,
    group=32,
    sigmas=4.5,
    peaks=True,
    boundary="exact",
    jitter=True,
    source="docs/tuning.md: whole 128-byte lines cost a quarter of the memory transactions of scattered samples",
)
LINES_128 = replace(LINES_64, name="lines-128", stride=128)
LINES_16 = replace(LINES_64, name="lines-16", stride=16)
QUADS_16 = SamplingPolicy(
    "quads-16",
    16,
    margin=1.0,
    group=4,
    sigmas=3.5,
    boundary="exact",
    jitter=True,
    source="docs/tuning.md: rows up to 64K need a denser view than lines, and its reads are cheap there",
)

POLICIES: dict[str, SamplingPolicy] = {
    p.name: p for p in (PAPER_64, PAPER_128, LINES_16, LINES_64, LINES_128, QUADS_16)
}
"""Policies that can be asked for by name."""


def resolve_policy(policy: SamplingPolicy | str | os.PathLike[str] | None) -> SamplingPolicy | None:
    """Turn a policy, its name, a policy file (.json) or ``"direct"`` (no sampling) into a policy or None.

    A file is read when a plan is made from it, and plans are kept: within a process, a file that has changed is taken
    up by `SamplingPolicy.load`, not by giving its path again.
    """
    if policy is None or isinstance(policy, SamplingPolicy):
        return policy
    if isinstance(policy, os.PathLike) or (isinstance(policy, str) and policy.endswith(".json")):
        return SamplingPolicy.load(policy)
    if policy == "direct":
        return None
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]
    takes = f"a SamplingPolicy or one of {['direct', *POLICIES]}, or a policy file ending in .json"
    raise ArgumentError("policy", repr(policy), takes)
