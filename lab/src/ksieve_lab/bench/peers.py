"""Selectors of other libraries as contenders: used where they can be imported, skipped with a reason where not.

Each adapter calls the library as an engine does, on the same tensors. Preparation that the library allows (outputs,
page tables, workspaces) is not timed; preparation inside a call (SGLang's plan over the lengths) is. Results are
converted to plain indices and checked by `ksieve.verify`, as those of every contender.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ksieve.core.errors import ArgumentError, KsieveError
from ksieve.planning.tune.tasks import POISON, VERIFY_BYTES, Task
from ksieve.planning.tune.timing import Contender

PAGE = 64
"""Tokens per page of the page tables handed to paged selectors, as SGLang serves DeepSeek models."""


class UnsupportedError(KsieveError):
    """A library that is there cannot do this case; the message says why."""


def need(condition: bool, reason: str) -> None:
    """Raise `UnsupportedError` with a reason unless the condition holds."""
    if not condition:
        raise UnsupportedError(reason)


@dataclass(frozen=True)
class Calls:
    """How a peer is run on one task.

    Attributes
    ----------
    run : callable
        ``run(i)`` selects from set `i`; capturable in a CUDA graph.
    indices : callable
        ``indices(i)``: its output as indices of shape (rows, k).
    sentinel : int
        Value of unused slots.
    prefix : bool
        Whether it knows lengths; a selector that does not is judged on whole rows.
    """

    run: Callable[[int], None]
    indices: Callable[[int], Any]
    sentinel: int = -1
    prefix: bool = True


@dataclass(frozen=True)
class Peer:
    """A selector of another library.

    Attributes
    ----------
    name : str
        Name in tables.
    modules : tuple of str
        The first of them that can be imported is handed to `prepare`.
    prepare : callable
        ``prepare(module, task) -> Calls``; raises `UnsupportedError`.
    distribution : str
        Package whose version explains a number.
    """

    name: str
    modules: tuple[str, ...]
    prepare: Callable[[Any, Task], Calls]
    distribution: str

    def load(self) -> Any:
        """Import the library.

        Raises
        ------
        UnsupportedError
            If it is not installed, or fails to load here.
        """
        reasons, missing = [], True
        for module in self.modules:
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                missing &= error.name == module.partition(".")[0]
                reasons.append(f"{error}")
            except Exception as error:  # a library that is there may fail in any way while it loads
                missing = False
                reasons.append(f"{module} fails to load ({type(error).__name__}: {_line(error)})")
        raise UnsupportedError(f"{self.distribution} is not installed" if missing else "; ".join(reasons))


def contender(peer: Peer, module: Any, task: Task, rounds: int | None = None) -> Contender:
    """Make a contender whose answers are verified.

    Raises
    ------
    UnsupportedError
        If the peer cannot do the task.
    """
    from ksieve.checking.verify import verify

    try:
        calls = peer.prepare(module, task)
    except UnsupportedError:
        raise
    except Exception as error:  # another version of the library may have other names and arguments
        raise UnsupportedError(f"{type(error).__name__}: {_line(error)}") from error

    def check(i: int) -> bool:
        found = calls.indices(i)
        lengths = task.lengths if calls.prefix else None
        try:
            verdict = verify(
                task.matrices[i], lengths, found, k=task.k, sentinel=calls.sentinel, block_bytes=VERIFY_BYTES
            )
        except ArgumentError:
            return False  # an output of another shape or type than was asked for
        return verdict.ok

    return Contender(peer.name, calls.run, check, lambda i: calls.indices(i).fill_(POISON), rounds)


def available(names: Iterable[str] | None = None) -> tuple[list[tuple[Peer, Any]], dict[str, str]]:
    """Peers that can be loaded, and why the others cannot.

    Parameters
    ----------
    names : iterable of str, optional
        Names of peers, or their leading words ("sglang"); None means all.

    Returns
    -------
    loaded : list of (Peer, module)
    skipped : dict of str to str
        Reasons by name.

    Raises
    ------
    ArgumentError
        If no library has a name of the list.
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


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else ""


