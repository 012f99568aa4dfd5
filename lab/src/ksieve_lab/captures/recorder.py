"""`ksieve_lab.record`: the scores of live `ksieve.topk` calls, written as a capture that every other tool reads.

The valid scores of each row are appended to an unnamed file in the target's folder. At the end they become one capture,
as wide as its widest row. Memory is bounded by one block of rows, disk by twice `max_bytes`.

A recording does not change the calls that it observes. The target and the metadata are checked when the recorder is
made and entered. If a call cannot be recorded (disk full, out of memory), one warning is issued and the recording
stops. The complete calls before it are written when the block ends.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ksieve import dispatch
from ksieve.core import problem
from ksieve.core.atomic import Draft
from ksieve.core.call import Call
from ksieve.core.dtypes import SCORE_DTYPES, held
from ksieve.core.entries import bounds
from ksieve.core.errors import ArgumentError, BackendError, KsieveError, kind_of, shown
from ksieve.core.installation import require_torch
from ksieve.core.keys import widen
from ksieve.core.paths import as_path, same_file
from ksieve.core.problem import Problem
from ksieve_lab.captures.format import BLOCK_BYTES, rows_per_block
from ksieve_lab.captures.writer import CaptureWriter, capture_metadata

MAX_BYTES = 1 << 30
"""Default bound on the score matrix of a recording."""

CALLS_KEY = "calls"
"""Metadata key of a recording: JSON list of [rows kept, width, k] per call, in order."""

OWN_KEYS = (CALLS_KEY, "calls_seen", "calls_kept")
"""Metadata keys that a recording sets."""

MOST_CALLS = 1_000_000
"""Largest number of calls of a recording: each takes up to 40 bytes of a header of 100,000,000."""

_COPY_BYTES = 256 << 20

_observers_lock = threading.Lock()


class Recorder:
    """A recording in progress; made by `record`, used in a ``with`` block.

    `seen`, `kept`: calls observed, and those whose rows were written. `rows`: rows written. `full`: whether `max_bytes`
    or `calls` has been reached, so that later calls are not recorded. `error`: the exception that stopped it early, or
    None.
    """

    _shielded = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: int,
        calls: int | None,
        rows_per_call: int | None,
        max_bytes: int,
        metadata: Mapping[str, str] | None,
    ) -> None:
        self.path = as_path(path)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise ArgumentError("metadata", kind_of(metadata), "a mapping of str to str, or None")
        numbers = {"every": every, "calls": calls, "rows_per_call": rows_per_call, "max_bytes": max_bytes}
        for name, value in numbers.items():
            optional = name in ("calls", "rows_per_call")
            if optional and value is None:
                continue
            if not problem.is_int(value) or value < 1:
                raise ArgumentError(name, shown(value), f"an int of at least 1{' or None' if optional else ''}")
        # Creating and discarding a draft reports every fault of the path now.
        Draft(self.path, seekable=True).discard()
        for key in OWN_KEYS:
            if key in (metadata or {}):
                raise ArgumentError("metadata", f"the key {key!r}", "any key but the recording's own")
        capture_metadata("scores", None, metadata)
        self._every, self._most, self._rows_per_call, self._max_bytes = every, calls, rows_per_call, int(max_bytes)
        self._metadata = dict(metadata or {})
        self.seen = self.kept = self.rows = 0
        self.full = False
        self._width = 0
        self._dtype: str | None = None
        self.error: Exception | None = None
        self._calls: list[list[int]] = []
        self._lengths: list[NDArray[np.int32]] = []
        self._dtypes: list[str] = []  # dtype of each call in the draft
        self._lock = threading.Lock()
        self._draft: Any = None
        self._whole = 0  # bytes of the draft that belong to complete calls
        self._over = False

    # ---- the recording

    def __enter__(self) -> Self:
        if self._draft is not None:
            raise ArgumentError("recorder", "one that has been used", "a new ksieve_lab.record(...)")
        # Unnamed, so that no file can be left over; unbuffered, so that a full disk raises within the call.
        draft = tempfile.TemporaryFile(dir=self.path.absolute().parent, buffering=0)
        with _observers_lock:
            for other in dispatch.observers:
                if isinstance(other, Recorder) and same_file(other.path, self.path):
                    draft.close()
                    raise ArgumentError(
                        "path", f"{str(self.path)!r}, which a recording is being made to", "its own path"
                    )
            self._draft = draft
            dispatch.observers = (*dispatch.observers, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _observers_lock:
            dispatch.observers = tuple(o for o in dispatch.observers if o is not self)
        with self._lock:
            self._over = True
            try:
                if self.rows:
                    self._finish()
            except (OSError, MemoryError, KsieveError) as failure:
                # A warning, not an error: the results of the block must not be lost.
                warnings.warn(f"the recording is lost: {_words(failure, self.path)}", RuntimeWarning, stacklevel=2)
                return
            finally:
                self._draft.close()
        if not self.rows and kind is None and self.error is None:
            warnings.warn(
                f"nothing was recorded, {self.path} is not written: {self.seen} calls of ksieve.topk were seen "
                "(replays of a CUDA graph are not calls)",
                RuntimeWarning,
                stacklevel=2,
            )

    def __call__(self, call: Call) -> None:
        """Observe one checked call, before it runs: the arrays are read, never changed."""
        _refuse_capture(call.problem)
        with self._lock:
            if self._over:  # another thread's call that began before the recording ended
                return
            try:
                self._observe(call)
            except Exception as failure:
                self.full, self.error = True, failure
                warnings.warn(
                    f"recording stops after {self.kept} calls: {_words(failure, self.path)}; calls of ksieve.topk go "
                    "on, and the calls recorded so far are written at the end",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _observe(self, call: Call) -> None:
        asked = call.problem
        lengths, starts, num_rows = (call.arrays.get(name) for name in ("lengths", "starts", "num_rows"))
        self.seen += 1
        if asked.options.positions:  # pairs of other calls, and no rows of scores
            return
        if self.full or (self.seen - 1) % self._every or 0 in (asked.rows, asked.width, asked.k):
            return
        scores = call.arrays["scores"]
        if len(call.leading) != 1:
            scores = scores.reshape(asked.rows, asked.width)  # a view, as the rows are one pitch apart
        live = call.live if num_rows is None else int(np.clip(_host(num_rows).reshape(()), 0, asked.rows))
        chosen = _spread(live, self._rows_per_call)
        begin, valid = (
            array[:live].astype(np.int32)
            for array in bounds(
                asked.options,
                asked.rows,
                asked.width,
                lengths=None if lengths is None else _host(lengths).reshape(-1),
                starts=None if starts is None else _host(starts).reshape(-1),
            )[:2]
        )
        size = SCORE_DTYPES[self._wider(asked.dtype)].size
        room = self._max_bytes // (size * max(self._width, asked.width)) - self.rows
        if room < chosen.size:
            self.full = True
            chosen = chosen[: max(room, 0)]
        if not chosen.size:
            return
        try:
            self._keep(asked, scores, begin[chosen], valid[chosen], chosen)
        except BaseException:
            # After an error no part of the call stays in the recording.
            for kept in (self._calls, self._lengths, self._dtypes):
                del kept[self.kept :]
            self._draft.truncate(self._whole)
            self._draft.seek(self._whole)
            raise
        self.full |= self.kept in (self._most, MOST_CALLS)

    def _keep(
        self, asked: Problem, scores: Any, start: NDArray[np.int32], valid: NDArray[np.int32], chosen: NDArray[np.int64]
    ) -> None:
        step = max(1, _COPY_BYTES // (SCORE_DTYPES[asked.dtype].size * asked.width))
        for first in range(0, chosen.size, step):
            part = slice(first, first + step)
            for row, begin, length in zip(_rows(scores, chosen[part]), start[part], valid[part], strict=True):
                self._write(np.ascontiguousarray(row[begin : begin + length]).view(np.uint8).data)
        self._dtype = self._wider(asked.dtype)
        self._width = max(self._width, asked.width)
        self._dtypes.append(asked.dtype)
        self._lengths.append(valid)
        self._calls.append([int(chosen.size), asked.width, asked.k])
        self.rows, self.kept, self._whole = self.rows + int(chosen.size), self.kept + 1, self._draft.tell()

    def _write(self, data: memoryview) -> None:
        while data:
            data = data[self._draft.write(data) :]

    def _wider(self, dtype: str) -> str:
        # Calls of different dtypes share one float32 matrix, which represents all of them exactly.
        return dtype if self._dtype in (None, dtype) else "float32"

    def _finish(self) -> None:
        """Write the capture from the draft."""
        assert self._dtype is not None
        ks = {k for _, _, k in self._calls}
        facts = {"title": "recorded calls of ksieve.topk"} | self._metadata
        facts[CALLS_KEY] = json.dumps(self._calls, separators=(",", ":"))
        facts |= {"calls_seen": str(self.seen), "calls_kept": str(self.kept)}
        step = rows_per_block(self._width, self._dtype, BLOCK_BYTES)
        self._draft.seek(0)
        k = ks.pop() if len(ks) == 1 else None
        with (
            io.BufferedReader(self._draft) as stream,
            CaptureWriter(self.path, self.rows, self._width, self._dtype, k=k, metadata=facts) as writer,
        ):
            for dtype, valid in zip(self._dtypes, self._lengths, strict=True):
                for r in range(0, valid.size, step):
                    part = valid[r : r + step]
                    block = np.zeros((part.size, self._width), held(self._dtype))
                    for row, length in zip(block, part, strict=True):
                        stored = np.frombuffer(stream.read(int(length) * SCORE_DTYPES[dtype].size), held(dtype))
                        row[:length] = stored if dtype == self._dtype else widen(stored)
                    writer.write(block, part)


def record(
    path: str | os.PathLike[str],
    *,
    every: int = 1,
    calls: int | None = None,
    rows_per_call: int | None = None,
    max_bytes: int = MAX_BYTES,
    metadata: Mapping[str, str] | None = None,
) -> Recorder:
    """Record the scores of every `ksieve.topk` call inside a ``with`` block into a capture.

    Results do not change. If a call cannot be recorded (disk full, out of memory), it runs all the same, one warning is
    issued, and the recording stops. A recording has the calls of every thread. Each call first copies its rows to the
    host, which waits for the stream. The fast path of repeated calls is off: do not measure times.

    Parameters
    ----------
    path : path
        File of the capture (safetensors); replaced, if it exists, when the block ends. Its folder must exist.
    every : int
        Record one call in this many.
    calls : int, optional
        Record at most this many calls.
    rows_per_call : int, optional
        Record at most this many rows of a call, evenly spaced from its first row.
    max_bytes : int
        Bound on the size of the score matrix; rows that would exceed it are not recorded. The unnamed file takes up to
        the same size on disk until the block ends. Rows narrower than the widest are padded with zeros.
    metadata : mapping of str to str, optional
        Description of the scores: model, layer, prompt, licence.

    Returns
    -------
    Recorder
        A context manager; ``seen``, ``kept``, ``rows`` and ``full`` count calls and rows.

    Raises
    ------
    ArgumentError
        If an argument cannot be used or `path` cannot be written; on entering, if another recording writes to the same
        file.
    BackendError
        From a call whose stream is being captured into a CUDA graph; on entering under ``torch.compile``.

    Notes
    -----
    The metadata entry ``calls`` lists rows, width and k of every recorded call in order; ``ksieve replay`` follows it.
    Of a row with a window, only the scores inside the window are recorded. Calls with `gathered` are not recorded; the
    k of calls with blocks counts these. If the block ends with an exception, the calls recorded before it are written.
    If the disk has no room for the capture at the end, a warning says so, and an existing file stays as it was.

    Examples
    --------
    >>> with ksieve_lab.record("scores.safetensors", rows_per_call=64, metadata={"model": "mine"}):
    ...     model.generate(prompt)
    """
    if _traced():
        raise BackendError("ksieve_lab.record cannot be entered under torch.compile: enter it around the compiled call")
    _shield()
    return Recorder(path, every, calls, rows_per_call, max_bytes, metadata)


def _words(error: Exception, path: Path) -> str:
    said = str(error) or type(error).__name__
    return said if str(path) in said else f"{path}: {said}"


def _spread(rows: int, most: int | None) -> NDArray[np.int64]:
    """At most `most` row numbers below `rows`, evenly spaced from 0."""
    count = rows if most is None else min(rows, most)
    return np.arange(count, dtype=np.int64) * rows // max(count, 1)


def _shield() -> None:
    """Keep Dynamo, if it is loaded, from tracing a recorder after a graph break."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or Recorder._shielded:
        return
    for name in ("__init__", "__enter__", "__exit__", "__call__"):
        setattr(Recorder, name, dynamo.disable(getattr(Recorder, name)))
    Recorder._shielded = True


