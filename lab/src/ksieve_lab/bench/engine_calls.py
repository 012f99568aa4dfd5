"""Calls of the engines' operators to time: arguments as an engine passes them, and answers that can be verified.

Page tables map every page to itself and offsets are 0: they are read as any others, and leave positions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ksieve.adapters._operators import Operator
from ksieve.core.errors import ArgumentError, KsieveError
from ksieve.planning.tune import tasks, timing
from ksieve.planning.tune.tasks import POISON, VERIFY_BYTES
from ksieve.planning.tune.timing import Contender
from ksieve_lab.bench.startup import without_folders

PAGE = 64
"""Positions of a page, as SGLang serves DeepSeek models."""

POOL = 4
"""Positions of a pool, as in GLM-5.3."""

_VLLM_KS = (512, 1024, 2048)


@dataclass(frozen=True)
class Inputs:
    """What a call selects from: a matrix (rows, width), lengths of int32 (rows,), and the columns of the output.

    `metadata` is SGLang's plan of the lengths, which an engine makes once a step.
    """

    matrix: Any
    lengths: Any
    k: int
    metadata: Any = None

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return int(self.matrix.shape[0])

    @property
    def width(self) -> int:
        """Scores of a row."""
        return int(self.matrix.shape[1])

    def out(self) -> Any:
        """Make an output."""
        return self.lengths.new_empty(self.rows, self.k)

    def zeros(self) -> Any:
        """Make a number of 0 for each row."""
        return self.lengths.new_zeros(self.rows)

    def table(self, page: int = PAGE) -> Any:
        """Make a page table, in which every page is itself."""
        import torch

        pages = torch.arange(-(-self.width // page), dtype=torch.int32, device=self.lengths.device)
        return pages.repeat(self.rows, 1)


@dataclass(frozen=True)
class Call:
    """How an operator is called.

    `arguments` makes those behind the scores, by name. The engine's own operator takes scores of `dtypes`, a k of `ks`
    (empty: any), and no more than `most_k`, to which a larger k is clamped, `most_rows` and `most_width`. `whole`: it
    takes no lengths. `expand`: columns of an entry that is selected.
    """

    arguments: Callable[[Inputs], dict[str, Any]]
    dtypes: tuple[str, ...] = ("float32",)
    ks: tuple[int, ...] = ()
    most_k: int | None = None
    most_rows: int | None = None
    most_width: int | None = None
    whole: bool = False
    expand: int = 1

    def refusal(self, rows: int, width: int, k: int, dtype: str) -> str | None:
        """Why the engine's own operator does not take a case; None if it does."""
        if dtype not in self.dtypes:
            return f"it takes {' and '.join(self.dtypes)} scores, not {dtype}"
        if self.ks and k not in self.ks:
            return f"it takes k of {', '.join(map(str, self.ks))}, not {k}"
        for what, given, most in (("rows", rows, self.most_rows), ("scores of a row", width, self.most_width)):
            if most is not None and given > most:
                return f"it takes up to {most:,} {what}, not {given:,}"
        return None


def _per_row(k: str, **more: Callable[[Inputs], Any]) -> Callable[[Inputs], dict[str, Any]]:
    def make(i: Inputs) -> dict[str, Any]:
        both = {"indices": i.out(), k: i.k}
        return {name: value(i) for name, value in more.items()} | both

    return make


def _strided(**more: Callable[[Inputs], Any]) -> Callable[[Inputs], dict[str, Any]]:
    make = _per_row("topK", **more)
    return lambda i: make(i) | {"numRows": i.rows, "stride0": i.matrix.stride(0), "stride1": i.matrix.stride(1)}


def _flat(i: Inputs) -> dict[str, Any]:
    import torch

    workspace = i.lengths.new_zeros(1 << 20, dtype=torch.uint8)  # as vLLM makes it
    longest = int(i.lengths.max()) if i.rows else 0
    return {"lengths": i.lengths, "output": i.out(), "workspace": workspace, "k": i.k, "max_seq_len": longest}


def _fast(i: Inputs) -> dict[str, Any]:
    return {"lengths": i.lengths, "topk": i.k}


