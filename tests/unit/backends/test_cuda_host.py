"""The CUDA host side without a GPU: what is packed, refused, kept and zeroed, over a driver made of host memory."""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from conftest import cuda_devices

import ksieve
from cuda_fakes import WORKSPACE, ZEROED, FakeArray, aligned_bytes, fake_backend, forget, make_plan
from flat_calls import ask
from ksieve.backends import cuda
from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit import spec
from ksieve.backends.cuda.jit.compile import Sources
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.backends.cuda.runtime import launch
from ksieve.backends.cuda.runtime import workspace as workspaces
from ksieve.core import call as calls
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError, BackendError, WorkspaceError
from ksieve.core.installation import install_command
from ksieve.model import reference
from ksieve.planning.families import SAMPLED
from ksieve_lab.oracle import assert_exact

FAMILIES = [
    "stream", "stream_unsampled", "stream_split", "resident_block", "resident_cluster", "resident_grid",
]  # fmt: skip
SCORES = np.random.default_rng(5).permuted(np.arange(8 * 64, dtype=np.float32)).reshape(8, 64)
LENGTHS = np.array([64, 0, 3, 4, 5, 63, -7, 1000], np.int32)


@pytest.fixture
def driver(monkeypatch):
    yield from fake_backend(monkeypatch, shared=20_000)


@pytest.fixture
def select(driver):
    """Select from `SCORES` by a plan; return the indices and the launch."""

    def call(plan=None, lengths=None, *, stream=None, index=0, rows=8, **more):
        plan = plan or make_plan(index=index)
        out = np.full((rows, plan.problem.k), -99, np.int32)
        lengths = None if lengths is None else FakeArray(lengths[:rows], index)
        ask(FakeArray(SCORES[:rows], index, stream), lengths, plan=plan, out=FakeArray(out, index), **more)
        return out, driver.launches[-1]

    return call


# ---- launches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_launch_geometry_and_params_of_every_family(driver, select, family):
    plan = make_plan(family=family)
    out, seen = select(plan, LENGTHS)
    grid = {"stream_split": 32, "resident_block": 8, "resident_cluster": 64, "resident_grid": 128}
    assert seen["grid"] == grid.get(family, 5)
    assert seen["cooperative"] == (family == "resident_grid")
    assert seen["block"] == 512 and seen["shared"] == 20_000
    assert seen["cluster"] == ([8, 1, 1] if family == "resident_cluster" else None)
    assert (seen["rows"], seen["width"], seen["k"], seen["splits"]) == (8, 64, 4, plan.splits)
    assert (seen["primary"], seen["rescue"]) == ((16, 0) if family in SAMPLED else (0, 0))
    assert (seen["pitch"], seen["out_pitch"], seen["stream"], seen["stats"]) == (64, 4, 0, 0)
    assert driver.loads[0][1] == f"ksieve_{spec.STEMS[family].replace('/', '_')}" and len(driver.launches) == 1
    assert_exact(SCORES, LENGTHS, 4, out)


def test_rescue_rank_is_passed_and_compiled_in(select):
    plan = make_plan(policy=ksieve.SamplingPolicy("r", 4, rescue_margin=8.0, min_rank=1))
    _, seen = select(plan)
    assert (seen["primary"], seen["rescue"]) == (2, 8)
    assert dict(spec.kernel_spec(plan).defines)["KSIEVE_RESCUE"] == 1


def test_64_bit_pitch_and_addresses_survive_packing(driver):
    plan = make_plan()
    launcher = launch.launcher_of(plan, stats=False, stream=0)
    seen = []

    def record(config, function, arguments, extra):
        (params,) = struct.unpack("=Q", ctypes.string_at(arguments.value, 8))
        seen.append(launch.PARAMS.unpack(ctypes.string_at(params, 96)))
        return 0

    launcher._enqueue = record
    high = (1 << 47) - 256
    launcher.launch(launch.Arguments(high, 0, 0, high + 8, 0, high + 16, 3 << 31, 5 << 31, 8, (1 << 31) - 1), 7)
    assert seen[0][:8] == (high, 0, 0, 3 << 31, 8, (1 << 31) - 1, plan.problem.k, 1)
    assert seen[0][8:13] == (high + 8, 5 << 31, 0, high + 16, plan.lists_at)


