"""The checked `Request` of a call of `ksieve.logits`, and the results that a backend fills.

A backend is a module with the functions `statistics`, `kept` and `sample`. Each takes a `Request` and the result whose
arrays it writes, every element of them; `ksieve.logits.cpu` is one. Calls of JAX pass through `ksieve.logits.jax`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ksieve.api import traced_by_jax
from ksieve.core import problem
from ksieve.core.arrays import ArrayInfo, Device, inspect, is_array, library_of, plain_tensor
from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.leading import contiguous
from ksieve.core.table import INTEGERS
from ksieve.model import logits as model

MAX_WIDTH = 1 << 19
"""Widest row: 64 bits hold the sums of so many terms."""

MAX_KEPT = 1024
"""Largest k of kept sets and samples, and largest capacity of sets without k."""

DRAWN_OF = 64
"""Best scores that a sample without k is drawn from, if they decide it; else the row is read again."""


class Statistics(NamedTuple):
    """What `ksieve.logits.statistics` returns.

    Attributes
    ----------
    positions : array of int32, shape (rows, k)
        Of the best scores above -inf, best first, equal ones by position; then -1.
    values : array of the logits' dtype, shape (rows, k)
        These scores; then -inf.
    logsumexp : array of float32, shape (rows,)
        Of the scores divided by the temperature.
    logprobs, ranks : array of float32, and of int32, of the shape of the tokens, or None
        Logarithms of probabilities, and numbers of better scores; -inf and -1 for a token whose score is -inf, or not
        valid, or not allowed.
    flags : array of int32, shape (rows,)
        `Flags`.
    """

    positions: Any
    values: Any
    logsumexp: Any
    logprobs: Any
    ranks: Any
    flags: Any


class Kept(NamedTuple):
    """What `ksieve.logits.kept` returns.

    Attributes
    ----------
    tokens : array of int32, shape (rows, capacity)
        The kept set, best first, equal ones by position; then -1.
    probabilities : array of float32, shape (rows, capacity)
        Among the kept set, also where it is larger than the capacity; then 0.
    counts : array of int32, shape (rows,)
        Sizes of the kept sets.
    flags : array of int32, shape (rows,)
        `Flags`.
    """

    tokens: Any
    probabilities: Any
    counts: Any
    flags: Any

    def csr(self) -> tuple[Any, Any, Any]:
        """Return the sets behind one another: offsets of shape (rows + 1,), tokens and probabilities.

        Only tokens that fit the capacity are there. Shapes depend on values: neither a CUDA graph nor `jax.jit` holds
        the call.
        """
        name = library_of(self.tokens)
        library = import_module("jax.numpy" if name == "jax" else name)
        listed = self.tokens >= 0
        offsets = library.concatenate([listed[:0].sum()[None], listed.sum(1).cumsum(0)])  # from 0 on
        return offsets, self.tokens[listed], self.probabilities[listed]


class Sample(NamedTuple):
    """What `ksieve.logits.sample` returns.

    Attributes
    ----------
    tokens : array of int32, shape (rows,)
        -1 where there is none.
    logprobs : array of float32, shape (rows,)
        Logarithms of their probabilities among the whole rows; NaN where there is no token, or its score is inf.
    flags : array of int32, shape (rows,)
        `Flags`.
    """

    tokens: Any
    logprobs: Any
    flags: Any


@dataclass(frozen=True, slots=True)
class Request:
    """One checked call.

    `k`: slots of a row. `dtype`: of the scores. `arrays`, `described`: the arrays by the names of their arguments,
    "logits" and an array "k" among them, all on one device; tokens are described as a matrix. `numbers`: those of
    `ksieve.model.logits.RANGES` that are given and are no arrays. `whole`: without k, the slots have the best scores.
    """

    k: int
    dtype: str
    arrays: Mapping[str, Any]
    described: Mapping[str, ArrayInfo]
    numbers: Mapping[str, np.float32]
    min_p_first: bool
    joint: bool = False
    whole: bool = False

    @property
    def library(self) -> str:
        """Library of the results."""
        return self.described["logits"].library

    @property
    def device(self) -> Device:
        """Device of all arrays; not known of JAX arrays."""
        return self.described["logits"].device

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        rows, width = self.described["logits"].shape
        return rows, width

    def has(self, name: str) -> bool:
        """Whether an argument is given."""
        return name in self.arrays or name in self.numbers

    def empty(self, dtype: str, *shape: int) -> Any:
        """Make an array of the logits' library on their device, or say what JAX makes; of their own dtype for ""."""
        logits = self.arrays["logits"]
        if self.library == "numpy":
            return np.empty(shape, dtype or logits.dtype)
        if self.library == "jax":
            import jax

            return jax.ShapeDtypeStruct(shape, dtype or logits.dtype)
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else logits.dtype, device=logits.device)


def statistics_of(request: Request) -> Statistics:
    """Results of statistics, not filled."""
    (rows, _), empty, k, tokens = request.shape, request.empty, request.k, request.arrays.get("tokens")
    best = empty("int32", rows, k), empty("", rows, k)
    logprobs, ranks = (None if tokens is None else empty(dtype, *tokens.shape) for dtype in ("float32", "int32"))
    return Statistics(*best, empty("float32", rows), logprobs, ranks, empty("int32", rows))


