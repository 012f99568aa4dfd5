"""`torch.topk` by ksieve: the same arguments, results and errors.

Importing this module imports PyTorch; ``import ksieve`` does not.

>>> import torch
>>> import ksieve.torch
>>> values, indices = ksieve.torch.topk(torch.tensor([3.0, 1.0, 2.0]), 2)
>>> values.tolist(), indices.tolist()
([3.0, 2.0], [0, 2])
"""

from __future__ import annotations

from typing import Any

import torch

from ksieve import api
from ksieve.core.problem import MAX_K, MAX_SIZE
from ksieve.frontends.torch import gradients
from ksieve.frontends.torch.ops import SCORES, dense

__all__ = ["topk"]

_DEVICES = ("cpu", "cuda") if torch.version.hip is None else ("cpu",)
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_MOST_IN_ORDER = 16_384
"""Slots up to which ksieve puts them in order; it sorts more by one CTA for each row, in global memory."""


def topk(
    input: Any,  # noqa: A002
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: A002
    *,
    out: Any = None,
) -> Any:
    """Select the k largest or smallest elements along a dimension: a replacement of `torch.topk`.

    Parameters
    ----------
    input : Tensor
        Of any rank and strides. ksieve selects from float32, float16 and bfloat16 on CPU and CUDA. `torch.topk` itself
        serves every other dtype, device and layout, tensor subclasses, k = 0 and above 2**20, and bad arguments.
    k : int
        0 to the size of `dim`.
    dim : int
        Dimension to select along; negative ones count from the last.
    largest : bool
        Whether larger elements are better, or smaller ones. NaN is the greatest of all either way.
    sorted : bool
        Best element first, equal ones by ascending index up to k = 16384. Otherwise the order is unspecified.
    out : tuple of (Tensor, Tensor), optional
        Receives values and int64 indices, by a copy of new results. `torch.topk` itself serves a pair of other shapes,
        which it resizes, or other dtypes, which it refuses.

    Returns
    -------
    torch.return_types.topk
        Named tuple of `values` and `indices` (int64), contiguous, of the input's shape with k in place of the size of
        `dim`. Which of the elements equal to the worst selected one are selected is unspecified, as in `torch.topk`.

    Raises
    ------
    RuntimeError, IndexError, TypeError
        Those of `torch.topk`, with its messages.
    BackendError
        The backend cannot run here; a `RuntimeError` that names the remedy.

    Notes
    -----
    Elements are read where they lie if `dim` has stride 1 and rows one pitch, as in a contiguous tensor with `dim`
    last. For another `dim`, and for other strides or expanded rows, they are copied once.

    Values carry a gradient, forward and backward, and the call works under ``torch.compile`` and ``torch.func``. On
    CUDA it is enqueued on the current stream without waiting. In a CUDA graph capture the kernel has to be loaded: call
    once with this shape before it.
    """
    if not _served(input, k, dim, largest, sorted):
        return torch.topk(input, k, dim, largest, sorted, out=out)
    shape = list(input.shape)
    shape[dim] = k
    if out is not None and not _fits(out, input, torch.Size(shape)):
        return torch.topk(input, k, dim, largest, sorted, out=out)
    moved = input.resolve_neg().movedim(dim, -1)
    order: Any = "value" if sorted and k <= _MOST_IN_ORDER else False
    indices, values, *_ = api.select(
        dense(moved.reshape(-1, moved.shape[-1])),
        k=k,
        values=True,
        index_dtype="int64",
        sorted=order,
        largest=largest,
        nan="highest",
    )
    if sorted and not order:
        values, places = values.sort(dim=-1, descending=largest)
        indices = indices.gather(-1, places)
    values, indices = (x.reshape(*moved.shape[:-1], k).movedim(-1, dim).contiguous() for x in (values, indices))
    if out is not None:
        values, indices = (whole.copy_(part) for whole, part in zip(out, (values, indices), strict=True))
    return torch.return_types.topk((values, indices))


def _served(input: Any, k: Any, dim: Any, largest: Any, sorted: Any) -> bool:  # noqa: A002
    """Whether ksieve selects; `torch.topk` serves other calls and reports their errors."""
    if not isinstance(input, torch.Tensor) or not (isinstance(largest, bool) and isinstance(sorted, bool)):
        return False
    # The classes of tensors that are being traced are PyTorch's own.
    if not torch.compiler.is_compiling() and type(input) not in _PLAIN:
        return False
    if input.dtype not in SCORES or input.device.type not in _DEVICES or input.layout is not torch.strided:
        return False
    whole = not (isinstance(k, bool) or isinstance(dim, bool)) and isinstance(k, int) and isinstance(dim, int)
    if not whole or input.is_nested or not -input.dim() <= dim < input.dim():
        return False
    size = input.shape[dim]
    if not 0 < k <= MAX_K or k > size:
        return False
    # An exported program would be bound by these limits; in a traced one the operator checks them.
    return bool(torch.compiler.is_compiling() or (size <= MAX_SIZE and input.numel() // size <= MAX_SIZE))


def _fits(out: Any, input: Any, shape: Any) -> bool:  # noqa: A002
    """Whether results of a shape can be copied to `out` as `torch.topk` would write it."""
    if not isinstance(out, (tuple, list)) or len(out) != 2 or not all(isinstance(x, torch.Tensor) for x in out):
        return False
    same = all(x.shape == shape and x.device == input.device for x in out)
    dtypes = out[0].dtype == input.dtype and out[1].dtype == torch.int64
    return same and dtypes and not any(gradients.recorded(x) for x in (input, *out))
