"""Time `ksieve.Running` on the CPU beside one call over the whole rows: tiles of several widths, three kinds of rows.

    python scripts/time_tiles.py [rows] [width] [k]

Each number is the median of five rounds in which every way runs once, so that a busy machine slows all of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import ksieve

TILES = (4096, 16_384, 65_536, 262_144)


def main(rows: int = 64, width: int = 1 << 20, k: int = 2048) -> None:
    """Print milliseconds."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((rows, width)).astype(np.float32)
    kinds = {"random": normal, "ReLU, k-th is 0": np.maximum(normal - 3, 0), "ascending": np.sort(normal)}
    print(f"{rows} rows of {width:,}, k = {k}: ms in one call, and in tiles of {', '.join(map(str, TILES))}")
    for name, scores in kinds.items():
        ways: list[Callable[[], object]] = [lambda s=scores: ksieve.topk(s, k=k)]  # type: ignore[misc]
        for tile in TILES:
            running = ksieve.Running(rows, k, tile)

            def push(running: ksieve.Running = running, tile: int = tile, s: np.ndarray = scores) -> None:  # type: ignore[type-arg]
                running.reset()
                for first in range(0, width, tile):
                    running.push(s[:, first : first + tile], first)
                running.finish()

            ways.append(push)
        times: list[list[float]] = [[] for _ in ways]
        for round_ in range(6):
            for taken, way in zip(times, ways, strict=True):
                start = time.perf_counter()
                way()
                if round_:
                    taken.append(1e3 * (time.perf_counter() - start))
        print(f"{name:16}", *(f"{statistics.median(t):8.1f}" for t in times))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
