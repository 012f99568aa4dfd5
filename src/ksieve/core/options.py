"""Options of a selection: host-known facts, each compiled into a kernel only when used.

`Options` states which optional arrays a call passes (starts, page table, ...) and every number that the generated code
depends on, as the table of options (`ksieve.core.table`) says. Calls with equal options share kernels.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.ranking import Ranking
from ksieve.core.table import INTEGERS, TABLE

IndexBase = Literal["row", "start"]
Windows = Literal["none", "lengths", "ends", "segments"]
Transform = Literal["none", "pages", "offsets"]
Order = Literal["any", "value", "index"]
TieBreak = Literal["any", "low", "high"]
Integers = Literal["int32", "int64"]
Nan = Literal["last", "highest"]

_CHOICES = {
    "windows": ("none", "lengths", "ends", "segments"),
    "transform": ("none", "pages", "offsets"),
    "length_dtype": INTEGERS,
    "order": ("any", "value", "index"),
} | {option.field: option.takes for option in TABLE if option.field and option.kind == "choice"}


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


def check_choice(value: Any, name: str, choices: Collection[str]) -> None:
    """Check that an argument is one of several strings."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(name, shown(value), f"one of {', '.join(map(repr, choices))}")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a selection, as the table states them; of an array, whether it is given. Further fields:

    `windows`: positions of a row's valid scores. "none": [0, length). "lengths": [start, start + length). "ends":
    [start, end). Both bounds are clamped to [0, width]. "segments": parts of flat scores (`ksieve.Segments`).
    `per_row_k`: each row has its own k, at most the plan's; the remaining slots of the row are unused. `transform`:
    what is written in place of an index (`ksieve.PageTable`, `ksieve.Offsets`). `length_dtype`: of the lengths, or
    ends. `order`: of a row's slots: unspecified; best score first, equal scores by index; or by index. Unused slots
    come last. Without `largest`, `nan` is stored as "last", and without forced entries `forced_extra` as False: the
    answers are the same.
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
    max_length: int = 0
    mean_length: int = 0
    positions: bool = False
    counts: bool = False
    filled: bool = True
    block_size: int = 1
    force_first: int = 0
    force_last: int = 0
    forced_extra: bool = False
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
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ArgumentError(name, shown(value), f"an int from {least} to {most}")
        if self.page_size & (self.page_size - 1):
            raise ArgumentError("page_size", self.page_size, "a power of two")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(name, shown(getattr(self, name)), "True or False")
        if not (self.filled or self.counts):
            raise ArgumentError("fill", "False without counts", "True, or counts with it, which say what is used")
        if self.windows == "segments" and (self.entries or self.positions):
            got = "Positions or SelectedBlocks" if self.positions else "Blocks"
            raise ArgumentError("bounds", f"Segments with {got}", "either of the two: entries of segments are scores")
        if self.positions and self.index_base == "start":
            raise ArgumentError("index_base", "'start' with positions", "'row': positions are written as they are")
        self._check_entries()
        if not self.forced:
            object.__setattr__(self, "forced_extra", False)
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
    def unused_value(self) -> float:
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
        """Entries that a row gets besides its k."""
        return self.forced if self.forced_extra else 0

    def columns(self, k: int) -> int:
        """Slots of a row in the outputs of a call."""
        return (k + self.beside) * self.expand + (self.expand - 1 if self.tail else 0)

    @property
    def rewritten(self) -> bool:
        """Whether the epilogue, or 64-bit slots, replace the positions that a selection writes."""
        return self.finished or self.index_dtype == "int64" or self.expand > 1 or self.positions


_FLAGS = tuple(f.name for f in fields(Options) if isinstance(f.default, bool))
_NUMBERS = tuple((option.field, *option.takes) for option in TABLE if option.field and option.kind == "int")

_burdening = attrgetter(*(f.name for f in fields(Options) if f.name not in ("largest", "nan", "length_dtype")))
"""Values of the options that a kernel takes further arguments for."""

PLAIN = Options()
RANKED = (PLAIN, Options(largest=False), Options(nan="highest"))
"""Options of each ranking."""