def _fused(i: Inputs) -> dict[str, Any]:
    import torch

    requests = torch.arange(i.rows + 1, dtype=torch.int32, device=i.lengths.device)
    return _fast(i) | {"page_table_size_1": i.table(1), "cu_seqlens_q": requests}


def _paged(table: str = "page_tables", **more: Callable[[Inputs], Any]) -> Callable[[Inputs], dict[str, Any]]:
    def make(i: Inputs) -> dict[str, Any]:
        own = {"seq_lens": i.lengths, table: i.table(), "out_page_indices": i.out(), "page_size": PAGE}
        return own | {name: value(i) for name, value in more.items()}

    return make


def _kpool(i: Inputs) -> dict[str, Any]:
    return {"pool_lens": i.lengths, "out": i.out(), "pool_size": POOL}


_BOTH = ("float32", "bfloat16")
_ALL = ("float32", "float16", "bfloat16")
_LENGTHS, _ZEROS = (lambda i: i.lengths), (lambda i: i.zeros())

CALLS: Mapping[str, Call] = {
    "vllm.top_k_per_row_prefill": Call(_strided(rowStarts=_ZEROS, rowEnds=_LENGTHS)),
    "vllm.top_k_per_row_decode": Call(_strided(seq_lens=_LENGTHS, next_n=lambda i: 1)),
    "vllm.persistent_topk": Call(_flat, ks=_VLLM_KS),
    "vllm.cooperative_topk": Call(_flat, ks=_VLLM_KS, most_rows=64),
    "vllm.deep_select_topk": Call(
        lambda i: {"topk": i.k, "end": i.lengths, "output_idx": i.out()}, _BOTH, most_k=4096
    ),
    "sglang.fast_topk_v2": Call(_fast, ks=(2048,)),
    "sglang.fast_topk_transform_fused": Call(_fused, ks=(2048,)),
    "sglang.fast_topk_transform_ragged_fused": Call(
        lambda i: _fast(i) | {"topk_indices_offset": i.zeros()}, ks=(2048,)
    ),
    "sglang.topk_transform_paged": Call(_paged(), most_k=1024),
    "sglang.topk_transform_paged_v2": Call(_paged(metadata=lambda i: i.metadata), most_k=2048),
    "sglang.topk_transform_bf16_small": Call(_paged("page_table"), ("bfloat16",), most_k=2048, most_width=16_384),
    "sglang.topk_transform_ragged_v2": Call(
        lambda i: {"seq_lens": i.lengths, "out_offsets": i.zeros(), "out_indices": i.out()}, most_k=2048
    ),
    "sglang.topk_transform_kpool_v2": Call(lambda i: _kpool(i) | {"metadata": i.metadata}, expand=POOL),
    "sglang.topk_transform_kpool_ragged_v2": Call(_kpool, expand=POOL),
    "sglang.fast_kpool_topk_transform_fused": Call(lambda i: _fast(i) | {"kpool": POOL}, expand=POOL),
    "sglang.topk": Call(
        lambda i: {"topk": i.k, "end": i.lengths, "output_idx": i.out(), "idx_oob_fill_value": -1}, _BOTH, most_k=4096
    ),
    "sglang.topk_page_transform": Call(
        lambda i: {
            "topk": i.k, "page_table": i.table(), "page_size": PAGE, "end": i.lengths, "output_idx": i.out(),
        },
        _BOTH,
        most_k=4096,
    ),
    "flashinfer.top_k": Call(lambda i: {"k": i.k}, _ALL, whole=True),
    "flashinfer.top_k_page_table_transform": Call(
        lambda i: {"src_page_table": i.table(1), "lengths": i.lengths, "k": i.k}, _ALL
    ),
    "flashinfer.top_k_ragged_transform": Call(
        lambda i: {"offsets": i.zeros(), "lengths": i.lengths, "k": i.k}, _ALL
    ),
    "flashinfer.top_k_varlen": Call(lambda i: {"seq_lens": i.lengths, "top_k": i.k, "out_indices": i.out()}, _ALL),
    "tensorrt_llm.indexer_topk_prefill": Call(_per_row("index_topk", row_starts=_ZEROS, row_ends=_LENGTHS)),
    "tensorrt_llm.indexer_topk_decode": Call(_per_row("index_topk", seq_lens=_LENGTHS, next_n=lambda i: 1)),
}  # fmt: skip
"""By the adapter's function, which takes the place of all names of an operator."""

