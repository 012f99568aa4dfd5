"""The adversarial families of `ksieve_lab.workloads.adversarial` made on the device, aimed at a policy.

The CPU families define what each one breaks; these repeat the idea in parallel, whole matrices at a time, and add what
only shows over many rows: periodic rows in every phase. They share names where they share the idea, not the bits.

Periodic rows (`stride_*`) have the period of the policy's view, whether that is regular or jittered. Rows made against
the very positions that it samples (`view_*`) are periodic too where it is regular.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ksieve.core.policy import LINES_64, SamplingPolicy
from ksieve.planning.tune.laws import CHUNK, blocks

FAR = 60.0
"""Raises or lowers a standard normal score beyond all others."""


@dataclass(frozen=True)
class Block:
    """Rows of a matrix that are made together.

    Attributes
    ----------
    shape : (int, int)
    row : torch.Tensor, shape (rows, 1)
        Row numbers in the whole matrix.
    position : torch.Tensor, shape (1, width)
    lengths : torch.Tensor of float, shape (rows, 1)
        Valid scores, at least 1.
    k : int
    policy : SamplingPolicy
        Whose period, or whose sampled positions, are aimed at.
    generator : torch.Generator
    """

    shape: tuple[int, int]
    row: Any
    position: Any
    lengths: Any
    k: int
    policy: SamplingPolicy
    generator: Any

    def normal(self) -> Any:
        """Draw standard normal scores."""
        import torch

        return torch.randn(self.shape, device=self.row.device, generator=self.generator)

    def uniform(self) -> Any:
        """Draw uniform scores from 0 to 1."""
        import torch

        return torch.rand(self.shape, device=self.row.device, generator=self.generator)

    def bits(self, low: int, high: int) -> Any:
        """Draw int32 bit patterns from `low` to `high`, the latter excluded."""
        import torch

        drawn = torch.randint(low, high, self.shape, device=self.row.device, generator=self.generator)
        return drawn.to(torch.int32)

    def share(self, count: float) -> Any:
        """Mask with about `count` positions set in each row's valid prefix, scattered."""
        return self.uniform() < count / self.lengths

    def klass(self, shift: Any = 0) -> Any:
        """Mask of one class of positions: a group in every period of the policy's view, the same in each.

        It is the one that a regular view samples in that row, or `shift` groups further.
        """
        phase = (self.row * self.policy.phase_multiplier + shift) % self.policy.stride
        return (self.position // self.policy.group) % self.policy.stride == phase

    def view(self) -> Any:
        """Mask of the positions that the policy samples: `SamplingPolicy.view` of every row."""
        import torch

        policy = self.policy
        periods = np.arange(-(-self.shape[1] // (policy.stride * policy.group)))
        offsets = np.stack([policy.offsets(row, periods) for row in self.row.flatten().tolist()])
        offset = torch.from_numpy(offsets).to(self.row.device)
        groups = offset[..., None] == torch.arange(policy.stride, device=self.row.device)
        return groups.flatten(1).repeat_interleave(policy.group, 1)[:, : self.shape[1]]

    def filled(self, value: float) -> Any:
        """Make a block of one value."""
        import torch

        return torch.full(self.shape, value, device=self.row.device)


def _float(bits: Any) -> Any:
    import torch

    return bits.to(torch.int32).view(torch.float32)


def _where(mask: Any, value: Any, rest: Any) -> Any:
    import torch

    return torch.where(mask, value, rest)


def _relu_plateau(b: Block) -> Any:
    # Half of k scores are positive: the boundary lies inside the zeros.
    import torch

    return (b.normal() + torch.special.ndtri(b.k / 2 / b.lengths.clamp(min=b.k))).relu_()


def _two_values(b: Block) -> Any:
    return 1.0 + (b.uniform() < _where(b.row % 2 == 0, b.k / 2 / b.lengths, b.lengths * 0 + 0.5)).float()


def _huge_ties(b: Block) -> Any:
    noise = b.normal().abs_()
    tied = _where(b.share(100_000), b.filled(0.5), 0.25 - noise)
    return _where(b.share(b.k / 2), 0.5 + 1.5 * noise, tied)


def _signed_zeros(b: Block) -> Any:
    zeros = _where(b.uniform() < 0.5, b.filled(0.0), b.filled(-0.0))
    return _where(b.share(b.k / 2), b.normal().abs_(), zeros)


def _fp16_midpoints(b: Block) -> Any:
    # 13 bits of a float32 are below float16: the midpoint between two halves, and its neighbours.
    return _float((b.bits(0x3800, 0x4C00) << 13) + 0x1000 + b.bits(-1, 2))


def _one_cluster(b: Block) -> Any:
    import torch

    room = (b.lengths - b.k).clamp(min=0)
    begin = (torch.rand(b.row.shape, device=b.row.device, generator=b.generator) * room).floor()
    inside = (b.position >= begin) & (b.position < begin + b.k)
    return b.normal() + FAR * inside


def _subnormals(b: Block) -> Any:
    steps = b.shape[1] // 2 - b.position
    bits = _where(steps < 0, (-steps) - (1 << 31), steps)
    return _float(bits).expand(b.shape)


def _infinities(b: Block) -> Any:
    regime = b.row % 3
    tops = _where(regime == 1, 2.0 * b.k / b.lengths, 0.5 * b.k / b.lengths)
    bottoms = _where(regime == 2, b.lengths * 0 + 1.0, b.lengths * 0 + 0.125)
    low = _where(b.uniform() < bottoms, b.filled(-float("inf")), b.normal())
    return _where(b.uniform() < tops, b.filled(float("inf")), low)


def _nan_sprinkled(b: Block) -> Any:
    share = _where(b.row % 2 == 0, b.lengths * 0 + 0.01, 1 - 0.5 * b.k / b.lengths)
    nan = _float(b.bits(1, 1 << 23) | 0x7F800000 | (b.bits(0, 2) << 31))
    return _where(b.uniform() < share, nan, b.normal())


def _sorted(sign: int) -> Callable[[Block], Any]:
    return lambda b: (sign * b.position.float()).expand(b.shape)


FAMILIES: dict[str, tuple[Callable[[Block], Any], str]] = {
    "normal": (lambda b: b.normal(), "independent normal scores, for comparison"),
    "all_equal": (lambda b: b.filled(1.37), "every score the same"),
    "relu_half": (lambda b: b.normal().relu_(), "half of the scores exact zeros, rank k above them"),
    "relu_plateau": (_relu_plateau, "rank k inside a plateau of exact zeros"),
    "two_values": (_two_values, "two values; rank k among the lower, or among the higher"),
    "huge_ties": (_huge_ties, "one value repeated 100,000 times at rank k"),
    "signed_zeros": (_signed_zeros, "-0 and +0 mixed at rank k"),
    "one_coarse_bin": (lambda b: 1.0 + b.uniform() / 33, "all scores in one bin of an 11-bit float16 key"),
    "one_half_value": (lambda b: 1.5 + b.uniform() / 4096, "scores that differ only below float16 resolution"),
    "fp16_midpoints": (_fp16_midpoints, "midpoints of neighbouring float16 values and their float32 neighbours"),
    "rounds_to_zero": (lambda b: (b.uniform() * 100 - 126).exp2_(), "100 octaves that all round to zero in float16"),
    "above_half_range": (lambda b: (b.uniform() * 100 + 16).exp2_(), "scores that all round to infinity in float16"),
    "ascending": (_sorted(1), "sorted, ascending"),
    "descending": (_sorted(-1), "sorted, descending"),
    "one_cluster": (_one_cluster, "the top k side by side"),
    "stride_peak": (
        lambda b: b.normal() + FAR * b.klass(),
        "top scores in one class of positions, with the view's period: a regular view sees them alone",
    ),
    "stride_hole": (
        lambda b: b.normal() - FAR * b.klass(),
        "small scores in one class of positions, with the view's period: a regular view sees them alone",
    ),
    "stride_every_phase": (
        lambda b: b.normal() + FAR * b.klass(b.row),
        "top scores in one class of positions; rows go through every phase relative to a regular view",
    ),
    "view_peak": (lambda b: b.normal() + FAR * b.view(), "top scores only where the policy looks, row by row"),
    "view_hole": (lambda b: b.normal() - FAR * b.view(), "small scores only where the policy looks, row by row"),
    "residue_128": (
        lambda b: b.normal() + 8.0 * (b.position % 128 == b.row % 128),
        "top scores locked to one position in 128, another one in each row",
    ),
    "descending_subnormals": (_subnormals, "consecutive float32 subnormals, descending through zero"),
    "infinities": (_infinities, "+inf and -inf mixtures; rank k finite, +inf or -inf"),
    "all_nan": (lambda b: b.filled(float("nan")), "nothing but NaN"),
    "nan_sprinkled": (_nan_sprinkled, "NaN of any sign and payload; few, or all but k/2 scores"),
    "random_bits": (lambda b: _float(b.bits(-(1 << 31), 1 << 31)), "uniformly random bit patterns"),
}  # fmt: skip
"""Makers of a block of rows by name, each with a description."""


def fill(name: str, matrix: Any, lengths: Any, k: int, policy: SamplingPolicy | None, seed: int = 0) -> None:
    """Fill a float32 matrix with a family.

    Parameters
    ----------
    name : str
        A name of `FAMILIES`.
    matrix : torch.Tensor, shape (rows, width)
    lengths : torch.Tensor of int32, shape (rows,)
    k : int
        Where families with a boundary of their own put it.
    policy : SamplingPolicy or None
        Whose period or sampled positions families aim at; None aims at `LINES_64`.
    seed : int
    """
    import torch

    make, _ = FAMILIES[name]
    rows, width = matrix.shape
    device = matrix.device
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    position = torch.arange(width, device=device)[None]
    bits = matrix.view(torch.int32)  # a copy through floats might quieten a signalling NaN
    for part in blocks(rows, width, CHUNK // 2):
        row = torch.arange(part.start, part.stop, device=device)[:, None]
        valid = lengths[part, None].clamp(1, width).float()
        made = make(Block((len(row), width), row, position, valid, k, policy or LINES_64, generator))
        bits[part] = made.contiguous().view(torch.int32)
