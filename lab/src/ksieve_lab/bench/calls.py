"""Calls of `ksieve.select` as dicts of options: planned, run on matrices as contenders, and judged.

`keywords` are by their names in `ksieve.core.table`, lengths and k among them. With placeholders for arrays they can be
planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import api, dispatch
from ksieve.core import arguments
from ksieve.core.device import DeviceInfo
from ksieve.core.groups import grouped
from ksieve.core.options import dtype_text
from ksieve.planning.plan import Plan
from ksieve.tuning.tasks import POISON, VERIFY_BYTES
from ksieve.tuning.timing import Contender
from ksieve_lab import oracle

Keywords = Mapping[str, Any]

VERIFIED = 4
"""Rows of each matrix that `ksieve.verify` judges besides."""

_ASKED = ("raw", "values")
_UNJUDGED = (
    *_ASKED, "page_table", "page_size", "row_to_request", "offsets", "max_k", "fill", "overlap", "deterministic",
    "index_dtype",
)  # fmt: skip
"""Arguments that the verifier does not take: they change no position, or only how it is written."""


def plan_of(
    rows: int, width: int, k: int, dtype: str, device: DeviceInfo | str, keywords: Keywords, pitch: int | None = None
) -> Plan:
    """Plan a call whose k is at most `k`."""
    lengths = keywords.get("lengths")
    options = arguments.resolve(
        keywords, None,
        per_row_k=not isinstance(keywords.get("k", k), int), lengths=lengths is not None,
        length_dtype=dtype_text(getattr(keywords.get("ends") if lengths is None else lengths, "dtype", None)),
    )  # fmt: skip
    facts: Any = {"pitch": pitch} if pitch else {}
    return dispatch.plan_of(rows=rows, width=width, k=k, dtype=dtype, device=device, options=options, **facts)


def outputs_of(plan: Plan, matrix: Any, beside: int = 0) -> dict[str, Any]:
    """Make poisoned outputs of a call, each with `beside` further columns in its memory."""
    import torch

    options, where, rows = plan.problem.options, matrix.device, len(matrix)
    index = getattr(torch, options.index_dtype)
    dtypes = {"out": index} | ({"raw": index} if options.raw else {})
    dtypes |= {"values": matrix.dtype} if options.values else {}
    shape = (rows, plan.problem.columns + beside)
    made = {name: torch.empty(shape, dtype=dtype, device=where) for name, dtype in dtypes.items()}
    if options.counts:
        made["counts"] = torch.empty(rows, dtype=torch.int32, device=where)
    poison(made)
    return {name: array[:, : shape[1] - beside] if array.ndim > 1 else array for name, array in made.items()}


def poison(outputs: Mapping[str, Any]) -> None:
    """Overwrite outputs with what no call answers."""
    for array in outputs.values():
        array.fill_(113 if array.is_floating_point() else POISON)


def select(
    scores: Any, lengths: Any, k: Any = None, *, plan: Plan, out: Any = None, workspace: Any = None,
    num_rows: Any = None, **options: Any,
) -> None:  # fmt: skip
    """Call `ksieve.select` with options by their names in the table; overlap is the plan's."""
    options.pop("overlap", None)
    api.select(scores, lengths, k, plan=plan, out=out, workspace=workspace, num_rows=num_rows, **grouped(options))


def contender(name: str, plan: Plan, matrices: Sequence[Any], keywords: Keywords) -> Contender:
    """Contender that makes the call on each matrix, with outputs of its own."""
    outputs, held = [outputs_of(plan, matrix) for matrix in matrices], dict[str, Any]()
    given = {name: value for name, value in keywords.items() if name not in ("lengths", *_ASKED)}

    def run(i: int) -> None:
        if plan.problem.device.kind == "cuda" and not held:
            held["workspace"] = plan.workspace()
        select(matrices[i], keywords.get("lengths"), plan=plan, **outputs[i], **given, **held)

    return judged(name, run, matrices, keywords, outputs)


def judged(
    name: str, run: Callable[[int], None], matrices: Sequence[Any], keywords: Keywords,
    outputs: Sequence[Mapping[str, Any]],
) -> Contender:  # fmt: skip
    """Contender whose answers are judged: all rows by the oracle, and the first ones by `ksieve.verify` too."""

    def check(i: int) -> bool:
        found = faults(matrices[i], keywords, outputs[i])
        wrong = any(bool(rows.any()) for rows in found.values())
        return not wrong and not by_verify(matrices[i], keywords, outputs[i], VERIFIED).any()

    return Contender(name, run, check, lambda i: poison(outputs[i]))


def faults(
    matrix: Any, keywords: Keywords, outputs: Mapping[str, Any], live: int | None = None
) -> dict[str, Any]:  # fmt: skip
    """Which rows the oracle refutes, by reason."""
    k = keywords["k"]
    most, ks = (k, None) if isinstance(k, int) else (keywords["max_k"], k)
    held = {oracle.NAMES[name]: array for name, array in outputs.items()}
    return oracle.wrong_rows(matrix, most, {**keywords, "live": live, "ks": ks}, held)


def by_verify(matrix: Any, keywords: Keywords, outputs: Mapping[str, Any], most: int) -> NDArray[np.bool_]:
    """Which of the first `most` rows, or a few more of whole requests, `ksieve.verify` refutes."""
    from ksieve.checking.verify import verify

    n = keywords.get("next_n", 1)
    rows = min(-(-most // n) * n, len(matrix))
    call = {name: value for name, value in keywords.items() if name not in _UNJUDGED}
    for name, value in call.items():
        if hasattr(value, "shape"):
            call[name] = value[: rows // n if name in oracle.PER_REQUEST else rows]
    if "counts" in outputs:
        call["counts"] = outputs["counts"][:rows]
    if keywords.get("deterministic"):
        call |= {"sorted": "index", "tie_break": "low"}
    answered = outputs.get("raw", outputs["out"])[:rows]
    lengths = call.pop("lengths", None)
    verdict = verify(matrix[:rows], lengths, answered, block_bytes=VERIFY_BYTES, **grouped(call))
    return np.asarray(verdict.reasons != 0)
