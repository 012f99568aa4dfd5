"""One selection on the host, for arrays of any library."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import problem
from ksieve.backends.cpu.runner import run, run_reference
from ksieve.errors import BackendError
from ksieve.options import PLAIN
from ksieve.planner import Plan
from ksieve.problem import Extras


def call(
    plan: Plan,
    scores: Any,
    lengths: Any,
    *,
    out: Any,
    num_rows: Any,
    return_stats: bool,
    extras: Extras,
    model: bool,
) -> Any:
    """Select every row of arguments that are checked and covered by the plan; `model` uses the NumPy model.

    Returns
    -------
    indices, or the tuple of what was asked for : see `ksieve.topk`
    """
    if plan.problem.options != PLAIN:
        raise BackendError("options are not available on the CPU yet")
    library = problem.library_of(scores)
    matrix = problem.as_numpy(scores)
    rows, width = matrix.shape
    valid = np.full(rows, width, np.int32) if lengths is None else problem.as_numpy(lengths)
    live = rows if num_rows is None else int(np.clip(problem.as_numpy(num_rows).reshape(()), 0, rows))
    result = np.empty((rows, plan.problem.k), np.int32) if out is None else problem.as_numpy(out)
    result[live:] = -1
    select = run_reference if model else run
    stats = select(plan, matrix[:live], valid[:live], result[:live], return_stats)
    indices = out if out is not None else _like(result, library)
    return (indices, stats) if return_stats else indices


def _like(result: NDArray[Any], library: str) -> Any:
    """Hand a NumPy result back in the caller's library, without copying where the library allows it."""
    if library == "torch":
        import torch

        return torch.from_numpy(result)
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(result)
    return result
