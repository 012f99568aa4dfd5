"""Functions of the kernels as programs of the host."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from ksieve.backends.cuda.jit import spec

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to run the kernels' arithmetic on the host"
)


def text(name: str) -> str:
    """A source of the kernels."""
    return (spec.SOURCES / name).read_text(encoding="utf-8")


def between(name: str, begin: str, end: str) -> str:
    """Of a source, what stands from one line to another."""
    whole = text(name)
    at = whole.index(begin)
    return whole[at : whole.index(end, at)]


def functions(name: str, names: str) -> str:
    """Some functions of a source, with their bodies."""
    whole, found = text(name), []
    for each in names.split():
        pattern = rf"^__device__ __forceinline__ [\w*]+ {each}\(.*?(?:\}}$|^\}})"
        body = re.search(pattern, whole, flags=re.MULTILINE | re.DOTALL)
        assert body, each
        found.append(body.group())
    return "\n".join(found)


def run(folder: Path, source: str, *arguments: str, given: bytes = b"", flags: Iterable[str] = ()) -> str:
    """What a program prints."""
    (folder / "host.cpp").write_text(source, encoding="utf-8")
    program = str(folder / "host")
    subprocess.run(["g++", "-std=c++20", "-O1", *flags, str(folder / "host.cpp"), "-o", program], check=True)
    return subprocess.run([program, *arguments], input=given, check=True, capture_output=True).stdout.decode()
