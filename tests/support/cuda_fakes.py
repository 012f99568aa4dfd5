"""A CUDA driver made of host memory: launches run the NumPy model on the addresses that they are given."""

from __future__ import annotations

import ctypes
import struct
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ksieve import dispatch
from ksieve.backends import cuda
from ksieve.backends.cuda import call
from ksieve.backends.cuda.jit import cache
from ksieve.backends.cuda.jit.compile import Cubin
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime import launch, workspace
from ksieve.core.device import DEVICES
from ksieve.core.options import PLAIN
from ksieve.core.policy import PAPER_64
from ksieve.core.problem import Device, Problem
from ksieve.core.windows import windows
from ksieve.model import reference
from ksieve.model.epilogue import Finish
from ksieve.planning import memory
from ksieve.planning.families import QUEUED, SAMPLED
from ksieve.planning.plan import Plan

WORKSPACE, ZEROED = 4096, 512
_ALIVE = []


WIDE_STARTS = 64


def aligned_bytes(size, offset=0):
    """Host bytes that start `offset` past a multiple of 256, filled with dirt; never freed."""
    memory = np.full(size + 512, 0xAB, np.uint8)
    _ALIVE.append(memory)
    start = -memory.ctypes.data % 256 + offset
    return memory[start : start + size]


class FakeArray:
    """A NumPy array that claims to be on a CUDA device, through the CUDA array interface."""

    def __init__(self, array, index=0, stream=None):
        self.array = np.asarray(array)
        self.index = index
        self.shape = self.array.shape
        self.__cuda_array_interface__ = dict(
            self.array.__array_interface__, version=3, strides=self.array.strides, stream=stream
        )

    def __dlpack__(self, **_):
        raise AssertionError("not needed")

    def __dlpack_device__(self):
        return 2, self.index


def view(pointer, count, dtype):
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(pointer), dtype)


def matrix(pointer, rows, width, pitch, dtype):
    flat = view(pointer, (rows - 1) * pitch + width, dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, width), (pitch * flat.itemsize, flat.itemsize))


class FakeDriver:
    """The interface of `ksieve.backends.cuda.runtime.driver.Driver`; device 0 and 1 are H200s."""

    def __init__(self):
        self.current = 1000
        self.capturing = set()
        self.launches = []
        self.loads = []
        self.fills = []
        self.waits = []
        self.freed = []
        self.fail_next = 0
        self.stream = 0  # PyTorch's
        self.asked = PLAIN  # options that the next kernel is compiled for

    def device_info(self, index):
        return replace(DEVICES["h200"], index=index)

    def context(self, index):
        return 1000 + index

    @contextmanager
    def activated(self, context):
        before, self.current = self.current, context
        try:
            yield
        finally:
            self.current = before

    def load(self, code, entry, shared_bytes, *, clusters=False):
        self.loads.append((self.current, entry, shared_bytes))
        return len(self.loads)

    def is_capturing(self, stream):
        return stream in self.capturing

    def fill_zero(self, pointer, size, stream):
        assert self.current is not None
        self.fills.append((pointer, size, stream))
        if size:
            ctypes.memset(pointer, 0, size)

    def synchronize(self, stream):
        assert stream not in self.capturing, "a capturing stream cannot be waited for"
        self.waits.append(stream)

    def wait(self, handle):
        self.synchronize(handle.value or 0)
        return 0

    def check(self, code, doing):
        assert not code

    def allocate(self, size):
        return aligned_bytes(size).ctypes.data

    def free(self, pointer, context):
        self.freed.append((pointer, context))

    def write(self, pointer, data):
        ctypes.memmove(pointer, bytes(data), data.nbytes)

    def read(self, pointer, size):
        return bytearray(view(pointer, size, np.uint8).tobytes())

    def error_text(self, code):
        return f"CUDA_ERROR_FAKE ({code})"

    def get_current(self, reference_):
        reference_._obj.value = self.current
        return 0

    def launch(self, config, function, arguments, extra):
        """Read the launch as the driver would, and do what the kernel would."""
        assert extra is None
        if self.fail_next:
            code, self.fail_next = self.fail_next, 0
            return code
        grid, block, cluster, shared, stream, overlap, cooperative = read_config(config.value)
        (params,) = struct.unpack("=Q", ctypes.string_at(arguments.value, 8))
        names = (
            "scores lengths num_rows pitch rows width k splits indices out_pitch stats workspace lists primary rescue"
        )
        fields = launch.PARAMS.unpack(ctypes.string_at(params, launch.PARAMS.size))
        values = dict(zip(names.split(), fields, strict=True))
        extras = config.value - params - launch.PARAMS.size
        values["options"] = read_options(params + launch.PARAMS.size) if extras else None
        self.launches.append(
            {**values, "grid": grid, "block": block, "cluster": cluster, "shared": shared, "stream": stream,
             "function": function.value, "context": self.current, "overlap": overlap, "cooperative": cooperative}
        )  # fmt: skip
        run_model(values, self.asked)
        return 0