NOT_TIMED = {
    "vllm._sparse_indexer_topk": "it calls one of vLLM's other operators, by an option",
    "sglang.amax_topk_blocks": "it selects blocks, which `ksieve bench blocks` times",
    "flashinfer.msa_topk_select": "it selects a few blocks of each head, with scores of another layout",
}
"""Why operators have no call here."""


class UnsupportedError(KsieveError):
    """A library is not there, or cannot do what is asked; the message says why."""


def own_of(operator: Operator) -> Any:
    """What a library has under an operator's name; `UnsupportedError` where there is none."""
    from ksieve.adapters import _signatures

    try:
        importlib.import_module(operator.source)
        if (found := _signatures.own(operator)) is not None:
            return found
        reason = f"this version of {operator.source} has no {operator.attribute}"
    except ModuleNotFoundError as error:
        reason = f"no module {error.name}"
    except Exception as error:  # a library that is there may fail in any way while it loads
        reason = f"{operator.source}: {line(error)}"
    raise UnsupportedError(reason)


def line(error: Exception) -> str:
    """An error on one line, without folders."""
    return without_folders(timing.line(error))


def planned(operator: Operator, made: Inputs) -> Inputs:
    """Add SGLang's plan of the lengths where an operator reads one."""
    from ksieve.adapters._signatures import known

    if "metadata" not in known(operator)[0]:
        return made
    return replace(made, metadata=importlib.import_module(operator.source).plan_topk_v2(made.lengths))


def contender_of(
    name: str, operator: Operator, call: Call, run: Callable[[Any, dict[str, Any]], Any], inputs: Sequence[Inputs]
) -> Contender:
    """Contender that calls ``run(matrix, arguments)``, whose answers are verified.

    An operator that writes to its scores gets copies, fresh ones whenever it is judged: other contenders, and the
    verifier, read the matrices too.
    """
    from ksieve.adapters._signatures import known, names_of
    from ksieve.adapters._verify import _answer
    from ksieve.checking.verify import verify

    first, arguments = names_of(known(operator)[0])[0], [call.arguments(each) for each in inputs]
    matrices = [_copied(each.matrix) if first in operator.writes else each.matrix for each in inputs]
    returned: list[Any] = [None] * len(inputs)

    def select(i: int) -> None:
        returned[i] = run(matrices[i], arguments[i])

    def answer(i: int) -> Any:
        return _answer(operator, {first: matrices[i], **arguments[i]}, returned[i])

    def check(i: int) -> bool:
        each = inputs[i]
        try:
            found = indices(answer(i), call)
            return verify(
                each.matrix, None if call.whole else each.lengths, found, k=each.k // call.expand,
                expand=None if call.expand == 1 else call.expand, block_bytes=VERIFY_BYTES,
            ).ok  # fmt: skip
        except ArgumentError:
            return False  # an output of another shape or type than was asked for

    def poison(i: int) -> None:
        answer(i).fill_(POISON)
        if matrices[i] is not inputs[i].matrix:
            matrices[i].copy_(inputs[i].matrix)

    return Contender(name, select, check, poison)


def _copied(matrix: Any) -> Any:
    """Copy a matrix, with its pitch and alignment."""
    copy = tasks.aligned(len(matrix), matrix.stride(0), matrix.dtype, matrix.device)
    return copy[:, : matrix.shape[1]].copy_(matrix)


def indices(answer: Any, call: Call) -> Any:
    """Put the positions of an entry side by side, in order; the verifier wants them so."""
    import torch

    if call.expand == 1:
        return answer
    last = torch.iinfo(answer.dtype).max
    found = answer.masked_fill(answer < 0, last).sort(1).values
    return found.masked_fill(found == last, -1)