@pytest.mark.parametrize(
    ("code", "family", "message"),
    [
        (700, "stream", r"launch of stream.*CUDA_ERROR_FAKE \(700\)"),
        (720, "resident_grid", r"launch of resident_grid.*pass a plan with family='resident_cluster'"),
    ],
    ids=["any error", "too few multiprocessors for CTAs that wait for each other"],
)
def test_a_launch_error_names_the_family_and_the_code(driver, select, code, family, message):
    driver.fail_next = code
    with pytest.raises(BackendError, match=message):
        select(make_plan(family=family))


def test_another_current_device_is_restored(driver, select):
    driver.current = 1000
    _, seen = select(index=1)
    assert seen["context"] == 1001 and driver.current == 1000
    assert driver.loads[0][0] == 1001


def test_a_thread_without_a_context_launches_in_the_devices(driver):
    driver.current = None
    launcher = launch.launcher_of(make_plan(), stats=False, stream=0)
    out = np.zeros((8, 4), np.int32)
    launcher.launch(launch.Arguments(SCORES.ctypes.data, 0, 0, out.ctypes.data, 0, 0, 64, 4, 8, 64), 0)
    assert driver.launches[0]["context"] == 1000 and driver.current is None


def test_the_stream_of_the_interface_is_followed(select):
    for stream, seen in ((None, 0), (1, 1), (77, 77), (None, 0)):
        assert select(stream=stream)[1]["stream"] == seen


def test_a_plan_for_another_gpu_is_refused(select):
    with pytest.raises(ArgumentError, match="plan: got one made for NVIDIA A100; takes one for cuda:0, NVIDIA H200"):
        select(replace(make_plan(), device=DEVICES["a100"]))


def test_equal_plans_share_a_launcher_and_specialisations_a_kernel(driver, select):
    for plan in (make_plan(), make_plan(), make_plan(rows=9, k=5)):
        select(plan)
    assert len(driver.loads) == 1
    select(make_plan(resident_width=32))
    assert len(driver.loads) == 2


def test_threads_do_not_mix_their_arguments(driver):
    plan = make_plan().prepare()
    outs = [np.full((8, 4), -99, np.int32) for _ in range(16)]
    workspaces = [plan.workspace() for _ in outs]
    scores = [np.roll(SCORES, i, axis=1).copy() for i in range(len(outs))]

    def work(i):
        for _ in range(5):
            ksieve.topk(FakeArray(scores[i]), None, plan=plan, out=FakeArray(outs[i]), workspace=workspaces[i])

    with ThreadPoolExecutor(len(outs)) as pool:
        list(pool.map(work, range(len(outs))))
    for its, out in zip(scores, outs, strict=True):
        assert_exact(its, None, 4, out)


# ---- several launches --------------------------------------------------------------------------------------


def banded_plan():
    short = make_plan(family="resident_block", resident_width=16, ctas=3, bin=0, lists_at=512)
    return make_plan(bins=(short,), bin=1, lists_at=512)


def test_rows_dealt_by_length_take_several_launches(driver, select):
    _, rest = select(banded_plan(), LENGTHS, num_rows=FakeArray(np.array(6, np.int32)))
    entries = [driver.loads[made["function"] - 1][1] for made in driver.launches]
    assert entries == ["ksieve_length_bins", "ksieve_resident_cta", "ksieve_stream_cta"]
    assert [made["grid"] for made in driver.launches] == [2, 3, 5]
    same = ("scores", "lengths", "num_rows", "indices", "workspace", "pitch", "out_pitch", "lists", "rows", "width",
            "k")  # fmt: skip
    assert all(made[name] == rest[name] for made in driver.launches for name in same) and rest["lists"] == 512
    assert [made["overlap"] for made in driver.launches] == [False, True, True]
    assert dict(spec.kernel_spec(banded_plan()).defines)["KSIEVE_LENGTH_BIN"] == 1
    driver.launches.clear()
    select(banded_plan(), rows=1)  # fewer rows than lists still fill every list
    assert [made["grid"] for made in driver.launches] == [2, 1, 1]


def test_statistics_take_one_launch(driver, select):
    select(banded_plan(), stats=True)
    assert len(driver.launches) == 1 and not driver.launches[0]["overlap"]
    assert "KSIEVE_LENGTH_BIN" not in dict(spec.kernel_spec(banded_plan(), stats=True).defines)


# ---- statistics --------------------------------------------------------------------------------------------


