"""Diagnosis of an installation: versions, devices, a self-test of every backend, and the first fault to fix.

No function imports PyTorch, and a missing package or driver never raises. `examine` gathers facts, `advise` is a pure
function of them, and the command line prints both.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ksieve import self_test
from ksieve._version import __version__
from ksieve.backends import code_cache
from ksieve.backends.cpu import thread_count
from ksieve.backends.cuda.runtime.driver import install
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.installation import install_command, version_of
from ksieve.core.paths import is_folder, read_utf8
from ksieve.core.text import parse_json, printable
from ksieve.planning import shapes, tuned
from ksieve.self_test import SelfTest

PACKAGES = ("numpy", "numba", "torch", "cupy", "jax", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc")
"""Distributions that decide which backends run, in the order of the report."""

_CUPY = re.compile(r"cupy(-cuda\d+x)?")
_NVRTC = re.compile(r"nvidia-cuda-nvrtc(-cu\d+)?")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU, as the driver describes it."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver: its version, the CUDA version that it supports, and why it offers no GPU; None if unknown."""

    version: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    problem: str | None

    @property
    def install(self) -> str:
        """Command that installs the extra for it: with another one its kernels are refused, or there are none."""
        major, _, minor = (self.cuda or "").partition(".")
        return install(int(major) * 1000 + int(minor or 0) * 10 if major.isdigit() else None)


@dataclass(frozen=True, slots=True)
class Cache:
    """A directory of compiled kernels; `entries` counts kernels, of which `damaged` are compiled again when needed.

    `problem` states why an existing directory is not used; None if it is.
    """

    path: str
    exists: bool
    writable: bool
    entries: int
    bytes: int
    damaged: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A file of `ksieve tune` or `ksieve build`: what it holds; `problem` states why it is not used."""

    path: str
    about: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """The first fault to fix, and a command that fixes it; `serious`: without it ksieve gives no correct answer."""

    text: str
    command: str | None = None
    serious: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """All facts. Versions are None where a package is absent; `torch_cuda` is the CUDA that PyTorch was built for."""

    ksieve: str
    python: str
    platform: str
    threads: int
    packages: Mapping[str, str | None]
    torch_cuda: str | None
    nvrtc: str | None
    driver: Driver
    visible: str | None
    caches: Mapping[str, Cache]
    tests: tuple[SelfTest, ...]
    launch_shapes: tuple[Made, ...] = ()
    bundle: Made | None = None

    def test(self, backend: str) -> SelfTest:
        """Return the self-test of a backend."""
        return next(t for t in self.tests if t.backend == backend)

    @property
    def works(self) -> bool:
        """Whether the CPU or the CUDA backend runs, and no backend that runs gave a wrong answer."""
        ran = [t for t in self.tests if t.ran and t.backend != "reference"]
        return bool(ran) and all(t.exact for t in ran)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of `ksieve doctor --json`."""
        advice = advise(self)
        return {**asdict(self), "works": self.works, "fix_first": asdict(advice) if advice else None}


def examine(progress: Progress = lambda _: None) -> Report:
    """Gather the facts and run the self-tests.

    `progress`: called with a short text before each step. Compiling a kernel for the first time takes some seconds.
    """
    from ksieve.backends import cuda

    progress("looking around")
    driver = driver_facts()
    tests = []
    for backend in ("cpu", "cuda", "reference"):
        progress(f"testing {backend}" + ("" if backend == "reference" else "; kernels never used here are compiled"))
        tests.append(self_test.run(backend))
    return Report(
        ksieve=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        threads=thread_count(),
        packages=package_versions(),
        torch_cuda=torch_cuda(),
        nvrtc=_nvrtc(),
        driver=driver,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        caches={kind: _cache(kind) for kind in code_cache.KINDS},
        tests=tuple(tests),
        launch_shapes=launch_shapes([cuda.device_info(i) for i in range(len(driver.gpus))] if tests[1].ran else ()),
        bundle=bundle(),
    )


def launch_shapes(devices: Sequence[DeviceInfo] = ()) -> tuple[Made, ...]:
    """Describe the files of `ksieve tune` that the planner looks at: the environment's, else the user's own.

    A file of one of the devices is checked as the planner checks it.
    """
    asked = os.environ.get("KSIEVE_TUNED", "")
    if asked == "off":
        return ()
    place = Path(asked).expanduser() if asked else tuned.folder()
    found = sorted(place.glob("*.json")) if is_folder(place) or not asked else [place]
    return tuple(_launch_shapes(path, devices) for path in found)


