"""Time per phase of a row, from clock stamps that a profiled build of the shipped kernels leaves.

The profiled build is the shipped sources with five stamps between the phases (`STAMPS`). A stamp waits for the whole
CTA. It adds the cycles since the last one to the row's statistics memory. The sources on disk carry no trace of this.
Where a place to stamp is not found exactly once, because a kernel was rewritten, the profile says so and measures
nothing.

Cycles become microseconds by the ratio of the GPU's nanosecond timer to its cycle counter over all rows. The stamps'
barriers cost each row about five times 20 ns. Work that overlaps with the next row (the prefetch of its samples) counts
in the phase that waits for it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ksieve import api
from ksieve.backends.cuda.jit import cache
from ksieve.backends.cuda.jit.compile import Sources, shipped_sources
from ksieve.backends.cuda.jit.spec import kernel_spec
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime import launch
from ksieve.checking.verify import verify
from ksieve.core.errors import BackendError, VerificationError
from ksieve.planning.plan import Plan
from ksieve_lab.bench.machines import Choice, Gpu, plan_for

PHASES = ("proposal", "scan", "verdict", "refinement")
"""Clearing the storage and proposing a boundary; the complete scan; checking it, with any rescue or recovery; exact
refinement and output."""

LAUNCHES = 5
"""Of each choice; the means are over all but the first."""

_ROW = "t.row.id"
_TOTAL, _NANOSECONDS = 4, 5

_MACROS = """
__device__ __forceinline__ u64 profile_nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ long long* profile_since() {
  __shared__ long long since[3];
  return since;
}
__device__ __forceinline__ void profile_begin(int* stats, int row) {
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 6; ++i)
      stats[static_cast<i64>(row) * 16 + i] = 0;
    profile_since()[0] = profile_since()[1] = clock64();
    profile_since()[2] = static_cast<long long>(profile_nanoseconds());
  }
}
__device__ __forceinline__ void profile_stamp(int* stats, int row, int phase) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  long long now = clock64();
  int* out = stats + static_cast<i64>(row) * 16;
  out[phase] += static_cast<int>(now - profile_since()[0]);
  profile_since()[0] = now;
  if (phase != 3) return;
  out[4] += static_cast<int>(now - profile_since()[1]);
  out[5] += static_cast<int>(static_cast<long long>(profile_nanoseconds()) - profile_since()[2]);
}
"""


def _stamp(phase: int) -> str:
    return f"profile_stamp(t.params.stats, {_ROW}, {phase});"


STAMPS: dict[str, tuple[tuple[str, str], ...]] = {
    "common/params.cuh": (("constexpr int kStatsColumns = 16;\n", "constexpr int kStatsColumns = 16;\n" + _MACROS),),
    "stream/select.cuh": (
        ("  if (first) {\n", f"  profile_begin(t.params.stats, {_ROW});\n  if (first) {{\n"),
        ("  Frontier frontier;\n", f"  {_stamp(0)}\n  Frontier frontier;\n"),
        ("[] { return Merged::kWhole; }", f"[&] {{ {_stamp(1)} return Merged::kWhole; }}"),
        ("  prefetch_next();\n", f"  {_stamp(2)}\n  prefetch_next();\n"),
        ("  return refine(t, frontier);\n",
         f"  const bool is_final = refine(t, frontier);\n  {_stamp(3)}\n  return is_final;\n"),
    ),
    "stream/certify.cuh": (
        # The exact route's first scan is its proposal: it makes the boundary. In a recovery it is part of the verdict.
        ("      q = classified(t, find_bin(open_slots(t.params)));\n",
         f"      q = classified(t, find_bin(open_slots(t.params)));\n      if (first) {_stamp(0)}\n"),
    ),
}  # fmt: skip
"""Per source file, pairs of old and new text."""


def profiled_sources(folder: Path) -> Sources:
    """Write the shipped kernel sources with stamps into a folder and read them back.

    Raises `BackendError` if a place to stamp is not there exactly once.
    """
    for name, text in shipped_sources().texts:
        for old, new in STAMPS.get(name, ()):
            if text.count(old) != 1:
                raise BackendError(
                    f"no profile of this build: {name} has {text.count(old)} places for a stamp at {old.strip()!r}"
                )
            text = text.replace(old, new)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return Sources.read(folder)


def compiled(plan: Plan) -> tuple[Any, Any]:
    """Compile a plan's kernel with stamps; returns its specification and machine code. Needs no GPU."""
    spec = kernel_spec(plan)
    with tempfile.TemporaryDirectory(prefix="ksieve-profile-") as folder:
        sources = profiled_sources(Path(folder))
        cubin, _ = cache.obtain(spec, sources, Path(folder) / "cache")
    return spec, cubin


def profile(machine: Gpu, scores: Any, lengths: Any, k: int, choice: Choice) -> dict[str, Any]:
    """Split the time of a selection's rows into phases; the choice is of a persistent family: its CTAs own whole rows.

    Returns
    -------
    dict
        ``row_us`` per phase and ``total_us``, means over rows longer than k, and the ``clock_ghz`` that was seen.

    Raises
    ------
    BackendError
        If the kernels cannot be profiled.
    VerificationError
        If the profiled kernel's answer is not exact.
    """
    plan = plan_for(scores, k, choice, machine.device)
    spec, cubin = compiled(plan)
    index, driver = plan.problem.device.index, cuda_driver.get()
    with driver.activated(driver.context(index)):
        function = driver.load(cubin.code, spec.entry, spec.shared_bytes)
    long = lengths.cpu().numpy() > k
    found = []
    with _in_place_of(plan, index, function):
        for _ in range(LAUNCHES):
            # The profiled kernel writes its stamps where the statistics would be, and nothing else there.
            answer = api.select(scores, lengths, plan=plan, stats=True)
            found.append(answer.stats.raw[long].astype(np.int64))
    verdict = verify(scores, lengths, answer.indices)
    if not verdict.ok:
        raise VerificationError(f"the profiled {plan.family} is not exact: {verdict}", verdict)
    return split(np.concatenate(found[1:]))


@contextmanager
def _in_place_of(plan: Plan, index: int, function: int) -> Iterator[None]:
    """Within a ``with`` block, run another function in calls with statistics."""
    place, prepared = (index, kernel_spec(plan, stats=True)), (plan, True, False)
    before = launch._functions.pop(place, None)
    launch._launchers.pop(prepared, None)
    launch._functions[place] = function
    try:
        yield
    finally:
        launch._launchers.pop(prepared, None)
        del launch._functions[place]
        if before is not None:
            launch._functions[place] = before


def split(counts: Any) -> dict[str, Any]:
    """Turn stamped cycles, one line of 16 numbers per row, into mean microseconds per phase.

    Raises `BackendError` if no row was stamped.
    """
    measured = counts[counts[:, _TOTAL] > 0]
    if not len(measured):
        raise BackendError("no row left a profile: every row is at most k long, or the stamps did not run")
    cycles_per_us = measured[:, _TOTAL].sum() / max(measured[:, _NANOSECONDS].sum(), 1) * 1e3
    phases = {name: float(measured[:, i].mean() / cycles_per_us) for i, name in enumerate(PHASES)}
    return {
        "row_us": phases,
        "total_us": float(measured[:, _TOTAL].mean() / cycles_per_us),
        "clock_ghz": float(cycles_per_us / 1e3),
        "rows": len(measured),
    }
