"""The calls into the driver, byte by byte: a stub library with the driver's signatures stands in for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from conftest import ROOT, cuda_devices

import ksieve
from ksieve.backends.cuda.jit import build, bundle
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Cubin
from ksieve.core.device import DEVICES
from ksieve.core.installation import install_command
from ksieve.planning import memory

pytest.importorskip("cuda.bindings")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the stub is a Linux library"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler builds the stub"),
    pytest.mark.skipif(cuda_devices() > 0, reason="this machine has a CUDA driver"),
]

STUB = replace(DEVICES["h200"], name="Stub")
"""The device of tests/support/cuda_driver_stub.c."""

PROLOGUE = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import ksieve
from cuda_fakes import FakeArray
from ksieve.backends.cuda.jit import cache
from ksieve.backends.cuda.jit.compile import Cubin
from ksieve.core.errors import BackendError
cache.obtain = lambda spec, *_: (Cubin(bytes([127]) + b"ELF", ""), True)

def select(family, width=20_000, index=0, **options):
    plan = ksieve.plan(rows=3, width=width, k=512, device=f"cuda:{{index}}", family=family)
    out = FakeArray(np.zeros((3, 512), np.int32), index)
    scores = FakeArray(np.zeros((3, width), np.float32), index, stream=options.pop("stream", None))
    result = ksieve.select(scores, plan=plan, out=out, **options)
    assert out.array[0, 0] == 4242
    return result

try:
{body}
except BackendError as error:
    print("refused:", error)
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stub")
    source = ROOT / "tests" / "support" / "cuda_driver_stub.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source, "-ldl"], check=True)

    def run(body, **environment):
        program = PROLOGUE.format(tests=str(source.parent), body="\n".join(f"    {line}" for line in body.splitlines()))
        # The stub writes through C's buffer, Python through its own: unbuffered, both keep their order.
        result = subprocess.run(
            ["stdbuf", "-o0", sys.executable, "-u", "-c", program],
            env={**os.environ, "LD_LIBRARY_PATH": str(folder), **environment},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    return run


def test_device_facts(stub):
    (line,) = stub("print(ksieve.backends.cuda.device_info(1))")
    assert "name='Stub', index=1, capability=(9, 0), sm_count=132, shared_per_sm=233472" in line
    assert "shared_per_block=232448, l2_bytes=62914560" in line


WITHOUT_A_COMPILER = """
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("cuda.core", "cuda.bindings.nvrtc", "numba", "torch", "filelock")):
            raise ImportError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocked())
import importlib
from ksieve.backends.cuda.jit import bundle
importlib.reload(cache)
"""


@pytest.mark.parametrize("family", ["stream_unsampled", "stream_split"])
def test_a_bundle_needs_the_driver_alone(stub, tmp_path, family):
    """With NVIDIA's bindings of the driver, neither NVRTC nor cuda-core, and a home that cannot be written."""
    wanted = build.needed(DEVICES["h200"], rows=[3], widths=[20_000], ranks=[512], families=["stream_unsampled"])
    kernels = {spec: Cubin(b"\x7fELF", "") for spec in wanted}
    bundle.write(tmp_path / "kernels.zip", kernels, compiler.shipped_sources(), "nvrtc 13.0")
    (tmp_path / "file").touch()
    home = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(tmp_path / "file" / "home"))
    bound = {"KSIEVE_BUNDLE": str(tmp_path / "kernels.zip"), "KSIEVE_CACHE_DIR": "", "PYTHONDONTWRITEBYTECODE": "1"}
    lines = stub(f"{WITHOUT_A_COMPILER}select('{family}')", **home, **bound)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "kernels.zip"]
    if family == "stream_unsampled":
        assert any(line.startswith("launch") for line in lines)
    else:
        assert lines[-1].startswith("refused: the CUDA backend needs") and "has no kernel" in lines[-1]
        assert install_command("cuda12") in lines[-1], "which fits a driver of CUDA 12.8"


def test_persistent_call(stub):
    lines = stub("select('stream', 131_072)")
    plan = ksieve.plan(rows=3, width=131_072, k=512, device=STUB, family="stream")
    shared, ranks = memory.shared_bytes(plan), f"{plan.policy.primary_rank(512)},{plan.policy.rescue_rank(512) or 0}"
    assert lines[:4] == [
        "load ELF in 0x7000",
        "function ksieve_stream_cta",
        f"attribute 8={shared}",
        "loaded 0x9000",
    ]
    assert lines[4:7] == [f"allocate {plan.workspace_bytes}", f"zero {plan.workspace_zeroed} on (nil)", "wait (nil)"]
    assert lines[7:] == [
        f"launch 0x9000 grid=3,1,1 block={plan.threads},1,1 shared={shared} stream=(nil) context=0x7000 "
        f"rows=3 width=131072 k=512 ranks={ranks} splits=1 pitch=131072,512 extra=(nil)"
    ]


