"""Numba, imported where the environment lets it compile; otherwise an error that names the variable."""

from __future__ import annotations

import os

from ksieve.core.errors import BackendError, shown

__all__ = ["OPTIONS", "numba"]

OPTIONS = {"nogil": True, "error_model": "numpy", "no_rewrites": True}
"""Of every compiled function: it runs without the GIL, and no division of it is checked."""

_INSTEAD = "; or use backend='reference', the NumPy model"

try:
    import numba
except ValueError as error:
    # Numba reads its variables when it is imported, and takes no number of threads below 1.
    asked = {name: value for name, value in os.environ.items() if name in ("NUMBA_NUM_THREADS", "NUMBA_OPT")}
    listed = ", ".join(f"{name}={shown(value)}" for name, value in asked.items()) or "a variable NUMBA_..."
    raise BackendError(
        f"Numba, which compiles the CPU kernels, cannot be imported with {listed} ({error}): unset it{_INSTEAD}"
    ) from error

if numba.config.DISABLE_JIT:
    raise BackendError(
        f"NUMBA_DISABLE_JIT is set, and the CPU kernels exist only as compiled by Numba: unset it{_INSTEAD}"
    )
