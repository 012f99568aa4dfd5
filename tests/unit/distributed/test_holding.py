"""Pairs that a caller gathered himself: merged by `ksieve.topk`, and of the answer what each rank holds."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
import ksieve.distributed as ranks
import ksieve_lab
from cases import scores_of
from flat_calls import ask
from ksieve.core.errors import ArgumentError
from ksieve.core.options import Options
from ksieve.distributed.ranks import _flat as flat_of_call

torch = pytest.importorskip("torch")

UNEVEN = (100, 0, 131)


def gathered(scores, layout, widths, k, ties):
    """The k best of every shard with their global positions, side by side, as an engine gathers them."""
    pairs = []
    for rank, width in enumerate(widths):
        places = torch.from_numpy(layout.positions(np.arange(width), rank, widths))
        local = torch.from_numpy(scores)[:, places].contiguous()
        ids, values = ask(local, k=k, tie_break=ties, values=True)
        positions = places[ids.clamp(min=0).long()] if width else ids
        pairs.append((values, torch.where(ids < 0, -1, positions).int()))
    return (torch.cat(part, 1) for part in zip(*pairs, strict=True))


@pytest.mark.parametrize("ties", ["low", "high"])
@pytest.mark.parametrize("layout", [ranks.Contiguous(), ranks.Interleaved(1), ranks.Interleaved(7)], ids=str)
def test_each_rank_keeps_what_the_protocol_gives_it(layout, ties):
    rows, k = 5, 40
    scores = scores_of("few_values", rows, sum(UNEVEN), k)
    widths = UNEVEN if layout == ranks.Contiguous() else layout.widths(sum(UNEVEN), 3)
    values, positions = gathered(scores, layout, widths, k, ties)
    everywhere = ksieve.topk(values, k=k, gathered=ksieve.Positions(positions), tie_break=ties)
    right = ksieve_lab.simulate(
        scores, k=k, world=3, layout=layout, widths=widths, options=Options(tie_break=ties)
    ).owned
    table = torch.randperm(2 * 40).int().view(2, 40)
    table[:, ::7] = -3  # no page
    for rank, width in enumerate(widths):
        index = {int(p): i for i, p in enumerate(layout.positions(np.arange(width), rank, widths))}
        call = {"layout": layout, "rank": rank, "widths": widths}
        found, counts = ranks.owned(everywhere, **call)
        local, _ = ranks.owned(everywhere.long(), **call, index_base="shard")
        pages, _ = ranks.owned(everywhere[:4], **call, transform=ksieve.PageTable(table, 4), next_n=2)
        assert found.dtype is local.dtype is pages.dtype is counts.dtype is torch.int32
        for r, own in enumerate(right[rank]):
            rest = [-1] * (k - len(own))
            assert counts[r] == len(own) and found[r].tolist() == [*own, *rest]
            mine = [index[int(p)] for p in own]
            assert local[r].tolist() == mine + rest
            if r < 4:
                numbers = [(int(table[r // 2, i // 4]), i % 4) for i in mine]
                assert pages[r].tolist() == [n * 4 + at if n >= 0 else -1 for n, at in numbers] + rest


def test_positions_that_no_rank_holds_are_left_out():
    indices = torch.tensor([[9, -1, 3, 8, 0, 1 << 30]])
    found, counts = ranks.owned(indices, rank=1, widths=(4, 5))
    assert found.tolist() == [[8, -1, -1, -1, -1, -1]] and counts.tolist() == [1]
    assert ranks.owned(indices[:, :0], rank=0, widths=(4,))[0].shape == (1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": np.zeros((1, 2), np.int32)}, "indices: got numpy"),
        ({"indices": torch.zeros(1, 2)}, "indices: got float32 of shape"),
        ({"indices": torch.zeros(2, dtype=torch.int32)}, "int32 or int64 of shape"),
        ({"widths": (3, -1)}, "widths: got"),
        ({"widths": (2**30, 2**30)}, "positions on all ranks; takes at most"),
        ({"rank": 2}, "rank: got 2; takes an int from 0 to 1, by widths"),
        ({"layout": "rows"}, "layout: got 'rows'"),
        ({"index_base": "start"}, "index_base: got 'start'; takes one of 'row', 'shard'"),
        ({"next_n": 2}, "next_n: got 2; takes a divisor of the 1 rows"),
        ({"transform": ksieve.Offsets(1)}, "transform: got ksieve.Offsets; takes a ksieve.PageTable of this rank"),
    ],
    ids=lambda case: str(case) if isinstance(case, str) else next(iter(case)),
)
def test_refusals(change, message):
    call = {"indices": torch.zeros(1, 2, dtype=torch.int32), "rank": 0, "widths": (3, 3)} | change
    with pytest.raises(ArgumentError) as refusal:
        ranks.owned(**call)
    assert message in str(refusal.value)


def test_shards_are_no_segments():
    with pytest.raises(ArgumentError, match=r"^bounds: got Segments; takes ksieve\.RowBounds"):
        flat_of_call(ksieve.Segments([0, 1]), None)
