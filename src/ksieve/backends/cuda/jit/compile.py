"""NVRTC through cuda-core: a `KernelSpec` and a source directory become a cubin. Needs no GPU and no driver."""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ksieve.backends.cuda.jit.spec import SOURCES, KernelSpec, describe
from ksieve.backends.cuda.runtime.driver import cuda_version, install, missing_package
from ksieve.core.errors import BackendError


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one kernel as reported by ptxas; sizes in bytes."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of one specialisation, and the compiler's report."""

    code: bytes
    log: str

    @property
    def resources(self) -> Resources:
        """Registers, stack, spills and static shared memory, read from the report."""
        return parse_resources(self.log)


@dataclass(frozen=True, slots=True)
class Sources:
    """The CUDA sources of a directory, read once: their texts and a hash over all of them.

    A change of any file counts as a change of every kernel: include graphs are not worth following.
    """

    directory: Path
    texts: tuple[tuple[str, str], ...]
    digest: str

    @classmethod
    def read(cls, directory: Path = SOURCES) -> Sources:
        """Read every ``.cu`` and ``.cuh`` file of a directory and its folders, under their paths from there.

        Raises `BackendError` if there is none: the installation is incomplete.
        """
        paths = sorted(p for p in directory.rglob("*.cu*") if p.suffix in (".cu", ".cuh"))
        if not paths:
            raise BackendError(f"no CUDA sources in {directory}: the installation is incomplete, reinstall ksieve")
        return cls.of(directory, {p.relative_to(directory).as_posix(): p.read_text(encoding="utf-8") for p in paths})

    @classmethod
    def of(cls, directory: Path, files: Mapping[str, str]) -> Sources:
        """Sources with these texts, by path; headers are read from the directory."""
        texts = tuple(files.items())
        return cls(directory, texts, hashlib.sha256(repr(texts).encode()).hexdigest())

    def text(self, name: str) -> str:
        """Text of one file."""
        try:
            return dict(self.texts)[name]
        except KeyError:
            raise BackendError(f"{name} is missing from {self.directory}: reinstall ksieve") from None


@cache
def shipped_sources() -> Sources:
    """Sources shipped with the package, read once per process."""
    return Sources.read()


@cache
def compiler_version() -> str:
    """NVRTC's version, such as "nvrtc 13.0".

    Raises `BackendError` if the bindings or NVRTC itself are missing.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise missing_package(error) from None
    try:
        code, major, minor = nvrtc.nvrtcVersion()
    except (RuntimeError, OSError, ImportError):
        remedy = install(cuda_version())
        raise BackendError(f"NVRTC, CUDA's run-time compiler, was not found: {remedy}") from None
    if int(code):
        raise BackendError(f"NVRTC does not start (error {int(code)}): {install(cuda_version())}")
    return f"nvrtc {major}.{minor}"


def check_packages() -> None:
    """Raise the `BackendError` of a compilation if packages that it needs are missing."""
    compiler_version()
    _cuda_core()


def compile_kernel(spec: KernelSpec, sources: Sources) -> Cubin:
    """Compile one specialisation.

    Raises `BackendError` if the compiler is missing, does not know the architecture, or rejects the source.
    """
    return _compiled(spec, sources)[1]


def _compiled(spec: KernelSpec, sources: Sources) -> tuple[Any, Cubin]:
    version = compiler_version()
    if (failed := _failed.get((spec, sources.digest))) is not None:
        raise BackendError(failed)
    _check_architecture(spec.arch, version)
    program_type, options_type = _cuda_core()
    options = options_type(
        name=f"{spec.stem}.cu",
        arch=spec.arch,
        std="c++17",
        include_path=str(sources.directory),
        define_macro=[(name, str(value)) for name, value in spec.defines],
        ptxas_options="-v",
        # From 12.9 on NVRTC finds machine code in the driver's cache, and then ptxas reports no registers and spills.
        no_cache=tuple(map(int, re.findall(r"\d+", version))) >= (12, 9),
    )
    log = io.StringIO()
    try:
        program = program_type(sources.text(f"{spec.stem}.cu"), "c++", options=options)
        code = program.compile("cubin", logs=log).code
    except BackendError:
        raise
    except Exception as error:  # cuda-core has no specific exception for a failed compilation
        text = f"{version} could not compile {describe(spec)}:\n{_first_errors(str(error))}"
        _failed[spec, sources.digest] = text
        raise BackendError(text) from error
    return program, Cubin(bytes(code), log.getvalue().replace("\0", ""))


_failed: dict[tuple[KernelSpec, str], str] = {}
"""Errors of kernels that could not be compiled: a caller that goes on without them does not wait for each again."""


def parse_resources(log: str) -> Resources:
    """Read ptxas's verbose report (``-v``) of a program with one kernel.

    Raises `ValueError` if the report does not describe exactly one kernel.
    """
    used = re.findall(r"Used (\d+) registers(.*)", log)
    frame = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if len(used) != 1 or not frame:
        raise ValueError(f"not the ptxas report of one kernel: {log!r}")
    shared = re.search(r"(\d+) bytes smem", used[0][1])
    # Functions that were not inlined have their own frames; their spills count too.
    stack, stores, loads = (max(int(f[i]) for f in frame) for i in range(3))
    return Resources(int(used[0][0]), stack, stores, loads, int(shared[1]) if shared else 0)


_importing = threading.Lock()
"""Serialises the first import of cuda-core: a second thread may see a partial import and report it as missing."""


def _cuda_core() -> tuple[Any, Any]:
    try:
        with _importing:
            from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise missing_package(error) from None
    return Program, ProgramOptions


@cache
def _supported_architectures() -> tuple[int, ...]:
    from cuda.bindings import nvrtc

    code, count = nvrtc.nvrtcGetNumSupportedArchs()
    code, archs = nvrtc.nvrtcGetSupportedArchs() if not int(code) and count else (code, [])
    return tuple(int(a) for a in archs)


def _check_architecture(arch: str, version: str) -> None:
    number = re.fullmatch(r"sm_(\d+)[af]?", arch)
    supported = _supported_architectures()
    if number is None or (supported and int(number[1]) not in supported):
        names = ", ".join(f"sm_{a}" for a in supported)
        raise BackendError(f"{version} cannot compile for {arch}, only for {names}: upgrade nvidia-cuda-nvrtc")


def _first_errors(text: str, limit: int = 8) -> str:
    """Return the first lines that contain an error, of ptxas too; without any, the start of the text and its end."""
    lines = text.splitlines()
    if found := [line for line in lines if re.search(r"\b(error|fatal)\b", line)]:
        return "\n".join(found[:limit])
    # A log of warnings: the code of the error is in front of it.
    return "\n".join(lines if len(lines) <= limit else [*lines[: limit // 2], "...", *lines[-limit // 2 :]])
