"""What differs between array libraries on CUDA: the stream to follow, new arrays, and when a result is ready.

=========  ==============================  ======================================================
library    stream                          result
=========  ==============================  ======================================================
PyTorch    the device's current stream     ``torch.Tensor``, asynchronous like any torch operation
CuPy       the thread's current stream     ``cupy.ndarray``, asynchronous
JAX        legacy default stream           ``jax.Array``; waits for the scores, and for the result
others     the one their interface names   needs ``out=``
=========  ==============================  ======================================================

JAX orders its own streams and knows nothing of ours, so that both waits are needed there.
"""

from __future__ import annotations

import sys
from typing import Any

from ksieve.errors import ArgumentError

LEGACY_DEFAULT_STREAM = 0


def current_stream(library: str, array: Any, index: int) -> int:
    """Handle of the stream that work on `array` has to follow."""
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
    """Name the array library with CUDA that this process uses, PyTorch before CuPy; "none" without one."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return "torch"
    return "cupy" if "cupy" in sys.modules else "none"


def torch_stream(index: int) -> int:
    """Raw handle of PyTorch's current stream on a device."""
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(index)) if raw is not None else int(torch.cuda.current_stream(index).cuda_stream)


def new_int32(library: str, shape: tuple[int, int], index: int) -> Any:
    """Allocate an uninitialised int32 array in a library, on a CUDA device.

    Raises
    ------
    ArgumentError
        If the library is unknown: its arrays can be read and written, but not made.
    """
    if library == "torch":
        import torch

        return torch.empty(shape, dtype=torch.int32, device=f"cuda:{index}")
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(index):
            return cupy.empty(shape, dtype=cupy.int32)
    if library == "jax":
        import jax
        import jax.numpy as jnp

        # JAX arrays are immutable to their users; this one has no user yet.
        device = jax.devices("gpu")[index]
        return jax.device_put(jnp.empty(shape, jnp.int32), device).block_until_ready()
    raise ArgumentError("out", None, "an int32 array of shape (rows, k): only torch, cupy and jax arrays can be made")
