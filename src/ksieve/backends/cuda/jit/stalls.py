"""How often and how long calls of this process have waited for a compiler."""

from __future__ import annotations

import threading

_lock = threading.Lock()
_compiled = 0
_seconds = 0.0


def add(compiled: bool, seconds: float) -> None:
    """Count a kernel that was not loaded: whether this process compiled it, and how long the call waited."""
    global _compiled, _seconds
    with _lock:
        _compiled += compiled
        _seconds += seconds


def read() -> tuple[int, float]:
    """Return the number of kernels that this process has compiled, and the seconds waited for kernels."""
    return _compiled, _seconds
