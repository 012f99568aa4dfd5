"""A CUDA driver whose kernels run on the CPU, as far as launches need it (`ksieve.backends.cuda.runtime.driver`)."""

from __future__ import annotations

import ctypes
import hashlib
import pickle
from dataclasses import replace
from functools import cache

import pytest

from cuda_fakes import FakeDriver, forget, read_config
from emulator import build
from ksieve.backends import cuda
from ksieve.backends.code_cache import Store
from ksieve.backends.cuda.jit import cache as kernels
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Cubin
from ksieve.backends.cuda.jit.spec import KernelSpec
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.core.device import DEVICES, DeviceInfo

LIBRARIES = build.MACHINE.parents[2] / "out" / "emulated"
_texts = [path.read_text(encoding="utf-8") for path in sorted(build.MACHINE.iterdir()) if path.suffix in (".h", ".py")]
TOOLS = hashlib.sha256(repr((_texts, build.COMPILER)).encode()).hexdigest()[:16]
"""What a library depends on beside its kernel."""


@cache
def library_of(spec: KernelSpec) -> ctypes.CDLL:
    """A specialisation as a shared library; built once, and kept until `make clean`."""
    sources = compiler.shipped_sources()
    name = Store("cuda").path(kernels.facts_of(spec, sources)).stem  # a hash of all that decides the kernel
    target = LIBRARIES / f"{name}-{TOOLS}.so"
    if not target.exists():
        options = [f"--gpu-architecture={spec.arch.replace('sm_', 'compute_')}", f"-I{sources.directory}", "-std=c++17"]
        options += [f"-D{name}={value}" for name, value in spec.defines]
        name = f"{spec.stem}.cu"
        build.build(build.ptx_of(sources.text(name), name, options), target)
    return build.load(target)


class EmulatedDriver(FakeDriver):
    """Device 0 is a GPU that this processor stands in for. Each launch draws other orders of threads."""

    def __init__(self, name: str = "h200") -> None:
        super().__init__()
        self.device = DEVICES[name]
        self.libraries: list[ctypes.CDLL] = []
        self.seed = 0
        self.bytes_read = 0  # bytes of global memory that kernels have asked for

    def device_info(self, index: int) -> DeviceInfo:
        return replace(self.device, index=index)

    def load(self, code: bytes, entry: str, shared_bytes: int, *, clusters: bool = False) -> int:
        self.libraries.append(library_of(pickle.loads(code)))
        return len(self.libraries)

    def launch(self, config, function, arguments, extra) -> int:
        grid, block, cluster, shared, _, _, cooperative = read_config(config.value)
        params = ctypes.c_uint64.from_address(arguments.value).value
        together = cluster[0] if cluster else 1
        resident = grid // together if cooperative else 1 + self.seed % 2
        asked = build.Launch(grid, block, together, resident, shared, self.seed, params)
        if grid:
            build.run(self.libraries[function.value - 1], asked)
        self.seed += 1
        self.bytes_read += asked.read
        return 0


def install(patch: pytest.MonkeyPatch, name: str = "h200") -> EmulatedDriver:
    """Make the package's CUDA backend run on one of `DEVICES`, until the patch is undone."""
    driver = EmulatedDriver(name)
    forget()
    cuda.device_info.cache_clear()
    patch.setattr(cuda_driver, "_instance", driver)
    patch.setattr(kernels, "obtain", lambda spec, *_: (Cubin(pickle.dumps(spec), ""), True))
    return driver
