"""Writing score captures: scores block by block, or an indexer's factors at once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ksieve.core import problem
from ksieve.core.atomic import Draft, replacing
from ksieve.core.dtypes import SCORE_DTYPES, canonical, held
from ksieve.core.errors import ArgumentError, FileFormatError, shown
from ksieve.files.arrays import NUMPY_OF, Array
from ksieve.files.scores import FLOATS, K_KEY, KIND_KEY, VERSION_KEY
from ksieve_lab.captures.format import BLOCK_BYTES, FORMAT_VERSION, Kind, rows_per_block

METADATA_BYTES = 90_000_000
"""Largest size of the metadata in bytes: the safetensors library reads headers of up to 100,000,000."""

_ALIGNMENT = 64


class CaptureWriter:
    """Writes a capture of kind "scores" block by block; the target is replaced only by a complete file.

    Parameters
    ----------
    path : path
        Replaced, if it exists, when the writer is closed.
    rows, width : int
        Shape of the whole matrix, which the header states.
    dtype : {"float32", "float16", "bfloat16"}
    k : int, optional
        The K that the capture is meant for.
    metadata : mapping of str to str, optional
        Description, origin and licence of the scores, under any names but the format's.

    Raises
    ------
    ArgumentError
        If an argument cannot be used, `path` cannot be written, or its disk has no room for the capture.

    Examples
    --------
    >>> with CaptureWriter("scores.safetensors", rows, width, k=2048) as writer:
    ...     for scores, lengths in blocks:
    ...         writer.write(scores, lengths)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rows: int,
        width: int,
        dtype: str = "float32",
        *,
        k: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        for name, value in (("rows", rows), ("width", width)):
            if not problem.is_int(value) or not 0 <= value <= problem.MAX_SIZE:
                raise ArgumentError(name, shown(value), "an int from 0 to 2**31 - 1, so that indices fit int32")
        if dtype not in SCORE_DTYPES:
            raise ArgumentError("dtype", repr(dtype), f"one of {list(SCORE_DTYPES)}")
        facts = capture_metadata("scores", k, metadata)
        self.rows, self.width, self.dtype, self.written = int(rows), int(width), dtype, 0
        # lengths come first so that scores, the last tensor, can start at a multiple of 64 bytes.
        stored = SCORE_DTYPES[dtype].safetensors
        shapes = {"lengths": ("I32", (self.rows,)), "scores": (stored, (self.rows, self.width))}
        text, self._at, size = _header(shapes, facts, "scores")
        self._draft = Draft(path, seekable=True, size=size)
        try:
            self._draft.file.write(text)
        except BaseException:
            self._draft.discard()
            raise

    def write(self, scores: Any, lengths: Any = None) -> None:
        """Append rows.

        Parameters
        ----------
        scores : host array, shape (any number of rows, width)
            Of the capture's dtype; bfloat16 as torch tensor, ``ml_dtypes`` array or uint16 bits.
        lengths : array of int32, shape (rows of the block,), optional
            Valid lengths. Default: full rows.

        Raises
        ------
        ArgumentError
            Wrong dtype or shape, more rows than announced, or a closed writer.
        """
        if self._draft.file.closed:
            raise ArgumentError("writer", "a closed writer", "one that is still open")
        info = problem.inspect(scores, "scores")
        dtype = problem.check_scores(info)
        if dtype != self.dtype:
            raise ArgumentError("scores", f"dtype {dtype}", f"dtype {self.dtype}, the capture's")
        if info.shape[1] != self.width:
            raise ArgumentError("scores", f"width {info.shape[1]}", f"width {self.width}, the capture's")
        block = problem.as_numpy(scores)
        begin, end = self.written, self.written + block.shape[0]
        if end > self.rows:
            raise ArgumentError("scores", f"rows up to {end}", f"at most the announced {self.rows} rows")
        valid: Any = np.broadcast_to(np.int32(self.width), block.shape[0])
        if lengths is not None:
            valid = check_lengths(lengths, block.shape[0])
        file, storage = self._draft.file, held(self.dtype).newbyteorder("<")
        file.seek(self._at["lengths"] + 4 * begin)
        file.write(np.ascontiguousarray(valid, dtype="<i4").data)
        file.seek(self._at["scores"] + begin * self.width * storage.itemsize)
        # Converted in pieces, so that a strided or byte-swapped block is never copied as a whole.
        step = rows_per_block(self.width, self.dtype, BLOCK_BYTES)
        for r in range(0, block.shape[0], step):
            piece = np.ascontiguousarray(block[r : r + step], dtype=storage)
            file.write(piece.reshape(-1).view(np.uint8).data)
        self.written = end

    def close(self) -> None:
        """Finish the file and rename it onto the target.

        Raises
        ------
        FileFormatError
            If fewer rows were written than announced; no file is left.
        """
        if self._draft.file.closed:
            return
        if self.written != self.rows:
            self.discard()
            raise FileFormatError(
                f"{self._draft.path}: {self.written} of {self.rows} announced rows were written; nothing is kept"
            )
        self._draft.publish()

    def discard(self, error: BaseException | None = None) -> None:
        """Remove the unfinished file and leave an existing target as it is; a write `error` names the target."""
        self._draft.discard(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard(error)


def write_factors(
    path: str | os.PathLike[str],
    *,
    q: Any,
    keys: Any,
    weights: Any,
    key_scale: Any = None,
    lengths: Any = None,
    k: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a capture of kind "factors"; `ksieve_lab.captures.factors` defines how scores are computed from it.

    Parameters
    ----------
    path : path
    q : host array, shape (rows, heads, dim)
        float32, float16 or bfloat16.
    keys : host array, shape (width, dim)
        int8, float32, float16 or bfloat16; one key per position, shared by all heads.
    weights : host array of float32, shape (rows, heads)
    key_scale : host array of float32, shape (width,), optional
        Factor of each key: finite, not negative. Required for int8 keys.
    lengths : array of int32, shape (rows,), optional
        Default: a causal window, in which row r of R has ``width - R + 1 + r`` valid scores.
    k : int, optional
        The K that the capture is meant for.
    metadata : mapping of str to str, optional

    Raises
    ------
    ArgumentError
        The message names the array, the value that it got and the values that it takes.
    """
    facts = capture_metadata("factors", k, metadata)
    q_array = _factor(q, "q", 3, (*FLOATS,))
    rows, heads, dim = q_array[1].shape
    key_array = _factor(keys, "keys", 2, ("I8", *FLOATS))
    width = key_array[1].shape[0]
    if key_array[1].shape[1] != dim:
        raise ArgumentError("keys", f"shape {key_array[1].shape}", f"shape (width, {dim}), as q has {dim} dimensions")
    if lengths is None and rows > width:
        raise ArgumentError("lengths", "none", f"lengths: {rows} queries for {width} keys are no causal window")
    parts = {"q": q_array, "k": key_array, "w": _factor(weights, "weights", 2, ("F32",), (rows, heads))}
    if key_scale is not None:
        parts["k_scale"] = scale = _factor(key_scale, "key_scale", 1, ("F32",), (width,))
        if not (np.isfinite(scale[1]) & (scale[1] >= 0)).all():
            raise ArgumentError("key_scale", "a negative or non-finite scale", "finite scales of at least 0")
    elif key_array[0] == "I8":
        raise ArgumentError("key_scale", "none", f"float32 scales of shape ({width},), which int8 keys need")
    if lengths is not None:
        parts["lengths"] = ("I32", check_lengths(lengths, rows))
    # Widest items first keeps every tensor aligned to its dtype.
    ordered = sorted(parts, key=lambda name: -np.dtype(NUMPY_OF[parts[name][0]]).itemsize)
    shapes = {name: (parts[name][0], parts[name][1].shape) for name in ordered}
    text, _, size = _header(shapes, facts, ordered[0])
    with replacing(path, size=size) as file:
        file.write(text)
        for name in ordered:
            dtype, array = parts[name]
            file.write(np.ascontiguousarray(array, dtype=NUMPY_OF[dtype]).tobytes())


def _header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], facts: Mapping[str, str], align: str
) -> tuple[bytes, dict[str, int], int]:
    """Header of tensors of (dtype, shape) that follow in this order; the first byte of each; their bytes together.

    The tensor named `align` begins at a multiple of 64 bytes.
    """
    header: dict[str, Any] = {"__metadata__": facts}
    offsets, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        offsets[name] = end
        end += math.prod(shape) * np.dtype(NUMPY_OF[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (offsets[name], end)}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text) + offsets[align]) % _ALIGNMENT)
    begin = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {name: begin + at for name, at in offsets.items()}, end


def check_lengths(lengths: Any, rows: int) -> NDArray[np.int32]:
    """Check valid lengths of `rows` rows and return them as a NumPy int32 array."""
    info = problem.inspect(lengths, "lengths")
    if info.dtype != "int32" or info.shape != (rows,):
        raise ArgumentError("lengths", f"dtype {info.dtype}, shape {info.shape}", f"dtype int32, shape ({rows},)")
    return problem.as_numpy(lengths)


def _factor(
    array: Any, name: str, rank: int, dtypes: tuple[str, ...], shape: tuple[int, ...] | None = None
) -> tuple[str, Array]:
    info = problem.inspect(array, name)
    names = {"int8": "I8"} | {name: dtype.safetensors for name, dtype in SCORE_DTYPES.items()}
    dtype = names.get(canonical(info.dtype), info.dtype)
    if dtype not in dtypes:
        readable = [n for n, d in names.items() if d in dtypes]
        raise ArgumentError(name, f"dtype {info.dtype}", f"dtype {', '.join(readable)}")
    if len(info.shape) != rank or (shape is not None and info.shape != shape):
        raise ArgumentError(name, f"shape {info.shape}", f"shape {shape}" if shape else f"{rank} dimensions")
    return dtype, problem.as_numpy(array)


def capture_metadata(kind: Kind, k: int | None, metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Check metadata and add the format's own."""
    own = {VERSION_KEY: str(FORMAT_VERSION), KIND_KEY: kind}
    if k is not None:
        own[K_KEY] = str(problem.check_k(k))
    for name, value in (metadata or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ArgumentError("metadata", f"{name!r}: {value!r}", "text keys and text values")
        if name in (VERSION_KEY, KIND_KEY, K_KEY):
            raise ArgumentError("metadata", f"the key {name!r}", "any key but the format's own")
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ArgumentError("metadata", f"{name!r}: {value!r}", "text without lone surrogates") from None
    whole = own | dict(metadata or {})
    size = sum(len(json.dumps(part, ensure_ascii=False).encode()) for pair in whole.items() for part in pair)
    if size > METADATA_BYTES:
        raise ArgumentError("metadata", f"{size:,} bytes of text", f"at most {METADATA_BYTES:,} bytes")
    return whole
