"""Small selections with known traps, verified: whether a backend of this installation gives exact answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve import dispatch
from ksieve.checking.verify import verify
from ksieve.core.errors import KsieveError


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Small selections of one backend, each verified; `problem` states why it could not run or which answer failed."""

    backend: str
    ran: bool
    exact: bool
    rows: int
    seconds: float
    problem: str | None = None


def cases() -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32], int]]:
    """Small selections that together cover short rows, sampled rows, ties, NaN and lengths out of range."""
    rng = np.random.default_rng(20)
    short = rng.standard_normal((6, 3000), dtype=np.float32)
    short[1] = 0
    short[2, ::7] = np.nan
    short[3, ::5] = -np.inf
    yield short, np.array([3000, 3000, 3000, 700, -4, 9999], np.int32), 64
    long = rng.standard_normal((4, 60_000), dtype=np.float32)
    long[2] = np.maximum(long[2], 0)
    yield long, np.array([60_000, 59_999, 60_000, 100], np.int32), 512


def run(backend: dispatch.Backend) -> SelfTest:
    """Run `cases` on a backend and verify every answer."""
    rows, start, ran, problem = 0, time.perf_counter(), True, None
    try:
        for scores, lengths, k in cases():
            if backend == "cuda":
                indices = _select_on_gpu(scores, lengths, k)
            else:
                indices = dispatch.select(scores, lengths, k, backend=backend).indices
            verdict = verify(scores, lengths, indices, k=k)
            rows += len(scores)
            if not verdict.ok:
                problem = one_line(str(verdict))
                break
    except KsieveError as error:
        ran, problem = False, one_line(str(error))
    except Exception as error:  # any exception of a broken installation is a finding, not a crash
        ran, problem = False, f"{type(error).__name__}: {one_line(str(error))}"
    return SelfTest(backend, ran, problem is None, rows, time.perf_counter() - start, problem)


def _select_on_gpu(scores: NDArray[Any], lengths: NDArray[np.int32], k: int) -> NDArray[np.int32]:
    """Select on device 0 through the driver alone: no array library has to be installed."""
    from ksieve.backends.cuda.runtime import driver as cuda_driver

    driver = cuda_driver.get()
    driver.device_info(0)
    context = driver.context(0)
    with driver.activated(context):
        arrays = [_OnDevice(driver, a) for a in (scores, lengths, np.full((len(scores), k), -7, np.int32))]
        try:
            dispatch.select(arrays[0], arrays[1], k, out=arrays[2], backend="cuda")
            driver.synchronize(0)
            size = 4 * len(scores) * k
            return np.frombuffer(driver.read(arrays[2].pointer, size), np.int32).reshape(len(scores), k)
        finally:
            for array in arrays:
                driver.free(array.pointer, context)


class _OnDevice:
    """Copy of a NumPy array on the current device, with the CUDA array interface."""

    def __init__(self, driver: Any, array: NDArray[Any]) -> None:
        self.pointer = driver.allocate(array.nbytes)
        driver.write(self.pointer, array.data)
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (self.pointer, False), "version": 3,
            "strides": None, "stream": None,
        }  # fmt: skip


def one_line(text: str) -> str:
    """Put a message on one line."""
    return " ".join(text.split())