def test_cluster_call_on_another_device_and_stream(stub):
    lines = stub("select('resident_cluster', index=1, stream=0x55)")
    assert lines[0] == "load ELF in 0x7001"
    assert "grid=24,1,1" in lines[-1] and "attribute=4:8,1,1" in lines[-1]
    assert "stream=0x55 context=0x7001" in lines[-1] and "splits=8" in lines[-1]


def test_split_call_with_a_workspace_and_statistics(stub):
    lines = stub(
        "plan = ksieve.plan(rows=3, width=262_144, k=512, device='cuda', family='stream_split')\n"
        "workspace = plan.workspace()\n"
        "stats = select('stream_split', 262_144, workspace=workspace, stats=True).stats\n"
        "print('route', stats.route[0])\n"
        "del workspace, plan"
    )
    assert lines[0].startswith("allocate ") and lines[2] == "wait (nil)"
    assert lines[-4:] == ["wait (nil)", "free", "route 5", "free"]
    splits = ksieve.plan(rows=3, width=262_144, k=512, device=STUB, family="stream_split").splits
    assert splits == 32
    assert f"grid={3 * splits},1,1" in lines[-5] and f"splits={splits} " in lines[-5]
    assert "attribute=" not in lines[-5]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"STUB_INIT": "100"}, "the NVIDIA driver sees no GPU: check nvidia-smi"),
        ({"STUB_INIT": "803"}, "CUDA error while starting the CUDA driver: CUDA_ERROR_STUB (803), stub failure"),
        ({"STUB_MAJOR": "7"}, "cuda:0 (Stub) has compute capability 7.0; ksieve needs 8.0 (A100) or newer"),
        ({"STUB_LOAD": "209"}, "the driver refused a compiled kernel: CUDA_ERROR_STUB (209), stub failure. It supports "
         f"CUDA 12.8: update the driver, or compile with the NVRTC for it, {install_command('cuda12')}; then run"),
        ({"STUB_LOAD": "209", "STUB_CUDA": "13010"}, "the driver refused a compiled kernel: CUDA_ERROR_STUB (209), "
         "stub failure. It supports CUDA 13.1: update the driver, or compile with the NVRTC for it, "
         f"{install_command('cuda')}"),
        ({"STUB_CUDA": "12020"}, "the NVIDIA driver supports CUDA 12.2 and is too old: update it to 580 or newer, or "
         f"to 550 or newer with {install_command('cuda12')}"),
        ({"STUB_ALLOC": "2"}, "could not allocate"),
        ({"STUB_LAUNCH": "700"}, "CUDA error at the launch of stream, possibly of earlier work"),
        ({"STUB_CAPTURING": "1"}, "a kernel has to be compiled or loaded while a stream is being captured: warm up"),
    ],
)  # fmt: skip
def test_failures_in_one_sentence(stub, environment, words):
    assert f"refused: {words}" in stub("select('stream', 131_072)", **environment)[-1]


def test_a_device_that_is_not_there(stub):
    (line,) = stub("ksieve.plan(rows=1, width=9, k=1, device='cuda:2')")
    assert line == "refused: there is no device cuda:2: the driver sees 2 GPU(s), numbered from 0"


def test_an_interrupt_leaves_the_callers_context_current(stub):
    """Behind each of the calls that make another device's context current, or look for the one before."""
    done = stub(
        """
from ksieve.backends.cuda.runtime import driver as cuda_driver
driver = cuda_driver.get()
plain, outer = driver._call, driver.context(0)
driver._call("cuCtxSetCurrent", driver._api.CUcontext(outer))
for interrupted in range(3):
    calls = []
    def call(name, *arguments):
        found = plain(name, *arguments)
        calls.append(name)
        if len(calls) == interrupted + 1:
            raise KeyboardInterrupt
        return found
    driver._call = call
    try:
        with driver.activated(0x7001):
            print("inside", hex(int(plain("cuCtxGetCurrent"))))
    except KeyboardInterrupt:
        print("interrupted")
    driver._call = plain
    print(hex(int(driver._call("cuCtxGetCurrent"))))
"""
    )
    assert done == [
        "interrupted",
        "0x7000",
        "interrupted",
        "0x7000",
        "inside 0x7001",
        "interrupted",
        "0x7000",
    ]
