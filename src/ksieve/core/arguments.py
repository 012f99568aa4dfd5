"""The optional keyword arguments of `ksieve.topk`, and the `Options` that result from them and a plan."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, cast

from ksieve.core.errors import ArgumentError, GradientWarning, shown
from ksieve.core.options import (
    INTEGERS,
    PLAIN,
    Force,
    IndexBase,
    Integers,
    Nan,
    Options,
    Order,
    TieBreak,
    Transform,
    Windows,
    dtype_text,
)
from ksieve.core.policy import SamplingPolicy

Backend = Literal["auto", "cpu", "cuda", "reference"]


class _Placing(TypedDict, total=False):
    """Keyword arguments that say where scores lie and how their indices are written."""

    starts: Any
    ends: Any
    index_base: IndexBase | None
    next_n: int | None
    max_k: int | None
    page_table: Any
    page_size: int | None
    row_to_request: Any
    offsets: Any
    positions: Any
    block_table: Any
    counts_out: Any
    fill: bool | None


class _Selecting(TypedDict, total=False):
    """Keyword arguments that say what the entries of a row are, and what is written for one."""

    block_size: int | None
    force_first: int | None
    force_last: int | None
    force: Force | None
    expand: int | bool | None
    tail: Any


class _Returning(TypedDict, total=False):
    """Keyword arguments that decide how many arrays are returned."""

    return_values: bool
    values_out: Any
    return_raw: bool
    raw_out: Any


class _Choosing(TypedDict, total=False):
    """Keyword arguments that decide which scores are selected, in which order, and how."""

    index_dtype: Integers | None
    sorted: bool | Literal["value", "index"] | None
    tie_break: TieBreak | None
    deterministic: bool
    batch_invariant: bool
    largest: bool | None
    nan: Nan | None
    overlap: bool


class TopkKwargs(_Placing, _Selecting, _Returning, _Choosing, total=False):
    """Optional keyword arguments of `ksieve.topk`. None, or False for a flag, equals omission."""


class PlanlessKwargs(_Placing, _Selecting, _Choosing, total=False):
    """Keyword arguments that leave the number of returned arrays to the flags of a call; a plan may add some."""

    plan: None
    policy: SamplingPolicy | str | None
    backend: Backend
    out: Any
    workspace: Any
    num_rows: Any


NAMES = tuple(TopkKwargs.__annotations__)
"""Names of the keyword arguments, in the order in which they are documented."""

_KNOWN = frozenset(NAMES)

ARRAYS = ("starts", "ends", "page_table", "row_to_request", "offsets", "values_out", "raw_out")
"""The names among them whose values are arrays, but for those of `UNTRACED`."""

UNTRACED = ("positions", "block_table", "counts_out", "tail")
"""Names of arrays that a program of JAX does not take."""

UNTRACED_NUMBERS = {"block_size": 1, "force_first": 0, "force_last": 0, "expand": 1}
"""Names of numbers that a program of JAX does not take, with those that ask for nothing."""

_FLAGS = ("return_values", "return_raw", "deterministic", "batch_invariant", "overlap")

_DEFAULTS: dict[str, Any] = dict.fromkeys((*_FLAGS, "sorted"), False) | {"largest": True, "fill": True}

_ASKED_BY = {
    "windows": "starts",
    "per_row_k": "an array k",
    "transform": "page_table or offsets",
    "mapped": "row_to_request",
    "raw": "return_raw",
    "values": "return_values",
    "length_dtype": "lengths or ends",
    "order": "sorted",
    "counts": "counts_out",
    "filled": "fill",
}
"""Arguments whose field of `Options` has another name."""


_POSITIONAL = ("scores", "lengths", "k", "plan", "policy", "backend", "out", "workspace", "num_rows", "return_stats")

_ROWS = "rows run along the last axis, of scores of any rank: for another one, move it there and make a contiguous copy"
_ELSEWHERE = {
    "dim": _ROWS,
    "axis": _ROWS,
    "smallest": "largest=False selects the smallest scores",
    "descending": "sorted=True gives the best score first: with largest=False in ascending order",
    "stable": "sorted=True with tie_break='low' orders equal scores by index",
    "dtype": "index_dtype= for that of the indices",
    "stream": "the library's current stream is used: with torch.cuda.stream(...), or cupy's",
}
"""Replacements of keyword arguments that the functions of other libraries have."""


def explicit_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Signature of a function that takes ``**TopkKwargs``, with every keyword listed: help() and editors show it."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=kind.__forward_arg__
        )
        for name, kind in TopkKwargs.__annotations__.items()
    ]
    return signature.replace(parameters=[*own, *more])


def remedy_of(name: str) -> str:
    """Text that names the replacement of an unknown keyword argument."""
    from difflib import get_close_matches

    near = get_close_matches(name, (*_POSITIONAL, *NAMES), 1)
    return _ELSEWHERE.get(name) or (f"did you mean {near[0]}?" if near else "see help(ksieve.topk)")


def check_names(keywords: Mapping[str, Any]) -> None:
    """Raise TypeError for an unknown keyword argument, as Python does, and name its replacement."""
    for name in keywords:
        if name not in _KNOWN:
            raise TypeError(f"topk() got an unexpected keyword argument {name!r}: {remedy_of(name)}")


_warned = False


def warn_of_gradients() -> None:
    """Warn, once per process, that values written to `values_out` carry no gradient."""
    global _warned
    if not _warned:
        warnings.warn(
            "ksieve.topk(..., values_out=...): no gradient flows through values that are written to a given tensor. "
            "return_values=True alone returns values with one; under torch.no_grad() nothing is said",
            GradientWarning,
            stacklevel=5,
        )
        _warned = True


def resolve(
    keywords: Mapping[str, Any],
    planned: Options | None,
    *,
    per_row_k: bool = False,
    lengths: bool = False,
    length_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Options:
    """Combine the keyword arguments of a call and the options of its plan.

    Parameters
    ----------
    keywords : mapping
        As `TopkKwargs`.
    planned : Options or None
        Options of the call's plan, if it has one; they apply where the call omits an option.
    per_row_k, lengths : bool
        Whether k is an array, and whether there are lengths.
    length_dtype, out_dtype : str or None
        Dtype of the lengths or ends, and of `out`, when they are given.

    Raises
    ------
    ArgumentError
        If arguments contradict each other. The arrays themselves are not inspected.
    """
    given = {name: value for name, value in keywords.items() if value is not None} if keywords else {}
    if "index_dtype" in given:
        given["index_dtype"] = dtype_text(given["index_dtype"])
    usual = not per_row_k and length_dtype != "int64" and out_dtype in (None, "int32")
    if usual and not given and (planned is None or planned.plain):
        return PLAIN
    base = planned or PLAIN
    for name in (*_FLAGS, "fill"):
        if not isinstance(given.get(name, False), bool):
            raise ArgumentError(name, shown(given[name]), "True or False")
    _refuse_contradictions(given, lengths)
    order, tie_break = _determined(given, base)
    windows: Windows = "none"
    if "starts" in given:
        missing: Windows = base.windows if base.windows != "none" else "ends"
        windows = "lengths" if lengths else "ends" if "ends" in given else missing
    transform: Transform = "pages" if "page_table" in given else "offsets" if "offsets" in given else "none"
    block_size, expand = given.get("block_size", base.block_size), given.get("expand", base.expand)
    if expand is True and block_size == 1:
        raise ArgumentError("expand", "True without block_size", "the number of positions of an entry, or block_size=")
    index_dtype = given.get("index_dtype", base.index_dtype)
    if out_dtype in INTEGERS:
        asked_dtype = given.get("index_dtype", out_dtype)
        if isinstance(asked_dtype, str) and asked_dtype in INTEGERS and asked_dtype != out_dtype:
            raise ArgumentError("out", f"dtype {out_dtype}", f"dtype {asked_dtype}, the index_dtype")
        index_dtype = out_dtype if "index_dtype" not in given else index_dtype
    elif out_dtype is not None and planned is None and "index_dtype" not in given:
        raise ArgumentError("out", f"dtype {out_dtype}", f"dtype {' or '.join(INTEGERS)}")
    return Options(
        windows=windows,
        index_base=given.get("index_base", base.index_base),
        next_n=given.get("next_n", base.next_n),
        per_row_k=per_row_k,
        transform=transform,
        page_size=given.get("page_size", base.page_size),
        mapped="row_to_request" in given,
        raw="raw_out" in given or given.get("return_raw", base.raw),
        values="values_out" in given or given.get("return_values", base.values),
        index_dtype=cast(Integers, index_dtype),
        length_dtype=cast(Integers, length_dtype if length_dtype in INTEGERS else base.length_dtype),
        order=order,
        tie_break=tie_break,
        largest=given.get("largest", base.largest),
        nan=given.get("nan", base.nan),
        overlap=given.get("overlap", base.overlap),
        positions="positions" in given or "block_table" in given,
        counts="counts_out" in given,
        filled=given.get("fill", base.filled),
        block_size=block_size,
        force_first=given.get("force_first", base.force_first),
        force_last=given.get("force_last", base.force_last),
        force=given.get("force", base.force),
        expand=block_size if expand is True else 1 if expand is False else expand,
        tail="tail" in given,
    )


def _refuse_contradictions(given: Mapping[str, Any], lengths: bool) -> None:
    if lengths and "ends" in given:
        raise ArgumentError("ends", "an array together with lengths", "either lengths or ends")
    if "page_table" in given and "offsets" in given:
        raise ArgumentError("offsets", "an array together with page_table", "either page_table or offsets")
    if "positions" in given and "block_table" in given:
        raise ArgumentError("block_table", "an array together with positions", "either positions or block_table")
    for name in ("page_size", "row_to_request"):
        if name in given and "page_table" not in given:
            raise ArgumentError(name, "a value without page_table", "nothing without page_table")
    for flag, name in (("return_values", "values_out"), ("return_raw", "raw_out")):
        if given.get(flag) is False and name in given:
            raise ArgumentError(name, f"an array with {flag}=False", f"nothing, or {flag}=True")


def _determined(given: Mapping[str, Any], base: Options) -> tuple[Order, TieBreak]:
    """Order and tie-break of a call; a deterministic call has a fixed one of each."""
    asked = given.get("sorted", False)
    if not isinstance(asked, bool) and (not isinstance(asked, str) or asked not in ("value", "index")):
        raise ArgumentError("sorted", shown(asked), "False, True, 'value' or 'index'")
    order: Order = "value" if asked is True else cast(Order, asked or base.order)
    tie_break: TieBreak = given.get("tie_break", base.tie_break)
    for name in ("deterministic", "batch_invariant"):
        if given.get(name):
            if isinstance(tie_break, str) and given.get("tie_break") == "any":
                raise ArgumentError("tie_break", "'any'", f"'low' or 'high' with {name}")
            order = "index" if order == "any" else order
            tie_break = "low" if isinstance(tie_break, str) and tie_break == "any" else tie_break
    return order, tie_break


def difference(asked: Options, planned: Options) -> tuple[str, str] | None:
    """Describe the first difference between the options of a call and its plan, as (got, takes); None if equal."""
    for name in Options.__dataclass_fields__:
        mine, theirs = getattr(asked, name), getattr(planned, name)
        if mine != theirs:
            by = f" ({_ASKED_BY[name]})" if name in _ASKED_BY else ""
            return f"a call with {name} {mine!r}{by}", f"{name} {theirs!r}, which the plan was made for"
    return None
