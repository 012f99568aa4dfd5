"""Bundles: one file of compiled kernels that a process loads without a compiler, a cache or a writable directory.

A bundle is a zip archive without compression, whose checksums tell what is damaged. Its member ``index.json`` says
which ksieve made it, from which sources and with which compiler, and lists the kernels. The bytes depend on the kernels
alone: the compiler's reports, which contain times and paths, are not kept. ``KSIEVE_BUNDLE`` names the bundle of a
process: its kernels come before the cache and before compilation. A kernel is found by what decides its machine code
but the compiler, since the process may have none (`cache.identity_of`).

Like an entry of the cache, a bundle must belong to the caller or root, and no other user may write it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ksieve._version import __version__
from ksieve.backends.code_cache import MOST_BYTES, UnusableError, opened, say_once
from ksieve.backends.cuda.jit import cache
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Cubin, Sources
from ksieve.backends.cuda.jit.spec import KernelSpec, describe
from ksieve.core import atomic
from ksieve.core.errors import BackendError
from ksieve.core.paths import reason

VARIABLE = "KSIEVE_BUNDLE"

_INDEX = "index.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every member: the earliest that a zip archive can hold."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The index of a bundle.

    `ksieve`: version that made it. `sources`: digest of the CUDA sources that it was compiled from. `compiler`: such as
    "nvrtc 13.0". `kernels`: the members, each in a folder of its architecture.
    """

    path: Path
    ksieve: str
    sources: str
    compiler: str
    kernels: frozenset[str]

    @property
    def architectures(self) -> dict[str, int]:
        """Number of kernels of each architecture."""
        return dict(sorted(Counter(member.partition("/")[0] for member in self.kernels).items()))

    def find(self, spec: KernelSpec) -> Cubin | None:
        """Return a kernel, or None if the bundle has it not.

        Raises `BackendError` if the file is damaged, or holds nothing for the architecture.
        """
        member = _member(spec, self.sources)
        if spec.arch not in self.architectures:
            raise BackendError(
                f"{VARIABLE}: {self.path} has kernels for {', '.join(self.architectures) or 'no GPU'}, and this GPU "
                f"needs {spec.arch}: {_remedy(self.path, spec.arch)}"
            )
        if member not in self.kernels:
            return None
        with opened(self.path) as file, zipfile.ZipFile(file) as archive:
            return Cubin(_content(archive, member), "")


def pack(kernels: Mapping[KernelSpec, Cubin], sources: Sources, made_with: str) -> bytes:
    """Return the bytes of a bundle, the same for the same kernels in any order; `made_with` names the compiler."""
    members = {_member(spec, sources.digest): cubin.code for spec, cubin in kernels.items()}
    facts = {"ksieve": __version__, "sources": sources.digest, "compiler": made_with}
    index = json.dumps(facts | {"kernels": sorted(members)}, indent=1).encode()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for member, content in [(_INDEX, index), *sorted(members.items())]:
            info = zipfile.ZipInfo(member, _EPOCH)
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, content)
    return whole.getvalue()


def write(path: Path, kernels: Mapping[KernelSpec, Cubin], sources: Sources, made_with: str) -> int:
    """Write a bundle, replacing a file of its name when it is complete; return its size in bytes.

    A new file has mode 0644, for any umask: every user can read it, and none but its owner can write it.
    """
    content = pack(kernels, sources, made_with)
    with atomic.replacing(path) as file:
        file.write(content)
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            os.fchmod(file.fileno(), 0o644)
    return len(content)


