"""The selections of one long request: the calls that a framework's scheduler makes of a Top-K kernel.

A scheduler cuts a prompt into steps of bounded query tokens, and the indexer cuts each step again. So the float32
matrix of one invocation (rows times keys at the end of the step) stays within a budget of bytes (Siran Liu et al.,
"Sample-Guided Exact Top-K Selection for Long-Context Sparse Attention", Tencent; section "Framework-Level Top-K
Performance"). With 65,536 query tokens per step and 6.3e9 bytes, requests of 245,000 and 430,000 tokens take 4 and 7
steps, 26 and 71 invocations. Decoding adds one invocation per token, of one row per request of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ksieve.core import problem
from ksieve.core.errors import ArgumentError

STEP_TOKENS = 65_536
"""Query tokens of one scheduler step."""

BUDGET_BYTES = 6_300_000_000
"""Score-matrix bytes of one invocation that reproduce the paper's invocation counts."""

SCORE_BYTES = 4
"""Indexers write float32 scores, for any input precision."""

PAPER_REQUESTS = {"245K": 245_000, "430K": 430_000}
"""Prompt tokens of the paper's traces by name."""

LengthsRule = Literal["causal", "equal"]


@dataclass(frozen=True, slots=True)
class Invocation:
    """One Top-K call of a trace.

    `step`: scheduler step it belongs to, from 0 over the whole trace. `rows`: queries. `width`: allocated scores per
    row, the keys there are when the step has been taken. `first`: position of the first row's query in its request,
    from 0. `rule`: "causal" means consecutive queries of one request: row r sees ``first + 1 + r`` keys. "equal" means
    one query each of several requests of the same length: every row sees ``first + 1`` keys.
    """

    phase: Literal["prefill", "decode"]
    step: int
    rows: int
    width: int
    first: int
    rule: LengthsRule

    def lengths(self) -> NDArray[np.int32]:
        """Valid scores of every row: int32 of shape (rows,)."""
        rows = np.arange(self.rows) if self.rule == "causal" else np.zeros(self.rows, np.int64)
        return (self.first + 1 + rows).astype(np.int32)

    @property
    def valid_scores(self) -> int:
        """Valid scores of all rows together."""
        extra = self.rows * (self.rows - 1) // 2 if self.rule == "causal" else 0
        return self.rows * (self.first + 1) + extra


def invocations(
    prompt: int,
    *,
    step_tokens: int = STEP_TOKENS,
    budget_bytes: int = BUDGET_BYTES,
    decode_steps: int = 0,
    batch: int = 1,
) -> list[Invocation]:
    """List the selections of a batch of equal requests in their order: each prefilled in turn, then decoded together.

    `prompt`: tokens of a request. `step_tokens`: most query tokens of a scheduler step. `budget_bytes`: most bytes of
    an invocation's score matrix; at least one row is always taken. `decode_steps`: tokens generated after the prompt.
    The first comes out of the prefill, yet each is itself a query of a decode step. `batch`: requests. Raises
    `ArgumentError` if a number is out of range.
    """
    for name, value, least in (
        ("prompt", prompt, 0), ("step_tokens", step_tokens, 1), ("budget_bytes", budget_bytes, 1),
        ("decode_steps", decode_steps, 0), ("batch", batch, 1),
    ):  # fmt: skip
        if not problem.is_int(value) or not least <= value < 1 << 62:
            raise ArgumentError(name, repr(value), f"an int of at least {least}")
    if prompt + decode_steps >= 1 << 31:
        raise ArgumentError("prompt", prompt, "fewer than 2**31 tokens with those decoded")
    made: list[Invocation] = []
    step = 0
    for _ in range(batch):
        for begin in range(0, prompt, step_tokens):
            end = min(begin + step_tokens, prompt)
            made += _chunks(step, begin, end, budget_bytes)
            step += 1
    for position in range(prompt, prompt + decode_steps):
        made.append(Invocation("decode", step, batch, position + 1, position, "equal"))
        step += 1
    return made


def _chunks(step: int, begin: int, end: int, budget_bytes: int) -> Iterator[Invocation]:
    rows = max(1, budget_bytes // (SCORE_BYTES * end))
    for first in range(begin, end, rows):
        yield Invocation("prefill", step, min(rows, end - first), end, first, "causal")
