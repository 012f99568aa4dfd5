"""CPU backend: Numba kernels over rows, spread over threads; and the NumPy model behind the same call."""

from ksieve.backends.cpu.call import call
from ksieve.backends.cpu.runner import run, run_reference, scratch_bytes, stored_candidates, thread_count

__all__ = ["call", "run", "run_reference", "scratch_bytes", "stored_candidates", "thread_count"]
