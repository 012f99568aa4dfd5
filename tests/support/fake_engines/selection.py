"""What the operators of the stand-ins compute: the positions of the best scores of each row's window, then -1."""

import torch

WRONG = [False]
"""Whether the engines' own operators return a wrong position in the first row that has one unselected."""

CALLS = []
"""Names of the engines' own operators, in the order of their calls."""


def best(name, scores, begin, end, k):
    """Positions from the start of the row, and the lengths of the windows."""
    CALLS.append(name)
    rows, width = scores.shape
    found = torch.full((rows, k), -1, dtype=torch.int64)
    for r in range(rows):
        low = min(max(int(begin[r]), 0), width)
        high = min(max(int(end[r]), low), width)
        order = scores[r, low:high].float().sort(descending=True, stable=True).indices + low
        found[r, : min(k, high - low)] = order[:k]
        if WRONG[0] and high - low > k:
            found[r, 0] = order[k]
    return found


def lengths_of(vector, rows, next_n=1):
    flat = vector.reshape(-1)
    if flat.numel() == rows:
        return flat
    row = torch.arange(rows)
    return (flat[row // next_n] - next_n + 1 + row % next_n).clamp(min=0)