def test_stats_come_from_their_own_specialisation(driver):
    out = FakeArray(np.full((8, 4), -99, np.int32))
    live = FakeArray(np.array(6, np.int32))
    result, stats = ask(FakeArray(SCORES), FakeArray(LENGTHS), plan=make_plan(), out=out, num_rows=live, stats=True)
    assert result is out and len(stats) == 6
    want = reference.select(SCORES[:6], LENGTHS[:6], 4, policy=None)[1]
    np.testing.assert_array_equal(stats.raw, want.raw)
    assert 0 in driver.waits
    assert dict(spec.kernel_spec(make_plan(), stats=True).defines)["KSIEVE_STATS"] == 1


# ---- workspaces --------------------------------------------------------------------------------------------


def test_implicit_workspaces_are_kept_per_stream_and_shared_by_layout(driver, select):
    def where(stream=None, **changes):
        return select(make_plan(**changes), stream=stream)[1]["workspace"]

    first = where()
    assert where() == first and where(rows=100) == first
    assert where(stream=5) != first
    assert where(family="resident_block") != first and where(capacity=2048) != first
    assert where(family="stream_unsampled") == first
    larger = where(workspace_bytes=2 * WORKSPACE)
    assert larger != first and where() == larger
    assert (first, 1000) in driver.freed
    assert where(workspace_zeroed=1024) != larger


def test_explicit_workspace_is_zeroed_once_and_waited_for(driver, select):
    plan = make_plan()
    workspace = plan.workspace()
    assert driver.fills == [(workspace.pointer, ZEROED, 0)] and driver.waits == [0]
    for _ in range(3):
        assert select(plan, workspace=workspace)[1]["workspace"] == workspace.pointer
    assert len(driver.fills) == 1
    assert "4096 bytes on cuda:0" in repr(workspace)


def test_raw_bytes_are_zeroed_with_every_call(driver, select):
    raw = FakeArray(aligned_bytes(WORKSPACE))
    pointer = raw.array.ctypes.data
    for stream in (0, 3):
        raw.array[:] = 0xEE
        select(stream=stream or None, workspace=raw)
    assert driver.fills == [(pointer, ZEROED, 0), (pointer, ZEROED, 3)]
    driver.capturing.add(3)
    select(stream=3, workspace=raw)
    assert driver.fills[2:] == [(pointer, ZEROED, 3)], "the zeroing has to be part of the graph"


def test_callers_bytes_can_be_wrapped(select):
    raw = FakeArray(aligned_bytes(WORKSPACE).view(np.float32))
    workspace = make_plan().workspace(raw)
    assert workspace.pointer == raw.array.ctypes.data and workspace.owner is raw
    select(workspace=workspace)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (lambda: FakeArray(aligned_bytes(WORKSPACE - 1)), "got 4095 bytes; takes at least 4096"),
        (lambda: FakeArray(aligned_bytes(WORKSPACE, offset=128)), "takes an address that is a multiple of 256"),
        (lambda: FakeArray(aligned_bytes(2 * WORKSPACE)[::2]), "takes contiguous memory"),
        (lambda: FakeArray(aligned_bytes(WORKSPACE), index=1), "memory on cuda:1; takes memory on cuda:0"),
        (lambda: aligned_bytes(WORKSPACE), "memory on cpu"),
    ],
)
def test_bytes_that_cannot_serve_are_refused(driver, select, buffer, message):
    for use in (lambda: make_plan().workspace(buffer()), lambda: select(workspace=buffer())):
        with pytest.raises(WorkspaceError, match=re.escape(message)):
            use()
    assert not driver.launches


def test_a_workspace_of_another_plan_or_device_or_of_no_array_is_refused(driver, select):
    workspace = make_plan().workspace()
    for given, other, message in (
        (workspace, {"plan": make_plan(k=5)}, "workspace: got one made for"),
        (workspace, {"index": 1}, "memory on cuda:0; takes cuda:1"),
        (5, {}, "workspace: got int;"),
    ):
        with pytest.raises(WorkspaceError if given is workspace else ArgumentError, match=message):
            select(workspace=given, **other)
    select(workspace=workspace)
    assert len(driver.launches) == 1


def test_a_plan_without_workspace_needs_none(driver, select):
    plan = make_plan(workspace_bytes=0, workspace_zeroed=0)
    assert plan.workspace().pointer == 0
    assert select(plan)[1]["workspace"] == 0 and not driver.freed


