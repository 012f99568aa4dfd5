"""The frozen `Problem` of a call, and the checks of its arrays.

Every fault of an argument is found here, before any kernel is launched or any output is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from ksieve.core.arrays import UNEVEN, ArrayInfo, Device, as_numpy, inspect, is_writable, library_of
from ksieve.core.dtypes import SCORE_DTYPES, canonical
from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.leading import contiguous, of_numbers, of_rows, overlaps_itself
from ksieve.core.options import PLAIN, Options

__all__ = ["ArrayInfo", "Device", "as_numpy", "inspect", "library_of"]
"""What this module has from others, for the modules that import it."""

MAX_K = 1 << 20
MAX_SIZE = (1 << 31) - 1
"""Largest number of rows, and of scores in a row: kernels count both in int32."""
MAX_WIDTH = (1 << 31) - (1 << 20)
"""Widest row on CUDA: scan positions are 32-bit and run past the end by up to one batch of loads."""
MAX_PITCH = 1 << 60
"""Largest extent of a matrix, in scores: byte offsets, and sums of them, fit int64."""


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One checked selection problem: rows of `width` scores, a row pitch of `pitch` scores, k slots per row.

    A pitch of 0 means that all rows are the same one. Rows that are segments have at most `width` of the `pitch` scores
    of a flat array.
    """

    rows: int
    width: int
    pitch: int
    k: int
    dtype: str
    device: Device
    options: Options = PLAIN

    @property
    def usual(self) -> int:
        """Width that launches are planned for.

        Of segments it is twice the mean length, or `max_length` where that is at most four times the mean.
        """
        if self.options.windows != "segments":
            return self.width
        mean = self.options.mean_length or -(-self.pitch // max(self.rows, 1))
        return self.width if self.options.max_length and self.width <= 4 * mean else min(max(2 * mean, 1), self.width)

    @property
    def columns(self) -> int:
        """Slots of a row in the outputs."""
        return self.options.columns(self.k)

    @property
    def selection(self) -> Problem:
        """Return the selection that a CUDA kernel makes: among the entries that are not forced (`ksieve.core.entries`).

        Entries that are blocks are pooled to float32. The k may be 0.
        """
        options = self.options
        if options.block_size == 1 and not options.forced:
            return self
        inner = replace(options, block_size=1, force_first=0, force_last=0, forced_extra=False, next_n=1)
        inner = inner if inner.windows != "none" else replace(inner, windows="lengths")
        width, k = -(-self.width // options.block_size), max(self.k + options.beside - options.forced, 0)
        dtype = "float32" if options.block_size > 1 else self.dtype
        return replace(self, width=width, k=k, dtype=dtype, options=inner)


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an int of Python or NumPy, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_k(k: Any, name: str = "k", least: int = 1) -> int:
    """Return k as an int in [least, 2**20]."""
    if not is_int(k) or not least <= k <= MAX_K:
        got = int(k) if is_int(k) else None if k is None else f"{kind_of(k)} {shown(k)}"
        constant = ", a constant: static_argnames of jax.jit" if "Tracer" in type(k).__name__ else ""
        raise ArgumentError(name, got, f"an int from {least} to {MAX_K}{constant}")
    return int(k)


def check_size(value: Any, name: str, least: int = 0, most: int = MAX_SIZE, why: str = "counted in int32") -> int:
    """Return a count of rows, scores or slots as an int in [least, most]."""
    if not is_int(value) or value < least:
        raise ArgumentError(name, shown(value), f"an int of at least {least}")
    if value > most:
        raise ArgumentError(name, int(value), f"at most {most}: {why}")
    return int(value)


def check_number(value: Any, name: str) -> int | None:
    """Return an int; None for what may be an array of one, which the caller inspects."""
    if is_int(value):
        return int(value)
    if isinstance(value, (bool, float, str, np.generic)):
        raise ArgumentError(name, shown(value), "an int, or an array of one integer")
    return None


def live_rows(num_rows: Any, most: int) -> int | None:
    """Return `num_rows`, an int of any size, clamped to [0, most]; None if it is anything else, such as an array."""
    return min(max(int(num_rows), 0), most) if is_int(num_rows) else None


def parse_device(device: Any) -> Device:
    """Return the device that a name or a torch.device stands for; "cuda" is "cuda:0"."""
    # str() of a torch.device is its name.
    text = str(device) if kind_of(device) == "torch.device" else device
    kind, _, index = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind not in ("cpu", "cuda") or (index and not (index.isascii() and index.isdigit() and len(index) < 10)):
        raise ArgumentError("device", shown(device), "'cpu', 'cuda' or 'cuda:<ordinal>'")
    return Device(kind, int(index or 0))


def check_shape(rows: Any, width: Any, pitch: Any = None) -> tuple[int, int, int]:
    """Return rows, width and pitch (default: the width) of a score matrix as ints within the kernels' range."""
    rows = check_size(rows, "rows", why="kernels count rows in int32")
    width = check_size(width, "width", why="kernels count scores in int32, as indices are")
    pitch = width if pitch is None else check_pitch(pitch, width)
    if rows * pitch > MAX_PITCH:
        raise ArgumentError("pitch", pitch, f"at most {MAX_PITCH // rows} with {rows} rows: the bytes must fit int64")
    return rows, width, pitch


def segment_width(total: int, options: Options) -> int:
    """Most scores of a segment of a problem with `total` scores, which are its pitch."""
    check_size(total, "width", most=MAX_PITCH, why="so that their bytes fit int64")
    return min(total, options.max_length or MAX_WIDTH, MAX_WIDTH)


def check_pitch(pitch: Any, width: int) -> int:
    """Return a row pitch as an int: at least the width, or 0 where all rows are the same one."""
    least = 0 if isinstance(pitch, (int, np.integer)) and pitch == 0 else width
    return check_size(pitch, "pitch", least, MAX_PITCH, "so that its bytes fit int64")


def row_pitch(info: ArrayInfo) -> int:
    """Scores from one row of a matrix to the next; at least the width, or 0 where all rows are the same one.

    With two leading strides it is the width, as of a contiguous copy.
    """
    if len(info.shape) == 3:
        return info.shape[2]
    rows, width = info.shape
    # The strides of a single row, and of an array without elements, are arbitrary.
    return info.strides[0] if rows > 1 and width else width


def check_entries(options: Options, k: int, width: int) -> None:
    """Check that a row's slots have room for what they hold, and that int32 holds its positions."""
    if not options.entries:
        return
    name = "force_last" if options.force_last else "force_first"
    if not options.forced_extra and options.forced > k:
        takes = "at most k, or forced_extra=True"
        raise ArgumentError(name, f"{options.forced} forced entries with k={k}", takes)
    if k + options.beside > MAX_K:
        raise ArgumentError(name, f"{options.forced} forced entries beside k={k}", f"at most {MAX_K} with k")
    if options.block_size == 1 and width * options.expand > MAX_SIZE:
        takes = f"at most {MAX_SIZE} positions of a row, which int32 counts"
        raise ArgumentError("expand", f"{options.expand} for a width of {width}", takes)


def check_scores(info: ArrayInfo, name: str = "scores", *, strided: bool = False) -> str:
    """Check a score matrix and return its canonical dtype name (uint16 reads as bfloat16).

    With `strided` it is described by `ksieve.core.leading.of_rows`, which may find two leading strides.
    """
    dtype = canonical(info.dtype)
    if dtype not in SCORE_DTYPES:
        takes = f"dtype {', '.join(SCORE_DTYPES)}"
        if info.dtype in ("float64", "int64", "uint64", "int32", "uint32"):
            takes += f": {converted(info, name, 'float32')} rounds to one"
        elif native := {">f4": "float32", ">f2": "float16"}.get(info.dtype.partition(" (")[0]):
            takes += f": {converted(info, name, native)}"
        raise ArgumentError(name, f"dtype {info.dtype}", takes)
    if len(info.shape) != 2 and not (strided and len(info.shape) == 3):
        raise ArgumentError(name, f"shape {info.shape}", "a matrix of shape (rows, width)")
    rows, width = rows_of(info), info.shape[-1]
    _check_last_stride(info, name)
    pitch = row_pitch(info)
    if pitch < width and pitch != 0:
        takes = f"row pitch of at least width, or 0: {contiguous(info, name)}"
        raise ArgumentError(name, f"row pitch {pitch} for width {width}", takes)
    for what, size in (("width", width), ("rows", rows)):
        if size > MAX_SIZE:
            takes = f"at most {MAX_SIZE}, which kernels count in int32{', as indices are' if what == 'width' else ''}"
            raise ArgumentError(name, f"{what} {size}", takes)
    _check_aligned(info, name)
    return dtype


def _is_contiguous_in_rows(info: ArrayInfo) -> bool:
    # The strides of an array without elements are arbitrary (NumPy: zeros).
    return info.strides[-1] == 1 or info.shape[-1] < 2 or 0 in info.shape


def _check_last_stride(info: ArrayInfo, name: str) -> None:
    if not _is_contiguous_in_rows(info):
        stride = "of no whole element" if info.strides[-1] == UNEVEN else info.strides[-1]
        raise ArgumentError(name, f"last stride {stride}", f"last stride 1 (rows contiguous): {contiguous(info, name)}")


def rows_of(info: ArrayInfo) -> int:
    """Number of rows of what `ksieve.core.leading.of_rows` describes."""
    return info.shape[0] if len(info.shape) == 2 else info.shape[0] * info.shape[1]


def converted(info: ArrayInfo, name: str, dtype: str) -> str:
    """Expression that converts an array to another dtype in its own library, for error messages."""
    if info.library == "torch":
        return f"{name}.to(torch.{dtype})"
    module = {"cupy": "cupy", "jax": "jax.numpy"}.get(info.library, "np")
    return f"{name}.astype({module}.{dtype})"


def request_shapes(leading: Shape, rows: int, next_n: int) -> tuple[Shape, ...]:
    """Shapes of an array with one entry for each request of `next_n` rows."""
    if next_n == 1:
        return (leading,)
    divided = (*leading[:-1], leading[-1] // next_n)
    return ((rows // next_n,),) if leading[-1] % next_n or len(leading) == 1 else ((rows // next_n,), divided)


def _check_aligned(info: ArrayInfo, name: str) -> None:
    # A GPU cannot load an element from an address that is no multiple of its size; a CPU can.
    if info.device.kind == "cuda" and info.pointer % info.itemsize:
        raise ArgumentError(
            name, f"address {info.pointer:#x}", f"an address that is a multiple of {info.itemsize} bytes"
        )


def _check_place(info: ArrayInfo, name: str, device: Device) -> None:
    if info.device != device:
        raise ArgumentError(name, f"device {info.device}", f"the scores' device, {device}")
    _check_aligned(info, name)


def _check_integers(info: ArrayInfo, name: str, dtypes: tuple[str, ...] = ("int32",)) -> None:
    if info.dtype not in dtypes:
        raise ArgumentError(name, f"dtype {info.dtype}", f"dtype {' or '.join(dtypes)}{integer_remedy(info, name)}")


def integer_remedy(info: ArrayInfo, name: str) -> str:
    """How to convert integers of another dtype to int32, for error messages; empty for what is no integer."""
    whole = info.dtype.startswith(("int", "uint", ">i", ">u", "<i", "<u"))
    return f": {converted(info, name, 'int32')}" if whole else ""


def check_vector(
    info: ArrayInfo,
    name: str,
    shapes: tuple[Shape, ...],
    device: Device,
    dtypes: tuple[str, ...] = ("int32",),
    *,
    strided: bool = False,
    filled: bool = False,
) -> ArrayInfo:
    """Check an array of one integer for each row, or request, and describe it as a vector.

    With `strided` it may have any strides (`ksieve.core.leading.of_numbers`). `filled` is true of an output.
    """
    _check_integers(info, name, dtypes)
    if info.shape not in shapes:
        takes = f"shape {' or '.join(map(str, shapes))}"
        if name == "lengths" and shapes == ((),) and len(info.shape) == 1:
            takes += ": flat scores are one row; ksieve.Segments(indptr) makes rows of them"
        raise ArgumentError(name, f"shape {info.shape}", takes)
    found = of_numbers(info, name, filled=filled)
    if not strided and len(found.shape) > 1:
        vector = len(info.shape) == 1
        got = f"stride {info.strides[0]}" if vector else f"shape {info.shape} with strides {info.strides}"
        takes = "a contiguous vector (stride 1)" if vector else "a contiguous array"
        raise ArgumentError(name, got, f"{takes}: {contiguous(info, name)}")
    _check_place(info, name, device)
    return found


def check_positions(info: ArrayInfo, name: str, scores: ArrayInfo, leading: Shape) -> ArrayInfo:
    """Check `positions` or a `block_table`, and describe it as the matrix of its rows."""
    _check_integers(info, name)
    check_positions_shape(info.shape, name, (*leading, scores.shape[-1]))
    _check_place(info, name, scores.device)
    info = of_rows(info, name)
    _check_last_stride(info, name)
    return info


def check_positions_shape(got: Shape, name: str, shape: Shape) -> None:
    """Check that there is a position for each score, or a block for each of equal parts of a row."""
    width = shape[-1]
    if name == "positions" and got != shape:
        raise ArgumentError(name, f"shape {got}", f"shape {shape}, that of the scores")
    blocks = got[-1] if got and got[:-1] == shape[:-1] else 0
    if name == "block_table" and (width % blocks if blocks else width or got != shape):
        takes = f"shape ({''.join(f'{n}, ' for n in shape[:-1])}n), with n a divisor of the width, {width}"
        raise ArgumentError(name, f"shape {got}", takes)


def check_counts(array: Any, info: ArrayInfo, leading: Shape, others: Mapping[str, ArrayInfo]) -> ArrayInfo:
    """Check an output of one int32 for each row, and describe it as a vector."""
    name = "counts"
    info = check_vector(info, name, (leading,), others["scores"].device, strided=True, filled=True)
    if overlaps_itself(info):
        raise ArgumentError(name, f"strides {info.strides}", "an array that does not overlap itself")
    _check_apart(array, info, name, others)
    return info


def check_table(info: ArrayInfo, device: Device) -> ArrayInfo:
    name = "page_table"
    _check_integers(info, name)
    if len(info.shape) != 2:
        raise ArgumentError(name, f"shape {info.shape}", "a matrix of shape (requests, max_pages)")
    requests, pages = info.shape
    _check_last_stride(info, name)
    if requests > 1 and info.strides[0] < 0:
        pitch = "of no whole element" if info.strides[0] == UNEVEN else info.strides[0]
        raise ArgumentError(name, f"row pitch {pitch}", "a row pitch of at least 0")
    for what, size in (("requests", requests), ("pages a request", pages)):
        if size > MAX_SIZE:
            raise ArgumentError(name, f"{size} {what}", f"at most {MAX_SIZE}, which kernels count in int32")
    _check_place(info, name, device)
    return info


def check_output(
    name: str, array: Any, info: ArrayInfo, dtype: str, shape: Shape, others: Mapping[str, ArrayInfo]
) -> ArrayInfo:
    """Check an output of the scores' leading shape and k, and describe it by its rows."""
    if canonical(info.dtype) != canonical(dtype):
        raise ArgumentError(name, f"dtype {info.dtype}", f"dtype {dtype}")
    if info.shape != shape:
        raise ArgumentError(name, f"shape {info.shape}", f"shape {shape}")
    _check_place(info, name, others["scores"].device)
    info = of_rows(info, name, filled=True)
    if overlaps_itself(info) or not _is_contiguous_in_rows(info):
        raise ArgumentError(name, f"strides {info.strides}", "contiguous rows that do not overlap")
    _check_apart(array, info, name, others)
    return info


def _check_apart(array: Any, info: ArrayInfo, name: str, others: Mapping[str, ArrayInfo]) -> None:
    """Check that an output can be written, and shares no memory with another array."""
    first, end = info.span
    for other, its in others.items():
        begin, last = its.span
        if first < last and begin < end:
            raise ArgumentError(name, f"memory that overlaps {other}", "memory of its own")
    if not is_writable(array, info):
        raise ArgumentError(name, "a read-only array", "an array that can be written")
