"""The five steps of a call with blocks or pools by PyTorch operations around a selector, and a judge of such answers.

What frameworks write by hand, in the cheapest form known here: the scores are read once, masks touch one block of a row
where they can, forced entries are appended in place of being ranked, and no step sorts or counts slots. The judge
knows none of this: it rebuilds the selected entries from the positions and compares their scores with the best ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ksieve.lab.bench.scores import blocks

INFINITY = float("inf")

Select = Callable[[Any, Any, int], Any]
"""``select(scores, counts, k) -> indices`` of the k best of the first ``counts[row]`` scores of each row."""


@dataclass(frozen=True)
class Steps:
    """What a call asks for.

    Attributes
    ----------
    k : int
    block : int
        Scores of a block; 1 without blocks.
    expand : int
        Positions of an entry that are written; 1: its number.
    first, last : bool
        Whether the first and the last entry of a row are selected with any score, inside the k.
    tail : bool
        Whether the positions behind the last whole entry are written too.
    table : bool
        Whether scores are those of candidates, 8 positions for each block of a table.
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
        """Keyword arguments of `ksieve.topk`; `given` holds the arrays ``tail`` and ``block_table``."""
        named = {"block_size": self.block, "force_first": int(self.first), "force_last": int(self.last)}
        asked: dict[str, Any] = {name: value for name, value in named.items() if value > (name == "block_size")}
        if self.expand > 1:
            asked["expand"] = self.expand
        return asked | {name: given[name] for name in self.arrays}


def by_torch(scores: Any, counts: Any, k: int) -> Any:
    """`torch.topk`, which knows no lengths: what is behind them is overwritten before."""
    import torch

    behind = torch.arange(scores.shape[1], device=scores.device) >= counts[:, None]
    return torch.topk(scores.masked_fill(behind, -INFINITY), k, dim=1, sorted=False)[1]


def by_ksieve(scores: Any, counts: Any, k: int) -> Any:
    """`ksieve.topk` of one call without options."""
    from ksieve import api

    return api.topk(scores, counts, k)


def around(select: Select, steps: Steps, scores: Any, lengths: Any, given: dict[str, Any], out: Any) -> None:
    """Write what one call of `ksieve.topk` does.

    Parameters
    ----------
    select : callable
    steps : Steps
    scores : torch.Tensor, shape (rows, width)
        Numbers above -inf; the width is a multiple of the block.
    lengths : torch.Tensor of int32, shape (rows,)
        Valid scores of each row, of at least k entries.
    given : dict
        ``tail`` and ``block_table`` as `ksieve.topk` takes them, where the steps use them.
    out : torch.Tensor of int32, shape (rows, steps.columns)
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


def exact(steps: Steps, scores: Any, lengths: Any, given: dict[str, Any], out: Any) -> bool:
    """Whether every row of an answer holds the best entries, whole, once, in front, and the tail behind them."""
    rows, width = scores.shape
    return all(
        _exact(steps, scores[part].float(), lengths[part], {n: a[part] for n, a in given.items()}, out[part].long())
        for part in blocks(rows, width, 1 << 24)
    )


def _exact(steps: Steps, scores: Any, lengths: Any, given: dict[str, Any], slots: Any) -> bool:
    import torch

    device, width = scores.device, scores.shape[1]
    if steps.table:  # back from positions to candidates; blocks of the table are distinct
        table = given["block_table"].long()
        wide = width // table.shape[1]
        place = torch.full((len(table), int(table.max()) + 1), -1, device=device)
        place.scatter_(1, table, torch.arange(table.shape[1], device=device).expand_as(table))
        if slots.max() >= place.shape[1] * wide:
            return False
        known = place.gather(1, (slots // wide).clamp(min=0))
        slots = torch.where((slots < 0) | (known < 0), -1, known * wide + slots % wide)
    used = slots >= 0
    number = used.sum(1)
    room = -(-(width if steps.block > 1 else (width + 1) * steps.expand) // steps.expand) * steps.expand
    if slots.max() >= room or (used != (torch.arange(slots.shape[1], device=device) < number[:, None])).any():
        return False
    held = torch.zeros(len(slots), room + 1, dtype=torch.bool, device=device)
    held.scatter_(1, torch.where(used, slots, room), True)
    held = held[:, :room]
    position = torch.arange(room, device=device)
    limit = lengths * (1 if steps.block > 1 else steps.expand)
    good = held.sum(1) == number
    if steps.tail:
        behind = (position >= limit[:, None]) & (position < given["tail"][:, None])
        good &= (held | ~behind).all(1)
        held &= ~behind
    entries = held.unflatten(1, (-1, steps.expand))
    chosen = entries.any(2)
    good &= (
        (entries == (chosen[:, :, None] & (position < limit[:, None]).unflatten(1, (-1, steps.expand))))
        .flatten(1)
        .all(1)
    )
    score = scores.masked_fill(torch.arange(width, device=device) >= lengths[:, None], -INFINITY)
    if steps.block > 1:
        score = score.unflatten(1, (-1, steps.block)).amax(2)
    chosen = chosen[:, : score.shape[1]]
    counts = -(-lengths // steps.block)
    if steps.first:
        score[:, 0] = INFINITY
    if steps.last:
        score.scatter_(1, (counts - 1).long()[:, None], INFINITY)
    best = torch.topk(score, steps.k, dim=1).values
    own = torch.topk(score.masked_fill(~chosen, -INFINITY), steps.k, dim=1).values
    return bool((good & (chosen.sum(1) == steps.k) & (own == best).all(1)).all())