def test_a_cpu_plan_has_no_workspace_and_no_kernel():
    plan = ksieve.plan(rows=1, width=100, k=1)
    with pytest.raises(ArgumentError, match="takes a plan for a CUDA device"):
        plan.workspace()
    with pytest.raises(ArgumentError, match="plan: got family 'cpu'"):
        spec.kernel_spec(plan)
    assert plan.prepare() is plan


# ---- capture -----------------------------------------------------------------------------------------------


def test_compiling_inside_a_capture_says_to_warm_up(driver, select):
    driver.capturing.add(9)
    raw = FakeArray(aligned_bytes(WORKSPACE))
    with pytest.raises(BackendError, match=r"captured: warm up first.*plan\.prepare\(\)"):
        select(stream=9, workspace=raw)
    assert not driver.launches and not driver.loads
    make_plan().prepare()
    select(stream=9, workspace=raw)
    assert len(driver.launches) == 1


def test_a_capture_neither_allocates_a_workspace_nor_waits_for_statistics(driver, select):
    plan = make_plan().prepare()
    cuda.prepare(plan, stats=True)
    driver.capturing.add(9)
    with pytest.raises(BackendError, match=r"pass workspace=plan\.workspace\(\), made outside the capture"):
        select(plan, stream=9)
    with pytest.raises(BackendError, match="stats"):
        select(plan, stream=9, stats=True)
    workspace = plan.workspace()
    fills = len(driver.fills)
    select(plan, stream=9, workspace=workspace)
    assert len(driver.fills) == fills, "a bound workspace needs no zeroing in the graph"


# ---- compile and cache -------------------------------------------------------------------------------------

DUMMY = """
#include "dummy.cuh"
extern "C" __global__ void __launch_bounds__(KSIEVE_THREADS) ksieve_dummy(const __grid_constant__ Params params) {
  extern __shared__ int shared[];
  shared[threadIdx.x] = params.p[threadIdx.x];
  __syncthreads();
  params.p[threadIdx.x] = shared[threadIdx.x ^ 1] + KSIEVE_K;
}
"""
SPEC = spec.KernelSpec("dummy", "sm_80", (("KSIEVE_THREADS", 128), ("KSIEVE_K", 3), ("KSIEVE_SHARED_BYTES", 512)))


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "dummy.cu").write_text(DUMMY)
    (folder / "dummy.cuh").write_text("struct Params { int* p; };\n")
    return Sources.read(folder)


@pytest.fixture
def nvrtc():
    pytest.importorskip("cuda.core")
    try:
        return compiler.compiler_version()
    except BackendError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("version", "asked"), [("nvrtc 12.8", False), ("nvrtc 12.9", True), ("nvrtc 13.0", True)])
def test_every_compilation_is_reported(nvrtc, sources, monkeypatch, version, asked):
    program, options = compiler._cuda_core()
    asks = []

    def recorded(**given):
        asks.append(options(**given).as_bytes("nvrtc"))
        return options(**given)

    monkeypatch.setattr(compiler, "_cuda_core", lambda: (program, recorded))
    monkeypatch.setattr(compiler, "compiler_version", lambda: version)
    compiler.compile_kernel(SPEC, sources)
    assert (b"--no-cache" in asks[0]) == asked


def test_spills_and_static_shared_memory_are_seen():
    log = (
        "ptxas info    : Function properties for f\n"
        "    160 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 160 bytes cumulative stack size, 2048 bytes smem\n"
    )
    assert compiler.parse_resources(log) == compiler.Resources(40, 160, 24, 32, 2048)
    with pytest.raises(ValueError, match="not the ptxas report"):
        compiler.parse_resources("")


def test_a_compile_error_names_the_file_and_the_line_and_is_not_tried_again(nvrtc, sources, monkeypatch):
    (sources.directory / "dummy.cu").write_text(DUMMY.replace("KSIEVE_K;", "no_such_name;"))
    wrong, (program, options), tried = Sources.read(sources.directory), compiler._cuda_core(), []

    def counted(*args, **kwargs):
        tried.append(args)
        return program(*args, **kwargs)

    monkeypatch.setattr(compiler, "_cuda_core", lambda: (counted, options))
    told = set()
    message = r"could not compile dummy\.cu for sm_80.*\n.*dummy\.cu\(7\): error.*no_such"
    for _ in range(3):
        with pytest.raises(BackendError, match=message) as refused:
            compiler.compile_kernel(SPEC, wrong)
        told.add(str(refused.value))
    assert (len(tried), len(told)) == (1, 1)
    assert compiler.compile_kernel(SPEC, sources).code.startswith(b"\x7fELF")  # of other sources


