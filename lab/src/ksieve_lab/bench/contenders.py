"""Ways to select the same rows on the CPU, timed in rotated rounds of one process, every answer verified."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import api
from ksieve.checking.verify import verify
from ksieve.core.errors import VerificationError
from ksieve.planning.plan import Plan

F32 = NDArray[np.float32]

FLOOR = "numpy max(axis=1)"
TORCH = "torch.topk(sorted=False)"
ARGPARTITION = "numpy.argpartition"

POISON = -(1 << 30)
"""Written into every output before it is filled again: an answer left over from the round before would not verify."""


@dataclass(frozen=True)
class Contender:
    """One way to read the rows; its answer is verified against them if `judged`."""

    name: str
    run: Callable[[], Any]
    poison: Callable[[], None] = lambda: None
    judged: bool = True


def rotate(
    contenders: Sequence[Contender], scores: Any, plan: Plan, rounds: int
) -> tuple[dict[str, list[float]], dict[str, bool]]:
    """Run every contender once per round, starting with another one each round; an untimed round comes first.

    Answers are verified outside the clock, in every round.

    Returns
    -------
    seconds : dict of list of float
        By contender, in order of the rounds.
    exact : dict of bool
        By judged contender: whether all its answers were exact.
    """
    seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
    exact = {c.name: True for c in contenders if c.judged}
    for turn in range(-1, rounds):
        for position in range(len(contenders)):
            contender = contenders[(position + turn) % len(contenders)]
            contender.poison()
            start = time.perf_counter()
            answer = contender.run()
            elapsed = time.perf_counter() - start
            if turn >= 0:
                seconds[contender.name].append(elapsed)
            if contender.judged:
                verdict = verify(scores, None, answer, k=plan.problem.k)
                exact[contender.name] &= verdict.ok
                if contender is contenders[0] and not verdict.ok:
                    raise VerificationError(f"ksieve on {scores.shape[0]} x {scores.shape[1]}: {verdict}", verdict)
    return seconds, exact


def every(scores: F32, plan: Plan) -> list[Contender]:
    """ksieve, NumPy, a plain read, and torch where it is installed."""
    k, width = plan.problem.k, scores.shape[1]
    found = [
        ksieve_topk(scores, plan, "ksieve"),
        Contender(ARGPARTITION, lambda: np.argpartition(scores, width - k, axis=1)[:, width - k :]),
        Contender(FLOOR, lambda: scores.max(axis=1), judged=False),
    ]
    if has_torch():
        import torch

        found.append(torch_topk(torch.from_numpy(scores), k))
    return found


def has_torch() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


def torch_topk(scores: Any, k: int) -> Contender:
    """`torch.topk` of a tensor, into arrays made beforehand."""
    import torch

    values = torch.empty((scores.shape[0], k), dtype=scores.dtype)
    indices = torch.empty((scores.shape[0], k), dtype=torch.int64)

    def select() -> Any:
        torch.topk(scores, k, dim=1, sorted=False, out=(values, indices))
        return indices.numpy()

    return Contender(TORCH, select, lambda: fill(indices.numpy()))


def ksieve_topk(scores: Any, plan: Plan, name: str) -> Contender:
    """`ksieve.topk` of an array or a tensor, with its plan, into an array made beforehand."""
    out = np.empty((scores.shape[0], plan.problem.k), np.int32)

    def select() -> Any:
        answer = api.topk(scores, plan=plan, out=out)
        return answer[0] if isinstance(answer, tuple) else answer

    return Contender(name, select, lambda: fill(out))


def fill(out: NDArray[Any]) -> None:
    """Write `POISON` into every slot."""
    out[...] = POISON
