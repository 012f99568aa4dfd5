"""Every answer of a small row, and what its verdict must be by the contract's definitions; no code of the package."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

RANKINGS: dict[str, dict[str, Any]] = {
    "largest": {},
    "smallest": {"largest": False},
    "nan_first": {"nan": "highest"},
}
"""Arguments of each ranking."""


def reaches(scores: Any, cutoff: Any, ranking: str) -> Any:
    """Scores, of NumPy or PyTorch, that a producer keeps: those as good as the cutoff, and NaN where it is the best."""
    found = scores <= cutoff if ranking == "smallest" else scores >= cutoff
    return found | (scores != scores) if ranking == "nan_first" else found


VALUES = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0, 1e-45], np.float32)


@dataclass(frozen=True)
class Row:
    """A row of scores, its window [begin, begin + length), its k, and the options of a call."""

    scores: np.ndarray
    begin: int
    length: int
    k: int
    slots: int
    ranking: str = "largest"
    index_base: str = "row"
    order: str | bool = False
    tie_break: str | None = None
    sentinel: int = -1

    def place(self, position: int) -> tuple[int, float]:
        """Sort key of the score at a position of the window: a better one is less."""
        score = float(self.scores[self.begin + position])
        if score != score:
            return (-1 if self.ranking == "nan_first" else 1, 0.0)
        return (0, score if self.ranking == "smallest" else -score)

    def answers(self) -> np.ndarray:
        """All answers of the sentinel, every position of the row, and one number before and after."""
        values = [self.sentinel, -2, *range(len(self.scores) + 1)]
        return np.array(list(product(values, repeat=self.slots)), np.int64).reshape(-1, self.slots)

    def first(self, count: int) -> list[int]:
        """The best positions, in the order of their scores, equal ones in that of the tie-break."""
        sign = -1 if self.tie_break == "high" else 1
        return sorted(range(self.length), key=lambda p: (self.place(p), sign * p))[:count]

    def local(self, answer: list[int]) -> list[int | None]:
        """Positions in the window; None for another number. The sentinel is -1."""
        base = self.begin if self.index_base == "row" else 0
        found: list[int | None] = []
        for index in answer:
            inside = base <= index < base + self.length
            found.append(-1 if index == self.sentinel else index - base if inside else None)
        return found

    def right(self, answer: list[int]) -> bool:
        """Whether an answer is what the call asks for (C1, C2, C35, C37, C41, C42)."""
        used = min(self.length, self.k)
        local, rest = self.local(answer)[:used], answer[used:]
        if any(index != self.sentinel for index in rest) or any(p is None or p < 0 for p in local):
            return False
        chosen: list[int] = [p for p in local if p is not None]
        if len(set(chosen)) < used or sorted(map(self.place, chosen)) != sorted(map(self.place, self.first(used))):
            return False
        if self.tie_break and set(chosen) != set(self.first(used)):
            return False
        if self.order == "index":
            return chosen == sorted(chosen)
        sign = -1 if self.tie_break == "high" else 1
        return not self.order or chosen == sorted(chosen, key=lambda p: (self.place(p), sign * p))

    def reason(self, answer: list[int]) -> str:
        """Name of the first fault of an answer."""
        used = min(self.length, self.k)
        local = self.local(answer)
        if None in local:
            return "out of range"
        chosen = [p for p in local if p is not None and p >= 0]
        if len(set(chosen)) < len(chosen):
            return "duplicate"
        if len(chosen) < used:
            return "missing"
        if -1 in local[:used]:
            return "misplaced"
        left = [self.place(p) for p in range(self.length) if p not in chosen]
        if left and chosen and min(left) < max(map(self.place, chosen)):
            return "not largest"
        if any(p != -1 for p in local[self.k :]):
            return "excess"
        if self.tie_break and set(chosen) != set(self.first(used)):
            return "wrong tie"
        return "exact" if self.right(answer) else "unsorted"

    def arguments(self, rows: int) -> dict[str, Any]:
        """Arguments of `ksieve.verify` for as many copies of this row."""
        return RANKINGS[self.ranking] | {
            "k": np.full(rows, self.k),
            "starts": np.full(rows, self.begin),
            "lengths": np.full(rows, self.length),
            "index_base": self.index_base,
            "sorted": self.order,
            "tie_break": self.tie_break,
            "sentinel": self.sentinel,
        }


def random_row(seed: int, width: int = 5, slots: int = 3, **options: Any) -> Row:
    """A row of few values, with ties, NaN of both signs, infinities, zeros of both signs and a subnormal."""
    rng = np.random.default_rng(seed)
    scores = rng.choice(rng.choice(VALUES, 3), width)
    begin = int(rng.integers(0, width + 1))
    length = int(rng.integers(0, width + 1 - begin))
    if seed % 3:  # in most rows there is something to choose
        begin, length = seed % 2, width - seed % 2
    return Row(scores, begin, length, int(rng.integers(0, slots + 1)) if seed % 2 else slots, slots, **options)
