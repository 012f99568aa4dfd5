"""Kernel launches: one prepared launch per plan; a call only sets pointers, row count and stream."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

from ksieve.backends.cuda.jit import bundle
from ksieve.backends.cuda.jit.compile import Sources
from ksieve.backends.cuda.jit.spec import (
    STEMS,
    KernelSpec,
    cooperative,
    extended,
    kernel_spec,
    overlaps,
    with_slots,
)
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime.driver import Driver
from ksieve.core import table
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.planning import choose_cuda, length_bins
from ksieve.planning.plan import Plan

PARAMS = struct.Struct("=3Qq4iQq2Qq2i")
"""`Params` of common/params.cuh: scores, lengths, num_rows (addresses), pitch (elements); rows, width, k, splits;
indices (address), out_pitch (elements); stats, workspace (addresses), lists (bytes); primary_rank, rescue_rank."""

OPTIONS = struct.Struct("=7Q3q6i")
"""`Options` of kernels/common/options.cuh, behind `Params` where a plan has any: starts, row_k, page_table, request_of,
offsets, values, raw (addresses); page_pitch, values_pitch, raw_pitch (elements); next_n, requests, max_pages,
page_shift, flags, and a reserved zero."""

SLOTS = struct.Struct("=3Qq2i")
"""What follows in `Options` where slots hold more than one index each, or positions in place of indices: counts, tails,
positions (addresses); positions_pitch (elements); expand, block."""

ARRAYS = ("scores", "lengths", "out", "starts", "k", "row_to_request", "offsets", "values", "raw", "counts", "tail",
          "positions")  # fmt: skip
"""`Array` of kernels/common/leading.cuh, by the names of arguments."""

LEADING = struct.Struct("=" + "2q2i" * len(ARRAYS))
"""`Leading` of each, last of all where a kernel takes leading strides: outer, inner (elements); size of the inner
dimension, and a reserved zero."""

WORDS = {"scores": 0, "num_rows": 2, "out": 6, "workspace": 9, "k": 13} | {
    option.name: option.word for option in table.TABLE if option.word
}
"""Where the address of an array lies in all of them together, in words of 8 bytes."""

# One block of memory holds everything that cuLaunchKernelEx reads: Params; CUlaunchConfig (grid and block
# dimensions, dynamic shared bytes, stream, attribute list and count); the argument list, which is the address of
# Params; and up to two CUlaunchAttributes (id, padding, 64-byte value).
_CONFIG = struct.Struct("=7I4xQQI4x")
_ATTRIBUTE = struct.Struct("=I4x3I52x")
_STREAM_IN_CONFIG = 32
_COOPERATIVE = 2
_CLUSTER_DIMENSION = 4
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_STREAM = struct.Struct("=Q")
_UNKNOWN_STREAM = -1

_REMEDIES = {
    720: "; its CTAs wait for each other, and this process may use fewer multiprocessors than "
    "the device has (MPS, a green context): pass a plan with family='resident_cluster' or 'stream_split'",
}
"""Remedies of driver errors, by code: 720 is CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE."""

_FIRST = ("length_bins", "register_warp")
"""Families of the first of several launches, whose predecessor is the caller's."""

_functions: dict[tuple[int, KernelSpec], int] = {}
_loading = threading.Lock()
_stalls = [0, 0.0]

WARM_UP = (
    "warm up first: call once with the same plan outside the capture, or plan.prepare() (`ksieve build` alone fills "
    "the disk cache, but a kernel also has to be loaded)"
)


def function_of(spec: KernelSpec, index: int, driver: Driver, stream: int, sources: Sources | None = None) -> int:
    """Load a kernel on a device, compiling it when no bundle or cache has it; the device's context is current.

    ``sources`` are the package's when omitted.

    Raises `BackendError` if `stream` is being captured and the kernel is not loaded yet, or compilation fails.
    """
    function = _functions.get((index, spec))
    if function is not None:
        return function
    if driver.is_capturing(stream):
        raise BackendError(f"a kernel has to be compiled or loaded while a stream is being captured: {WARM_UP}")
    with _loading:
        if (index, spec) not in _functions:
            start = time.perf_counter()
            cubin, compiled = bundle.obtain(spec, sources)
            _stalls[:] = _stalls[0] + compiled, _stalls[1] + time.perf_counter() - start
            clusters = spec.stem == STEMS["resident_cluster"]
            _functions[index, spec] = driver.load(cubin.code, spec.entry, spec.shared_bytes, clusters=clusters)
    return _functions[index, spec]


def stalls() -> tuple[int, float]:
    """Return the number of kernels that calls of this process have compiled, and the seconds waited for kernels."""
    compiled, seconds = _stalls
    return int(compiled), seconds


