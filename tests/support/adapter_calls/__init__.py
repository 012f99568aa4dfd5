"""Calls as frameworks make them, and what each framework documents of the result, in plain NumPy."""

from adapter_calls import deepselect, flashinfer, sglang, sglang_pools, tensorrt_llm, vllm
from adapter_calls.base import CASES, ROWS, Case, best, make, refill, same, to_arrays, to_tensors

__all__ = [
    "CASES", "ROWS", "Case", "best", "deepselect", "flashinfer", "make", "refill", "same", "sglang", "sglang_pools",
    "tensorrt_llm", "to_arrays", "to_tensors", "vllm", "warm",
]  # fmt: skip


def warm(chosen: Case, width: int, k: int, dtype: str) -> None:
    """Make a case's call on the GPU once, for the kernels that it leaves in the disk cache."""
    chosen.call(to_tensors(make(chosen, 0, width, k, dtype), dtype, "cuda"), k)
