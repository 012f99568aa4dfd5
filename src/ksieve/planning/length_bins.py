"""Plans of several launches on CUDA devices: which kernels a plan runs, and in which order.

`ksieve.planning.cuda` decides whether rows are binned by length; `Plan.bands` holds the launches of the shorter bins.
"""

from __future__ import annotations

from dataclasses import replace

from ksieve.planning import choose as planner
from ksieve.planning.memory import BATCH, fewest_stored, shared_bytes
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import STAGES

DEALER_THREADS = 1024
"""Threads of a CTA of the kernel that bins rows by length."""

DEALER_CANDIDATES = 256
"""Placeholder for the candidate capacity of that kernel, which stores none."""


def stats_plan(plan: Plan) -> Plan:
    """Return the plan of the statistics build: one launch for all rows, whose ring holds the row if it fits.

    It has room for k candidates, also where the plan itself keeps rows on chip and stores none. A grid of CTAs that
    share a row is replaced by a cluster.
    """
    if plan.family == "cooperative_exact":
        plan = planner.choose(plan.problem, plan.device, family="cluster_exact")
    plan = replace(plan, bands=(), band=None, registers=False)
    whole = replace(plan, stages=plan.stages + plan.beside, beside=0)
    fits = shared_bytes(whole) <= plan.device.shared_per_block
    plan = whole if fits else replace(plan, held=0, stages=STAGES, beside=0)
    if plan.capacity >= plan.problem.k:
        return plan
    stored = fewest_stored(plan.problem)
    return replace(plan, capacity=stored, shared_capacity=stored)


def launches(plan: Plan) -> tuple[Plan, ...]:
    """Return the plans of all kernels that a plan launches, in order: with length bins, first the kernel that bins the
    rows, then the launches of the shorter bins; last the plan itself.
    """
    if not plan.bands:
        return (plan,)
    count = len(plan.bands) + 1
    dealer = replace(
        plan, family="deal", policy=None, capacity=DEALER_CANDIDATES, shared_capacity=DEALER_CANDIDATES, columns=0,
        stages=BATCH, held=plan.bands[0].held, threads=DEALER_THREADS, ctas_per_sm=1, ctas=count, splits=count,
        bands=(),
    )  # fmt: skip
    return (dealer, *plan.bands, plan)
