"""The oracle of `ksieve.logits`: one row at a time, in float64 with NumPy's own functions; no code of the library."""

from __future__ import annotations

from typing import Any

import numpy as np

NAN, EMPTY, TOKEN, CAPACITY, INVALID, INFINITE = 1, 2, 4, 8, 16, 32


def wide(scores: np.ndarray) -> np.ndarray:
    """Scores as float64; uint16 holds bits of bfloat16."""
    if scores.dtype == np.uint16:
        scores = (scores.astype(np.uint32) << 16).view(np.float32)
    return scores.astype(np.float64)


class Row:
    """What is true of one row. `call`: the row's own value of each argument that is given."""

    def __init__(self, scores: np.ndarray, k: int, call: dict[str, Any]) -> None:
        x, width = wide(scores), scores.size
        self.t = np.float64(call.get("temperature", 1))
        ranges = {"temperature": (2.0**-100, 2.0**100), "p": (1e-45, 1), "min_p": (0, 1), "uniform": (0, 1)}
        fits = [low <= np.float64(call[name]) <= high for name, (low, high) in ranges.items() if name in call]
        self.invalid = not all(fits) or call.get("k", 1) < 1
        valid = np.arange(width) < call.get("lengths", width)
        if "allowed" in call:
            at = np.arange(width)
            valid &= (call["allowed"].astype(np.int64)[at // 32] >> (at % 32)) & 1 == 1
        x = np.where(valid & (not self.invalid), x, -np.inf)
        numbers = np.flatnonzero(x > -np.inf)
        self.x, self.nan, self.infinite = x, bool(np.isnan(x).any()), bool((x == np.inf).any())
        self.order = numbers[np.lexsort((numbers, -x[numbers]))]
        self.k = min(call.get("k", k), k)
        self.flags = NAN * self.nan | EMPTY * (not numbers.size and not self.nan) | INFINITE * self.infinite
        self.flags |= INVALID * self.invalid
        self.lse = np.nan if self.nan else np.inf if self.infinite else -np.inf
        if np.isnan(self.lse) or numbers.size == 0 or self.infinite:
            return
        best = x[self.order[0]]
        self.lse = best / self.t + np.log(np.sum(np.exp((x[numbers] - best) / self.t)))

    def weights(self, tokens: np.ndarray) -> np.ndarray:
        """Probabilities of tokens over that of the first."""
        x = self.x[tokens]
        with np.errstate(invalid="ignore"):
            return np.where(x == x[0], 1.0, np.exp((x - x[0]) / self.t))

    def draw(self, uniform: float, tokens: np.ndarray, sums: np.ndarray, whole: bool) -> tuple[int, float]:
        """The token that a uniform number draws from a kept set, and the margin by which it does.

        `whole`: without k, where the last tokens may have no mass.
        """
        weights = self.weights(tokens)
        found = int(np.count_nonzero(sums <= uniform * sums[-1]))
        margin = np.abs(sums[:-1] / sums[-1] - uniform).min(initial=1.0) if uniform < 1 or whole else 1.0
        return int(tokens[min(found, np.count_nonzero(weights > 2.0**-1000) - 1)]), float(margin)

    def token(self, token: int) -> tuple[float, int]:
        """Logprob and rank of a token."""
        if not 0 <= token < self.x.size:
            return np.nan, -1
        x = self.x[token]
        rank = int(np.flatnonzero(self.order == token)[0]) if x > -np.inf else -1
        if x == -np.inf:
            return (np.nan if self.nan else -np.inf), rank
        with np.errstate(invalid="ignore"):
            return x / self.t - self.lse, rank

    def kept(
        self, p: float = 1, min_p: float = 0, min_p_first: bool = False, joint: bool = False
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """The kept tokens, the running sums of their weights, and the margin by which the choice was made."""
        tokens = self.order[: self.k] if not self.nan else self.order[:0]
        if not tokens.size:
            return tokens, np.zeros(0), 1.0
        weights = self.weights(tokens)
        margin = np.abs(weights[1:] - min_p).min(initial=1.0) if min_p else 1.0
        enough = weights >= min_p
        if min_p_first:
            tokens, weights, enough = tokens[enough], weights[enough], enough[enough]
        sums = np.cumsum(weights)
        count = len(sums)
        if p < 1:
            mass = self.weights(self.order).sum() if joint and not self.infinite else sums[-1]
            count = min(int(np.count_nonzero(sums < p * mass)) + 1, count)
            margin = min(margin, np.abs(sums / mass - p).min())
        count = min(count, int(enough.sum()))
        return tokens[:count], sums[:count], margin
