"""Compiled CUDA kernels on disk: the facts of a cubin, and its entry in `ksieve.backends.code_cache`."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ksieve._version import __version__
from ksieve.backends.code_cache import Code, Store
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Cubin, Sources
from ksieve.backends.cuda.jit.spec import KernelSpec, describe
from ksieve.core.errors import BackendError

_log = logging.getLogger(__name__)


def identity_of(spec: KernelSpec, digest: str) -> dict[str, Any]:
    """Return what determines the machine code of a specialisation, but the compiler; `digest` is of the sources."""
    return {
        "kernel": spec.stem,
        "arch": spec.arch,
        "defines": dict(spec.defines),
        "ksieve": __version__,
        "sources": digest,
    }


def facts_of(spec: KernelSpec, sources: Sources) -> dict[str, Any]:
    """Return all inputs that determine the machine code of a specialisation; an entry is used only if all agree."""
    return identity_of(spec, sources.digest) | {"compiler": compiler.compiler_version()}


def obtain(spec: KernelSpec, sources: Sources | None = None, directory: Path | None = None) -> tuple[Cubin, bool]:
    """Return a compiled kernel, and whether this call compiled it.

    `sources`: the package's when omitted. `directory`: `ksieve.backends.code_cache.cache_dir` when omitted. Raises
    `BackendError` if compilation fails.
    """
    sources = sources or compiler.shipped_sources()

    def make() -> Code:
        _log.info("compiling %s", describe(spec))
        cubin = compiler.compile_kernel(spec, sources)
        return Code(cubin.code, cubin.log)

    found, compiled = Store("cuda", directory).obtain(facts_of(spec, sources), make)
    return Cubin(found.code, found.report), compiled


def compile_all(specs: Collection[KernelSpec]) -> Iterator[tuple[KernelSpec, tuple[Cubin, bool] | BackendError]]:
    """Yield each specialisation with what `obtain` returns for it, or the error that it raises, in their order.

    Kernels of the disk cache are read here. Processes compile the others, on all processors that this process may use.
    In threads, a lock of NVRTC would make them take turns.
    """
    there = [kept(spec) for spec in specs]
    missing = [spec for spec, found in zip(specs, there, strict=True) if found is None]
    workers = min(len(os.sched_getaffinity(0)), -(-len(missing) // 2))
    with contextlib.ExitStack() as stack:
        compiled: Iterator[tuple[Cubin, bool] | BackendError] = map(_obtained, missing)
        if workers >= 2:
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=get_context("spawn")))
            compiled = pool.map(_obtained, missing)
        for spec, found in zip(specs, there, strict=True):
            yield spec, next(compiled) if found is None else (found, False)


def kept(spec: KernelSpec) -> Cubin | None:
    """Return a kernel of the disk cache, or None; also where nothing can be compiled, which is reported elsewhere."""
    with contextlib.suppress(BackendError):
        found = Store("cuda").load(facts_of(spec, compiler.shipped_sources()))
        return None if found is None else Cubin(found.code, found.report)
    return None


def _obtained(spec: KernelSpec) -> tuple[Cubin, bool] | BackendError:
    try:
        return obtain(spec)
    except BackendError as error:
        return error
