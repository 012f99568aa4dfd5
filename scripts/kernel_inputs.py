"""What the machine code of a kernel is made from, as one hash: its source with all headers, its defines, the options.

The same compiler makes the same code from the same inputs, so that a list of what it made once stays true for every
kernel whose hash is still the list's: `make cubins` and tests/kernels/test_kernels_compile.py compile the others.
Comments, blank lines and indentation are no inputs: the kernels never ask for their line.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Sources
from ksieve.backends.cuda.jit.spec import KernelSpec
from ksieve.core import atomic

_COMMENT = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|//[^\n]*|/\*.*?\*/""", re.S)
"""Comments, and the literals that may look as if they held one."""
_INCLUDE = re.compile(r'^#\s*include\s+"([^"]+)"', re.M)


def inputs_of(spec: KernelSpec, sources: Sources) -> str:
    """Hash of everything but the compiler that decides a kernel's machine code, 64 bits of it.

    Raises
    ------
    BackendError
        If a header is not among the sources.
    """
    found = hashlib.sha256(repr((spec.arch, spec.defines, _options())).encode())
    names = [f"{spec.stem}.cu"]
    for name in names:
        text = _bare(sources.text(name))
        found.update(f"{name}\0{text}\0".encode())
        names += [header for header in _INCLUDE.findall(text) if header not in names]
    return found.hexdigest()[:16]


@cache
def _bare(text: str) -> str:
    """Source text without comments, blank lines and indentation."""
    text = _COMMENT.sub(lambda found: " " if found[0].startswith("/") else found[0], text)
    return "\n".join(line for line in map(str.strip, text.split("\n")) if line)


@cache
def _options() -> str:
    """The options that the package compiles with beside the defines, as source text."""
    return inspect.getsource(compiler._compiled)


@cache
def release() -> str:
    """Version of NVRTC in full, such as "13.0.88", which lists of what it made begin with.

    Raises
    ------
    BackendError
        If NVRTC is missing.
    """
    compiler.compiler_version()  # names what is missing
    version = re.search(r"release [\d.]+, V([\d.]+)", ptx_of('extern "C" __global__ void none() {}', "none.cu", ()))
    return version[1] if version else "unknown"


def ptx_of(source: str, name: str, options: Sequence[str]) -> str:
    """PTX of a CUDA source; empty if it does not compile."""
    from cuda.bindings import nvrtc

    # cuda-core would ask the driver, which may be absent, whether it takes the PTX.
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    text = bytearray(0 if int(code) else nvrtc.nvrtcGetPTXSize(program)[1])
    if text:
        nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.decode().rstrip("\0")


def write_list(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write a list of what this NVRTC made, one line each, so that a difference of two lists is one of kernels."""
    lines = ",\n".join(map(json.dumps, records))
    atomic.write_text(path, f'{{"nvrtc": "{release()}",\n"kernels": [\n{lines}\n]}}\n')
    print(f"wrote {path}")
