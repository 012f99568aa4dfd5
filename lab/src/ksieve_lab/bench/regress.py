"""A fixed set of calls against the last result of the same card, so that a slow kernel is seen the day it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ksieve.core.errors import ArgumentError
from ksieve.planning.plan import Plan
from ksieve.tuning.variants import PLANNED
from ksieve_lab.bench import adversarial_gpu as hard
from ksieve_lab.bench import gpu, options, record, segments
from ksieve_lab.bench.gpu import Case, Here
from ksieve_lab.bench.runner import Facts, Live, Settings
from ksieve_lab.bench.shape_lists import plain, words

MARGIN, MARGIN_US = 0.05, 0.3
"""What a call may take longer than before: a share of its time, and microseconds, which matter to the shortest."""

_SEGMENTS = "segments; segments, mean and longest"
_SHORT = "windows; k per row; page table; values; tie-break"

LISTED = (
    ("1024x262144,4096x65536,512x1048576", 2048, "float32", "causal", "plain"),
    ("4096x16384,4096x32768,4096x65536,512x131072,256x131072", 2048, "bfloat16", "causal", "plain"),
    ("4096x16384,512x131072", 2048, "float16", "causal", "plain"),
    ("1x131072,1x1048576,16x8192,64x32768,64x262144,16x1048576", 2048, "float32", "ragged", "plain"),
    ("1x131072,64x32768", 2048, "float16,bfloat16", "ragged", "plain"),
    ("1024x3000,8192x8192", 2048, "float32", "ragged", "plain"),
    ("4096x4096", 2048, "float32,bfloat16", "ragged", "plain"),
    ("65536x128", 8, "float32,bfloat16", "full", "plain"),
    ("8192x1024", 16, "float32", "full", "plain"),
    ("10000x10000", 256, "float32", "full", "plain"),
    ("64x128256", 50, "float32", "full", "plain"),
    *(("1024x262144", 2048, "float32", family, "plain")
      for family in ("ascending", "descending", "one_coarse_bin", "stride_peak", "view_hole")),
    ("512x131072", 2048, "float32", "causal",
     f"plain; {_SHORT}; smallest; by index; by value; deterministic; short rows, bounded; blocks of 8"),
    ("16x131072", 2048, "float32", "causal", f"plain; {_SHORT}"),
    ("4096x16384", 2048, "float32", "causal", f"plain; {_SHORT}"),
    ("4096x16384", 2048, "bfloat16", "ragged", "values; tie-break; by value"),
    ("100000x1500", 32, "float32", "full", _SEGMENTS),
    ("20000x4096", 8, "bfloat16", "full", _SEGMENTS),
)  # fmt: skip
"""Shapes, k, dtypes, lengths or else a family of scores, and calls on the same tensors."""


def name_of(case: Case, call: str) -> str:
    """Name of a call, the same in all results."""
    return f"{case.rows}x{case.width}, top {case.k}, {case.dtype}, {case.family or case.lengths}, {call}"


def cases(settings: Settings) -> list[Case]:
    """Inputs, each with the calls that ``--only`` leaves; refuses what there is nothing to compare with."""
    every: list[Case] = []
    earlier(settings)
    for shapes, k, dtypes, how, calls in LISTED:
        kind = ("causal", how) if how in hard.FAMILIES else (how, "")
        for rows, width in plain(shapes).items:
            for dtype in words(dtypes):
                names = {"k": k, "dtype": dtype, "lengths": kind[0], "family": kind[1]}
                every.append(Case(rows, width, k, dtype, *kind, names=names, calls=tuple(words(calls, ";"))))
    kept = set(settings.chosen(name_of(case, call) for case in every for call in case.calls))
    every = [replace(c, calls=tuple(call for call in c.calls if name_of(c, call) in kept)) for c in every]
    return [case for case in every if case.calls]


def _flat(case: Case) -> bool:
    return case.calls[0] in words(_SEGMENTS, ";")


def plans(case: Case, here: Here) -> Iterator[Callable[[], Plan]]:
    """Plans of the calls that rows of a matrix have."""
    return iter(()) if _flat(case) else options.plans(case, here)


def measure(settings: Settings, live: Live) -> Facts:
    """Measure all calls; one that is slower than before by more than the margins is timed again, and the least counts.

    ``of_before`` is a time over that of the earlier result.
    """
    card, before = gpu.device_of(settings).name, earlier(settings)
    told = {"card": card, "against": settings.before.name if before else None}
    if before and before["settings"]["card"] != card:
        raise ArgumentError("against", f"{settings.before.name} of {before['settings']['card']}", f"a result of {card}")
    timed = [call for call in before["results"]["shapes"] if "selectors" in call] if before else []
    known = {call["name"]: {**call["selectors"][PLANNED.name], "floor_us": call["floor_us"]} for call in timed}
    return gpu.by_case(
        settings, live, results=partial(results, known=known), measure=partial(_measure, known=known), plans=plans,
        written=lambda _: told,
    )  # fmt: skip


def earlier(settings: Settings) -> Facts | None:
    """The result to compare with; None if the card at hand has none that is committed."""
    if not settings.against and not settings.before.is_file():
        return None
    try:
        found = record.read_json(settings.before)
    except (OSError, ValueError) as error:
        raise ArgumentError("against", str(settings.before), f"a result file ({error})") from None
    if found["bench"] != settings.bench.name:
        raise ArgumentError("against", f"{settings.before.name} of {found['bench']}", "a result of this bench")
    return found


def slower(facts: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a call takes longer than before by more than the margins."""
    least = before.get("median_us", float("inf"))
    return bool(facts.get("median_us", 0) > least * (1 + MARGIN) + MARGIN_US)


def _measure(case: Case, here: Here, known: Mapping[str, Facts]) -> Facts:
    of = segments.measure if _flat(case) else options.measure
    found = of(case, here)
    timed: dict[str, Facts] = found.get("selectors", {})
    if any(slower(timed[call], known.get(name_of(case, call), {})) for call in case.calls if call in timed):
        for call, again in of(case, here).get("selectors", {}).items():
            # An answer that is not exact, or missing, stays whichever time it was.
            timed[call] = min(timed[call], again, key=lambda of: (of["exact"] is True, of.get("median_us", 0)))
    return found


def results(found: Sequence[Facts], settings: Settings, known: Mapping[str, Facts]) -> Facts:
    """Facts of every call, those that became slower, and times over earlier ones."""
    listed: list[Facts] = []
    worse: list[str] = []
    ratios, reads = [], []
    for case, facts in zip(cases(settings), found, strict=True):
        for call in case.calls:
            name = name_of(case, call)
            one = {"name": name, **facts, **case.names, "call": call}
            listed.append(one)
            if "selectors" not in facts:
                continue
            own, before = facts["selectors"][call], known.get(name, {})
            one["selectors"] = {PLANNED.name: own}
            if slower(own, before):
                worse.append(f"{name}: {own['median_us']:.1f} us for {before['median_us']:.1f}")
            if "median_us" in own and "median_us" in before:
                own["of_before"] = own["median_us"] / before["median_us"]
                ratios.append(own["of_before"])
                reads.append(facts["floor_us"] / (before["floor_us"] or math.nan))
    over = {
        "calls": len(ratios), "geometric_mean": gpu.mean_of(ratios)["geometric_mean"], "most": max(ratios),
        "reads": gpu.mean_of(reads)["geometric_mean"],
    } if ratios else None  # fmt: skip
    return {"shapes": listed, "of_before": over, "regressed": worse}
