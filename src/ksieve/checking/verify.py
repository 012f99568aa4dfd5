"""Exactness verdicts: proves or refutes any library's answer, row by row, without sorting a row.

`verify` checks its arguments and hands blocks of rows to `ksieve.checking.judge`, which says how a row is decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from ksieve.checking.judge import Asked, Judge
from ksieve.checking.ops import NumpyOps, TorchOps, on_host
from ksieve.checking.verdict import Verdict
from ksieve.core import arguments, problem, windows
from ksieve.core.arrays import is_array
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, kind_of, refuse_at_exit, shown
from ksieve.core.groups import Blocks, Positions, RowBounds, Segments, SelectedBlocks, flat
from ksieve.core.leading import of_rows, of_segments
from ksieve.core.options import Nan, Options, TieBreak
from ksieve.core.problem import Shape
from ksieve.core.table import INTEGERS
from ksieve.model.gathering import positions_of

BLOCK_BYTES = 64 << 20
"""Default bound on score bytes in memory at a time."""

_INT64 = 1 << 63


def verify(
    scores: Any,
    lengths: Any = None,
    indices: Any = None,
    *,
    k: Any = None,
    num_rows: Any = None,
    bounds: RowBounds | Segments | None = None,
    blocks: Blocks | None = None,
    gathered: Positions | SelectedBlocks | None = None,
    counts: Any = None,
    largest: bool | None = True,
    nan: Nan | None = None,
    sorted: bool | Literal["value", "index"] | None = False,  # noqa: A002
    tie_break: TieBreak | None = None,
    sentinel: int = -1,
    block_bytes: int = BLOCK_BYTES,
    progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Check every row of a Top-K index array for set-valued exactness.

    Parameters
    ----------
    scores : array, shape (..., width), or source
        float32, float16 or bfloat16 (a NumPy uint16 array is read as bfloat16 bits) of NumPy, PyTorch, CuPy or JAX.
        Rows run along the last dimension; all others, the *leading shape*, must be one row pitch apart: no scores are
        copied. Or a source such as a capture, never in memory as a whole: it has ``rows``, ``width`` and
        ``rows_block(begin, end)``, which gives (rows, width) arrays.
    lengths : array of integers, of the leading shape, optional
        Number of valid scores of each row, clamped to [0, width]. Default: the lengths of the source, else full rows.
    indices : array of int32 or int64, of the leading shape and k
        The answer to check, of any library, in any order within a row. Required; the third argument, or a keyword.
        What `ksieve.topk` writes with a `transform` is not judged: pass the raw indices of `ksieve.select`.
    k : int, or array of integers of the leading shape, optional
        Expected number of slots, or of entries; checked against `indices`. An array gives each row its own k, clamped
        to [0, slots]: the slots from it on must hold the sentinel.
    num_rows : int, or array of one integer, optional
        Number of live rows, clamped to [0, rows]: later ones must hold the sentinel alone, and are not read.
    bounds, blocks, gathered, largest, nan
        As of `ksieve.topk`; vectors may have any integer dtype. With `blocks` the slots of `indices` are its outputs,
        and NaN scores and ties are counted among the entries that are not forced. With `gathered` indices are
        positions, which must be distinct in a row. Rows with either, and `Segments`, are checked on the host.
    counts : array of integers, of the leading shape, optional
        Slots of `indices` that each row uses, as `counts` of `ksieve.select` says. The others are not read, but taken
        for the sentinel: ``fill=False`` leaves anything there. A count that is not the number of used slots is a fault.
    sorted : bool or {"value", "index"}
        Also check the order of the slots: True or "value" for the best score first and equal scores by position, or
        "index" for ascending positions.
    tie_break : {"low", "high"}, optional
        Also check that the scores equal to the worst selected one at the lowest (or highest) positions are selected.
        With ``sorted=True`` equal scores are in the same order. The answer of a `ksieve.topk` with
        ``deterministic=True`` has ``sorted="index"`` and ``tie_break="low"``.
    sentinel : int
        Value of unused slots. Must not be a position of the matrix.
    block_bytes : int
        Bound on the score bytes in memory at a time; temporaries take a small multiple of it. At least one row of a
        source is read at a time.
    progress : callable, optional
        Called after every block with the number of rows checked.

    Returns
    -------
    Verdict
        On the host; it counts rows in C order over the leading shape. For CUDA arrays the call waits for its kernels,
        so it cannot be captured in a CUDA graph.

    Raises
    ------
    ArgumentError
        An argument cannot be used; the message names it.
    BackendError
        The arrays are CUDA arrays of another library, and PyTorch is not installed.

    Notes
    -----
    CUDA scores are checked on their device, with PyTorch; indices on other devices are copied there, and vectors such
    as `lengths` to the host. Each score is read once, or twice with a `tie_break`; the selected scores are gathered in
    addition.

    Examples
    --------
    >>> import numpy as np, ksieve
    >>> scores = np.array([[5, 1, 7, 2]], dtype=np.float32)
    >>> bool(ksieve.verify(scores, None, np.array([[2, 0]])))
    True
    >>> bool(ksieve.verify(scores, None, np.array([[2, 1]])))
    False
    >>> bool(ksieve.verify(scores, None, np.array([[1, 3]]), largest=False, sorted=True))
    True
    """
    refuse_at_exit()
    if indices is None:
        got = None if lengths is None else "only a second argument, which is lengths"
        raise ArgumentError("indices", got, "the answer to check: verify(scores, lengths, indices), lengths or None")
    given = flat({
        "bounds": bounds, "blocks": blocks, "gathered": gathered, "largest": largest, "nan": nan, "sorted": sorted,
        "tie_break": tie_break,
    })  # fmt: skip
    if "indptr" in given:
        arguments.resolve(given, None, lengths=lengths is not None)  # refuses what a call of segments does not take
        scores = _Rows(scores, given.pop("indptr"), given.pop("max_length", 0))
        given.pop("mean_length", None)
    is_source = _is_source(scores)
    of_source = None
    on_cuda = False
    if is_source:
        rows, width, _ = problem.check_shape(scores.rows, scores.width)
        leading: Shape = (rows,)
        if lengths is None and "ends" not in given:
            lengths = of_source = getattr(scores, "lengths", None)
    else:
        info = problem.inspect(scores, "scores")
        if info.dtype in INTEGERS and _dtype_of(indices) in SCORE_DTYPES:
            takes = f"dtype {', '.join(SCORE_DTYPES)} (are scores and indices swapped?)"
            raise ArgumentError("scores", f"dtype {info.dtype}", takes)
        leading = info.shape[:-1]
        matrix = of_rows(info, "scores")
        problem.check_scores(matrix, strided=True)
        rows, width = problem.rows_of(matrix), matrix.shape[-1]
        on_cuda = info.device.kind == "cuda"
    ks = k if is_array(k, least=min(len(leading), 1)) else None
    options = arguments.resolve(given, None, per_row_k=ks is not None, lengths=lengths is not None)
    on_host_alone = options.positions or options.entries
    _check_scalars(1 << 31 if on_host_alone else width, sentinel, block_bytes, progress)
    slots, most = _check_indices(indices, leading, None if ks is not None else k, options)
    problem.check_entries(options, most, width)
    if rows % options.next_n:
        raise ArgumentError("next_n", options.next_n, f"a divisor of the scores' {rows} rows")
    if of_source is not None and options.next_n > 1:
        raise ArgumentError("lengths", "those of the source, one for each row", "an array of one for each request")
    requests = problem.request_shapes(leading, rows, options.next_n)
    asked = Asked(
        rows,
        width,
        slots,
        most,
        options,
        int(sentinel),
        rows if num_rows is None else min(max(_number(num_rows, "num_rows"), 0), rows),
        _vector("ends" if "ends" in given else "lengths", given.get("ends", lengths), requests),
        _vector("starts", given.get("starts"), (leading,)),
        _vector("k", ks, (leading,)),
        _positions(given.get("positions"), given.get("block_table"), (*leading, width)),
        _vector("tail", given.get("tail"), requests),
        _vector("counts", counts, (leading,)),
    )
    ops: Any = TorchOps(scores) if on_cuda and not on_host_alone else NumpyOps()
    judge = Judge(ops, asked, ops.matrix(indices, rows, slots), int(block_bytes))
    if is_source:
        for begin, block in _source_blocks(scores, asked.live, width, int(block_bytes)):
            judge.judge(begin, ops.matrix(block, *block.shape), progress)
    else:
        # No array library has a view of all rows with two leading strides as one matrix.
        groups = [ops.matrix(scores, rows, width)] if len(matrix.shape) == 2 else ops.groups(scores, matrix)
        begin = 0
        for group in groups:
            judge.judge(begin, group[: max(asked.live - begin, 0)], progress)
            begin += group.shape[0]
    # Later rows are judged without their scores.
    unread = np.zeros((rows - asked.live, 0), np.float32)
    judge.judge(asked.live, ops.matrix(unread, *unread.shape), progress)
    return judge.verdict()


