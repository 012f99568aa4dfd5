"""Plans for the CPU: the sampling policy of a row width, and the candidate capacity of a thread."""

from __future__ import annotations

from ksieve.core.device import DeviceInfo
from ksieve.core.entries import selected
from ksieve.core.errors import ArgumentError, shown
from ksieve.core.policy import PAPER_64, PAPER_128, SamplingPolicy, resolve_policy
from ksieve.core.problem import Problem
from ksieve.model.guess import LARGEST_STRIDE, rank_of
from ksieve.planning.plan import FORCED, Plan


def least_capacity(k: int, policy: SamplingPolicy | None) -> int:
    """Smallest candidate capacity of a CPU thread for a long row. Half of it must hold k candidates, and the sampled
    scores that the policy ranks.
    """
    ranks = [] if policy is None else [policy.primary_rank(k), policy.rescue_rank(k) or 0]
    return 2 * max([k, *ranks]) + 2


def candidate_capacity(width: int, k: int, policy: SamplingPolicy | None) -> int:
    """Candidate capacity of a CPU thread: 4 k, or twice the number that a guess admits; at most the width.

    With a policy it is at least 4,096, twice the 2,048 scores that the boundary admits where k is small. A larger
    capacity does not help ordinary rows, and adversarial rows could fill it.
    """
    guessed = LARGEST_STRIDE * rank_of(1 << 62, k, LARGEST_STRIDE, 0)
    return min(max(4 * k, 2 * guessed, 4096 if policy else 0, least_capacity(k, policy)), width)


def default_policy(width: int, k: int) -> SamplingPolicy | None:
    """Sampling policy of a row width; None where sampling does not pay.

    The crossover of the paper (Siran Liu et al., "Sample-Guided Exact Top-K Selection for Long-Context Sparse
    Attention", Tencent; section "Sampled-Path Ablations"). Exact localization wins up to 24K, results are mixed to 56K,
    both sampled policies win from 64K.
    """
    if width < 32_768 or 8 * k > width:
        return None
    return PAPER_64 if width < 131_072 else PAPER_128


def choose(problem: Problem, device: DeviceInfo, family: str | None, policy: SamplingPolicy | str | None) -> Plan:
    """Choose a CPU plan; see `ksieve.planning.choose.choose`."""
    if family is not None and (not isinstance(family, str) or family != "cpu"):
        raise ArgumentError("family", shown(family), "'cpu' on a CPU device")
    width, k = selected(problem.options, problem.usual, problem.k)
    if policy is not None:
        chosen, why = resolve_policy(policy), f"policy {FORCED}"
    elif chosen := default_policy(width, max(k, 1)):
        why = f"width {width:,} is wide enough for a sampled boundary"
    else:
        why = f"width {width:,} is too short for a sampled boundary at k={k:,}"
    capacity = candidate_capacity(width, max(k, 1), chosen)
    reason = f"rows in parallel on {device.threads} threads; {why}"
    return Plan(problem, device, "cpu", chosen, capacity, threads=device.threads, reason=reason)
