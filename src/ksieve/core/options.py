"""Options of a selection: host-known facts, each compiled into a kernel only when used.

`Options` states which optional arrays a call passes (starts, page table, ...) and every number that the generated code
depends on. The arrays themselves are arguments of `ksieve.topk`. Calls with equal options share kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.ranking import Ranking

IndexBase = Literal["row", "start"]
Windows = Literal["none", "lengths", "ends"]
Transform = Literal["none", "pages", "offsets"]
Order = Literal["any", "value", "index"]
TieBreak = Literal["any", "low", "high"]
Integers = Literal["int32", "int64"]
Nan = Literal["last", "highest"]
Force = Literal["inside", "beside"]

INTEGERS = ("int32", "int64")
"""Dtypes of indices, and of lengths and ends."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "windows": ("none", "lengths", "ends"),
    "index_base": ("row", "start"),
    "transform": ("none", "pages", "offsets"),
    "order": ("any", "value", "index"),
    "tie_break": ("any", "low", "high"),
    "index_dtype": INTEGERS,
    "length_dtype": INTEGERS,
    "nan": ("last", "highest"),
    "force": ("inside", "beside"),
}

MAX_BLOCK = 256
"""Most scores of a block, and most positions of an entry."""

MAX_FORCED = 1 << 20
"""Most forced entries at either end of a row."""