def kept_of(request: Request, columns: int) -> Kept:
    """Kept sets, not filled."""
    (rows, _), empty = request.shape, request.empty
    sets = empty("int32", rows, columns), empty("float32", rows, columns)
    return Kept(*sets, empty("int32", rows), empty("int32", rows))


def sample_of(request: Request) -> Sample:
    """Samples, not filled."""
    (rows, _), empty = request.shape, request.empty
    return Sample(empty("int32", rows), empty("float32", rows), empty("int32", rows))


def parse(
    logits: Any,
    k: Any,
    max_k: Any,
    most: int = problem.MAX_K,
    *,
    tokens: Any = None,
    lengths: Any = None,
    allowed: Any = None,
    min_p_first: bool = False,
    joint: bool = False,
    whole: int | None = None,
    **numbers: Any,
) -> Request:
    """Check the arguments of a call; `most`: largest k; `whole`: slots without k. Raises `ArgumentError`."""
    read: Any = inspect
    if library_of(logits) == "jax" or traced_by_jax(k, tokens, lengths, allowed, *numbers.values()):
        from ksieve.frontends.jax.ops import described as read
    info = read(logits, "logits")
    if info.library not in ("numpy", "torch", "jax"):
        raise ArgumentError("logits", f"an array of {info.library}", "a NumPy, PyTorch or JAX array")
    dtype, (rows, width), device = problem.check_scores(info, "logits"), info.shape, info.device
    problem.check_size(width, "width", 1, MAX_WIDTH, "64 bits hold the sum of so many terms")
    for name, value in (("min_p_first", min_p_first), ("joint", joint)):
        if not isinstance(value, bool):
            raise ArgumentError(name, shown(value), "True or False")
    if joint and k is None:
        raise ArgumentError("joint", "True", "False where k is None: p then counts the whole row")
    arrays = {"logits": plain_tensor(logits) if info.library == "torch" else logits}
    described, given = {"logits": info}, dict[str, np.float32]()
    vectors: dict[str, tuple[Any, tuple[str, ...]]] = {"lengths": (lengths, INTEGERS)}
    matrices = {"tokens": (tokens, 0), "allowed": (allowed, -(-width // 32))}
    if is_array(k):
        vectors["k"], slots = (k, ("int32",)), problem.check_k(max_k, "max_k")
    elif max_k is not None:
        raise ArgumentError("max_k", shown(max_k), "nothing unless k is an array")
    elif k is None and whole:
        slots = whole
    else:
        slots = problem.check_k(k)
    problem.check_size(slots, "max_k" if "k" in vectors else "k", 1, most, "of which a set is kept")
    for name, value in numbers.items():
        if is_array(value):
            vectors[name] = (value, ("float32",))
        elif value is not None:
            given[name] = _check_number(value, name)
    for name, (array, dtypes) in vectors.items():
        if array is not None:
            found = read(array, name)
            if "float32" in dtypes and found.dtype != "float32":
                takes = f"dtype float32: {problem.converted(found, name, 'float32')}"
                raise ArgumentError(name, f"dtype {found.dtype}", takes)
            arrays[name], described[name] = array, problem.check_vector(found, name, ((rows,),), device, dtypes)
    for name, (array, least) in matrices.items():
        if array is not None:
            arrays[name], described[name] = array, _check_matrix(read(array, name), name, rows, least, device)
    return Request(slots, dtype, arrays, described, given, min_p_first, joint, whole=k is None)


def _check_matrix(info: ArrayInfo, name: str, rows: int, least: int, device: Device) -> ArrayInfo:
    """Check rows of int32, of `least` columns or more; without a least number there may be one alone."""
    if info.dtype != "int32":
        raise ArgumentError(name, f"dtype {info.dtype}", f"dtype int32{problem.integer_remedy(info, name)}")
    found = info._replace(shape=(*info.shape, 1), strides=(*info.strides, 1)) if len(info.shape) + least == 1 else info
    if len(found.shape) != 2 or found.shape[0] != rows or found.shape[1] < least:
        takes = f"shape ({rows}, n), with n at least {least}" if least else f"shape ({rows},) or ({rows}, n)"
        raise ArgumentError(name, f"shape {info.shape}", takes)
    if 0 not in found.shape and found.strides[1] != 1 < found.shape[1]:
        takes = f"contiguous rows: {contiguous(info, name)}"
        raise ArgumentError(name, f"strides {info.strides}", takes)
    if info.device != device:
        raise ArgumentError(name, f"device {info.device}", f"the logits' device, {device}")
    return found


def _check_number(value: Any, name: str) -> np.float32:
    """Return a number for all rows as float32."""
    least, most = model.RANGES[name]
    known = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    number = np.float32(value if known and abs(value) < 1e38 else np.nan)
    if not least <= number <= most:
        above = "above 0" if 0 < least < 1e-40 else f"from {least:g}"
        takes = f"a number {above} to {most:g}, or an array of float32 with one for each row"
        if library_of(value) == "jax":
            takes += f": jax.numpy.full(rows, {name}, 'float32')"
        raise ArgumentError(name, shown(value) if known else kind_of(value), takes)
    return number