def _launch_shapes(path: Path, devices: Sequence[DeviceInfo]) -> Made:
    try:
        facts = parse_json(read_utf8(path))
        name, made = str(facts["device"]["name"]), f"measured {str(facts.get('date'))[:10]}"
        about = f"{name}, {facts.get('dtype')}, {made} with driver {facts.get('driver')}"
        device = next((device for device in devices if device.name == name), None)
        if device is None:
            return Made(str(path), f"{about}; no such GPU is here")
        tuned.read(path, device, tuned.dtype_of(path) or shapes.DTYPE)
        return Made(str(path), about)
    except ArgumentError as error:
        fault = str(error.got).removeprefix(f"{printable(str(path))}: ")
        return Made(str(path), problem=f"NOT used: {fault}; takes {error.takes}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Made(str(path), problem=f"it cannot be read ({type(error).__name__}: {error})")


def advise(report: Report) -> Advice | None:
    """Choose the first fault to fix, None if there is none: a pure function of the report."""
    cpu, cuda, gpus = report.test("cpu"), report.test("cuda"), report.driver.gpus
    for test in (cpu, cuda):
        if test.ran and not test.exact:
            return Advice(
                f"the {test.backend} backend answered wrongly: {test.problem}. Do not use it; clear the kernel caches, "
                "and if that does not help report it together with `ksieve doctor --json`",
                "ksieve cache --clear",
                serious=True,
            )
    usable = [gpu for gpu in gpus if gpu.capability >= (8, 0)]
    if not cpu.ran:
        text = f"the CPU backend does not run: {cpu.problem}"
        return Advice(text, "pip install --upgrade numba numpy", serious=not cuda.ran)
    if not cuda.ran and (usable or report.driver.problem):
        return _cuda_advice(report, cuda)
    for test in (cuda, cpu):
        cache = report.caches[test.backend]
        if test.ran and not cache.writable and not (test is cuda and report.bundle is not None):
            why = "" if cache.problem is None else f" ({cache.problem})"
            return Advice(
                f"compiled {test.backend.upper()} kernels cannot be kept in {cache.path}{why}, so that every process "
                "compiles its own",
                "export KSIEVE_CACHE_DIR=<a directory that you alone can write>",
            )
        if test.ran and cache.damaged:
            return Advice(f"{cache.damaged} of {cache.entries} compiled kernels are damaged", "ksieve cache --clear")
    arrays = report.packages["torch"] is not None or report.packages["cupy"] is not None or report.packages["jax"]
    if cuda.ran and not arrays:
        return Advice(
            "the GPU works, but no array library that can hold scores on it is installed", install_command("torch")
        )
    if cuda.ran and report.packages["torch"] is not None and report.torch_cuda is None:
        return Advice(
            f"PyTorch {report.packages['torch']} was built without CUDA, so that its tensors cannot be on this GPU",
            "pip install --force-reinstall torch",
        )
    return None


def _cuda_advice(report: Report, cuda: SelfTest) -> Advice:
    """Advice for a machine with an NVIDIA driver, or with a GPU that ksieve could use, where CUDA does not run."""
    if report.driver.problem is not None:
        hidden = "" if report.visible is None else f"; CUDA_VISIBLE_DEVICES is {report.visible!r}"
        return Advice(f"an NVIDIA driver is installed but offers no GPU: {report.driver.problem}{hidden}", "nvidia-smi")
    command = re.search(r"pip install (?:-e )?'[^']*'|unset KSIEVE_BUNDLE", cuda.problem or "")
    return Advice(f"the {report.driver.gpus[0].name} is not used: {cuda.problem}", command and command[0])


# ---- facts ---------------------------------------------------------------------------------------------------


def package_versions() -> dict[str, str | None]:
    """Return the versions of `PACKAGES`, None where absent; CuPy and NVRTC have several distribution names."""
    found = {name: version_of(name) for name in PACKAGES}
    for name, pattern in (("cupy", _CUPY), ("nvidia-cuda-nvrtc", _NVRTC)):
        named = (d.version for d in metadata.distributions() if pattern.fullmatch((d.name or "").lower()))
        found[name] = found[name] or next(named, None)
    return found


def torch_cuda() -> str | None:
    """Return the CUDA version that PyTorch was built for, read from its files, since importing it takes seconds."""
    if (torch := sys.modules.get("torch")) is not None:
        return str(torch.version.cuda) if torch.version.cuda else None
    try:
        spec = importlib.util.find_spec("torch")
        text = Path(str(spec.origin)).with_name("version.py").read_text(encoding="utf-8") if spec else ""
    except (OSError, ValueError, ImportError):
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def driver_facts() -> Driver:
    """Query the driver library through ctypes: no CUDA package of Python has to be installed."""
    version = None
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
        version = found[1] if found else None
    except OSError:
        pass
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        # In a container without --gpus the kernel module is visible and the driver library is absent.
        trap = "libcuda.so.1 is missing (in a container: start it with --gpus all)" if version else None
        return Driver(version, None, (), trap)
    number = ctypes.c_int()
    cuda = None
    if library.cuDriverGetVersion(ctypes.byref(number)) == 0:
        cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    code = library.cuInit(0)
    if code or library.cuDeviceGetCount(ctypes.byref(number)) or not number.value:
        return Driver(version, cuda, (), f"cuInit returned error {code}" if code else "it sees none")
    return Driver(version, cuda, tuple(_gpus(library, number.value)), None)


_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


def _gpus(library: Any, count: int) -> Iterator[Gpu]:
    for index in range(count):
        device, number, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
        name = ctypes.create_string_buffer(256)
        library.cuDeviceGet(ctypes.byref(device), index)
        library.cuDeviceGetName(name, 256, device)
        library.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        capability = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
            capability.append(number.value)
        yield Gpu(name.value.decode(errors="replace"), (capability[0], capability[1]), size.value)


def _nvrtc() -> str | None:
    from ksieve.backends.cuda.jit import compile as compiler

    try:
        return compiler.compiler_version().removeprefix("nvrtc ")
    except (BackendError, ImportError, OSError):
        return None


def bundle() -> Made | None:
    """Describe the file that KSIEVE_BUNDLE names, None without one."""
    from ksieve.backends.cuda.jit import bundle as bundles

    path = bundles.named()
    if path is None:
        return None
    try:
        found = bundles.read(path)
    except BackendError as error:
        return Made(str(path), problem=f"NOT used: {error}")
    archs = ", ".join(f"{number} for {arch}" for arch, number in found.architectures.items())
    return Made(str(path), f"{len(found.kernels)} compiled ({archs}) with {found.compiler}")


def _cache(kind: str) -> Cache:
    store = code_cache.Store(kind)
    path, problem, found = store.root, store.problem(), list(store.entries())
    damaged = 0 if problem is not None else sum(e.facts is None for e in found)
    return Cache(
        str(path), is_folder(path), problem is None and store.writable(), len(found), sum(e.size for e in found),
        damaged, problem,
    )  # fmt: skip
