"""Differences between array libraries on CUDA: the current stream, new arrays, and when a result is ready.

=========  ==============================  ======================================================
library    stream                          result
=========  ==============================  ======================================================
PyTorch    the device's current stream     ``torch.Tensor``, asynchronous like any torch operation
CuPy       the thread's current stream     ``cupy.ndarray``, asynchronous
JAX        legacy default stream           ``jax.Array``; waits for the scores, and for the result
others     the one their interface names   needs ``out=``
=========  ==============================  ======================================================

JAX does not order its streams after work of ksieve, so that both waits are needed.
"""

from __future__ import annotations

import sys
from typing import Any

from ksieve.core.arrays import check_jax_int64
from ksieve.core.errors import ArgumentError

LEGACY_DEFAULT_STREAM = 0


def current_stream(library: str, array: Any, index: int) -> int:
    """Return the handle of the stream on which work on `array` must be enqueued."""
    if library == "torch":
        return torch_stream(index)
    if library == "cupy":
        import cupy

        return int(cupy.cuda.get_current_stream(index).ptr)
    if library == "jax":
        array.block_until_ready()
        return LEGACY_DEFAULT_STREAM
    facts = getattr(array, "__cuda_array_interface__", {})
    # Version 3 of the interface: absent or None asks for no synchronisation, 1 is legacy, 2 per-thread default.
    return int(facts.get("stream") or LEGACY_DEFAULT_STREAM)


def ambient_library() -> str:
    """Name the array library with CUDA support that this process has loaded: torch, else cupy, else "none"."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return "torch"
    return "cupy" if "cupy" in sys.modules else "none"


def torch_stream(index: int) -> int:
    """Raw handle of PyTorch's current stream on a device."""
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(index)) if raw is not None else int(torch.cuda.current_stream(index).cuda_stream)


def place_of(device: Any) -> tuple[int, int]:
    """Ordinal of a device, and the handle of PyTorch's current stream there."""
    return device.index, torch_stream(device.index)


def new(
    library: str, shape: tuple[int, ...], dtype: str, index: int, name: str = "out", value: int | None = None
) -> Any:
    """Make an array in a library, on a CUDA device: of one value, in order with the current stream, or uninitialised.

    Raises `ArgumentError` for another library, whose arrays ksieve cannot make. So it does if JAX is to make 64-bit
    integers while they are disabled. `name` is the argument that supplies the array in either case.
    """
    if library == "torch":
        import torch

        made = torch.empty(shape, dtype=getattr(torch, dtype), device=f"cuda:{index}")
        return made if value is None else made.fill_(value)
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(index):
            return cupy.empty(shape, dtype=dtype) if value is None else cupy.full(shape, value, dtype=dtype)
    if library == "jax":
        import jax
        import jax.numpy as jnp

        if dtype == "int64":
            check_jax_int64()
        # JAX arrays are immutable once other code refers to them; this one is not shared yet.
        device = jax.devices("gpu")[index]
        return jax.device_put(jnp.full(shape, value or 0, dtype), device).block_until_ready()
    article, form = "an" if dtype.startswith("int") else "a", "(rows, k)" if value is None else str(shape)
    raise ArgumentError(
        name, value, f"{article} {dtype} array of shape {form}: only torch, cupy and jax arrays can be made"
    )