class Kernel:
    """A loaded kernel, and the memory that describes its launches; safe to call from any thread.

    `index`: ordinal of the device. `params_bytes`: size of the kernel's only argument, a struct, which lies first in
    the memory; the number of CTAs follows it. `stream`: not being captured, if the kernel is not loaded yet.
    `attributes`: of the launch: kind, and three numbers.
    """

    def __init__(
        self,
        spec: KernelSpec,
        index: int,
        params_bytes: int,
        driver: Driver,
        stream: int,
        attributes: Sequence[tuple[int, int, int, int]] = (),
    ) -> None:
        self.driver = driver
        self.name = spec.stem
        self.context = driver.context(index)
        with driver.activated(self.context):
            function = function_of(spec, index, driver, stream)
        self._function = ctypes.c_void_p(function)
        self._layout = (params_bytes, spec.threads, spec.shared_bytes, tuple(attributes))
        self._enqueue = driver.launch
        self._get_current = driver.get_current
        self._lay_out()

    def _lay_out(self) -> None:
        """Make memory of its own, and what lies there: a copy of a kernel has to."""
        params_bytes, threads, shared_bytes, attributes = self._layout
        self._lock = threading.Lock()
        arguments_at = params_bytes + _CONFIG.size
        attributes_at = arguments_at + 8
        self._memory = (ctypes.c_uint64 * ((attributes_at + len(attributes) * _ATTRIBUTE.size) // 8))()
        base = ctypes.addressof(self._memory)
        _CONFIG.pack_into(
            self._memory, params_bytes, 1, 1, 1, threads, 1, 1, shared_bytes, 0, base + attributes_at, len(attributes)
        )
        _STREAM.pack_into(self._memory, arguments_at, base)
        for number, attribute in enumerate(attributes):
            _ATTRIBUTE.pack_into(self._memory, attributes_at + number * _ATTRIBUTE.size, *attribute)
        self._stream = 0
        self._stream_at = params_bytes + _STREAM_IN_CONFIG
        self._config = ctypes.c_void_p(base + params_bytes)
        self._arguments = ctypes.c_void_p(base + arguments_at)
        self._current = ctypes.c_void_p()
        self._current_ref = ctypes.byref(self._current)

    def run(self, layout: struct.Struct, params: tuple[float, ...], ctas: int, stream: int) -> None:
        """Enqueue the kernel with its argument's fields.

        Raises `BackendError` if the driver refuses the launch, or reports an error of earlier work.
        """
        with self._lock:
            layout.pack_into(self._memory, 0, *params)
            struct.pack_into("=I", self._memory, layout.size, ctas)
            code = self._send(stream)
        if code:
            raise self._error(code)

    def _send(self, stream: int) -> int:
        """Launch with what the memory holds, under the lock; return the driver's code."""
        if stream != self._stream:
            self._stream = _UNKNOWN_STREAM  # an interrupt may come before the new stream is stored
            _STREAM.pack_into(self._memory, self._stream_at, stream)
            self._stream = stream
        # A default stream belongs to the current context, which may be another device's, or none in a new thread.
        if self._get_current(self._current_ref) == 0 and self._current.value == self.context:
            return int(self._enqueue(self._config, self._function, self._arguments, None))
        with self.driver.activated(self.context):
            return int(self._enqueue(self._config, self._function, self._arguments, None))

    def _error(self, code: int) -> BackendError:
        return BackendError(
            f"CUDA error at the launch of {self.name}, possibly of earlier work on this device: "
            f"{self.driver.error_text(code)}{_REMEDIES.get(code, '')}"
        )


class Arguments(NamedTuple):
    """Arguments of a launch of a plan's kernels: addresses, 0 where an argument is absent, and sizes.

    `options`: fields of `OPTIONS`, if the plan's kernel takes them (`extended`), then fields of `SLOTS` (`with_slots`).
    Fields of `LEADING` come last, if it takes leading strides. `k`: the plan's when omitted, or 0.
    """

    scores: int
    lengths: int
    num_rows: int
    indices: int
    stats: int
    workspace: int
    pitch: int
    out_pitch: int
    rows: int
    width: int
    options: tuple[float, ...] = ()
    k: int | None = None


class Launcher(Kernel):
    """A plan ready to run on its device, with or without statistics; safe to call from any thread.

    `spec`: of the kernel, if it is not the plan's own. `more`: the fields that `Arguments.options` then has last.
    """

    def __init__(
        self,
        plan: Plan,
        stats: bool,
        stream: int,
        driver: Driver | None = None,
        leading: bool = False,
        spec: KernelSpec | None = None,
        more: struct.Struct | None = None,
    ) -> None:
        self.plan = plan = length_bins.stats_plan(plan) if stats else plan
        driver = driver or cuda_driver.get()
        made, present = plan.device, driver.device_info(plan.problem.device.index)
        # Of another GPU model, code and shared memory may not fit this device.
        if (made.capability, made.shared_per_block) != (present.capability, present.shared_per_block):
            raise ArgumentError("plan", f"one made for {made.name}", f"one for cuda:{present.index}, {present.name}")
        self._k = plan.problem.selection.k
        self._ranks = choose_cuda.sample_ranks(plan)
        self._splits = plan.splits
        self._lists = plan.lists_at
        self._most = max(plan.ctas, 1)
        self._before = tuple(
            Launcher(other, stats, stream, driver, leading) for other in length_bins.launches(plan)[:-1]
        )
        attributes = [(_CLUSTER_DIMENSION, plan.splits, 1, 1)] if plan.family == "resident_cluster" else []
        if cooperative(plan):
            attributes.append((_COOPERATIVE, 1, 0, 0))
        if overlaps(plan) and (plan.family not in _FIRST or plan.problem.options.overlap):
            attributes.append((_PROGRAMMATIC_STREAM_SERIALIZATION, 1, 0, 0))
        self.extended, self.with_slots = extended(plan), with_slots(plan)
        self.leading = leading
        further = ((OPTIONS, self.extended), (SLOTS, self.with_slots), (LEADING, leading))
        layouts = [layout for layout, taken in further if taken] + ([more] if more else [])
        fields = PARAMS.format + "".join(layout.format[1:] for layout in layouts)
        self._patch = struct.Struct(fields + "I")
        size = self._patch.size - 4
        spec = spec or kernel_spec(plan, stats=stats, leading=leading)
        super().__init__(spec, plan.problem.device.index, size, driver, stream, attributes)
        self.name = plan.family

    def launch(self, asked: Arguments, stream: int) -> None:
        """Enqueue the plan's kernels on a stream of its device.

        Raises `BackendError` if the driver refuses the launch, or reports an error of earlier work.
        """
        for other in self._before:
            other.launch(asked, stream)
        # The driver copies Params before it returns, so that every call can reuse one block of memory.
        with self._lock:
            self._pack(asked)
            code = self._send(stream)
        if code:
            raise self._error(code)

    def _pack(self, asked: Arguments) -> None:
        """Store the arguments of a launch in the memory, under the lock."""
        scores, lengths, num_rows, indices, stats, workspace, pitch, out_pitch, rows, width, options, k = asked
        primary, rescue = self._ranks
        slots, ctas = self._k if k is None else k, min(rows * self._splits, self._most)
        self._patch.pack_into(
            self._memory, 0, scores, lengths, num_rows, pitch, rows, width, slots, self._splits,
            indices, out_pitch, stats, workspace, self._lists, primary, rescue, *options, ctas,
        )  # fmt: skip

    def _packed(self, asked: Arguments) -> Iterator[Launcher]:
        """Yield copies of the launchers of a call, whose memory holds its arguments."""
        for other in self._before:
            yield from other._packed(asked)
        own = copy(self)
        own._lay_out()
        own._pack(asked)
        yield own

    def repeated(self, asked: Arguments, names: Sequence[str]) -> Callable[[list[int], int], None]:
        """Prepare a launch that changes only in addresses and stream; safe to call from any thread.

        `names`: keys of `WORDS`: the addresses that a call passes. The result is called with the addresses and the
        stream, and raises what `launch` raises.
        """
        kernels, places = tuple(self._packed(asked)), [WORDS[name] for name in names]
        held: list[list[int]] = [[]]
        lock = threading.Lock()

        def launch(addresses: list[int], stream: int) -> None:
            with lock:
                if addresses != held[0]:
                    held[0] = []  # an interrupt may come before all are stored
                    for kernel in kernels:
                        memory = kernel._memory
                        for place, address in zip(places, addresses):  # noqa: B905 - a keyword costs as much
                            memory[place] = address
                    held[0] = addresses
                for kernel in kernels:
                    if code := kernel._send(stream):
                        raise kernel._error(code)

        return launch


_kernels: dict[tuple[KernelSpec, int, int], Kernel] = {}


def kernel_of(spec: KernelSpec, index: int, params_bytes: int, stream: int, cluster: int = 1) -> Kernel:
    """Return a kernel without a plan, loaded on first use; `cluster`: CTAs of each cluster, at most 8."""
    kernel = _kernels.get((spec, index, cluster))
    if kernel is None:
        attributes = [(_CLUSTER_DIMENSION, cluster, 1, 1)] if cluster > 1 else []
        kernel = Kernel(spec, index, params_bytes, cuda_driver.get(), stream, attributes)
        _kernels[spec, index, cluster] = kernel
    return kernel


_launchers: dict[tuple[Plan, bool, bool], Launcher] = {}


def launcher_of(plan: Plan, *, stats: bool, stream: int, leading: bool = False) -> Launcher:
    """Return the launcher of a plan, made on first use; equal plans share one."""
    launcher = _launchers.get((plan, stats, leading))
    if launcher is None:
        if len(_launchers) >= 4096:
            _launchers.clear()
        launcher = _launchers[plan, stats, leading] = Launcher(plan, stats, stream, leading=leading)
    return launcher
