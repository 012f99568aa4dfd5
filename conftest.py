"""Shared setup: one deterministic hypothesis profile, GPU tests only where a GPU is."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import pytest

pytest_plugins = ["commands", "parts", "rank_processes"]

if "PYTEST_XDIST_WORKER" in os.environ:
    # PyTorch's and NumPy's threads wait by spinning, which takes the cores from the other workers.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a GPU machine without the whole test extra
    pass
else:
    settings.register_profile(
        "ksieve", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("ksieve")

SEED = 0x1CEB00DA
"""Of the CPU backend's guesses (`ksieve.model.guess`)."""

ROOT = Path(__file__).resolve().parent


@cache
def cuda_devices() -> int:
    """Count CUDA devices by asking the driver itself, whatever packages are installed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not cuda_devices():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls draw the same seed for their guesses, so that what chance decides is the same in every run."""
    from ksieve.backends.cpu import runner

    monkeypatch.setattr(runner, "fresh_seed", lambda: SEED, raising=False)


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository root."""
    return ROOT


@pytest.fixture
def one_thread():
    """Threads of PyTorch that wait for processors others use take seconds in place of milliseconds."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
