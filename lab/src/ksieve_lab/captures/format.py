"""Score captures on disk: a score matrix with valid lengths, stored as scores or as an indexer's factors.

The format is safetensors with a few agreed names; docs/guide/files.md specifies it. A capture is opened
without reading its scores: `Capture.rows_block` reads (kind "scores") or computes (kind "factors") any range of rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from ksieve.core import problem
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.paths import as_path
from ksieve.files.arrays import Array, read_header
from ksieve.files.scores import FLOATS, K_KEY, KIND_KEY, VERSION_KEY, ScoreFile, stored_k
from ksieve_lab.captures.factors import FACTORS, Factors

Kind = Literal["scores", "factors"]
Progress = Callable[[int, int], None]
"""Called as ``progress(rows done, rows in all)``."""

FORMAT_VERSION = 1

BLOCK_BYTES = 64 << 20
"""Default bound on the bytes of one block of scores."""


class Block(NamedTuple):
    """Consecutive rows of a capture, from row `begin` on."""

    begin: int
    scores: Array
    lengths: NDArray[np.int32]


class Capture(ScoreFile):
    """A capture of scores or of factors, opened without reading its scores.

    Parameters
    ----------
    path : path
        A ``.safetensors`` file.

    Attributes
    ----------
    kind : {"scores", "factors"}
    metadata : dict of str to str
        All of the file's metadata.
    path, rows, width, dtype, lengths, k
        As of a `ksieve.files.ScoreFile`. Captures of factors give float32.

    Raises
    ------
    ArgumentError
        If `path` is no path.
    FileFormatError
        The message names the file and the fault: absent, no complete safetensors file, not a capture, or a tensor's
        wrong dtype or shape.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = as_path(path)
        tensors, self.metadata = read_header(path)
        self.kind = _kind(path, set(tensors), self.metadata)
        lengths = tensors["lengths"].map() if "lengths" in tensors else None
        if self.kind == "scores":
            dtype = FLOATS.get(tensors["scores"].dtype)
            if dtype is None:
                raise FileFormatError(f"{path}: scores of dtype {tensors['scores'].dtype}; takes {' or '.join(FLOATS)}")
            matrix: Any = tensors["scores"].map()
        else:
            matrix, dtype = Factors(path, tensors), "float32"
            lengths = matrix.causal() if lengths is None else lengths
        k = stored_k(path, self.metadata) if VERSION_KEY in self.metadata else None
        super().__init__(path, matrix, dtype, lengths, k)

    def tile(self, begin: int, end: int, first: int, last: int) -> Array:
        """Read or compute columns `first` to `last` of rows `begin` to `end`, as a slice does.

        Returns
        -------
        ndarray
            A new, writable, contiguous array of `dtype`; uint16 bits for bfloat16. The valid lengths are
            ``lengths[begin:end]``; scores past them are stored padding, or evaluated by the formula. The bits of a row
            do not depend on the block in which it is read.

        Raises
        ------
        FileFormatError
            If the file was cut short after it was opened.
        """
        return np.array(super().tile(begin, end, first, last))

    def rows_at(self, rows: Sequence[int]) -> Array:
        """Read or compute the scores of any rows, in the order given; otherwise as `rows_block`."""
        self.tile(0, 0, 0, 0)  # refuses a file that was cut
        return np.array(self._matrix[np.array(rows, np.intp), :])

    def iter_blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
        """Iterate over all rows in blocks of at most `max_bytes` of scores (at least one row each)."""
        step = rows_per_block(self.width, self.dtype, max_bytes)
        for begin in range(0, self.rows, step):
            end = min(begin + step, self.rows)
            yield Block(begin, self.rows_block(begin, end), self.lengths[begin:end])

    def valid_scores(self) -> tuple[int, int, int]:
        """Return the least, the largest and the sum of the lengths, clamped to [0, width]; zeros without a row."""
        if not self.rows:
            return 0, 0, 0
        if self.lengths.strides == (0,):
            return self.width, self.width, self.rows * self.width
        lengths = self.clamped()
        return int(lengths.min()), int(lengths.max()), int(lengths.sum(dtype=np.int64))

    def clamped(self) -> NDArray[np.int32]:
        """Return the lengths, clamped to [0, width]; lengths of full rows take no memory."""
        return self.lengths if self.lengths.strides == (0,) else np.clip(self.lengths, 0, self.width)

    def describe(self) -> dict[str, str]:
        """Return the facts for display, in order: shape, lengths, size, then metadata."""
        least, most, total = self.valid_scores()
        matrix = self.rows * self.width * SCORE_DTYPES[self.dtype].size
        facts = {
            "file": f"{self.path} ({decimal(self.path.stat().st_size)})",
            "kind": self.kind,
            "scores": f"{self.rows:,} rows x {self.width:,} {self.dtype} ({decimal(matrix)})",
            "lengths": f"{least:,} to {most:,}, {total:,} valid scores" if self.rows else "none",
        }
        if self.kind == "factors":
            facts["factors"] = str(self._matrix)
        facts["suggested k"] = f"{self.k:,}" if self.k is not None else "none"
        own = (VERSION_KEY, KIND_KEY, K_KEY)
        # A metadata key of the same name never replaces a measured fact.
        return facts | {
            f"metadata {name}" if name in facts else name: value
            for name, value in self.metadata.items()
            if name not in own
        }

    def __repr__(self) -> str:
        return f"<Capture {str(self.path)!r}: {self.kind}, {self.rows} x {self.width} {self.dtype}>"


def _kind(path: Path, names: set[str], metadata: Mapping[str, str]) -> Kind:
    version = metadata.get(VERSION_KEY)
    if version not in (None, str(FORMAT_VERSION)):
        raise FileFormatError(f"{path}: capture format version {version!r}; this ksieve reads {FORMAT_VERSION}")
    found: Kind = "scores" if "scores" in names else "factors"
    if found == "factors" and not names >= FACTORS:
        raise FileFormatError(
            f"{path}: not a score capture: it holds tensors {sorted(names)}; a capture holds 'scores', or 'q', 'k' and "
            "'w'"
        )
    stated = metadata.get(KIND_KEY, found) if version is not None else found
    if stated != found:
        raise FileFormatError(f"{path}: metadata says kind {stated!r}, its tensors say {found!r}")
    return found


def rows_per_block(width: int, dtype: str, max_bytes: int) -> int:
    """Rows of a block of at most `max_bytes` of scores; at least one."""
    if not problem.is_int(max_bytes) or max_bytes < 1:
        raise ArgumentError("max_bytes", repr(max_bytes), "an int of at least 1")
    return max(1, int(max_bytes) // max(1, width * SCORE_DTYPES[dtype].size))