# ---- PyTorch ----------------------------------------------------------------------------------------------


def _torch_topk(torch: Any, task: Task) -> Calls:
    need(task.k <= task.width, f"k={task.k} is more than the {task.width} scores of a row")
    outs = [(task.empty(str(m.dtype).rpartition(".")[2]), task.empty("int64")) for m in task.matrices]
    return Calls(
        lambda i: torch.topk(task.matrices[i], task.k, dim=1, sorted=False, out=outs[i]),
        lambda i: outs[i][1],
        prefix=False,
    )


# ---- FlashInfer -------------------------------------------------------------------------------------------


@contextmanager
def _algorithm(name: str) -> Iterator[None]:
    """Force a back end: FlashInfer reads the variable in every call."""
    variable = "FLASHINFER_TOPK_ALGO"
    before = os.environ.get(variable)
    os.environ[variable] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _flashinfer(algorithm: str) -> Callable[[Any, Task], Calls]:
    def prepare(flashinfer: Any, task: Task) -> Calls:
        import torch

        if algorithm == "clusters":
            capability = torch.cuda.get_device_capability()
            need(capability[0] == 10, f"its cluster back end needs compute capability 10, not {capability[0]}")
        if algorithm == "cub":  # beyond its limit it would take the radix back end without a word
            need(task.width <= 1 << 21, f"its CUB back end takes rows of up to {1 << 21} scores, not {task.width}")
        else:
            contiguous = all(m.is_contiguous() for m in task.matrices)
            need(contiguous, "its radix back end takes contiguous matrices only")
        offsets = torch.zeros_like(task.lengths)
        # It allocates its result: the one of a graph capture stays at its place.
        outs: list[Any] = [None] * len(task.matrices)

        def run(i: int) -> None:
            with _algorithm(algorithm):
                outs[i] = flashinfer.top_k_ragged_transform(task.matrices[i], offsets, task.lengths, task.k)

        return Calls(run, lambda i: outs[i])

    return prepare


# ---- SGLang -----------------------------------------------------------------------------------------------

_SGLANG_V2 = ("sglang.kernels.ops.attention.dsv4", "sglang.jit_kernel.dsv4")


def _sglang_checks(task: Task) -> None:
    need(task.k in (512, 1024, 2048), f"it takes k of 512, 1024 and 2048, not {task.k}")
    need(str(task.matrices[0].dtype) == "torch.float32", "it takes float32 scores only")


