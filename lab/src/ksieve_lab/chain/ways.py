"""Production and selection without the matrix, as `ksieve bench chain` times them: by tiles, and by candidates.

Rows are taken in blocks, so that the lists of a block, and no more, are in memory; each block runs through all columns.
Every call has fixed shapes, so that a way is one CUDA graph. Pushes run on a second stream, during the production of
the next tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ksieve.running import Candidates, Running
from ksieve_lab.chain.producers import Factors, Produce, rows_of

ROWS = 2112
"""Most rows of a block: four CTAs for each of an H100's 132 multiprocessors, four times."""

TILE = 16_384
"""Columns of a tile."""

PASSES = 2
"""Passes of the producer that keeps candidates, before the rest comes by tiles."""

Keep = Callable[[Factors, Candidates], None]
"""``keep(factors, candidates)``: produces all scores and keeps what the candidates ask for."""


def joined(factors: Sequence[Factors]) -> Factors:
    """Rows of several factors, with the keys of the first."""
    import torch

    columns = {n: torch.cat([getattr(f, n) for f in factors]) for n in ("q", "weights", "lengths")}
    return replace(factors[0], **columns)


class Beside:
    """A second stream on a GPU, for what need not delay the current one; on the host, nothing of the kind.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: Any) -> None:
        import torch

        self.torch = torch
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.ends: dict[int, Any] = {}

    @contextmanager
    def reading(self, buffer: int = -1) -> Iterator[None]:
        """Enqueue there, after what the current stream has now; `reuse` waits for readers of a buffer."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(self.torch.cuda.current_stream(self.stream.device))
        with self.torch.cuda.stream(self.stream):
            yield
            self.ends[buffer] = self.stream.record_event()

    def reuse(self, buffer: int) -> None:
        """Let the current stream wait until a buffer is read."""
        if buffer in self.ends:
            self.torch.cuda.current_stream(self.stream.device).wait_event(self.ends.pop(buffer))

    def join(self) -> None:
        """Let the current stream wait for everything."""
        if self.stream is not None:
            self.torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            self.ends.clear()


class Tiles:
    """Selection from tiles of columns, produced into two buffers in turn; `out` has the indices.

    `rows` and `tile`: most rows of a block, and columns of a tile. Blocks have equal sizes, and overlap by fewer rows
    than they are. `buffers`: tiles in memory. With one, pushes run on the stream of production.
    """

    def __init__(
        self, factors: Factors, k: int, produce: Produce, *, rows: int = ROWS, tile: int = TILE, buffers: int = 2
    ) -> None:
        import torch

        self.factors, self.k, self.produce, self.tile = factors, k, produce, tile
        total, device = len(factors.lengths), factors.lengths.device
        count = -(-total // rows)
        self.rows = -(-total // count)
        begins = [min(i * self.rows, total - self.rows) for i in range(count)]
        self.blocks = [(slice(b, b + self.rows), rows_of(factors, b, b + self.rows)) for b in begins]
        self.running = Running(self.rows, k, tile, dtype=torch.float32, device=device)
        self.buffers = [torch.empty(self.rows, tile, dtype=torch.float32, device=device) for _ in range(buffers)]
        self.firsts = torch.arange(0, self.width, tile, dtype=torch.int32, device=device)
        self.out = torch.empty(total, k, dtype=torch.int32, device=device)
        self.beside = Beside(device if buffers > 1 else torch.device("cpu"))

    @property
    def width(self) -> int:
        """Columns of the whole rows."""
        return len(self.factors.keys)

    def run(self) -> None:
        """Enqueue production and selection of all rows."""
        for rows, block in self.blocks:
            with self.beside.reading():
                self.running.reset()
            self.push(block, block.lengths, rows)
        self.beside.join()

    def push(self, block: Factors, lengths: Any, rows: slice) -> None:
        """Produce and push all tiles of a block, as far as `lengths` go, and write its answer."""
        within = (lengths - self.firsts[:, None]).clamp_(0, self.tile)
        for i, first in enumerate(range(0, self.width, self.tile)):
            last = min(first + self.tile, self.width)
            part = replace(
                block, keys=block.keys[first:last], key_scale=block.key_scale[first:last], lengths=within[i]
            )  # fmt: skip
            buffer = i % len(self.buffers)
            self.beside.reuse(buffer)
            scores = self.produce(part, self.buffers[buffer][:, : last - first], False)
            with self.beside.reading(buffer):
                self.running.push(scores, first, lengths)
        with self.beside.reading():
            self.running.finish(out=self.out[rows])


class Kept(Tiles):
    """Selection from candidates that the producer keeps, and from tiles for rows that they do not decide."""

    def __init__(
        self, factors: Factors, k: int, produce: Produce, keep: Keep, *, rows: int = ROWS, tile: int = 2 * TILE
    ) -> None:
        import torch

        # Few rows come by tiles, mostly none, so that each tile costs its launches: half as many, in the same memory.
        super().__init__(factors, k, produce, rows=rows, tile=tile, buffers=1)
        self.keep, self.candidates = keep, Candidates(self.running, self.width)
        self.columns = self.candidates.columns
        if len(self.columns) > tile:  # samples and tiles have one buffer
            self.buffers[0] = torch.empty(self.rows, len(self.columns), device=factors.lengths.device)

    def run(self) -> None:
        """Enqueue production and selection of all rows."""
        for rows, block in self.blocks:
            chosen = self.propose(block)
            for _ in range(PASSES):
                self.keep(replace(block, lengths=chosen.left), chosen)
                chosen.certify()
            self.push(block, chosen.left, rows)

    def propose(self, block: Factors) -> Candidates:
        """Produce the samples of a block, and propose its cutoffs."""
        import torch

        chosen = self.candidates
        index = self.columns.long()
        sampled = torch.searchsorted(self.columns, block.lengths.clamp(0, self.width)).int()
        part = replace(block, keys=block.keys[index], key_scale=block.key_scale[index], lengths=sampled)
        chosen.propose(self.produce(part, self.buffers[0][:, : len(index)], False), block.lengths)
        return chosen
