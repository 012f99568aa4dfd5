"""Compiled kernels on disk: one directory per specialisation, complete or absent.

An entry holds ``kernel.cubin`` and ``entry.json`` (architecture, defines, compiler, every source text, the
compiler's report, and the cubin's SHA-256). It is written into a temporary directory beside its final place and
renamed, so that a reader never sees half of one and two processes that build the same kernel at once both
succeed. What was damaged later (a full disk, a crash) is recognised by the checksum and built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ksieve._version import __version__
from ksieve.backends.cuda import compile as compiler
from ksieve.backends.cuda.compile import Cubin, Sources
from ksieve.backends.cuda.spec import KernelSpec

_CODE, _FACTS = "kernel.cubin", "entry.json"
_PARTIAL = ".partial-"


def cache_dir() -> Path:
    """Where compiled kernels are kept: ``$KSIEVE_CACHE_DIR``, or ``ksieve`` in the user's cache directory."""
    if chosen := os.environ.get("KSIEVE_CACHE_DIR"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ksieve"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry on disk, as `entries` lists it; `facts` is None when it is damaged."""

    path: Path
    size: int
    facts: dict[str, Any] | None


def key_of(spec: KernelSpec, sources: Sources) -> str:
    """Name of the entry of a specialisation: a hash of everything that decides its machine code."""
    parts = (spec.stem, spec.arch, spec.defines, sources.digest, compiler.compiler_version(), __version__)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def obtain(spec: KernelSpec, sources: Sources | None = None, directory: Path | None = None) -> tuple[Cubin, bool]:
    """Return a compiled kernel and whether it had to be compiled now.

    A cache that cannot be written costs one warning and a compilation per process, never the call.

    Raises
    ------
    BackendError
        If compilation is needed and fails.
    """
    sources = sources or compiler.shipped_sources()
    directory = directory or cache_dir()
    place = directory / key_of(spec, sources)
    if (found := _read(place)) is not None:
        return found, False
    cubin = compiler.compile_kernel(spec, sources)
    try:
        _write(place, spec, sources, cubin)
    except OSError as error:
        warnings.warn(
            f"compiled kernels cannot be kept in {directory} ({error.strerror or error}); each process will compile "
            "its own. Set KSIEVE_CACHE_DIR to a writable directory.",
            RuntimeWarning,
            stacklevel=2,
        )
    return cubin, True


def entries(directory: Path | None = None) -> Iterator[Entry]:
    """List the entries on disk, damaged ones too; nothing when there is no cache yet."""
    directory = directory or cache_dir()
    if not directory.is_dir():
        return
    for path in sorted(p for p in directory.iterdir() if _is_entry(p)):
        sound = _read(path) is not None
        size = sum(p.stat().st_size for p in path.iterdir() if p.is_file())
        yield Entry(path, size, json.loads((path / _FACTS).read_text(encoding="utf-8")) if sound else None)


def clear(directory: Path | None = None) -> int:
    """Remove every entry and leftover of an interrupted build; return how many directories went.

    Only what this module writes is touched: whatever else lies in the directory stays.
    """
    directory = directory or cache_dir()
    if not directory.is_dir():
        return 0
    doomed = [p for p in directory.iterdir() if _is_entry(p) or (p.is_dir() and p.name.startswith(_PARTIAL))]
    for path in doomed:
        shutil.rmtree(path)
    return len(doomed)


def _is_entry(path: Path) -> bool:
    return len(path.name) == 32 and not set(path.name) - set("0123456789abcdef") and path.is_dir()


def _read(place: Path) -> Cubin | None:
    """Return a complete and undamaged entry, or None."""
    try:
        facts = json.loads((place / _FACTS).read_text(encoding="utf-8"))
        code = (place / _CODE).read_bytes()
        sound = hashlib.sha256(code).hexdigest() == facts["sha256"]
        return Cubin(code, facts["log"]) if sound else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(place: Path, spec: KernelSpec, sources: Sources, cubin: Cubin) -> None:
    facts = {
        "kernel": spec.stem,
        "arch": spec.arch,
        "defines": dict(spec.defines),
        "compiler": compiler.compiler_version(),
        "ksieve": __version__,
        "sha256": hashlib.sha256(cubin.code).hexdigest(),
        "log": cubin.log,
        "sources": dict(sources.texts),
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=place.parent))
    try:
        (partial / _CODE).write_bytes(cubin.code)
        (partial / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        partial.chmod(0o755)  # mkdtemp's 0700 would keep a shared cache from other users
        _put(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put(partial: Path, place: Path) -> None:
    """Move a finished entry to its place, past another process's equal one or a damaged one."""
    for _ in range(3):
        try:
            partial.rename(place)
            return
        except OSError:
            if _read(place) is not None:
                return
            if not place.exists():
                raise
        # Renaming first makes the removal atomic for readers.
        grave = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=place.parent))
        try:
            place.rename(grave / "old")
        except FileNotFoundError:
            pass
        finally:
            shutil.rmtree(grave, ignore_errors=True)
