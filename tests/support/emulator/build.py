"""From CUDA C++ to a kernel that a CPU runs: NVRTC, `translate`, the C compiler, and `machine.h`."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from emulator.translate import translate

MACHINE = Path(__file__).parent
COMPILER = os.environ.get("CC", "cc")
FLAGS = (
    "-Og", "-std=gnu11", "-w", "-fPIC", "-shared", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off",
    "-DEMULATOR_STACK=65536",
)  # fmt: skip


class EmulationError(Exception):
    """A kernel did what no GPU allows, or waits for what never comes."""


class Launch(ctypes.Structure):
    """`Launch` of machine.h."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("grid", "threads", "cluster", "resident", "shared_bytes", "seed")),
        ("params", ctypes.c_void_p),
        ("read", ctypes.c_uint64),
    )  # fmt: skip


@cache
def missing() -> str:
    """Why nothing can be emulated here; empty if it can."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError):
        return "NVRTC is not installed"
    if shutil.which(COMPILER) is None:
        return f"no C compiler {COMPILER}"
    command = [COMPILER, "-x", "c", "-fsyntax-only", "-"]
    done = subprocess.run(command, input="_Float16 half;", capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{COMPILER} has no _Float16: GCC 12 and Clang 15 do"


def ptx_of(source: str, name: str, options: Sequence[str]) -> str:
    """PTX of a CUDA source. Not through cuda-core, which asks the driver whether it would take it."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if int(code):
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = bytearray(size)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise EmulationError(log.decode())
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx = bytearray(size)
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(program)
    return ptx.decode().rstrip("\0")


def build(ptx: str, target: Path) -> None:
    """Make a shared library of a PTX module with one kernel; complete or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as partial:
        (code := Path(partial, "kernel.c")).write_text(translate(ptx), encoding="utf-8")
        made = Path(partial, "kernel.so")
        command = [COMPILER, *FLAGS, f"-I{MACHINE}", str(code), "-o", str(made), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EmulationError(done.stderr[:2000])
        made.replace(target)


def load(target: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(target))
    library.emulator_run.restype = ctypes.c_char_p
    return library


def run(library: ctypes.CDLL, launch: Launch) -> None:
    """Run a kernel to its end.

    Raises
    ------
    EmulationError
        Where it did what no GPU allows: the message names the line of its PTX, the CTA and the thread.
    """
    if told := library.emulator_run(ctypes.byref(launch)):
        raise EmulationError(f"{told.decode()}, seed {launch.seed}")
