"""The table of options: what a call may say besides scores and k, each stated once.

A row gives an option's name, where a caller writes it, what it takes and what it means. Parsing and checks
(`ksieve.core.arguments`, `ksieve.core.call`), `ksieve.core.options.Options`, groups, operators of PyTorch, programs of
JAX and `ksieve.verify` read it. So do launch parameters, the command line and the reference page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

INTEGERS = ("int32", "int64")
"""Dtypes of indices, and of lengths, starts and ends."""

MAX_BLOCK = 256
"""Most scores of a block, and most positions of an entry."""

MAX_FORCED = 1 << 20
"""Most forced entries at either end of a row."""

MAX_INT = (1 << 31) - 1

Kind = Literal["input", "output", "int", "choice", "flag"]
Shape = Literal["rows", "bounds", "requests", "table", "scores", "parts", "slots"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes
    ----------
    name : str
        Its name among the arguments of a call (`flat`), in errors, and in the operators of PyTorch.
    where : str
        Keyword of `ksieve.select`, or the class of a group with a field of this name.
    kind : {"input", "output", "int", "choice", "flag"}
        "input" and "output" are arrays.
    meaning : str
        For the reference page.
    neutral : object
        The value that asks for nothing.
    field : str
        Field of `Options` that states it alone; "" if none does.
    states : object
        What the field is where an array is given.
    takes : tuple
        The values of a choice; the least and the most of an int.
    shape : str
        Of an array: "rows": one number for each row. "bounds": one more. "requests": one for each request of `next_n`
        rows. "table": pages. "scores", "slots": as the scores, or the indices. "parts": one for each of equal parts of
        a row.
    dtypes : tuple of str
        Of an array; "" is that of the scores, "index" that of the indices.
    word : int
        Where the kernels' parameters hold its address, in words of 8 bytes (`backends.cuda.runtime.launch`).
    judged : bool
        Whether `ksieve.verify` takes it.
    """

    name: str
    where: str
    kind: Kind
    meaning: str
    neutral: Any = None
    field: str = ""
    states: Any = True
    takes: tuple[Any, ...] = ()
    shape: Shape | None = None
    dtypes: tuple[str, ...] = ("int32",)
    word: int = 0
    judged: bool = False


_BOUNDS, _SEGMENTS, _BLOCKS, _PAGES = "RowBounds", "Segments", "Blocks", "PageTable"

