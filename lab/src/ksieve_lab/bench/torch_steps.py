"""The five steps of a call with blocks or pools by PyTorch operations around a selector.

What frameworks write by hand, in the cheapest form known here. The scores are read once, masks touch one block of a row
where they can, forced entries are appended, not ranked. No step sorts or counts slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

INFINITY = float("inf")

Select = Callable[[Any, Any, int], Any]
"""``select(scores, counts, k) -> indices`` of the k best of the first ``counts[row]`` scores of each row."""


@dataclass(frozen=True)
class Steps:
    """What a call asks for.

    `block`: scores of a block; 1 without blocks. `expand`: positions of an entry that are written; 1: its number.
    `first`, `last`: whether the first and the last entry of a row are selected with any score, inside the k. `tail`:
    whether the positions after the last whole entry are written too. `table`: whether scores belong to candidates, 8
    positions for each block of a table.
    """

    k: int
    block: int = 1
    expand: int = 1
    first: bool = False
    last: bool = False
    tail: bool = False
    table: bool = False

    @property
    def columns(self) -> int:
        """Slots of a row."""
        return self.k * self.expand + (self.expand - 1 if self.tail else 0)

    @property
    def bare(self) -> Steps:
        """The selection alone, without forced entries and with the numbers of the entries as its result."""
        return Steps(self.k, self.block)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays that the call takes besides lengths."""
        return (*["tail"] * self.tail, *["block_table"] * self.table)

    def keywords(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options by their names in the table; `given` holds the arrays ``tail`` and ``block_table``."""
        named = {"block_size": self.block, "force_first": int(self.first), "force_last": int(self.last)}
        asked: dict[str, Any] = {name: value for name, value in named.items() if value > (name == "block_size")}
        if self.expand > 1:
            asked["expand"] = self.expand
        return asked | {name: given[name] for name in self.arrays}


def by_torch(scores: Any, counts: Any, k: int) -> Any:
    """`torch.topk`, which knows no lengths: what follows them is overwritten before."""
    import torch

    behind = torch.arange(scores.shape[1], device=scores.device) >= counts[:, None]
    return torch.topk(scores.masked_fill(behind, -INFINITY), k, dim=1, sorted=False)[1]


def by_ksieve(scores: Any, counts: Any, k: int) -> Any:
    """`ksieve.topk` of one call without options."""
    from ksieve import api

    return api.topk(scores, counts, k)


def around(select: Select, steps: Steps, scores: Any, lengths: Any, given: dict[str, Any], out: Any) -> None:
    """Write what one call of `ksieve.topk` does into `out`, int32 and of shape (rows, steps.columns).

    `scores`: numbers above -inf; the width is a multiple of the block. `lengths`: int32, valid scores of each row, of
    at least k entries. `given`: ``tail`` and ``block_table`` as the groups take them, where the steps use them.
    """
    import torch

    device, pooled, counts = scores.device, scores, lengths
    if steps.block > 1:
        pooled = scores.unflatten(1, (-1, steps.block)).amax(2)
        counts = (lengths + steps.block - 1) // steps.block
    newest = (counts - 1).long()[:, None]
    if steps.last:
        counts = counts - 1
    elif steps.block > 1:  # the last block may be short
        at = newest * steps.block + torch.arange(steps.block, device=device)
        valid = scores.gather(1, at).masked_fill(at >= lengths[:, None], -INFINITY)
        pooled.scatter_(1, newest, valid.amax(1, keepdim=True))
    found = select(pooled[:, int(steps.first) :], counts - int(steps.first), steps.k - steps.first - steps.last)
    forced = [torch.zeros_like(newest)] * steps.first + [newest] * steps.last
    if forced:
        found = torch.cat([found + int(steps.first), *(entry.to(found.dtype) for entry in forced)], 1)
    if steps.table:
        wide = scores.shape[1] // given["block_table"].shape[1]
        found = given["block_table"].gather(1, found.long() // wide) * wide + found % wide
    if steps.expand > 1:
        within = torch.arange(steps.expand, dtype=found.dtype, device=device)
        found = (found[:, :, None] * steps.expand + within).flatten(1)
        if steps.block > 1:
            found = found.masked_fill(found >= lengths[:, None], -1)
    out[:, : found.shape[1]] = found
    if steps.tail:
        tail = given["tail"]
        behind = tail[:, None] // steps.expand * steps.expand + within[:-1].int()
        out[:, found.shape[1] :] = behind.masked_fill(behind >= tail[:, None], -1)
