"""The CUDA backend: compile, cache, workspaces and launches. It chooses nothing: plans are its input."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.call import run
from ksieve.backends.cuda.fast_path import make_fast_path
from ksieve.backends.cuda.jit import bundle
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.runtime import driver as _driver
from ksieve.backends.cuda.runtime import launch
from ksieve.backends.cuda.runtime import workspace as _workspace
from ksieve.backends.cuda.runtime.workspace import Workspace
from ksieve.core.device import DeviceInfo
from ksieve.planning.plan import Plan

__all__ = ["Workspace", "check_packages", "device_info", "make_fast_path", "make_workspace", "prepare", "run"]


def check_packages() -> None:
    """Check the driver's version, the bindings and the compiler, without starting CUDA: the process may fork later.

    Without an NVIDIA driver there is nothing to check; without a GPU `device_info` says so.

    Raises `BackendError` in the words of the first call that would fail.
    """
    version = _driver.cuda_version()
    if version is None:
        return
    if (refusal := _driver.too_old(version)) is not None:
        raise refusal
    try:
        importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise _driver.missing_package(error) from None
    if bundle.named() is None:
        compiler.check_packages()


@lru_cache
def device_info(index: int = 0) -> DeviceInfo:
    """Facts of a CUDA device that is present, read once.

    Raises `BackendError` if the driver, the Python bindings or a GPU of compute capability 8.0 is missing, in one
    sentence.
    """
    return _driver.get().device_info(index)


def prepare(plan: Plan, *, stats: bool = False) -> None:
    """Compile and load a plan's kernel, so that its first call does not; see `Plan.prepare`."""
    stream = arrays.current_stream(arrays.ambient_library(), None, plan.problem.device.index)
    launch.launcher_of(plan, stats=stats, stream=stream)


def make_workspace(plan: Plan, buffer: Any = None) -> Workspace:
    """Allocate or wrap a plan's workspace; see `Plan.workspace`."""
    library = arrays.ambient_library()
    return _workspace.make(plan, buffer, arrays.current_stream(library, None, plan.problem.device.index), library)