TABLE = (
    Option(
        "lengths", "lengths", "input", "valid scores at the start of each row, or of its window",
        shape="requests", dtypes=INTEGERS, word=1, judged=True,
    ),
    Option(
        "starts", _BOUNDS, "input", "where each row's window begins", field="windows", states="lengths",
        shape="rows", dtypes=INTEGERS, word=12, judged=True,
    ),
    Option(
        "ends", _BOUNDS, "input", "in place of lengths: where each window ends, exclusive", field="windows",
        states="ends", shape="requests", dtypes=INTEGERS, word=1, judged=True,
    ),
    Option(
        "next_n", _BOUNDS, "int", "consecutive rows of one request, each one score longer than the one before it", 1,
        "next_n", takes=(1, MAX_INT), judged=True,
    ),
    Option(
        "index_base", _BOUNDS, "choice", "whether indices count from the start of the row or of its window", "row",
        "index_base", takes=("row", "start"), judged=True,
    ),
    Option(
        "indptr", _SEGMENTS, "input", "where each segment of a flat array begins, and where the last one ends",
        field="windows", states="segments", shape="bounds", dtypes=INTEGERS, word=12, judged=True,
    ),
    Option(
        "max_length", _SEGMENTS, "int", "most scores of a segment, or 0 where that is not known", 0, "max_length",
        takes=(0, MAX_INT), judged=True,
    ),
    Option(
        "mean_length", _SEGMENTS, "int", "about how many scores segments have; 0: the scores by the segments", 0,
        "mean_length", takes=(0, MAX_INT), judged=True,
    ),
    Option(
        "page_table", _PAGES, "input", "pages of each request, through which indices are written", field="transform",
        states="pages", shape="table", word=14,
    ),
    Option(
        "page_size", _PAGES, "int", "positions of a page, a power of two", 1, "page_size", takes=(1, MAX_INT),
    ),
    Option(
        "row_to_request", _PAGES, "input", "the page table's request of each row", field="mapped", shape="rows",
        word=15,
    ),
    Option(
        "offsets", "Offsets", "input", "what is added to the indices of each row", field="transform",
        states="offsets", shape="rows", word=16,
    ),
    Option(
        "positions", "Positions", "input", "a position for each score, written in place of its index",
        field="positions", shape="scores", word=27, judged=True,
    ),
    Option(
        "block_table", "SelectedBlocks", "input", "the block of each of equal parts of a row, written as positions",
        field="positions", shape="parts", word=27, judged=True,
    ),
    Option(
        "block_size", _BLOCKS, "int", "adjacent scores of a block, among whose best scores rows are selected", 1,
        "block_size", takes=(1, MAX_BLOCK), judged=True,
    ),
    Option(
        "force_first", _BLOCKS, "int", "entries at the beginning of each row that are always selected", 0,
        "force_first", takes=(0, MAX_FORCED), judged=True,
    ),
    Option(
        "force_last", _BLOCKS, "int", "entries at the end of each row that are always selected", 0, "force_last",
        takes=(0, MAX_FORCED), judged=True,
    ),
    Option(
        "forced_extra", _BLOCKS, "flag", "whether forced entries come in addition to the k", False, "forced_extra",
        judged=True,
    ),
    Option(
        "expand", _BLOCKS, "int", "positions of an entry, all of which are written", 1, "expand",
        takes=(1, MAX_BLOCK), judged=True,
    ),
    Option(
        "tail", _BLOCKS, "input", "lengths of the rows in positions; those after the last whole entry are written",
        field="tail", shape="requests", word=26, judged=True,
    ),
    Option("largest", "largest", "flag", "whether larger scores are better", True, "largest", judged=True),
    Option(
        "nan", "nan", "choice", "place of NaN: worse than every number, or the greatest", "last", "nan",
        takes=("last", "highest"), judged=True,
    ),
    Option(
        "tie_break", "tie_break", "choice", "which of the scores equal to the worst selected one are selected", "any",
        "tie_break", takes=("any", "low", "high"), judged=True,
    ),
    Option("sorted", "sorted", "choice", "slots best first, or by index", False, takes=("value", "index"), judged=True),
    Option("deterministic", "deterministic", "flag", "whether a row has the same slots in every run and batch", False),
    Option("max_k", "max_k", "int", "slots of a row, where each row has its own k"),
    Option(
        "index_dtype", "index_dtype", "choice", "dtype of new index arrays", "int32", "index_dtype", takes=INTEGERS,
    ),
    Option("overlap", "overlap", "flag", "whether a kernel may start while the previous one drains", False, "overlap"),
    Option("fill", "fill", "flag", "whether slots that are not used are written", True, "filled"),
    Option("values", "values", "output", "the selected scores", field="values", shape="slots", dtypes=("",), word=17),
    Option(
        "raw", "raw", "output", "the indices before a transform", field="raw", shape="slots", dtypes=("index",),
        word=18,
    ),
    Option(
        "counts", "counts", "output", "how many slots of each row are used", field="counts", shape="rows", word=25,
    ),
)  # fmt: skip
"""Every option. `sorted`, `deterministic` and `max_k` have no field: `ksieve.core.arguments` says what they set."""

BY_NAME = {option.name: option for option in TABLE}


def names(test: Callable[[Option], Any]) -> tuple[str, ...]:
    """Names of the options that a test holds for, in the table's order."""
    return tuple(option.name for option in TABLE if test(option))


INPUTS = names(lambda o: o.kind == "input")
OUTPUTS = names(lambda o: o.kind == "output")
JUDGED = names(lambda o: o.judged)
