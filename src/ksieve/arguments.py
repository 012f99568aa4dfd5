"""The keyword arguments by which a call asks for options, and the `Options` that they and a plan come to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, cast

from ksieve.errors import ArgumentError
from ksieve.options import PLAIN, IndexBase, IndexType, Options, Order, TieBreak, Transform, Windows


class Keywords(TypedDict, total=False):
    """Optional keyword arguments of `ksieve.topk`; None, or False for a flag, is the same as leaving one out."""

    starts: Any
    ends: Any
    index_base: IndexBase | None
    next_n: int | None
    max_k: int | None
    page_table: Any
    page_size: int | None
    row_to_request: Any
    offsets: Any
    return_values: bool
    values_out: Any
    return_raw: bool
    raw_out: Any
    index_dtype: IndexType | None
    sorted: bool | Literal["value", "index"] | None
    tie_break: TieBreak | None
    deterministic: bool
    batch_invariant: bool
    overlap: bool


NAMES = tuple(Keywords.__annotations__)
"""Names of the keyword arguments, in the order in which they are documented."""

ARRAYS = ("starts", "ends", "page_table", "row_to_request", "offsets", "values_out", "raw_out")
"""Of them, those that are arrays."""

_FLAGS = ("return_values", "return_raw", "deterministic", "batch_invariant", "overlap")

_DEFAULTS: dict[str, Any] = dict.fromkeys((*_FLAGS, "sorted"), False)

_ASKED_BY = {
    "windows": "starts",
    "per_row_k": "an array k",
    "transform": "page_table or offsets",
    "mapped": "row_to_request",
    "raw": "return_raw",
    "values": "return_values",
    "order": "sorted",
}
"""Arguments by which a call asks for an option that has another name."""


def written_out(function: Callable[..., Any]) -> inspect.Signature:
    """Signature of a function that takes `Keywords`, with each of them by name: what help and editors show."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=kind.__forward_arg__
        )
        for name, kind in Keywords.__annotations__.items()
    ]
    return signature.replace(parameters=[*own, *more])


def check_names(keywords: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that do not exist, as Python itself would.

    Raises
    ------
    TypeError
    """
    for name in keywords:
        if name not in NAMES:
            raise TypeError(f"topk() got an unexpected keyword argument {name!r}")


def resolve(
    keywords: Mapping[str, Any],
    planned: Options | None,
    *,
    per_row_k: bool = False,
    lengths: bool = False,
    out_dtype: str | None = None,
) -> Options:
    """Say which options a call asks for.

    Parameters
    ----------
    keywords : mapping
        As `Keywords`.
    planned : Options or None
        Of the call's plan, if it has one: what the call leaves open is as planned.
    per_row_k, lengths : bool
        Whether k is an array, and whether there are lengths.
    out_dtype : str or None
        Dtype of `out`, when one is given.

    Raises
    ------
    ArgumentError
        If arguments contradict each other; arrays are not looked at.
    """
    given = {name: value for name, value in keywords.items() if value is not None} if keywords else {}
    if not given and (planned is None or planned.plain) and not per_row_k and out_dtype in (None, "int32"):
        return PLAIN
    base = planned or PLAIN
    for name in _FLAGS:
        if not isinstance(given.get(name, False), bool):
            raise ArgumentError(name, repr(given[name]), "True or False")
    _refuse_contradictions(given, lengths)
    order, tie_break = _determined(given, base)
    windows: Windows = "none"
    if "starts" in given:
        missing: Windows = base.windows if base.windows != "none" else "ends"
        windows = "lengths" if lengths else "ends" if "ends" in given else missing
    transform: Transform = "pages" if "page_table" in given else "offsets" if "offsets" in given else "none"
    index_dtype = given.get("index_dtype", base.index_dtype)
    if out_dtype in ("int32", "int64"):
        if given.get("index_dtype", out_dtype) != out_dtype:
            raise ArgumentError("out", f"dtype {out_dtype}", f"dtype {given['index_dtype']}, the index_dtype")
        index_dtype = out_dtype
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
        index_dtype=cast(IndexType, index_dtype),
        order=order,
        tie_break=tie_break,
        overlap=given.get("overlap", base.overlap),
    )


def _refuse_contradictions(given: Mapping[str, Any], lengths: bool) -> None:
    if lengths and "ends" in given:
        raise ArgumentError("ends", "an array beside lengths", "either lengths or ends")
    if "page_table" in given and "offsets" in given:
        raise ArgumentError("offsets", "an array beside page_table", "either page_table or offsets")
    for name in ("page_size", "row_to_request"):
        if name in given and "page_table" not in given:
            raise ArgumentError(name, "a value without page_table", "nothing without page_table")
    for flag, name in (("return_values", "values_out"), ("return_raw", "raw_out")):
        if given.get(flag) is False and name in given:
            raise ArgumentError(name, f"an array with {flag}=False", f"nothing, or {flag}=True")


def _determined(given: Mapping[str, Any], base: Options) -> tuple[Order, TieBreak]:
    """Order and tie-break; a call that has to be deterministic has one of each."""
    asked = given.get("sorted", False)
    if not isinstance(asked, bool) and asked not in ("value", "index"):
        raise ArgumentError("sorted", repr(asked), "False, True, 'value' or 'index'")
    order: Order = "value" if asked is True else asked or base.order
    tie_break: TieBreak = given.get("tie_break", base.tie_break)
    for name in ("deterministic", "batch_invariant"):
        if given.get(name):
            if given.get("tie_break") == "any":
                raise ArgumentError("tie_break", "'any'", f"'low' or 'high' with {name}")
            order = "index" if order == "any" else order
            tie_break = "low" if tie_break == "any" else tie_break
    return order, tie_break


def difference(asked: Options, planned: Options) -> tuple[str, str] | None:
    """Say in words how the options of a call differ from its plan's: what it has, what the plan says; None if equal."""
    for name in Options.__dataclass_fields__:
        mine, theirs = getattr(asked, name), getattr(planned, name)
        if mine != theirs:
            by = f" ({_ASKED_BY[name]})" if name in _ASKED_BY else ""
            return f"a call with {name} {mine!r}{by}", f"{name} {theirs!r}, which the plan was made for"
    return None
