"""The calls of the engines, the options that each passes to `ksieve.topk`, and the kernels that these need.

The adapters themselves are called, on tensors of a few elements, and their selections are stopped before they run. So
the serving code gives the options. Numbers that no kernel is compiled for, such as a page size, are any.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ksieve.adapters import _select
from ksieve.adapters._operators import OPERATORS
from ksieve.backends.cuda.jit import build
from ksieve.backends.cuda.jit.spec import KernelSpec, compiled_options
from ksieve.core import call as calls
from ksieve.core import problem
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.core.options import Options
from ksieve.core.problem import Problem
from ksieve.planning.plan import Plan

_ROWS, _WIDTH, _K = 4, 8, 2


class _SeenError(Exception):
    """Stops a selection whose options are known."""


def _stand_ins() -> dict[str, tuple[Any, ...]]:
    """What each argument of the adapters is, by its name, besides None where that is its default."""
    vector, half = (torch.ones(count, dtype=torch.int32) for count in (_ROWS, _ROWS // 2))
    table = torch.zeros(_ROWS, _WIDTH, dtype=torch.int32)
    vectors = (
        "rowStarts", "rowEnds", "row_starts", "row_ends", "lengths", "end", "pool_lens", "token_seq_lens", "nblocks",
        "num_valid_pages", "offsets", "out_offsets", "topk_indices_offset", "row_to_batch", "page_table_row_index",
    )  # fmt: skip
    outputs = ("indices", "output", "out_indices", "out_page_indices", "out_raw_indices")
    switches = ("deterministic", "sorted", "sorted_index", "return_value", "return_values", "absolute_indices")
    numbers = {"numRows": _ROWS, "stride0": _WIDTH, "stride1": 1, "max_seq_len": _WIDTH, "page_size": 1}
    numbers |= {"kpool": 2, "pool_size": 2} | dict.fromkeys(
        ("topK", "topk", "k", "top_k", "index_topk", "topk_blocks"), _K
    )
    return {
        **dict.fromkeys(vectors, (vector,)),
        **dict.fromkeys(("page_table", "src_page_table"), (table,)),
        "page_tables": (table, None),
        **{name: (_out(_K),) for name in outputs},
        **dict.fromkeys(switches, (False, True)),
        **{name: (number,) for name, number in numbers.items()},
        **dict.fromkeys(("workspace", "metadata"), (None,)),
        "seq_lens": (vector, half),
        "page_table_size_1": (table, table[:2]),
        "cu_seqlens_q": (torch.arange(_ROWS + 1), torch.arange(3)),
        "out": (_out(_K), _out(_K + 1)),  # also with a tail
        "next_n": (1, 2),
        "tie_break": (0, 1, 2),
        "indices_type": (torch.int32, torch.int64),
        "force_begin_blocks": (0, 1),
        "force_end_blocks": (0, 1),
    }


def _out(columns: int) -> Any:
    return torch.zeros(_ROWS, columns, dtype=torch.int32)


def forms(function: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    """Every combination of arguments of an adapter's function; some are refused."""
    stand_ins = _stand_ins()
    first, *others = inspect.signature(function).parameters.values()
    scores = torch.zeros(1, _WIDTH, _ROWS) if first.name == "max_score" else torch.zeros(_ROWS, _WIDTH)
    given = [other for other in others if other.name in stand_ins]
    names = [other.name for other in given]
    if "next_n" not in names:
        stand_ins["seq_lens"] = stand_ins["lengths"]
    choices = [(*([None] if other.default is None else []), *stand_ins[other.name]) for other in given]
    for values in itertools.product(*choices):
        yield scores, dict(zip(names, values, strict=True))


def options_of(engine: str) -> tuple[Options, ...]:
    """Return the distinct options of an engine's calls; with "all" every engine's."""
    engines = tuple(OPERATORS) if engine == "all" else (engine,)
    asked: dict[Options, None] = {}
    for name in engines:
        for function in functions(name):
            for scores, arguments in forms(function):
                with contextlib.suppress(ArgumentError):
                    asked[seen(function, scores, **arguments).options] = None
    return tuple(asked)


def functions(engine: str) -> list[Callable[..., Any]]:
    """The functions of an engine's adapter that take the place of its own operators."""
    own = {operator.adapter for operator in OPERATORS[engine] if operator.adapter.startswith(f"{engine}.")}
    module = importlib.import_module(f"ksieve.adapters.{engine}")
    names = sorted(name.partition(".")[2] for name in own)
    return [getattr(module, name) for name in names if not name.startswith("_")]


def seen(function: Callable[..., Any], scores: Any, **arguments: Any) -> Problem:
    """Return the selection that a call of an adapter makes; it does not run."""
    thread, before, found = threading.get_ident(), _select.observer, []

    def observe(key: Any, scores: Any, lengths: Any, k: Any, out: Any, options: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            found.append(calls.parse(scores, lengths, k, out=out, given=options).problem)
            raise _SeenError
        if before is not None:
            before(key, scores, lengths, k, out, options)

    _select.observer = observe
    try:
        with contextlib.suppress(_SeenError):
            function(scores, **arguments)
    finally:
        _select.observer = before
    return found[0]


def needed(
    engine: str,
    device: DeviceInfo,
    *,
    ks: Sequence[int],
    max_rows: int = build.MAX_ROWS,
    max_width: int = build.MAX_WIDTH,
    dtypes: Sequence[str] = ("float32",),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[KernelSpec, Plan]:
    """Return the specialisations of an engine's calls up to a size, each with a plan that needs it.

    Raises `ArgumentError` if a number is out of range.
    """
    for name, number in (("max_rows", max_rows), ("max_width", max_width)):
        if number < 1:
            raise ArgumentError(name, number, "an int of at least 1")
    ks = [problem.check_k(k) for k in ks]
    found: dict[KernelSpec, Plan] = {}
    options = {tuple(compiled_options(asked).items()): asked for asked in options_of(engine)}
    cases = list(itertools.product(ks, dtypes, options.values()))
    for done, (k, dtype, asked) in enumerate(cases):
        progress(done, len(cases))
        more = build.covering(device, k, max_rows=max_rows, max_width=max_width, dtype=dtype, options=asked)
        found = more | found
    progress(len(cases), len(cases))
    return found