def _traced() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def _refuse_capture(asked: Problem) -> None:
    torch = sys.modules.get("torch")
    if asked.device.kind != "cuda" or torch is None or not torch.cuda.is_available():
        return
    if torch.cuda.is_current_stream_capturing():
        raise BackendError(
            "a recording copies scores to the host, which is not possible while a stream is being captured: capture "
            "the graph outside the recording (its replays are not recorded either), or record without graphs"
        )


def _rows(scores: Any, chosen: NDArray[np.int64]) -> np.ndarray[Any, Any]:
    """Copy rows of any library's matrix to the host; bfloat16 comes as uint16 bits."""
    consecutive = chosen.size == chosen[-1] - chosen[0] + 1
    picked: Any = slice(int(chosen[0]), int(chosen[-1]) + 1) if consecutive else chosen
    if not consecutive and problem.library_of(scores) == "torch":
        import torch

        picked = torch.from_numpy(chosen).to(scores.device)
    return _host(scores[picked])


def _host(array: Any) -> np.ndarray[Any, Any]:
    library = problem.library_of(array)
    if library == "other" and problem.inspect(array, "array").device.kind == "cuda":
        torch = require_torch("ksieve_lab.record copies CUDA arrays of this library with PyTorch")
        library, array = "torch", torch.from_dlpack(array)
    if library == "torch":
        array = array.detach().cpu()
    elif library == "cupy":
        array = array.get()
    elif library == "jax":
        array = np.asarray(array)
    return problem.as_numpy(array)