def read_config(address):
    gx, gy, gz, bx, by, bz, shared, stream, attributes, count = struct.unpack(
        "=7I4xQQI4x", ctypes.string_at(address, 56)
    )
    assert (gy, gz, by, bz) == (1, 1, 1, 1)
    found = {}
    for number in range(count):
        kind, *value = struct.unpack("=I4x3I", ctypes.string_at(attributes + 72 * number, 20))
        found[kind] = value
    assert len(found) == count and set(found) <= {2, 4, 6}
    assert all(found.get(flag, [1, 0, 0]) == [1, 0, 0] for flag in (2, 6))
    return gx, bx, found.get(4), shared, stream, 6 in found, 2 in found


def read_options(address):
    """The fields of `launch.OPTIONS`, by name."""
    names = "starts row_k page_table request_of offsets values raw page_pitch values_pitch raw_pitch next_n requests "
    names += "max_pages page_shift flags reserved"
    fields = launch.OPTIONS.unpack(ctypes.string_at(address, launch.OPTIONS.size))
    return dict(zip(names.split(), fields, strict=True))


def run_model(p, asked=PLAIN):
    rows, width, k = p["rows"], p["width"], p["k"]
    if p["workspace"]:
        counters = view(p["workspace"], ZEROED, np.uint8)
        assert not counters.any(), "the workspace's counters were not zero at the start"
        view(p["workspace"] + ZEROED, WORKSPACE - ZEROED, np.uint8)[:] = 0xCD
    live = min(max(int(view(p["num_rows"], 1, np.int32)[0]), 0), rows) if p["num_rows"] else rows
    if p["options"] is not None:
        run_options(p, asked, live)
        return
    lengths = view(p["lengths"], rows, np.int32) if p["lengths"] else np.full(rows, width, np.int32)
    out = matrix(p["indices"], rows, k, p["out_pitch"], np.int32)
    out[live:] = -1
    if live:
        scores = matrix(p["scores"], rows, width, p["pitch"], np.float32) if width else np.zeros((rows, 0), np.float32)
        indices, stats = reference.select(scores[:live], lengths[:live], k, policy=None)
        out[:live] = indices
        if p["stats"]:
            view(p["stats"], live * 16, np.int32)[:] = stats.raw.ravel()


