"""From the keyword arguments of a call, and its plan, to `Options`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, TypedDict, cast

from ksieve.core.errors import ArgumentError, GradientWarning, shown
from ksieve.core.groups import Blocks, Offsets, PageTable, Positions, RowBounds, Segments, SelectedBlocks
from ksieve.core.options import PLAIN, Integers, Nan, Options, Order, TieBreak, Windows, dtype_text
from ksieve.core.table import BY_NAME, INTEGERS, TABLE


class Ranked(TypedDict, total=False):
    """Keyword arguments that say which scores are selected, in which order, and how that is written."""

    bounds: RowBounds | Segments | None
    blocks: Blocks | None
    gathered: Positions | SelectedBlocks | None
    transform: PageTable | Offsets | None
    max_k: int | None
    largest: bool | None
    sorted: bool | Literal["value", "index"] | None
    tie_break: TieBreak | None
    nan: Nan | None
    deterministic: bool | None
    index_dtype: Integers | Any


class Written(TypedDict, total=False):
    """Keyword arguments of `ksieve.select` that ask for more than indices."""

    values: Any
    raw: Any
    counts: Any
    fill: bool | None


RANKED = tuple(Ranked.__annotations__)
WRITTEN = tuple(Written.__annotations__)

_OF_FIELDS = {
    option.field: option.name for option in TABLE if option.field not in ("", option.name, "windows", "transform")
} | {
    "windows": "RowBounds or Segments",
    "per_row_k": "an array k",
    "transform": "PageTable or Offsets",
    "positions": "Positions or SelectedBlocks",
    "length_dtype": "lengths or ends",
    "order": "sorted",
}
"""What sets the fields of `Options` that have another name."""

_UNSTATED = {option.field: getattr(PLAIN, option.field) for option in TABLE if option.field and option.shape}
"""Fields that say which arrays are given, and which no plan supplies, as they are without any."""

_ROWS = "rows run along the last axis, of scores of any rank: for another one, move it there and make a contiguous copy"
_ELSEWHERE = {
    "dim": _ROWS,
    "axis": _ROWS,
    "smallest": "largest=False selects the smallest scores",
    "descending": "sorted=True gives the best score first: with largest=False in ascending order",
    "stable": "sorted=True with tie_break='low' orders equal scores by index",
    "dtype": "index_dtype= for that of the indices",
    "stream": "the library's current stream is used: with torch.cuda.stream(...), or cupy's",
    "overlap": "ksieve.plan(..., overlap=True) makes a plan with it",
    "policy": "ksieve.plan(..., policy=) makes a plan with one",
    "backend": "the scores' device decides; ksieve.model.reference is the NumPy model",
}
"""Replacements of keyword arguments that other functions have."""


def remedy_of(name: str, known: tuple[str, ...]) -> str:
    """Text that names the replacement of an unknown keyword argument."""
    from difflib import get_close_matches

    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name in BY_NAME and BY_NAME[name].where not in known and BY_NAME[name].where != name:
        return f"it is a member of ksieve.{BY_NAME[name].where}"
    if name in (*WRITTEN, "stats"):
        return "ksieve.select takes it"
    near = get_close_matches(name, ("scores", "lengths", "k", *known), 1)
    return f"did you mean {near[0]}?" if near else "see help(ksieve.topk)"


_warned = False


def warn_of_gradients() -> None:
    """Warn, once per process, that values written to a given array carry no gradient."""
    global _warned
    if not _warned:
        warnings.warn(
            "ksieve.select(..., values=tensor): no gradient flows through values that are written to a given tensor. "
            "values=True returns values with one; under torch.no_grad() nothing is said",
            GradientWarning,
            stacklevel=5,
        )
        _warned = True


def resolve(
    given: Mapping[str, Any],
    planned: Options | None,
    *,
    per_row_k: bool = False,
    lengths: bool = False,
    length_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Options:
    """Combine the options of a call and of its plan.

    `given`: options by their names in the table (`ksieve.core.groups.flat`); None, or False for an output, equals
    omission. `planned`: options of the call's plan, if it has one; of these, what states no array applies where the
    call omits it. `per_row_k`: whether k is an array. `lengths`: whether there are some. `length_dtype`, `out_dtype`:
    those of the lengths or ends, and of `out`, where they are given. Raises `ArgumentError` if arguments contradict
    each other. The arrays themselves are not inspected.
    """
    given = {name: value for name, value in given.items() if value is not None and name != "max_k"} if given else {}
    usual = not per_row_k and length_dtype != "int64" and out_dtype in (None, "int32")
    if usual and not given and (planned is None or planned.plain):
        return PLAIN
    base = planned or PLAIN
    for name in ("ends", "indptr"):
        if lengths and name in given:
            raise ArgumentError(name, "an array together with lengths", f"either lengths or {name}")
    facts: dict[str, Any] = {}
    stated: dict[str, str] = {}
    for name, value in given.items():
        option = BY_NAME.get(name)
        if option is None or not option.field or name in ("starts", "ends"):
            continue
        if option.kind == "output":
            facts[option.field] = value is not False
        elif option.kind == "input":
            if (first := stated.setdefault(option.field, name)) != name:
                raise ArgumentError(name, f"an array together with {first}", f"either {first} or {name}")
            facts[option.field] = option.states
        else:
            if option.kind == "flag" and not isinstance(value, bool):
                raise ArgumentError(name, shown(value), "True or False")
            facts[option.field] = value
    order, tie_break = _determined(given, base)
    if "indptr" in given:
        facts["index_base"] = "start"
    if "starts" in given:
        planned_windows: Windows = base.windows if base.windows != "none" else "ends"
        facts["windows"] = "lengths" if lengths else "ends" if "ends" in given else planned_windows
    if out_dtype in INTEGERS:
        asked = dtype_text(given.get("index_dtype", out_dtype))
        if isinstance(asked, str) and asked in INTEGERS and asked != out_dtype:
            raise ArgumentError("out", f"dtype {out_dtype}", f"dtype {asked}, the index_dtype")
        facts.setdefault("index_dtype", out_dtype)
    elif out_dtype is not None and planned is None and "index_dtype" not in given:
        raise ArgumentError("out", f"dtype {out_dtype}", f"dtype {' or '.join(INTEGERS)}")
    if length_dtype in INTEGERS:
        facts["length_dtype"] = length_dtype
    facts = _UNSTATED | {"per_row_k": per_row_k} | facts | {"order": order, "tie_break": tie_break}
    with suppress(Exception):  # a foreign class may raise anything when hashed, and is refused below
        return _replaced(base, **facts)
    return replace(base, **facts)


@lru_cache(maxsize=4096, typed=True)
def _replaced(base: Options, **facts: Any) -> Options:
    found = replace(base, **facts)
    return PLAIN if found == PLAIN else found  # every call asks for identity with it


def _determined(given: Mapping[str, Any], base: Options) -> tuple[Order, TieBreak]:
    """Order and tie-break of a call; a deterministic call has a fixed one of each."""
    asked, fixed = given.get("sorted", False), given.get("deterministic", False)
    if not isinstance(asked, bool) and (not isinstance(asked, str) or asked not in ("value", "index")):
        raise ArgumentError("sorted", shown(asked), "False, True, 'value' or 'index'")
    if not isinstance(fixed, bool):
        raise ArgumentError("deterministic", shown(fixed), "True or False")
    order: Order = "value" if asked is True else cast(Order, asked or base.order)
    tie_break: TieBreak = given.get("tie_break", base.tie_break)
    if fixed:
        if isinstance(tie_break, str) and given.get("tie_break") == "any":
            raise ArgumentError("tie_break", "'any'", "'low' or 'high' with deterministic")
        order = "index" if order == "any" else order
        tie_break = "low" if isinstance(tie_break, str) and tie_break == "any" else tie_break
    return order, tie_break


def difference(asked: Options, planned: Options, of: Iterable[str] = Options.__slots__) -> tuple[str, str] | None:
    """Describe the first difference between the options of a call and its plan, as (got, takes); None if equal."""
    for name in of:
        mine, theirs = getattr(asked, name), getattr(planned, name)
        if mine != theirs:
            by = f" ({_OF_FIELDS[name]})" if name in _OF_FIELDS else ""
            return f"a call with {name} {mine!r}{by}", f"{name} {theirs!r}, which the plan was made for"
    return None
