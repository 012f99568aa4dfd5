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


def new(library: str, shape: tuple[int, ...], dtype: str, index: int, name: str = "out") -> Any:
    """Allocate an uninitialised array in a library, on a CUDA device.

    Raises `ArgumentError` if the library is another one, whose arrays ksieve can read and write but not make; or if JAX
    is to make 64-bit integers while they are disabled. `name` is the argument that supplies the array in either case.
    """
    if library == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=f"cuda:{index}")
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(index):
            return cupy.empty(shape, dtype=dtype)
    if library == "jax":
        import jax
        import jax.numpy as jnp

        if dtype == "int64":
            check_jax_int64()
        # JAX arrays are immutable once other code refers to them; this one is not shared yet.
        device = jax.devices("gpu")[index]
        return jax.device_put(jnp.empty(shape, dtype), device).block_until_ready()
    article = "an" if dtype.startswith("int") else "a"
    raise ArgumentError(
        name, None, f"{article} {dtype} array of shape (rows, k): only torch, cupy and jax arrays can be made"
    )


def number(library: str, value: int, index: int, name: str) -> Any:
    """Make an array of one int32 in a library on a CUDA device, in order with its current stream.

    Raises `ArgumentError` if ksieve cannot make arrays of the library. `name` is the argument that has the value.
    """
    if library == "torch":
        import torch

        return torch.full((1,), value, dtype=torch.int32, device=f"cuda:{index}")
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(index):
            return cupy.full((1,), value, dtype="int32")
    if library == "jax":
        import jax
        import jax.numpy as jnp

        return jax.device_put(jnp.full((1,), value, "int32"), jax.devices("gpu")[index]).block_until_ready()
    takes = "an int32 array of shape (1,) on the scores' device: only torch, cupy and jax arrays can be made"
    raise ArgumentError(name, value, takes)
