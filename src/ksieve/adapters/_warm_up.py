"""Kernels of an engine's calls, compiled and loaded before they are needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from ksieve.adapters import _forms
from ksieve.backends import cuda
from ksieve.backends.code_cache import Store
from ksieve.backends.cuda.jit import build, bundle, cache
from ksieve.backends.cuda.jit.spec import KernelSpec, compiled_options
from ksieve.core import problem
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.planning.plan import Plan


def needed(
    engine: str,
    device: DeviceInfo,
    *,
    ks: Sequence[int],
    max_rows: int = build.MAX_ROWS,
    max_width: int = build.MAX_WIDTH,
    dtypes: Sequence[str] = ("float32",),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[KernelSpec, Plan]:
    """Return the specialisations of an engine's calls up to a size, each with a plan that needs it.

    Raises `ArgumentError` if a number is out of range.
    """
    for name, number in (("max_rows", max_rows), ("max_width", max_width)):
        if number < 1:
            raise ArgumentError(name, number, "an int of at least 1")
    ks = [problem.check_k(k) for k in ks]
    found: dict[KernelSpec, Plan] = {}
    options = {tuple(compiled_options(asked).items()): asked for asked in _forms.options_of(engine)}
    cases = list(itertools.product(ks, dtypes, options.values()))
    for done, (k, dtype, asked) in enumerate(cases):
        progress(done, len(cases))
        more = build.covering(device, k, max_rows=max_rows, max_width=max_width, dtype=dtype, options=asked)
        found = more | found
    progress(len(cases), len(cases))
    return found


def warm_up(engine: str, k: int | Sequence[int], max_rows: int, max_width: int, dtypes: Sequence[str]) -> int:
    """Compile and load the kernels of an engine's calls on PyTorch's current device; return their number.

    Raises `ArgumentError` if a number is out of range. Raises `BackendError` if there is no usable GPU, or a kernel
    cannot be compiled or loaded.
    """
    index = torch.cuda.current_device() if torch.cuda.is_available() else 0
    ks = (k,) if isinstance(k, int) else tuple(k)
    device = cuda.device_info(index)
    wanted = needed(engine, device, ks=ks, max_rows=max_rows, max_width=max_width, dtypes=dtypes)
    if Store("cuda").writable():  # otherwise the kernels of other processes would be lost
        for _, made in cache.compile_all(bundle.missing(wanted)):
            if isinstance(made, BackendError):
                raise made
    for plan in wanted.values():
        cuda.prepare(plan)
    return len(wanted)
