"""What a protocol needs of an array library, and the collectives that it asks for.

A protocol (`ksieve.distributed.protocol`) is a generator: it yields a collective and receives its result. The same
generator runs over NumPy in the simulator and over PyTorch on a process group, where nothing of it waits for a device:
shapes depend on the plan alone, and no value is read back.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

NOTHING = (1 << 63) - 1
"""The composite of a slot without a score: behind every other."""


@dataclass(frozen=True)
class AllGather:
    """Ask for the arrays of all ranks, stacked along a new first dimension in the order of the ranks."""

    array: Any


@dataclass(frozen=True)
class AllReduce:
    """Ask for the sum of the arrays of all ranks."""

    array: Any


def marked(steps: Generator[Any, Any, Any], tag: int, world: int, flag: Any) -> Generator[Any, Any, Any]:
    """Send a tag of 62 bits behind the data of a protocol's first message, and compare those of all ranks there.

    Where they differ, `flag` becomes 1, indices are -1 and counts 0. For protocols with operations of PyTorch.
    """
    torch = sys.modules["torch"]
    ask = next(steps)
    sent, halves = ask.array, [tag >> 31, tag & ((1 << 31) - 1)]
    answer = yield type(ask)(torch.cat([sent.reshape(-1), *(sent.new_full((1,), half) for half in halves)]))
    tags = answer[..., -2:]
    answer = answer[..., :-2].reshape(*answer.shape[:-1], *sent.shape)
    if isinstance(ask, AllReduce):
        most = 1 << (8 * sent.element_size())
        halves = [(world * half + most // 2) % most - most // 2 for half in halves]  # as sums of the dtype wrap
    other = ((tags[..., 0] != halves[0]) | (tags[..., 1] != halves[1])).any()
    flag |= other
    try:
        while True:
            ask = steps.send(answer)
            answer = yield ask
    except StopIteration as stop:
        found = stop.value if isinstance(stop.value, tuple) else (stop.value,)
    filled = tuple(torch.where(other, empty, array) for empty, array in zip((-1, 0), found, strict=False))
    return filled if len(filled) > 1 else filled[0]


class TorchOps:
    """Operations of PyTorch on arrays of shape (rows, n), on one device; all integers are int64.

    The simulator of the laboratory has the same of NumPy.
    """

    def __init__(self, device: Any) -> None:
        self.torch: Any = sys.modules["torch"]
        self.device = device
        self.where = self.torch.where  # by a condition; one of the choices may be an int
        self.least = self.torch.minimum

    def sort(self, x: Any) -> Any:
        """Sort each row, ascending."""
        return self.torch.sort(x, 1).values

    def take(self, x: Any, index: Any) -> Any:
        """Gather by column: ``x[r, index[r, j]]``."""
        return self.torch.gather(x, 1, index)

    def clip(self, x: Any, low: int, high: int | None = None) -> Any:
        """Limit to [low, high]."""
        return x.clamp(low, high)

    def upto(self, ascending: Any, last: Any) -> Any:
        """Count the numbers of each ascending row that are at most ``last[r]``, int64."""
        return self.torch.searchsorted(ascending, last[:, None], right=True)[:, 0]

    def count(self, mask: Any) -> Any:
        """Count the true entries along the last dimension, int64."""
        return mask.sum(-1)

    def cumsum(self, x: Any) -> Any:
        """Sums up to and with each column."""
        return x.cumsum(1)

    def join(self, *columns: Any) -> Any:
        """Concatenate along the columns."""
        return self.torch.cat(columns, 1)

    def columns(self, n: int) -> Any:
        """Numbers 0 to n - 1, shape (1, n)."""
        return self.torch.arange(n, device=self.device)[None]

    def by_row(self, gathered: Any) -> Any:
        """Result of an all-gather, (world, rows, n), as (rows, world, n)."""
        return gathered.transpose(0, 1)

    def histogram(self, bins: Any, weights: Any, count: int) -> Any:
        """Sums of weights per row and bin, int64 of shape (rows, count)."""
        found = self.torch.zeros((bins.shape[0], count), dtype=self.torch.int64, device=self.device)
        return found.scatter_add_(1, bins, weights)

    def narrow(self, x: Any) -> Any:
        """The same numbers as int32."""
        return x.int()
