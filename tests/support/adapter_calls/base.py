"""What the cases of all frameworks share: the meaning of a window's top k, inputs, and how a case is run.

A `Case` can be called on any device and again with other inputs in the same tensors, so that the CPU suite and CUDA
graph replays share it. Expectations here are written from the frameworks' documentation, row by row, and use nothing of
ksieve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

POISON = 0x5A5A5A5A
ROWS = 12
Arrays = dict[str, Any]
Inputs = Callable[[np.random.Generator, int, int, str], Arrays]


class Slots(NamedTuple):
    """What a row of an output holds: what was found, in any order or in this one, then the fill value."""

    found: list[Any]
    fill: float = -1
    ordered: bool = True


Row = Callable[[Arrays, int, int, Arrays], dict[str, "Slots | list[int]"]]


@dataclass(frozen=True)
class Case:
    """`inputs(rng, width, k, dtype)` makes NumPy arrays; `call(tensors, k)` returns named outputs.

    `row(arrays, k, r, outputs)` says what each output holds in row r; `outputs` are those of the row. A list stands for
    the numbers in any order, then -1. An output "untouched" holds what was never to be written.
    """

    name: str
    inputs: Inputs
    call: Callable[[Arrays, int], Arrays]
    row: Row
    dtypes: tuple[str, ...] = ("float32",)

    def check(self, arrays: Arrays, k: int, outputs: Arrays) -> None:
        """Assert that every row of every output is what it should be."""
        assert np.all(outputs.pop("untouched", POISON) == POISON), "written outside of the output"
        for r in range(ROWS):
            own = {name: output[r] for name, output in outputs.items()}
            expected = self.row(arrays, k, r, own)
            assert expected.keys() == own.keys()
            for name, slots in own.items():
                wanted = expected[name]
                same(slots, *(wanted if isinstance(wanted, Slots) else (wanted,)))


CASES: list[Case] = []


def case(inputs: Inputs, row: Row, *dtypes: str, name: str = "") -> Any:
    """Register a function, which makes the call, as a case."""

    def register(call: Any) -> Any:
        CASES.append(Case(name or call.__name__, inputs, call, row, dtypes or ("float32",)))
        return call

    return register


# ---- what every framework means by the top k of a window -------------------------------------------------------


def best(row: np.ndarray, start: int, end: int, k: int) -> list[int]:
    """Positions relative to the window's start of its k largest scores, ascending; scores are distinct."""
    start = min(max(start, 0), len(row))
    window = row[start : min(max(end, start), len(row))]
    return sorted(np.argsort(-window.astype(np.float64), kind="stable")[:k].tolist())


def same(slots: np.ndarray, expected: list[Any], fill: float = -1, ordered: bool = False) -> None:
    """The expected numbers, then the fill value."""
    found = slots[: len(expected)].tolist()
    assert (found == expected) if ordered else (sorted(found) == sorted(expected))
    assert (slots[len(expected) :] == fill).all()


def prefix(a: Arrays, r: int, k: int) -> list[int]:
    """The best of the first ``lengths[r]`` scores of row r."""
    return best(a["scores"][r], 0, int(a["lengths"][r]), k)


def window(a: Arrays, r: int, k: int) -> list[int]:
    """The best of ``[start, start + length)`` of row r, in numbers that do not wrap; relative to its start."""
    start = int(a["starts"][r])
    return best(a["scores"][r], start, start + max(int(a["lengths"][r]), 0), k)


def values_of(a: Arrays, r: int, slots: np.ndarray, found: list[int], fill: float = -np.inf) -> Slots:
    """The scores at the indices of a row."""
    return Slots(a["scores"][r, slots[: len(found)]].tolist(), fill)


# ---- inputs ----------------------------------------------------------------------------------------------------


def scores_of(rng: np.random.Generator, rows: int, width: int, dtype: str) -> np.ndarray:
    """Distinct scores in every row, exact in the dtype, as float32 (the runner converts them)."""
    if dtype == "float32":
        return rng.permuted(np.arange(rows * width, dtype=np.float32)).reshape(rows, width) / 8 - width
    bits = np.arange(1, 0x7B00 if dtype == "float16" else 0x7F00, dtype=np.uint16)
    bits = np.concatenate([bits, bits | 0x8000])
    picked = np.stack([rng.choice(bits, width, replace=False) for _ in range(rows)])
    return picked.view(np.float16).astype(np.float32) if dtype == "float16" else widen(picked)


def widen(bfloat16_bits: np.ndarray) -> np.ndarray:
    return (bfloat16_bits.astype(np.uint32) << 16).view(np.float32)


def lengths_of(rng: np.random.Generator, rows: int, width: int, k: int) -> np.ndarray:
    """Full, short, empty, negative and overlong lengths, in changing places."""
    special = [width, k, k + 1, k - 1, 1, 0, -1, -(2**31), width + 9, 2**31 - 1]
    out = rng.integers(1, width + 1, rows).astype(np.int32)
    where = rng.permutation(rows)[: len(special)]
    out[where] = np.array(special[: len(where)], np.int64).astype(np.int32)
    return out


def windows_of(rng: np.random.Generator, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Unaligned windows, some empty, reversed, or reaching past the row."""
    starts = rng.integers(0, width // 2, rows).astype(np.int32)
    ends = (starts + rng.integers(0, width, rows)).astype(np.int32)
    ends[rng.integers(rows)] = -3
    return starts, ends


def buffer(rows: int, columns: int, dtype: Any = np.int32) -> np.ndarray:
    return np.full((rows, columns), POISON, dtype)


def of_rows(rng, width, k, dtype):
    """Scores, and for every row a length, a window and an offset; outputs of indices."""
    starts, ends = windows_of(rng, ROWS, width)
    return {
        "scores": scores_of(rng, ROWS, width, dtype), "lengths": lengths_of(rng, ROWS, width, k), "starts": starts,
        "ends": ends, "offsets": rng.integers(-5, 10**6, ROWS).astype(np.int32), "out": buffer(ROWS, k),
        "raw": buffer(ROWS, k),
    }  # fmt: skip


def table_of(rng: np.random.Generator, requests: int, entries: int) -> np.ndarray:
    """Pages that occur once, so that a slot tells where it came from."""
    return rng.permutation(requests * entries).astype(np.int32).reshape(requests, entries)


# ---- running one -----------------------------------------------------------------------------------------------


def make(case: Case, seed: int, width: int, k: int, dtype: str) -> Arrays:
    """Inputs of a case, as NumPy arrays."""
    return case.inputs(np.random.default_rng(seed), width, k, dtype)


def to_tensors(arrays: Arrays, dtype: str, device: str, pad: int = 3) -> Arrays:
    """The same on a device; scores in their dtype, in rows of an odd pitch."""
    tensors = {}
    for name, array in arrays.items():
        tensor = torch.from_numpy(array.copy()).to(device)
        if name == "scores":
            rows, width = array.shape
            padded = torch.full((rows, width + pad), float("nan"), dtype=getattr(torch, dtype), device=device)
            padded[:, :width] = tensor
            tensor = padded[:, :width]
        tensors[name] = tensor
    return tensors


def refill(tensors: Arrays, arrays: Arrays) -> None:
    """Put other inputs where the old ones were."""
    for name, array in arrays.items():
        tensors[name].copy_(torch.from_numpy(array))


def to_arrays(outputs: Arrays) -> Arrays:
    """Outputs as NumPy arrays; 16-bit floats widened."""
    return {
        name: (t.float() if t.dtype in (torch.float16, torch.bfloat16) else t).cpu().numpy()
        for name, t in outputs.items()
    }