def run_options(p, asked, live):
    """What a kernel compiled for options does: the model, and the finishing of the CPU backend."""
    rows, width, k, o = p["rows"], p["width"], p["k"], p["options"]
    dtype = np.dtype(asked.index_dtype)
    flags = [asked.windows == "ends", asked.index_base == "row", dtype.itemsize == 8, asked.tie_break == "high"]
    flags.append(asked.transform == "pages")
    assert o["flags"] & ~WIDE_STARTS == sum(1 << bit for bit, flag in enumerate(flags) if flag) and o["reserved"] == 0
    scores = matrix(p["scores"], rows, width, p["pitch"], np.float32)

    def vector(name, count=rows):
        return view(o[name], count, np.int32) if o[name] else None

    lengths = view(p["lengths"], rows // o["next_n"], asked.length_dtype) if p["lengths"] else None
    starts = view(o["starts"], rows, np.int64 if o["flags"] & WIDE_STARTS else np.int32) if o["starts"] else None
    begin, _ = windows(asked, rows, width, lengths=lengths, starts=starts)
    finish = Finish(
        asked,
        scores,
        begin,
        matrix(p["indices"], rows, k, p["out_pitch"], dtype),
        matrix(o["raw"], rows, k, o["raw_pitch"], dtype) if o["raw"] else None,
        matrix(o["values"], rows, k, o["values_pitch"], np.float32) if o["values"] else None,
        matrix(o["page_table"], o["requests"], o["max_pages"], o["page_pitch"], np.int32) if flags[4] else None,
        vector("request_of"),
        vector("offsets"),
    )
    local, stats = reference.select(scores, lengths, k, policy=None, options=asked, starts=starts, ks=vector("row_k"))
    finish.write(0, live, local[:live])
    finish.clear(live, rows)
    if p["stats"]:
        view(p["stats"], live * 16, np.int32)[:] = stats.raw[:live].ravel()


def make_plan(rows=8, width=64, k=4, family="stream", index=0, **changes):
    """A plan as the planner could make it, small enough for the model."""
    per_row = {"resident_cluster": 8, "resident_grid": 16, "stream_split": 4}.get(family, 1)
    plan = Plan(
        Problem(rows, width, width, k, "float32", Device("cuda", index)),
        replace(DEVICES["h200"], index=max(index, 0)),
        family,
        PAPER_64 if family in SAMPLED else None,
        capacity=1536,
        splits=per_row,
        ctas=5 if family in QUEUED else rows * per_row,
        threads=512,
        ctas_per_sm=2,
        shared_capacity=1024,
        workspace_bytes=WORKSPACE,
        workspace_zeroed=ZEROED,
        lists_at=ZEROED,
    )
    return replace(plan, **changes)


def plan_of(rows, width, k, options, family="stream_unsampled"):
    """A plan with options."""
    plan = make_plan(rows, width, k, family)
    return replace(plan, problem=replace(plan.problem, options=options))


def forget():
    """Drop all launchers, loaded functions and workspaces, as in a new process."""
    for held in (launch._launchers, launch._kernels, launch._functions, *call.implicit_workspaces._held.values()):
        held.clear()


def fake_backend(monkeypatch, shared=200_000):
    """Body of a fixture: the CUDA backend on a `FakeDriver`, which is yielded, with kernels that nothing compiles.

    `shared`: bytes of shared memory of every launch.
    """
    fake = FakeDriver()
    forget()
    monkeypatch.setattr(cuda_driver, "_instance", fake)
    monkeypatch.setattr(dispatch, "_fast_paths", {})
    monkeypatch.setattr(cache, "obtain", lambda spec, *_: (Cubin(b"code", ""), True))
    monkeypatch.setattr(memory, "shared_bytes", lambda plan: shared)
    cuda.device_info.cache_clear()
    yield fake
    forget()
    cuda.device_info.cache_clear()
    dispatch._choose.cache_clear()


def torch_backend(monkeypatch):
    """`fake_backend` for PyTorch tensors of the CPU."""
    fakes = fake_backend(monkeypatch)
    driver = next(fakes)
    take_tensors(monkeypatch, driver)
    yield driver
    next(fakes, None)


def take_tensors(monkeypatch, driver):
    """Let tensors of the CPU count as those of device -1 of a fake driver: that is their number to PyTorch."""
    import torch

    from ksieve.backends.cuda import arrays as cuda_arrays
    from ksieve.core import arrays

    described, allocate, empty = arrays._from_torch, workspace.allocate, torch.empty

    def new(library, shape, dtype, index, name="out"):
        return empty(shape, dtype=getattr(torch, dtype))

    monkeypatch.setattr(arrays, "_from_torch", lambda t, n: described(t, n)._replace(device=Device("cuda", -1)))
    monkeypatch.setattr(arrays, "is_writable", lambda *_: True)
    monkeypatch.setattr(cuda_arrays, "new", new)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: driver.stream, raising=False)
    monkeypatch.setattr(workspace, "allocate", lambda plan, driver, _: allocate(plan, driver, "none"))