def read(path: Path) -> Bundle:
    """Read the index of a bundle that this ksieve can use.

    Raises `BackendError` if it is absent, damaged, of another version, or could have been written by another user.
    """
    # The variable may name a link: its target counts.
    with _errors(path), opened(path) as file, zipfile.ZipFile(file) as archive:
        facts = json.loads(_content(archive, _INDEX))
        ksieve, sources, made_with = (str(facts[name]) for name in ("ksieve", "sources", "compiler"))
        made = Bundle(path, ksieve, sources, made_with, frozenset(facts["kernels"]))
        if missing := made.kernels - set(archive.namelist()):
            raise UnusableError(f"{len(missing)} of its kernels are missing")
    if made.ksieve != __version__:
        raise _refused(path, f"it was made by ksieve {made.ksieve}, and this is {__version__}", *made.architectures)
    if made.sources != compiler.shipped_sources().digest:
        raise _refused(path, "it was made from other CUDA sources than those of this package", *made.architectures)
    return made


def named() -> Path | None:
    """Path in ``KSIEVE_BUNDLE``; None if the variable is empty or not set."""
    asked = os.environ.get("KSIEVE_BUNDLE", "")
    return Path(os.path.expanduser(asked)).absolute() if asked else None  # noqa: PTH111 (of no home, Path raises)


def obtain(spec: KernelSpec, sources: Sources | None = None) -> tuple[Cubin, bool]:
    """Return a kernel of the bundle of this process, else what `cache.obtain` returns.

    A bundle is of the package's own sources, so that others never come from it.

    Raises `BackendError` if ``KSIEVE_BUNDLE`` names a file that cannot be used, or as `cache.obtain`.
    """
    path = named()
    if path is None or (sources is not None and sources.digest != compiler.shipped_sources().digest):
        return cache.obtain(spec, sources)
    bundle = _current(path)
    with _errors(path):
        if (found := bundle.find(spec)) is not None:
            return found, False
    missing = f"{VARIABLE}: {path} has no kernel {describe(spec)}"
    say_once(f"{missing}; it is taken from the cache, or compiled")
    try:
        return cache.obtain(spec, sources)
    except BackendError as error:
        raise BackendError(f"{error}; {missing}: add its shape to `ksieve build --bundle`") from error


def missing(specs: Iterable[KernelSpec]) -> list[KernelSpec]:
    """Return the kernels that a warm-up has to compile: what the process's bundle lacks, all without one.

    Raises `BackendError` if ``KSIEVE_BUNDLE`` names a file that cannot be used.
    """
    path = named()
    bundle = None if path is None else _current(path)
    return [spec for spec in specs if bundle is None or _member(spec, bundle.sources) not in bundle.kernels]


def _current(path: Path) -> Bundle:
    """Index of a file, read again when the file has changed."""
    with _errors(path):
        status = path.stat()
    return _read_once(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode))


@functools.lru_cache(maxsize=1)
def _read_once(path: Path, _: tuple[int, ...]) -> Bundle:
    return read(path)


def _member(spec: KernelSpec, digest: str) -> str:
    named = json.dumps(cache.identity_of(spec, digest), sort_keys=True).encode()
    return f"{spec.arch}/{spec.entry}-{hashlib.sha256(named).hexdigest()[:32]}.cubin"


def _content(archive: zipfile.ZipFile, member: str) -> bytes:
    if archive.getinfo(member).file_size > MOST_BYTES:
        raise UnusableError(f"a member is larger than {MOST_BYTES >> 20} MiB")
    return archive.read(member)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn what a damaged or absent file raises into an error that says what to do."""
    try:
        yield
    except BackendError:
        raise
    except (OSError, UnusableError) as error:
        raise _refused(path, reason(error)) from error
    except Exception as error:  # zipfile, struct and json have one each for what they cannot read
        raise _refused(path, "it is damaged, or no bundle") from error


def _refused(path: Path, fault: str, *archs: str) -> BackendError:
    return BackendError(f"{VARIABLE}: {path} is not used ({fault}): {_remedy(path, *archs)}")


def _remedy(path: Path, *archs: str) -> str:
    asked = " ".join(f"--device {arch}" for arch in archs or ("NAME",))
    return f"make it again with `ksieve build {asked} --bundle {path}`, or unset {VARIABLE}"