def _sglang_paged(sglang: Any, task: Task) -> Calls:
    import torch

    _sglang_checks(task)
    run_kernel = getattr(sglang, "topk_transform_paged_v2", None) or sglang.topk_transform_512_v2
    pages = -(-task.width // PAGE)
    table = torch.arange(pages, dtype=torch.int32, device=task.lengths.device).repeat(task.rows, 1)
    outs = [task.empty() for _ in task.matrices]
    metadata = sglang.plan_topk_v2(task.lengths)  # not timed: an engine plans once for all layers of a step

    def run(i: int) -> None:
        run_kernel(task.matrices[i], task.lengths, table, outs[i], PAGE, metadata)

    return Calls(run, lambda i: outs[i])  # pages in order: a slot is its position


def _sglang_ragged(sglang: Any, task: Task) -> Calls:
    import torch

    _sglang_checks(task)
    need(hasattr(sglang, "topk_transform_ragged_v2"), "this version has no topk_transform_ragged_v2")
    offsets = torch.zeros_like(task.lengths)
    outs = [task.empty() for _ in task.matrices]

    def run(i: int) -> None:
        sglang.topk_transform_ragged_v2(task.matrices[i], task.lengths, out_offsets=offsets, out_indices=outs[i])

    return Calls(run, lambda i: outs[i])


def _deepselect(module: Any, task: Task) -> Calls:
    import torch

    aligned = all(m.data_ptr() % 1024 == 0 and m.stride(0) * m.element_size() % 1024 == 0 for m in task.matrices)
    need(aligned, "it needs rows aligned to 1024 bytes")
    need(task.k <= 4096, f"it takes k up to 4096, not {task.k}")
    outs = [task.empty() for _ in task.matrices]
    options: dict[str, Any] = {"indices_type": torch.int32, "idx_oob_fill_value": -1, "return_value": False}
    if "abort_when_nan_found" in inspect.signature(module.topk).parameters:
        options["abort_when_nan_found"] = False  # it would take the device down, and every other contender with it

    def run(i: int) -> None:
        module.topk(task.matrices[i], task.k, end=task.lengths, output_idx=outs[i], **options)

    return Calls(run, lambda i: outs[i])


# ---- vLLM -------------------------------------------------------------------------------------------------


_VLLM = ("vllm._custom_ops", "vllm._C")
"""Importing either registers the operators."""


def _vllm(name: str) -> Callable[[Any, Task], Calls]:
    def prepare(module: Any, task: Task) -> Calls:
        import torch

        operator = getattr(torch.ops._C, name, None)
        need(operator is not None, f"this build of vllm has no {name}")
        assert operator is not None
        strides = tuple(task.matrices[0].stride())
        starts, outs = torch.zeros_like(task.lengths), [task.empty() for _ in task.matrices]
        if name == "top_k_per_row_prefill":
            arguments: Callable[[Any, Any], tuple[Any, ...]] = lambda m, out: (  # noqa: E731
                m, starts, task.lengths, out, task.rows, *strides, task.k,
            )  # fmt: skip
        elif name == "top_k_per_row_decode":
            arguments = lambda m, out: (m, 1, task.lengths, out, task.rows, *strides, task.k)  # noqa: E731
        else:
            need(task.k in (512, 1024, 2048), f"it takes k of 512, 1024 and 2048, not {task.k}")
            cooperative = name == "cooperative_topk"
            need(not cooperative or task.rows <= 64, f"it takes up to 64 rows, not {task.rows}")
            need(not cooperative or strides[0] % 4 == 0, "it needs rows that start at multiples of 4 scores")
            workspace = torch.zeros(1 << 20, dtype=torch.uint8, device=task.lengths.device)
            longest = int(task.lengths.max()) if task.rows else 0
            arguments = lambda m, out: (m, task.lengths, out, workspace, task.k, longest)  # noqa: E731
        return Calls(lambda i: operator(*arguments(task.matrices[i], outs[i])), lambda i: outs[i])

    return prepare


PEERS: tuple[Peer, ...] = (
    Peer("torch.topk", ("torch",), _torch_topk, "torch"),
    Peer("flashinfer radix", ("flashinfer",), _flashinfer("default"), "flashinfer-python"),
    Peer("flashinfer cub", ("flashinfer",), _flashinfer("cub"), "flashinfer-python"),
    Peer("flashinfer clusters", ("flashinfer",), _flashinfer("clusters"), "flashinfer-python"),
    Peer("sglang paged", _SGLANG_V2, _sglang_paged, "sglang"),
    Peer("sglang ragged", _SGLANG_V2, _sglang_ragged, "sglang"),
    Peer("deepselect", ("sglang.kernels.ops.attention.deep_select", "deep_select"), _deepselect, "sglang"),
    Peer("vllm prefill", _VLLM, _vllm("top_k_per_row_prefill"), "vllm"),
    Peer("vllm decode", _VLLM, _vllm("top_k_per_row_decode"), "vllm"),
    Peer("vllm persistent", _VLLM, _vllm("persistent_topk"), "vllm"),
    Peer("vllm cooperative", _VLLM, _vllm("cooperative_topk"), "vllm"),
)  # fmt: skip
"""Every peer, in the order that tables list them."""