class _Rows:
    """Segments as a source: rows of the width of the longest."""

    def __init__(self, scores: Any, indptr: Any, max_length: int) -> None:
        info = of_segments(problem.inspect(scores, "scores"), problem.inspect(indptr, "indptr"))
        bounds, total = _vector("indptr", indptr, ((info.shape[0] + 1,),)), info.shape[1]
        self.starts, self.lengths = windows.of_segments(bounds, total, max_length or total)
        self.rows, self.width = len(self.lengths), int(self.lengths.max(initial=0))
        self.scores = on_host(scores)

    def rows_block(self, begin: int, end: int) -> Any:
        column = np.arange(self.width)
        at = np.where(column < self.lengths[begin:end, None], self.starts[begin:end, None] + column, 0)
        return self.scores[at]


def _check_scalars(width: int, sentinel: Any, block_bytes: Any, progress: Any) -> None:
    if not problem.is_int(block_bytes) or block_bytes < 1:
        raise ArgumentError("block_bytes", shown(block_bytes), "an int of at least 1")
    if not problem.is_int(sentinel) or not -_INT64 <= sentinel < _INT64:
        raise ArgumentError("sentinel", shown(sentinel), "an int of 64 bits, such as -1")
    if progress is not None and not callable(progress):
        raise ArgumentError("progress", kind_of(progress), "a function of the number of rows done, or None")
    if 0 <= sentinel < width:
        raise ArgumentError("sentinel", sentinel, f"an int that is no position, outside [0, {width})")


