"""Score matrices saved by NumPy, PyTorch or safetensors, copied into captures block by block.

`ksieve_lab.captures.sources` finds and reads them; a matrix may be larger than memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ksieve.core import problem
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.paths import as_path, same_file
from ksieve.core.problem import MAX_SIZE
from ksieve.files.arrays import Array
from ksieve.files.scores import FREE_ROWS
from ksieve_lab.captures.format import BLOCK_BYTES, Progress, rows_per_block
from ksieve_lab.captures.numbers import narrow
from ksieve_lab.captures.sources import TAKES, Source, open_source
from ksieve_lab.captures.writer import CaptureWriter

CAUSAL = "causal"
"""Value of `lengths` that means the lengths of a causal window."""


def import_scores(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    name: str | None = None,
    lengths: Any = None,
    lengths_name: str | None = None,
    index: Sequence[int] | None = None,
    flatten: bool = False,
    dtype: str | None = None,
    k: int | None = None,
    metadata: Mapping[str, str] | None = None,
    max_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> None:
    """Copy a score matrix into a capture.

    Parameters
    ----------
    source : path
        ``.npy``, ``.npz``, ``.safetensors``, or a torch file (``.pt``, ``.pth``) of a tensor or a dict of tensors.
    target : path
        The capture to write.
    name : str, optional
        Name of the array of scores in a file of several. Default: "scores", or the only one.
    lengths : "causal", path, or array of int, shape (rows,), optional
        Valid lengths: an array, or a file of any type that `source` may have; for a stack also of shape (..., rows).
        "causal": row r of R has ``width - R + 1 + r`` valid scores, in each matrix of a stack. Default: the array named
        "lengths" in the source, if there is one; else full rows.
    lengths_name : str, optional
        Name of the array of lengths in the lengths file, or in the source if `lengths` is omitted.
    index : sequence of int, optional
        Selects one matrix of a stack: one index for every dimension before the last two.
    flatten : bool
        Take all matrices of a stack, in C order.
    dtype : {"float32", "float16", "bfloat16"}, optional
        Round the scores to this dtype, to nearest even. Required for float64 scores. Default: the dtype of the source.
    k : int, optional
        The K that the capture is meant for.
    metadata : mapping of str to str, optional
        Stored with the capture; "source", the file's name, is added when absent.
    max_bytes : int
        Bound on the bytes of scores in memory at a time.
    progress : callable, optional
        Called as ``progress(rows done, rows in all)``.

    Raises
    ------
    FileFormatError
        The file is absent, damaged or holds no matrix of scores; the message names the file and the fault.
    ArgumentError
        `name`, `lengths`, `index` or `dtype` does not fit the contents of the file.
    BackendError
        The source is a torch file, and PyTorch is not installed.
    """
    path, target = as_path(source, "source"), as_path(target, "target")
    if same_file(path, target):
        raise ArgumentError("target", repr(str(target)), "another file than the source")
    if isinstance(lengths, (str, os.PathLike)) and lengths != CAUSAL and same_file(lengths, target):
        raise ArgumentError("target", repr(str(target)), "another file than that of the lengths")
    with open_source(path, name, prefer="scores") as found:
        kept = _score_dtype(path, found, dtype)
        stack = _chosen(path, found.array, index, flatten)
        rows, width = math.prod(stack.shape[:-1]), stack.shape[-1]
        for count, what in ((rows, "rows"), (width, "scores a row")):
            if count > (MAX_SIZE if width and rows else FREE_ROWS):
                raise FileFormatError(f"{path}: {count:,} {what} in an array of shape {found.array.shape}")
        valid = _find_lengths(path, found, lengths, lengths_name, index, rows)
        facts = {"source": path.name} | dict(metadata or {})
        # Eight bytes per score: the source may be float64.
        step = rows_per_block(2 * width, "float32", max_bytes)
        with CaptureWriter(target, rows, width, kept, k=k, metadata=facts) as writer:
            for matrix in np.ndindex(stack.shape[:-2]):
                for first in range(0, stack.shape[-2], step):
                    part = stack[matrix][first : first + step]
                    block = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
                    if dtype is not None:
                        block = narrow(block, dtype)
                    begin, end = writer.written, writer.written + len(block)
                    writer.write(block, None if valid is None else valid(begin, end))
                    if progress is not None:
                        progress(end, rows)


def _score_dtype(path: Path, found: Source, asked: str | None) -> str:
    if found.array.ndim < 2:
        raise FileFormatError(f"{path}: holds an array of shape {found.array.shape}; takes a matrix (rows, width)")
    if asked is not None and asked not in SCORE_DTYPES:
        raise ArgumentError("dtype", repr(asked), f"one of {list(SCORE_DTYPES)}")
    if found.dtype in SCORE_DTYPES:
        return asked or found.dtype
    if found.dtype == "float64" and asked is not None:
        return asked
    raise FileFormatError(f"{path}: scores of dtype {found.dtype}; takes {TAKES}")


def _chosen(path: Path, array: Array, index: Sequence[int] | None, flatten: bool) -> Array:
    """Return the matrix that is taken, or the whole stack, as a view."""
    lead = array.shape[:-2]
    ranges = ", ".join(f"0 to {size - 1}" for size in lead)
    if flatten and index is not None:
        raise ArgumentError("flatten", "True, with an index", "one of the two")
    if index is None:
        if lead and not flatten:
            raise FileFormatError(
                f"{path}: holds an array of shape {array.shape}; takes a matrix (rows, width), or of a stack one "
                f"matrix, such as index={(0,) * len(lead)} ({ranges}), or all with flatten=True"
            )
        return array
    wanted = tuple(index)
    fits = len(wanted) == len(lead) and all(
        problem.is_int(i) and 0 <= i < size for i, size in zip(wanted, lead, strict=False)
    )
    if not fits or not lead:
        takes = f"{len(lead)} of them, {ranges}" if lead else "none"
        raise ArgumentError("index", wanted, f"{takes}: {path} holds an array of shape {array.shape}")
    matrix: Array = array[wanted]
    return matrix


Lengths = Callable[[int, int], Array]
"""Called as ``lengths(begin, end)``: int32 lengths of some of the rows taken."""


def _find_lengths(
    path: Path, scores: Source, lengths: Any, lengths_name: str | None, index: Sequence[int] | None, rows: int
) -> Lengths | None:
    """Turn the `lengths` argument into the lengths of the rows taken; None when there are none."""
    stack = scores.array.shape[:-1]
    if isinstance(lengths, str) and lengths == CAUSAL:
        if lengths_name is not None:
            raise ArgumentError("lengths_name", repr(lengths_name), "nothing: the lengths are causal")
        return _causal(path, scores.array.shape)
    if lengths is None and lengths_name is None and "lengths" not in scores.names:
        return None
    if lengths is None or isinstance(lengths, (str, os.PathLike)):
        file = path if lengths is None else as_path(lengths, "lengths")
        where = f"lengths in {file}"
        with open_source(file, lengths_name, prefer="lengths") as source:
            found = source.array
    else:
        where = "lengths"
        problem.inspect(lengths, where)
        found = problem.as_numpy(lengths)
    if found.dtype.kind in "iu" and len(stack) > 1 and found.shape == stack:
        found = found.reshape(-1) if index is None else found[tuple(index)]
    if found.dtype.kind not in "iu" or found.shape != (rows,):
        raise ArgumentError(where, f"dtype {found.dtype}, shape {found.shape}", f"integers of shape ({rows},)")
    # A length beyond int32 equals the largest int32 in effect: both exceed any row.
    return lambda begin, end: np.clip(found[begin:end], -(1 << 31), (1 << 31) - 1).astype(np.int32)


def _causal(path: Path, shape: tuple[int, ...]) -> Lengths:
    queries, width = shape[-2:]
    if queries > width:
        raise ArgumentError(
            "lengths", "'causal'", f"lengths: {path} has {queries} rows of {width} scores, which is no causal window"
        )
    first = 1 + width - queries
    return lambda begin, end: (np.arange(begin, end) % max(queries, 1) + first).astype(np.int32)
