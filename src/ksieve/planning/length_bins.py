"""Plans of several launches on CUDA devices: which kernels a plan runs, and in which order.

`ksieve.planning.choose_cuda` decides whether rows are binned by length; `Plan.bins` holds the launches of the shorter
bins.
"""

from __future__ import annotations

from dataclasses import replace

from ksieve.planning import blocks
from ksieve.planning import choose as planner
from ksieve.planning.memory import BATCH, fewest_stored, shared_bytes
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import STAGES

BINNING_THREADS = 1024
"""Threads of a CTA of the kernel that bins rows by length."""

BINNING_CANDIDATES = 256
"""Placeholder for the candidate capacity of that kernel, which stores none."""


def stats_plan(plan: Plan) -> Plan:
    """Return the plan of the statistics build: one launch for all rows, whose ring holds the row if it fits.

    It has room for k candidates, also where the plan itself keeps rows on chip and stores none. A cluster replaces a
    grid of CTAs that share a row, and a CTA replaces a warp. Streaming CTAs replace CTAs without that room; they may
    store candidates in the workspace.
    """
    if plan.problem.options.block_size > 1 and plan.family != "stream_unsampled":
        return blocks.studied(plan)
    if plan.family in ("resident_grid", "register_warp"):
        family = "resident_cluster" if plan.family == "resident_grid" else "resident_block"
        plan = planner.choose(plan.problem, plan.device, family=family)
    family = "resident_block" if plan.family == "register_block" else plan.family
    plan = replace(plan, family=family, bins=(), bin=None)
    whole = replace(plan, stages=plan.stages + plan.overflow_vectors, overflow_vectors=0)
    fits = shared_bytes(whole) <= plan.device.shared_per_block
    plan = whole if fits else replace(plan, resident_width=0, stages=STAGES, overflow_vectors=0)
    if plan.capacity >= plan.problem.k:
        return plan
    stored = fewest_stored(plan.problem)
    found = replace(plan, capacity=stored, shared_capacity=stored)
    if shared_bytes(found) <= plan.device.shared_per_block:
        return found
    return planner.choose(plan.problem, plan.device, family="stream_unsampled")


def launches(plan: Plan) -> tuple[Plan, ...]:
    """Return the plans of all kernels that a plan launches, in order. With length bins, the kernel that bins the rows
    and the launches of shorter bins precede the plan itself.
    """
    if not plan.bins or plan.passes_on:
        return (*plan.bins, plan)
    count = len(plan.bins) + 1
    binning = replace(
        plan, family="length_bins", policy=None, capacity=BINNING_CANDIDATES, shared_capacity=BINNING_CANDIDATES,
        columns=0, stages=BATCH, resident_width=plan.bins[0].resident_width, threads=BINNING_THREADS, ctas_per_sm=1,
        ctas=count, splits=count, bins=(),
    )  # fmt: skip
    return (binning, *plan.bins, plan)
