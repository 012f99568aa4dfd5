"""Production and selection without the matrix, as `ksieve bench chain` times them: by tiles, and by candidates.

Rows are taken in blocks, so that the lists of a block, and no more, are in memory; each block runs through all columns.
Every call has fixed shapes, so that a way is one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ksieve.lab.chain.producers import Factors, Produce, rows_of
from ksieve.tiles import Candidates, Running

ROWS = 2048
"""Rows of a block."""

TILE = 16_384
"""Columns of a tile."""

PASSES = 2
"""Passes of the producer that keeps candidates, before the rest comes by tiles."""

Keep = Callable[[Factors, Candidates], None]
"""``keep(factors, candidates)``: produces all scores and keeps those that the candidates ask for."""


def joined(factors: Sequence[Factors]) -> Factors:
    """Rows of several factors, with the keys of the first."""
    import torch

    columns = {n: torch.cat([getattr(f, n) for f in factors]) for n in ("q", "weights", "lengths")}
    return replace(factors[0], **columns)


class Tiles:
    """Selection from tiles of columns, each produced into the same buffer.

    Parameters
    ----------
    factors : Factors
    k : int
    produce : callable
        Of `ksieve.lab.chain.producers`.
    rows, tile : int
        Rows of a block, and columns of a tile.

    Attributes
    ----------
    out : int32, shape (rows of the factors, k)
    """

    def __init__(self, factors: Factors, k: int, produce: Produce, *, rows: int = ROWS, tile: int = TILE) -> None:
        import torch

        self.factors, self.k, self.produce, self.tile = factors, k, produce, tile
        total, device = len(factors.lengths), factors.lengths.device
        begins = range(0, total, rows)
        self.blocks = [(slice(b, b + rows), rows_of(factors, b, min(b + rows, total))) for b in begins]
        counts = {len(block.lengths) for _, block in self.blocks}
        self.runnings = {n: Running(n, k, tile, dtype=torch.float32, device=device) for n in counts}
        self.buffer = torch.empty(min(rows, total), tile, dtype=torch.float32, device=device)
        self.out = torch.empty(total, k, dtype=torch.int32, device=device)

    @property
    def width(self) -> int:
        """Columns of the whole rows."""
        return len(self.factors.keys)

    def run(self) -> None:
        """Enqueue production and selection of all rows."""
        for rows, block in self.blocks:
            running = self.runnings[len(block.lengths)]
            running.reset()
            self.push(running, block, block.lengths)
            running.finish(out=self.out[rows])

    def push(self, running: Running, block: Factors, lengths: Any) -> None:
        """Produce and push all tiles of a block, as far as `lengths` go."""
        for first in range(0, self.width, self.tile):
            last = min(first + self.tile, self.width)
            within = (lengths - first).clamp_(0, last - first)
            part = replace(
                block, keys=block.keys[first:last], key_scale=block.key_scale[first:last], lengths=within
            )  # fmt: skip
            scores = self.produce(part, self.buffer[: len(lengths), : last - first], False)
            running.push(scores, first, lengths)


class Kept(Tiles):
    """Selection from candidates that the producer keeps, and from tiles for rows that they do not decide.

    Parameters
    ----------
    factors, k, produce, rows, tile
        As of `Tiles`.
    keep : callable
    """

    def __init__(
        self, factors: Factors, k: int, produce: Produce, keep: Keep, *, rows: int = ROWS, tile: int = TILE
    ) -> None:
        import torch

        super().__init__(factors, k, produce, rows=rows, tile=tile)
        self.keep = keep
        self.candidates = {n: Candidates(running, self.width) for n, running in self.runnings.items()}
        (self.columns, *_) = (c.columns for c in self.candidates.values())
        self.samples = torch.empty(len(self.buffer), len(self.columns), device=factors.lengths.device)

    def run(self) -> None:
        """Enqueue production and selection of all rows."""
        for rows, block in self.blocks:
            chosen = self.propose(block)
            for _ in range(PASSES):
                self.keep(replace(block, lengths=chosen.left), chosen)
                chosen.certify()
            running = self.runnings[len(block.lengths)]
            self.push(running, block, chosen.left)
            running.finish(out=self.out[rows])

    def run_without_selection(self) -> None:
        """Enqueue the production alone: of the samples, and of all scores with cutoffs that none reaches."""
        for _, block in self.blocks:
            chosen = self.propose(block)
            chosen.cutoff.fill_(float("inf"))
            self.keep(block, chosen)

    def propose(self, block: Factors) -> Candidates:
        """Produce the samples of a block, and propose its cutoffs."""
        import torch

        chosen, rows = self.candidates[len(block.lengths)], len(block.lengths)
        index = self.columns.long()
        sampled = torch.searchsorted(self.columns, block.lengths.clamp(0, self.width)).int()
        part = replace(block, keys=block.keys[index], key_scale=block.key_scale[index], lengths=sampled)
        chosen.propose(self.produce(part, self.samples[:rows], False), block.lengths)
        return chosen
