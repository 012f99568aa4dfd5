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
from ksieve.core.groups import Blocks
from ksieve.tuning import tasks, timing
from ksieve.tuning.tasks import POISON, VERIFY_BYTES
from ksieve.tuning.timing import Contender
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

    def out(self) -> Any:
        """Make an output."""
        return self.lengths.new_empty(self.rows, self.k)

    def table(self, page: int) -> Any:
        """Make a page table, in which every page is itself."""
        import torch

        pages = torch.arange(-(-self.matrix.shape[1] // page), dtype=torch.int32, device=self.lengths.device)
        return pages.repeat(self.rows, 1)


VALUES: Mapping[str, Callable[[Inputs], Any]] = {
    "k": lambda i: i.k,
    "rows": lambda i: i.rows,
    "pitch": lambda i: i.matrix.stride(0),
    "lengths": lambda i: i.lengths,
    "longest": lambda i: int(i.lengths.max()) if i.rows else 0,
    "metadata": lambda i: i.metadata,
    "zeros": lambda i: i.lengths.new_zeros(i.rows),
    "requests": lambda i: i.lengths.new_ones(i.rows + 1).cumsum(0, dtype=i.lengths.dtype) - 1,
    "pages": lambda i: i.table(PAGE),
    "positions": lambda i: i.table(1),
    "workspace": lambda i: i.lengths.new_zeros(1 << 20).byte(),  # as vLLM makes it
    "out": lambda i: i.out(),
    "values, out": lambda i: (i.out().to(i.matrix.dtype), i.out().long()),
}
"""What a call may pass, by name."""


@dataclass(frozen=True)
class Call:
    """How an operator is called.

    `takes`: arguments after the scores, each a name of `VALUES` or a number. The engine's own operator takes scores of
    `dtypes`, a k of `ks` (empty: any), and at most `most_rows` and `most_width`. It clamps k to `most_k`. `whole`: it
    takes no lengths. `expand`: columns of an entry that is selected.
    """

    takes: Mapping[str, Any]
    dtypes: tuple[str, ...] = ("float32",)
    ks: tuple[int, ...] = ()
    most_k: int | None = None
    most_rows: int | None = None
    most_width: int | None = None
    whole: bool = False
    expand: int = 1

    def arguments(self, i: Inputs) -> dict[str, Any]:
        """Make the arguments after the scores."""
        return {name: VALUES[of](i) if isinstance(of, str) else of for name, of in self.takes.items()}

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


_BOTH = ("float32", "bfloat16")
_ALL = ("float32", "float16", "bfloat16")
_STRIDED = {"indices": "out", "topK": "k", "numRows": "rows", "stride0": "pitch", "stride1": 1}
_FLAT = {"lengths": "lengths", "output": "out", "workspace": "workspace", "k": "k", "max_seq_len": "longest"}
_DEEP = {"topk": "k", "end": "lengths", "output_idx": "out"}
_FAST = {"lengths": "lengths", "topk": "k"}
_PAGED = {"seq_lens": "lengths", "out_page_indices": "out", "page_size": PAGE}
_POOLS = {"pool_lens": "lengths", "out": "out", "pool_size": POOL}
_INDEXER = {"indices": "out", "index_topk": "k"}

CALLS: Mapping[str, Call] = {
    "vllm.top_k_per_row_prefill": Call(_STRIDED | {"rowStarts": "zeros", "rowEnds": "lengths"}),
    "vllm.top_k_per_row_decode": Call(_STRIDED | {"seq_lens": "lengths", "next_n": 1}),
    "vllm.persistent_topk": Call(_FLAT, ks=_VLLM_KS),
    "vllm.cooperative_topk": Call(_FLAT, ks=_VLLM_KS, most_rows=64),
    "vllm.deep_select_topk": Call(_DEEP, _BOTH, most_k=4096),
    "sglang.fast_topk_v2": Call(_FAST, ks=(2048,)),
    "sglang.fast_topk_transform_fused": Call(
        _FAST | {"page_table_size_1": "positions", "cu_seqlens_q": "requests"}, ks=(2048,)
    ),
    "sglang.fast_topk_transform_ragged_fused": Call(_FAST | {"topk_indices_offset": "zeros"}, ks=(2048,)),
    "sglang.topk_transform_paged": Call(_PAGED | {"page_tables": "pages"}, most_k=1024),
    "sglang.topk_transform_paged_v2": Call(_PAGED | {"page_tables": "pages", "metadata": "metadata"}, most_k=2048),
    "sglang.topk_transform_bf16_small": Call(
        _PAGED | {"page_table": "pages"}, ("bfloat16",), most_k=2048, most_width=16_384
    ),
    "sglang.topk_transform_ragged_v2": Call(
        {"seq_lens": "lengths", "out_offsets": "zeros", "out_indices": "out"}, most_k=2048
    ),
    "sglang.topk_transform_kpool_v2": Call(_POOLS | {"metadata": "metadata"}, expand=POOL),
    "sglang.topk_transform_kpool_ragged_v2": Call(_POOLS, expand=POOL),
    "sglang.fast_kpool_topk_transform_fused": Call(_FAST | {"kpool": POOL}, expand=POOL),
    "sglang.topk": Call(_DEEP | {"idx_oob_fill_value": -1}, _BOTH, most_k=4096),
    "sglang.topk_page_transform": Call(_DEEP | {"page_table": "pages", "page_size": PAGE}, _BOTH, most_k=4096),
    "flashinfer.top_k": Call({"k": "k"}, _ALL, whole=True),
    "flashinfer.top_k_page_table_transform": Call(
        {"src_page_table": "positions", "lengths": "lengths", "k": "k"}, _ALL
    ),
    "flashinfer.top_k_ragged_transform": Call({"offsets": "zeros", "lengths": "lengths", "k": "k"}, _ALL),
    "flashinfer.top_k_varlen": Call({"seq_lens": "lengths", "top_k": "k", "out_indices": "out"}, _ALL),
    "tensorrt_llm.indexer_topk_prefill": Call(_INDEXER | {"row_starts": "zeros", "row_ends": "lengths"}),
    "tensorrt_llm.indexer_topk_decode": Call(_INDEXER | {"seq_lens": "lengths", "next_n": 1}),
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
                blocks=Blocks(expand=call.expand), block_bytes=VERIFY_BYTES,
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
