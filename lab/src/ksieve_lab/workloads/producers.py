"""One table of all synthetic producers, for the command line, tests and benches; and captures made from them.

``PRODUCERS[name](rows, width, seed=..., first_row=..., k=...)`` gives float32 scores of shape (rows, width).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ksieve.core.errors import ArgumentError
from ksieve_lab.captures.format import BLOCK_BYTES, Progress, rows_per_block
from ksieve_lab.captures.numbers import narrow
from ksieve_lab.captures.writer import CaptureWriter
from ksieve_lab.workloads.adversarial import ADVERSARIAL
from ksieve_lab.workloads.lengths import LENGTHS
from ksieve_lab.workloads.natural import NATURAL
from ksieve_lab.workloads.rowwise import Producer

PRODUCERS: dict[str, Producer] = {producer.name: producer for producer in (*NATURAL, *ADVERSARIAL)}
"""Every producer by name: natural families first."""


def find_producer(name: str) -> Producer:
    """Look up a producer; hyphens may stand for underscores."""
    try:
        return PRODUCERS[name.replace("-", "_")]
    except KeyError:
        raise ArgumentError("producer", repr(name), f"one of {', '.join(PRODUCERS)}") from None


def write_synthetic(
    path: str | os.PathLike[str],
    producer: str,
    rows: int,
    width: int,
    *,
    lengths: str = "full",
    dtype: str = "float32",
    seed: int = 0,
    k: int = 2048,
    options: Mapping[str, Any] | None = None,
    max_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> None:
    """Write a synthetic capture block by block.

    Parameters
    ----------
    path : path
    producer : str
        A name of `PRODUCERS`.
    rows, width : int
    lengths : str
        A name of `ksieve_lab.workloads.lengths.LENGTHS`.
    dtype : {"float32", "float16", "bfloat16"}
        Narrower dtypes round the producer's float32 to nearest even, which may create ties.
    seed, k : int
        As the producer takes them; `k` is stored as the capture's suggested K.
    options : mapping, optional
        The producer's own options.
    max_bytes : int
        Bound on the bytes of float32 scores in memory at a time.
    progress : callable, optional
        Called as ``progress(rows done, rows in all)``.

    Raises
    ------
    ArgumentError
        Before anything is written.
    """
    make = find_producer(producer)
    if lengths not in LENGTHS:
        raise ArgumentError("lengths", repr(lengths), f"one of {', '.join(LENGTHS)}")
    make(0, width, seed=seed, k=k, **(options or {}))  # checks the arguments
    facts = {
        "title": f"synthetic: {make.description}",
        "producer": make.name,
        "seed": str(seed),
        "valid_lengths": lengths,
        **{f"option_{name}": str(value) for name, value in (options or {}).items()},
    }
    with CaptureWriter(path, rows, width, dtype, k=k, metadata=facts) as writer:
        valid = LENGTHS[lengths](rows, width, seed=seed, k=k)
        step = rows_per_block(width, "float32", max_bytes)
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            block = make(end - begin, width, seed=seed, first_row=begin, k=k, **(options or {}))
            writer.write(narrow(block, dtype), valid[begin:end])
            if progress is not None:
                progress(end, rows)
