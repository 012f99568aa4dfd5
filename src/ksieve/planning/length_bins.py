"""Plans of several launches on CUDA devices: which kernels a plan runs, and in which order.

`planner_cuda` decides whether rows are dealt by their length, and `Plan.bands` holds what short ones are dealt to.
"""

from __future__ import annotations

from dataclasses import replace

from ksieve.planning import choose as planner
from ksieve.planning.memory import BATCH, fewest_stored, shared_bytes
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import STAGES

DEALER_THREADS = 1024
"""Of each CTA that deals rows."""

DEALER_CANDIDATES = 256
"""It stores none."""


def studied(plan: Plan) -> Plan:
    """The plan that statistics are of: the same with one launch for all rows, which its ring holds whole, if there is
    room, and with room for k candidates also where a cluster stores none of the rows it holds. Of rows that CTAs hold
    together without being a cluster, a cluster's.
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
    """Plans of all kernels that a plan launches, in their order: itself, behind those that take shorter rows and, in
    front of all, what deals rows to them.
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
