"""Selectors of other libraries as contenders: used where they can be imported, skipped with a reason where not.

Each is called as an engine calls it (`ksieve_lab.bench.engine_calls`), on the same tensors. What the library allows to
prepare (outputs, page tables, workspaces, SGLang's plan) is not timed. Every answer is verified.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ksieve.adapters._operators import OPERATORS, Operator
from ksieve.core.errors import ArgumentError
from ksieve.tuning.tasks import Task
from ksieve.tuning.timing import Contender
from ksieve_lab.bench.engine_calls import CALLS, Call, Inputs, UnsupportedError, contender_of, line, own_of, planned

Own = tuple[Operator, Callable[..., Any]]
"""An operator that is there, and the library's function."""


@dataclass(frozen=True)
class Peer:
    """A selector of another library, by its name in tables.

    `adapter`: of the operators, the first of which that is there is called. `refuses`: why it cannot do a task, beyond
    what its call says; None if it can. `more`: further arguments. `algorithm`: back end of FlashInfer.
    """

    name: str
    adapter: str
    refuses: Callable[[Task], str | None] = lambda task: None
    more: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = ""

    @property
    def call(self) -> Call:
        """How it is called."""
        return TORCH_CALL if self.adapter == TORCH.adapter else CALLS[self.adapter]

    def load(self) -> Own:
        """Import the library; `UnsupportedError` if none of the operators is here."""
        reasons = []
        every = (TORCH, *(operator for operators in OPERATORS.values() for operator in operators))
        for operator in dict.fromkeys(each for each in every if each.adapter == self.adapter):
            try:
                return operator, own_of(operator)
            except UnsupportedError as error:
                reasons.append(str(error))
        raise UnsupportedError("; ".join(dict.fromkeys(reasons)))


def contender(peer: Peer, own: Own, task: Task, rounds: int | None = None) -> Contender:
    """Make a contender whose answers are verified; `UnsupportedError` if the peer cannot do the task."""
    (operator, function), call = own, peer.call
    dtype = str(task.matrices[0].dtype).removeprefix("torch.")
    if reason := call.refusal(task.rows, task.width, task.k, dtype) or peer.refuses(task):
        raise UnsupportedError(reason)

    def run(matrix: Any, arguments: dict[str, Any]) -> Any:
        with _algorithm(peer.algorithm):
            return function(matrix, **arguments, **peer.more)

    try:
        inputs = [planned(operator, Inputs(matrix, task.lengths, task.k)) for matrix in task.matrices]
        return replace(contender_of(peer.name, operator, call, run, inputs), rounds=rounds)
    except Exception as error:  # another version of the library may have other names and arguments
        raise UnsupportedError(line(error)) from error


def available(names: Iterable[str] | None = None) -> tuple[list[tuple[Peer, Own]], dict[str, str]]:
    """Peers that can be loaded, and by name why the others cannot.

    `names`: those of peers, or their leading words ("sglang"); None means all. Raises `ArgumentError` if no library has
    a name of the list.
    """
    asked = list(names) if names is not None else None
    check_names(asked)
    loaded, skipped = [], {}
    for peer in PEERS:
        if asked is not None and not _asked(peer, asked):
            continue
        try:
            loaded.append((peer, peer.load()))
        except UnsupportedError as error:
            skipped[peer.name] = str(error)
    return loaded, skipped


def check_names(names: Sequence[str] | None) -> None:
    """Refuse names that no library has; None passes."""
    for name in names or ():
        if not any(_asked(peer, [name]) for peer in PEERS):
            raise ArgumentError("peers", repr(name), f"names of {', '.join(peer.name for peer in PEERS)}")


def _asked(peer: Peer, names: Sequence[str]) -> bool:
    return any(peer.name == name or peer.name.startswith((f"{name} ", f"{name}.")) for name in names)


@contextmanager
def _algorithm(name: str) -> Iterator[None]:
    """Force a back end: FlashInfer reads the variable in every call."""
    variable = "FLASHINFER_TOPK_ALGO"
    before = os.environ.get(variable)
    if name:
        os.environ[variable] = name
    try:
        yield
    finally:
        if name and before is None:
            del os.environ[variable]
        elif name and before is not None:
            os.environ[variable] = before


def _contiguous(task: Task) -> str | None:
    good = all(matrix.is_contiguous() for matrix in task.matrices)
    return None if good else "its radix back end takes contiguous matrices only"


def _clusters(task: Task) -> str | None:
    import torch

    major = torch.cuda.get_device_capability()[0]
    return f"its cluster back end needs compute capability 10, not {major}" if major != 10 else _contiguous(task)


def _cub(task: Task) -> str | None:
    # Beyond its limit it would take the radix back end without a word.
    return f"its CUB back end takes rows of up to {1 << 21} scores, not {task.width}" if task.width > 1 << 21 else None


def _three_ks(task: Task) -> str | None:
    good = task.k in (512, 1024, 2048) and str(task.matrices[0].dtype) == "torch.float32"
    return None if good else f"it takes float32 scores and k of 512, 1024 and 2048, not {task.k}"


def _deepselect(task: Task) -> str | None:
    good = all(m.data_ptr() % 1024 == 0 and m.stride(0) * m.element_size() % 1024 == 0 for m in task.matrices)
    return ("it needs rows aligned to 1024 bytes" if not good else
            f"it takes k up to 4096, not {task.k}" if task.k > 4096 else None)  # fmt: skip


def _cooperative(task: Task) -> str | None:
    return "it needs rows that start at multiples of 4 scores" if task.matrices[0].stride(0) % 4 else None


def _wide(task: Task) -> str | None:
    return f"k={task.k} is more than the {task.width} scores of a row" if task.k > task.width else None


TORCH = Operator("torch:", "topk", "torch.topk", ("Tensor input",), answer=1)
TORCH_CALL = Call(
    {"k": "k", "dim": 1, "sorted": False, "out": "values, out"}, whole=True, dtypes=("float32", "float16", "bfloat16")
)
_RAGGED, _NO_ABORT = "flashinfer.top_k_ragged_transform", {"abort_when_nan_found": False}
PEERS: tuple[Peer, ...] = (
    Peer("torch.topk", TORCH.adapter, _wide),
    Peer("flashinfer radix", _RAGGED, _contiguous, algorithm="default"),
    Peer("flashinfer cub", _RAGGED, _cub, algorithm="cub"),
    Peer("flashinfer clusters", _RAGGED, _clusters, algorithm="clusters"),
    Peer("sglang paged", "sglang.topk_transform_paged_v2", _three_ks),
    Peer("sglang ragged", "sglang.topk_transform_ragged_v2", _three_ks),
    # Without it, a NaN would take the device down, and every other contender with it.
    Peer("deepselect", "sglang.topk", _deepselect, _NO_ABORT),
    Peer("vllm prefill", "vllm.top_k_per_row_prefill"),
    Peer("vllm decode", "vllm.top_k_per_row_decode"),
    Peer("vllm persistent", "vllm.persistent_topk"),
    Peer("vllm cooperative", "vllm.cooperative_topk", _cooperative),
)
"""Every peer, in the order that tables list them."""