def _is_source(scores: Any) -> bool:
    try:
        return all(hasattr(scores, name) for name in ("rows_block", "width", "rows")) and not isinstance(scores, type)
    except Exception:  # an attribute of a foreign class may raise anything; `inspect` then reports the fault
        return False


def _dtype_of(array: Any) -> str:
    try:
        return problem.inspect(array, "indices").dtype
    except ArgumentError:
        return ""


def _check_indices(indices: Any, leading: Shape, k: Any, options: Options) -> tuple[int, int]:
    """Return the slots of a row, and the k that they are the columns of."""
    info = problem.inspect(indices, "indices")
    if info.dtype not in INTEGERS:
        remedy = f": {problem.converted(info, 'indices', 'int64')}" if info.dtype.startswith(("int", "uint")) else ""
        raise ArgumentError("indices", f"dtype {info.dtype}", f"dtype int32 or int64{remedy}")
    if len(info.shape) != len(leading) + 1 or info.shape[:-1] != leading:
        shape = f"({''.join(f'{n}, ' for n in leading)}k)" if leading else "(k,)"
        raise ArgumentError("indices", f"shape {info.shape}", f"shape {shape}, one row for each row of scores")
    slots = info.shape[-1]
    most = slots
    if options.entries:
        most = slots // options.expand - options.beside
        if most < 0 or options.columns(most) != slots:
            takes = (
                f"shape (..., {options.columns(max(most, 0))}), with k entries of {options.expand} slots, or another k"
            )
            raise ArgumentError("indices", f"shape {info.shape}", takes)
    if k is not None and problem.check_k(k, least=0) != most:
        raise ArgumentError("k", k, f"{most}, {'that' if options.entries else 'the width'} of indices")
    return slots, problem.check_k(most, "indices", 0)


def _vector(name: str, array: Any, shapes: tuple[Shape, ...]) -> Any:
    """Check an array of integers and return it as a vector on the host; None as None."""
    if array is None:
        return None
    info = problem.inspect(array, name)
    if not info.dtype.startswith(("int", "uint")):
        raise ArgumentError(name, f"dtype {info.dtype}", f"an integer dtype{problem.integer_remedy(info, name)}")
    if info.shape not in shapes:
        raise ArgumentError(name, f"shape {info.shape}", f"shape {' or '.join(map(str, shapes))}")
    return on_host(array).reshape(-1)


def _positions(positions: Any, table: Any, shape: Shape) -> Any:
    """Check positions, or a block table, and return positions as a matrix on the host; None without either."""
    name, array = ("positions", positions) if table is None else ("block_table", table)
    if array is None:
        return None
    info = problem.inspect(array, name)
    if info.dtype != "int32":
        raise ArgumentError(name, f"dtype {info.dtype}", "dtype int32")
    problem.check_positions_shape(info.shape, name, shape)
    held = on_host(array).reshape(math.prod(shape[:-1]), info.shape[-1])
    return held if table is None else positions_of(held, shape[-1])


def _number(value: Any, name: str) -> int:
    """Value of an int, or of an array of one."""
    number = problem.check_number(value, name)
    return int(_vector(name, value, ((1,), ()))[0]) if number is None else number


def _source_blocks(source: Any, rows: int, width: int, block_bytes: int) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    step = max(1, block_bytes // max(4 * width, 1))
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        block = source.rows_block(begin, end)
        info = problem.inspect(block, "scores")
        problem.check_scores(info)
        if info.shape != (end - begin, width) or info.device.kind != "cpu":
            got = f"a block of shape {info.shape} on {info.device} for rows {begin} to {end}"
            raise ArgumentError("scores", got, f"blocks of shape {(end - begin, width)} on cpu")
        yield begin, problem.as_numpy(block)
