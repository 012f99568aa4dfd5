"""Sampling policies: how a row's boundary is proposed. Data, read by the model and by every backend.

A policy changes the amount of work, never the exactness. The complete scan certifies every proposal (lemma "Validated
Top-K Containment" in: Siran Liu et al., "Sample-Guided Exact Top-K Selection for Long-Context Sparse Attention",
Tencent).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ksieve.core import atomic
from ksieve.core.errors import ArgumentError, shown
from ksieve.core.paths import as_path, read_utf8
from ksieve.core.text import parse_json

Boundary = Literal["coarse", "exact"]


POLICY_VERSION = 1
"""Version of the policy file format, stored under "ksieve_policy"."""

MAX_PERIOD = 1 << 20
"""Largest period, in scores. Kernels count positions in 32 bits and compute up to one period past a row; on CUDA a row
has at most 2**31 - 2**20."""

MAX_RANK = 1 << 28
"""Largest sample rank requested: three times a rank must fit 32 bits, and no row has a use for a larger one."""

_WHOLE, _REAL = (int, np.integer), (int, float, np.integer, np.floating)
_NUMBERS: dict[str, tuple[Any, float, float]] = {
    "stride": (_WHOLE, 1, MAX_PERIOD),
    "group": (_WHOLE, 1, MAX_PERIOD),
    "margin": (_REAL, 1e-6, 1 << 20),  # the largest is a rank of 2**20 with k = 1
    "rescue_margin": (_REAL, 1e-6, 1 << 20),
    "sigmas": (_REAL, 0, 64),  # beyond 38, the probability to underfill is less than the smallest float64
    "min_rank": (_WHOLE, 1, MAX_RANK),
}
"""Types, least and most of the numbers of a policy."""

PEAK = 4
"""Adjacent scores that are pooled into one maximum: one 16-byte load of float32."""

JITTER_ROW, JITTER_PERIOD, JITTER_MIX = 0xC2B2AE35, 0x85EBCA6B, 0x9E3779B1
JITTER_SHIFT = 13
"""Constants of the jitter's hash, `SamplingPolicy.offsets`: odd ones of MurmurHash3 and of the golden ratio. With this
shift, differences between neighbouring periods and rows, and drifts over them, are spread as by chance. Mirrored in
kernels/common/params.cuh.
"""


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """Sample positions of phase 1, and the sample ranks that become boundaries.

    One aligned group of `group` adjacent scores is sampled in each *period* of `stride` groups. Position ``i`` of row
    ``r`` is sampled when ``(i // group) % stride == offsets(r, i // (stride * group))``. Without `jitter` that is the
    row's phase in every period; ``group=1`` is then the paper's regular view.

    Attributes
    ----------
    name : str
        Name in plans and result files.
    stride : int
        One score in `stride` is sampled; a power of two.
    margin : float
        Requested complete-row rank of the primary boundary, in units of k (the paper's rho).
    rescue_margin : float or None
        The same for the rescue boundary. With None every underfilled row takes exact recovery.
    group : int
        Adjacent scores per sampled group; a power of two. Four floats fill one 16-byte load.
    sigmas : float
        The number of samples among the top k is nearly Poisson, with mean ``k / stride``. The sample rank is at least
        that mean plus this many (z) standard deviations: ``z * sqrt(k / stride) + (z * z - 1) / 6``. The last term
        corrects the skew (Cornish and Fisher); without it a small expectation underfills ten times as often. One policy
        then fits every k.
    peaks : bool
        Whether only the maximum of each `PEAK` adjacent sampled scores is ranked: a quarter of the keys to rank, and
        clumped scores count once. `group` must then be a multiple of `PEAK`.
    boundary : {"coarse", "exact"}
        Whether the boundary is the coarse bin of the sampled score (inclusive) or the sampled score itself. An exact
        boundary that occurs more than once in the sample counts as a plateau: scores equal to it are counted
        separately and never stored.
    min_rank : int
        Smallest sample rank requested: at lower ranks the boundary is too noisy for any k.
    source : str
        Source of the constants: a paper section, decision record or result file.
    jitter : bool
        Whether the group of each period is chosen by a hash of row and period. Periodic scores then cannot coincide
        with, or avoid, the sample positions.
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
        for name in ("name", "source"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.isprintable() or len(value) > 1000:
                raise ArgumentError(f"policy.{name}", ascii(value)[:80], "a printable str of at most 1000 characters")
        for name, (kinds, least, most) in _NUMBERS.items():
            value = getattr(self, name)
            if name == "rescue_margin":
                least = max(least, self.margin)
                if value is None:
                    continue
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
                kind = "an int" if kinds is _WHOLE else "a number"
                raise ArgumentError(f"policy.{name}", shown(value), f"{kind} from {least} to {most}")
            if isinstance(value, np.generic):  # JSON has Python's numbers alone
                object.__setattr__(self, name, value.item())
        for name in ("stride", "group"):
            if (value := getattr(self, name)) & (value - 1):
                raise ArgumentError(f"policy.{name}", value, "a power of two")
        if self.stride * self.group > MAX_PERIOD:
            got = f"{self.stride} with groups of {self.group}"
            raise ArgumentError("policy.stride", got, f"stride times group of at most {MAX_PERIOD}")
        for name in ("peaks", "jitter"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ArgumentError(f"policy.{name}", shown(getattr(self, name)), "True or False")
            object.__setattr__(self, name, bool(getattr(self, name)))
        if self.peaks and self.group % PEAK:
            raise ArgumentError("policy.group", self.group, f"a multiple of {PEAK} with peaks")
        if not isinstance(self.boundary, str) or self.boundary not in ("coarse", "exact"):
            raise ArgumentError("policy.boundary", str(self.boundary)[:80], "'coarse' or 'exact'")

    def primary_rank(self, k: int) -> int:
        """Sample rank of the primary boundary: the maximum of the ranks from `margin`, `sigmas` and `min_rank`."""
        expected = k / self.stride
        skew = max(self.sigmas * self.sigmas - 1, 0) / 6
        spread = math.ceil(expected + self.sigmas * math.sqrt(expected) + skew)
        rank = max(math.ceil(self.margin * k / self.stride), spread if self.sigmas else 0, self.min_rank)
        return min(rank, MAX_RANK)

    def rescue_rank(self, k: int) -> int | None:
        """Sample rank of the rescue boundary, at least 4 above the primary one; None without a rescue."""
        if self.rescue_margin is None:
            return None
        return max(min(math.ceil(self.rescue_margin * k / self.stride), MAX_RANK), self.primary_rank(k) + 4)

    def phase(self, row: int) -> int:
        """Group sampled in every period of `row` without jitter: a permutation, so that `stride` rows use each once.

        Multiplication by an odd number near ``stride / golden ratio`` gives neighbouring rows distant groups, and needs
        no table on the device.
        """
        return (row * self.phase_multiplier) % self.stride

    @property
    def phase_multiplier(self) -> int:
        """Odd multiplier of `phase`, passed to the kernels."""
        return round(self.stride * 0.6180339887) | 1

    def offsets(self, row: int, periods: ArrayLike) -> NDArray[np.int64]:
        """Group, from 0 to `stride` - 1, that `row` samples in each of these periods.

        Parameters
        ----------
        row : int
        periods : array_like of int
            Period numbers, from 0. The end of the row may cut off its last period.
        """
        numbers = np.asarray(periods)
        if not self.jitter:
            return np.full(numbers.shape, self.phase(row), dtype=np.int64)
        low = np.uint64(0xFFFFFFFF)  # wrapping 32-bit arithmetic, computed in 64 bits
        mixed = (np.uint64(row * JITTER_ROW & 0xFFFFFFFF) + numbers.astype(np.uint64) * np.uint64(JITTER_PERIOD)) & low
        mixed = (mixed ^ mixed >> np.uint64(JITTER_SHIFT)) * np.uint64(JITTER_MIX) & low
        return (mixed * np.uint64(self.stride) >> np.uint64(32)).astype(np.int64)

    def view(self, row: int, length: int) -> NDArray[np.int64]:
        """Sampled positions of a row with `length` valid scores, ascending."""
        return self.positions(self.offsets(row, np.arange(-(-length // (self.stride * self.group)))), length)

    def view_of_phase(self, phase: int, length: int) -> NDArray[np.int64]:
        """Positions of group `phase` (0 to `stride` - 1) of each period, ignoring `jitter`.

        Without jitter, these are the sample positions of rows of that phase.
        """
        return self.positions(np.full(-(-length // (self.stride * self.group)), phase), length)

    def positions(self, offsets: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Ascending positions below `length` that lie in the given group of each period."""
        groups = np.arange(offsets.size) * self.stride + offsets
        found: NDArray[np.int64] = (groups[:, None] * self.group + np.arange(self.group)).ravel()
        return found[found < length]

    def statistics(self, view_keys: NDArray[Any]) -> NDArray[Any]:
        """Ordered keys, or coarse bins, to rank: one per sampled score, or with `peaks` one per `PEAK` of them."""
        if not self.peaks:
            return view_keys
        starts = np.arange(0, view_keys.size, PEAK)
        return np.minimum.reduceat(view_keys, starts) if view_keys.size else view_keys

    def tightened(self, tau: int, rank: int, statistics: NDArray[Any]) -> int:
        """Primary boundary of a row, given the statistic `tau` of its rank; for an exact boundary with `peaks`.

        It is better than `tau` if the statistics at one end of the view are, three quarters of the rank. In a sorted
        row all scores of these groups reach `tau`, four times as many as the rank says. The groups of a quarter of the
        rank are then enough, and one more, since a group lies anywhere in its period. Their worst statistic becomes the
        boundary: where the end is not sorted, it is hardly better than `tau`.
        """
        each = self.group // PEAK
        few, most = (rank // 4 + 2 * each - 1) // each, (rank - rank // 4) // each
        worst = np.maximum.reduceat(statistics, np.arange(0, statistics.size, each))
        for groups in (worst, worst[::-1]):
            if few <= most and groups[:most].max() < tau:
                tau = int(groups[:few].max())
        return tau

    def usable(self, samples: int, k: int) -> bool:
        """Whether the largest sample rank requested is at most two thirds of `samples`, the number of ranked keys.

        A boundary of a higher rank admits most of a row. Rows of 16,384 scores, whose lines-64 sample has 64 ranked
        keys for a rank of 61, took 29 us. The two scans of the exact route took 12 us.
        """
        return 3 * (self.rescue_rank(k) or self.primary_rank(k)) <= 2 * samples

    def save(self, path: str | os.PathLike[str], *, extra: Mapping[str, Any] | None = None) -> None:
        """Write the policy as a JSON file that `load` and ``ksieve.plan`` take.

        Parameters
        ----------
        path : path
            Must end in ``.json``: a policy argument with this suffix is read as a file, any other as a name.
        extra : mapping, optional
            Further JSON entries next to the policy, such as how it was found; `load` ignores them.

        Raises
        ------
        ArgumentError
            If `path` does not end in ``.json``.
        """
        target = as_path(path)
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
            If the file does not exist, is no policy file of this version, or has a field that is unknown or out of
            range.
        """
        takes = "a policy file, as SamplingPolicy.save and `ksieve calibrate` write it"
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError("policy", shown(path), f"the path of {takes}")
        try:
            content = parse_json(read_utf8(path))
            if (version := content.get("ksieve_policy")) == POLICY_VERSION:
                return cls(**content["policy"])
        except ArgumentError as error:
            raise ArgumentError(error.argument, f"{error.got} in {str(path)!r}", error.takes) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError("policy", f"{str(path)!r} ({error})", takes) from error
        raise ArgumentError("policy", f"{str(path)!r} of version {version!r}", f"version {POLICY_VERSION}")


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
    source="docs/decisions/0003-lines-and-quads.md: whole 128-byte lines cost a quarter of the memory transactions of "
    "scattered samples",
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
    source="docs/decisions/0003-lines-and-quads.md: rows up to 64K need a denser view than lines, and its reads are "
    "cheap there",
)
BURSTS_64 = replace(
    LINES_64,
    name="bursts-64",
    group=16,
    min_rank=8,
    source="docs/decisions/0025-huge-rows.md: sparse views, in half lines: more places of a row, shorter periods",
)
KINDS = {"lines": LINES_64, "bursts": BURSTS_64, "quads": QUADS_16}
"""Policies that exist with every stride, by the first word of their names: ``bursts-2048``."""

POLICIES: dict[str, SamplingPolicy] = {
    p.name: p for p in (PAPER_64, PAPER_128, LINES_16, LINES_64, LINES_128, QUADS_16)
}
"""Policies with a name."""


def with_stride(kind: str, stride: int) -> SamplingPolicy:
    """Return the policy of a kind (`KINDS`) with another stride."""
    return replace(KINDS[kind], name=f"{kind}-{stride}", stride=stride)


def check_policy_kind(policy: object) -> None:
    """Raise `ArgumentError` unless `policy` is a policy, a str, a path or None; the plan cache needs a hashable one."""
    if policy is not None and not isinstance(policy, (SamplingPolicy, str, os.PathLike)):
        takes = f"a SamplingPolicy or one of {['direct', *POLICIES]}, or a policy file ending in .json"
        raise ArgumentError("policy", shown(policy), takes)


def resolve_policy(policy: SamplingPolicy | str | os.PathLike[str] | None) -> SamplingPolicy | None:
    """Turn a policy, its name, a policy file (.json) or ``"direct"`` (no sampling) into a policy or None.

    Names come from `POLICIES`, and with any stride from `KINDS`.

    A file is read when a plan is made from it, and plans are cached. `SamplingPolicy.load` reads a changed file again.
    """
    if policy is None or isinstance(policy, SamplingPolicy):
        return policy
    if isinstance(policy, os.PathLike) or (isinstance(policy, str) and policy.endswith(".json")):
        return SamplingPolicy.load(policy)
    check_policy_kind(policy)
    if policy == "direct":
        return None
    if policy in POLICIES:
        return POLICIES[policy]
    if named := re.fullmatch(rf"({'|'.join(KINDS)})-([1-9][0-9]{{0,6}})", policy):
        return with_stride(named[1], int(named[2]))
    takes = f"a SamplingPolicy or one of {['direct', *POLICIES]}, or a policy file ending in .json"
    raise ArgumentError("policy", shown(policy), takes)