def dtype_text(dtype: Any) -> Any:
    """Name of a dtype of NumPy, PyTorch or JAX; any other value, such as a name, is returned unchanged."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    if kind_of(dtype) == "torch.dtype":
        return str(dtype).removeprefix("torch.")
    # JAX's dtypes are classes with a NumPy dtype.
    known = issubclass(dtype, (np.generic, int)) or hasattr(dtype, "dtype") if isinstance(dtype, type) else False
    try:
        return np.dtype(dtype).name if known or isinstance(dtype, np.dtype) else dtype
    except Exception:
        return dtype


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """Check that an argument is one of several strings."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(name, shown(value), f"one of {', '.join(map(repr, choices))}")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a selection.

    Attributes
    ----------
    windows : {"none", "lengths", "ends"}
        Positions of a row's valid scores. "none": [0, length). "lengths": [start, start + length). "ends": [start,
        end). Both bounds are clamped to [0, width].
    index_base : {"row", "start"}
        Whether an index counts from the start of the row, so that ``scores[r, i]`` is the score, or from the start of
        its window.
    next_n : int
        Consecutive rows that share one entry of the lengths (or ends): row r belongs to request ``r // next_n`` and
        sees ``length[r // next_n] - next_n + 1 + r % next_n`` of it, as in multi-token prediction.
    per_row_k : bool
        Each row has its own k, at most the plan's; the remaining slots of the row are unused.
    transform : {"none", "pages", "offsets"}
        Value written in place of an index i. "pages": ``table[request, i // page_size] * page_size + i % page_size``;
        "offsets": ``i + offset[row]``.
    page_size : int
        A power of two.
    mapped : bool
        The page table's request of a row comes from an array; otherwise it is ``row // next_n``.
    raw : bool
        Also write the indices before the transform.
    values : bool
        Also write the selected scores.
    index_dtype : {"int32", "int64"}
        Dtype of every index written.
    length_dtype : {"int32", "int64"}
        Dtype of the lengths (or ends).
    order : {"any", "value", "index"}
        Order of a row's slots: unspecified; best score first, equal scores by index; or by index. Unused slots come
        last.
    tie_break : {"any", "low", "high"}
        Which of the scores equal to the worst selected one are selected: unspecified, the lowest or the highest
        positions. With order "value" it also orders equal scores.
    largest : bool
        Whether larger scores are better, or smaller ones.
    nan : {"last", "highest"}
        Place of NaN. "last": worse than every number. "highest": NaN is the greatest of all scores: first with
        `largest`, last without it, where "last" is then stored, which is the same.
    overlap : bool
        Launch while the previous kernel of the stream drains (programmatic dependent launch, compute capability 9.0
        and later). The kernel waits for that one before it reads the inputs. Ignored on the CPU.
    positions : bool
        An array, `positions` or `block_table`, holds a position for each score: what is written in place of its index,
        and what order and ties go by; -1 where there is no score.
    counts : bool
        Also write how many slots of each row are used.
    filled : bool
        Whether the other slots are written. False, which takes `counts`, lets a backend leave them as they are.
    block_size : int
        Scores of a block, 1 to 256. Above 1 a row's *entries*, among which k are selected, are its blocks, each by its
        best score; an entry's index is the number of the block.
    force_first, force_last : int
        Entries at the beginning and at the end of each row that rank above all others.
    force : {"inside", "beside"}
        Whether these take slots of the k, or slots of their own. Stored as "inside" where there are none.
    expand : int
        Positions of an entry. Above 1 all of them are written in place of the entry's index.
    tail : bool
        An array holds the lengths of the rows in positions; those after the last whole entry are written too.
    """

    windows: Windows = "none"
    index_base: IndexBase = "row"
    next_n: int = 1
    per_row_k: bool = False
    transform: Transform = "none"
    page_size: int = 1
    mapped: bool = False
    raw: bool = False
    values: bool = False
    index_dtype: Integers = "int32"
    length_dtype: Integers = "int32"
    order: Order = "any"
    tie_break: TieBreak = "any"
    largest: bool = True
    nan: Nan = "last"
    overlap: bool = False
    positions: bool = False
    counts: bool = False
    filled: bool = True
    block_size: int = 1
    force_first: int = 0
    force_last: int = 0
    force: Force = "inside"
    expand: int = 1
    tail: bool = False

    def __post_init__(self) -> None:
        for name in ("index_dtype", "length_dtype"):
            object.__setattr__(self, name, dtype_text(getattr(self, name)))
        for name, choices in _CHOICES.items():
            check_choice(getattr(self, name), name, choices)
        for name, least, most in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, np.integer):
                object.__setattr__(self, name, value := int(value))
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= (most or value):
                takes = f"an int from {least} to {most}" if most else "a positive int"
                raise ArgumentError(name, shown(value), takes)
        if self.page_size & (self.page_size - 1):
            raise ArgumentError("page_size", self.page_size, "a power of two")
        for name in ("next_n", "page_size"):
            if getattr(self, name) >= 1 << 31:
                raise ArgumentError(name, getattr(self, name), "less than 2**31")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(name, shown(getattr(self, name)), "True or False")
        if not (self.filled or self.counts):
            raise ArgumentError("fill", "False without counts_out", "True, or the array that says which slots are used")
        if self.positions and self.index_base == "start":
            raise ArgumentError("index_base", "'start' with positions", "'row': positions are written as they are")
        self._check_entries()
        if not self.forced:
            object.__setattr__(self, "force", "inside")
        if not self.largest:
            object.__setattr__(self, "nan", "last")

    def _check_entries(self) -> None:
        """Refuse options of entries that make no sense together."""
        if self.block_size > 1 and self.positions:
            raise ArgumentError("block_size", f"{self.block_size} with positions", "1: gathered scores form no blocks")
        if self.block_size > 1 and self.expand not in (1, self.block_size):
            takes = f"{self.block_size}, the block_size, or another number where each score is an entry"
            raise ArgumentError("expand", self.expand, takes)
        if self.tail and self.expand == 1:
            raise ArgumentError("tail", "an array without expand", "expand= with it, the positions of an entry")
        if self.expand > 1 and self.block_size == 1 and self.next_n > 1 and not self.tail:
            takes = "1, or tail=: rows of a request differ by one position, and not by one entry"
            raise ArgumentError("next_n", f"{self.next_n} with expand", takes)

    def __str__(self) -> str:
        changed = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        return ", ".join(f"{name}={value!r}" for name, value in changed) or "plain"

    @property
    def plain(self) -> bool:
        """Whether no option is used. Identity with `PLAIN` is tested first, since every call evaluates this."""
        return self is PLAIN or self == PLAIN

    @property
    def lean(self) -> bool:
        """Whether no option is used but the ranking and 64-bit lengths: kernels then take no further arguments."""
        return self is PLAIN or _burdening(self) == _burdening(PLAIN)

    @property
    def ranking(self) -> Ranking:
        """Which scores are better."""
        return "smallest" if not self.largest else "nan_first" if self.nan == "highest" else "largest"

    @property
    def fill(self) -> float:
        """Value of an unused slot: the worst number."""
        return -math.inf if self.largest else math.inf

    @property
    def deterministic(self) -> bool:
        """Whether a row gives the same bytes in every batch, plan and run."""
        return self.order != "any" and self.tie_break != "any"

    @property
    def finished(self) -> bool:
        """Whether a row's slots need an epilogue after the selection: an order, a transform, or further outputs."""
        return self.order != "any" or self.values or self.raw or self.transform != "none"

    @property
    def by_position(self) -> bool:
        """Whether the answer depends on the order of the scores of a row, so that theirs by `positions` counts."""
        return self.order != "any" or self.tie_break != "any"

    @property
    def entries(self) -> bool:
        """Whether more than the best scores are selected, each by its own index: see `ksieve.core.entries`."""
        return self.block_size > 1 or self.forced > 0 or self.expand > 1

    @property
    def forced(self) -> int:
        """Forced entries of a row that has as many."""
        return self.force_first + self.force_last

    @property
    def beside(self) -> int:
        """Entries that a row gets beside its k."""
        return self.forced if self.force == "beside" else 0

    def columns(self, k: int) -> int:
        """Slots of a row in the outputs of a call."""
        return (k + self.beside) * self.expand + (self.expand - 1 if self.tail else 0)

    @property
    def rewritten(self) -> bool:
        """Whether the epilogue, or 64-bit slots, replace the positions that a selection writes."""
        return self.finished or self.index_dtype == "int64" or self.expand > 1 or self.positions


_FLAGS = ("per_row_k", "mapped", "raw", "values", "largest", "overlap", "positions", "counts", "filled", "tail")

_NUMBERS = (
    ("next_n", 1, 0),
    ("page_size", 1, 0),
    ("block_size", 1, MAX_BLOCK),
    ("force_first", 0, MAX_FORCED),
    ("force_last", 0, MAX_FORCED),
    ("expand", 1, MAX_BLOCK),
)
"""Options that are ints, with the least and the most that each takes; 0 where another check says the most."""

_burdening = attrgetter(*(f.name for f in fields(Options) if f.name not in ("largest", "nan", "length_dtype")))
"""Values of the options that a kernel takes further arguments for."""

PLAIN = Options()
RANKED = (PLAIN, Options(largest=False), Options(nan="highest"))
"""Options of each ranking."""