@pytest.mark.parametrize("arch", ["sm_10", "h200", "sm_90x"])
def test_unknown_architectures_are_refused(nvrtc, sources, arch):
    with pytest.raises(BackendError, match=f"cannot compile for {arch}, only for sm_"):
        compiler.compile_kernel(replace(SPEC, arch=arch), sources)


def test_missing_sources_say_to_reinstall(tmp_path):
    with pytest.raises(BackendError, match=r"no CUDA sources in .*reinstall ksieve"):
        Sources.read(tmp_path)


# ---- what is missing ---------------------------------------------------------------------------------------


@pytest.mark.skipif(cuda_devices() > 0, reason="this machine has a CUDA device")
def test_without_a_driver_one_sentence_says_what_to_do():
    pytest.importorskip("cuda.bindings")
    for act in (lambda: ksieve.plan(rows=1, width=100, k=1, device="cuda"), lambda: cuda.device_info(0)):
        with pytest.raises(BackendError, match=r"no NVIDIA driver was found.*CPU array|sees no GPU") as caught:
            act()
        assert "\n" not in str(caught.value)


def test_without_the_bindings_one_sentence_gives_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    compiler.compiler_version.cache_clear()
    for act in (cuda_driver.Driver, compiler.compiler_version):
        with pytest.raises(BackendError, match=re.escape(install_command("cuda"))):
            act()


def test_without_nvrtc_one_sentence_gives_the_command(monkeypatch):
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")

    def missing():
        raise RuntimeError("libnvrtc.so.13 is not there")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    compiler.compiler_version.cache_clear()
    with pytest.raises(BackendError, match="NVRTC.*was not found: " + re.escape(install_command("cuda"))):
        compiler.compiler_version()
    monkeypatch.undo()
    compiler.compiler_version.cache_clear()


# ---- array libraries ---------------------------------------------------------------------------------------


def test_streams_of_libraries(driver, monkeypatch):
    class Module:
        pass

    cupy = Module()
    cupy.cuda = Module()
    cupy.cuda.get_current_stream = lambda index: type("Stream", (), {"ptr": 40 + index})
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert arrays.current_stream("cupy", None, 2) == 42
    waited = []
    array = type("Array", (), {"block_until_ready": lambda self: waited.append(self)})()
    assert arrays.current_stream("jax", array, 0) == 0 and waited == [array]
    assert arrays.current_stream("none", None, 1) == 0
    assert arrays.ambient_library() in ("torch", "cupy")


# ---- interrupts


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("later", [7, 9])
def test_an_interrupt_leaves_no_stream_that_nothing_knows_of(select, monkeypatch, packed, later):
    """The next call on the stream before went to the interrupted call's stream, or the other way round."""
    select(stream=7)
    real = launch._STREAM

    class Interrupted:
        size = real.size

        @staticmethod
        def pack_into(*args):
            if packed:
                real.pack_into(*args)
            raise KeyboardInterrupt

    monkeypatch.setattr(launch, "_STREAM", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        select(stream=9)
    monkeypatch.setattr(launch, "_STREAM", real)
    assert select(stream=later)[1]["stream"] == later


@pytest.mark.parametrize("stats", [False, True])
def test_an_interrupt_behind_the_launch_waits_where_nothing_else_does(driver, stats):
    """JAX frees and reuses memory without knowing of the stream, and this call frees that of the statistics."""

    class JaxArray(FakeArray):
        def block_until_ready(self):
            return self

    JaxArray.__module__ = "jax"
    enqueue = driver.launch

    def launch_then_interrupt(*args):
        enqueue(*args)
        raise KeyboardInterrupt

    kind, driver.launch = FakeArray if stats else JaxArray, launch_then_interrupt
    forget()
    plan = make_plan()
    workspace = workspaces.make(plan, None, 0, "none")
    driver.waits.clear()
    with pytest.raises(KeyboardInterrupt):
        asked = calls.parse(kind(SCORES), kind(LENGTHS), 4, out=kind(np.full((8, 4), -99, np.int32)))
        cuda.run(plan, asked, workspace=workspace, stats=stats)
    assert len(driver.launches) == 1 and driver.waits == [0]
