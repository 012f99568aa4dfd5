"""Climb the ladder: run every rung on a few small inputs, verify each answer, and print what it read.

    python examples/ladder/run.py           # on the CPU: the kernels' PTX through the emulator of the tests
    python examples/ladder/run.py --cuda    # the same kernels on GPU 0

The emulator needs NVRTC (`pip install 'ksieve[cuda]'`; no GPU, no driver) and a C compiler. The exit status is 0 if
every answer is exact, 1 if one is not, and 2 if the kernels cannot run here.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import ksieve
from ksieve.backends.cuda.jit.compile import Sources, compile_kernel
from ksieve.backends.cuda.jit.spec import KernelSpec, architecture
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.core.errors import ArgumentError, BackendError, KsieveError

LADDER = Path(__file__).resolve().parent
ROOT = LADDER.parents[1]
THREADS = 256
"""`kThreads` of ladder.cuh."""
SEED = 5
K = 64


@dataclass(frozen=True)
class Rung:
    """A kernel ``<name>.cu``; `bytes_of` a width is its dynamic shared memory, which bounds the width by `widest`."""

    name: str
    idea: str
    bytes_of: Callable[[int], int] = lambda width: 0
    widest: int | None = None

    def shared(self, width: int) -> int:
        """Bytes of dynamic shared memory for rows of a width; refuses rows that do not fit any GPU's."""
        if self.widest is not None and width > self.widest:
            raise ArgumentError("scores", f"rows of {width} scores", f"at most {self.widest}, {self.name}'s limit")
        return self.bytes_of(width)

    def spec(self, arch: str) -> KernelSpec:
        """What the package's compiler is asked for; cuda-core wants one definition at least."""
        return KernelSpec(self.name, arch, (("KSIEVE_LADDER", 1),))


def _pairs(width: int) -> int:
    return 8 << max(width - 1, 1).bit_length()


RUNGS = (
    Rung("v1_sort", "sort the whole row", _pairs, 8192),
    Rung("v2_radix", "count by digits, narrow down"),
    Rung("v3_sampled", "propose, certify, refine"),
    Rung("v4_filtered", "private candidates, no atomics"),
    Rung("v5_resident", "row stays in shared memory", lambda width: 4 * width, 16_384),
)


class Params(ctypes.Structure):
    """`Params` of ladder.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scores", "lengths", "indices", "reads")),
        ("width", ctypes.c_int),
        ("k", ctypes.c_int),
    )


@dataclass(frozen=True)
class Answer:
    """Positions of each row, shape (rows, k), and how many scores each row's CTA read, shape (rows,)."""

    indices: np.ndarray
    reads: np.ndarray


class Machine(Protocol):
    """What runs a rung."""

    name: str

    def launch(self, rung: Rung, scores: np.ndarray, lengths: np.ndarray, k: int) -> Answer:
        """Run a rung over float32 scores, shape (rows, width), and int32 lengths, shape (rows,)."""


class Emulator:
    """The CPU: PTX translated to C (tests/support/emulator). Each launch draws another order of the threads."""

    name = "the emulator"

    def __init__(self) -> None:
        sys.path.insert(0, str(ROOT / "tests" / "support"))
        try:
            from emulator import build
        except ImportError:
            raise BackendError("the emulator is part of the repository (tests/support): run this in a clone") from None
        if missing := build.missing():
            remedy = "pip install 'ksieve[cuda]'" if "NVRTC" in missing else "install GCC 12 or newer, or set CC"
            raise BackendError(f"{missing}: {remedy}")
        self._build = build
        self._libraries: dict[str, ctypes.CDLL] = {}
        self.seed = 0
        self.bytes_read = 0  # of global memory, by the last launch

    def _library(self, rung: Rung) -> ctypes.CDLL:
        """Compile a rung; what the C compiler makes is kept in out/ until a source changes."""
        if rung.name not in self._libraries:
            build, source = self._build, f"{rung.name}.cu"
            options = ["--gpu-architecture=compute_80", "-std=c++17", f"-I{LADDER}"]
            ptx = build.ptx_of((LADDER / source).read_text(encoding="utf-8"), source, options)
            tools = [path.read_text(encoding="utf-8") for path in sorted(build.MACHINE.iterdir()) if path.is_file()]
            digest = hashlib.sha256(repr((ptx, tools, build.COMPILER)).encode()).hexdigest()[:16]
            target = ROOT / "out" / "emulated" / f"ladder-{rung.name}-{digest}.so"
            if not target.exists():
                build.build(ptx, target)
            self._libraries[rung.name] = build.load(target)
        return self._libraries[rung.name]

    def launch(self, rung: Rung, scores: np.ndarray, lengths: np.ndarray, k: int) -> Answer:
        """Run a rung to its end; raises where it does what no GPU allows."""
        rows, width = scores.shape
        indices, reads = np.full((rows, k), -2, np.int32), np.zeros(rows, np.uint32)
        params = Params(*(array.ctypes.data for array in (scores, lengths, indices, reads)), width, k)
        launch = self._build.Launch(rows, THREADS, 1, 1, rung.shared(width), self.seed, ctypes.addressof(params))
        self._build.run(self._library(rung), launch)
        self.seed += 1
        self.bytes_read = launch.read
        return Answer(indices, reads)


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig` of the driver."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Cuda:
    """GPU 0, through the package's own compiler and driver."""

    def __init__(self) -> None:
        self._driver = cuda_driver.get()
        info = self._driver.device_info(0)
        self.name = str(info.name)
        self._arch = architecture(info.capability)
        self._context = self._driver.context(0)
        self._sources = Sources.read(LADDER)

    def launch(self, rung: Rung, scores: np.ndarray, lengths: np.ndarray, k: int) -> Answer:
        """Compile, load and run a rung; waits for it."""
        rows, width = scores.shape
        driver, shared = self._driver, rung.shared(width)
        spec = rung.spec(self._arch)
        code = compile_kernel(spec, self._sources).code
        host = (scores, lengths, np.full((rows, k), -2, np.int32), np.zeros(rows, np.uint32))
        with driver.activated(self._context):
            function = driver.load(code, spec.entry, shared)
            device = [driver.allocate(max(array.nbytes, 4)) for array in host]
            try:
                for pointer, array in zip(device, host, strict=True):
                    driver.write(pointer, np.ascontiguousarray(array).data)
                params = Params(*device, width, k)
                config = LaunchConfig((rows, 1, 1), (THREADS, 1, 1), shared)
                arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
                result = driver.launch(
                    ctypes.c_void_p(ctypes.addressof(config)),
                    ctypes.c_void_p(function),
                    ctypes.c_void_p(ctypes.addressof(arguments)),
                    None,
                )
                driver.check(result, f"launching {rung.name}")
                driver.synchronize(0)
                indices, reads = (driver.read(p, a.nbytes) for p, a in zip(device[2:], host[2:], strict=True))
            finally:
                for pointer in device:
                    driver.free(pointer, self._context)
        return Answer(np.frombuffer(indices, np.int32).reshape(rows, k), np.frombuffer(reads, np.uint32))


def inputs(k: int = K) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Small inputs: a name, float32 scores, and int32 lengths. The first is what a user's rows look like."""
    rng = np.random.default_rng(SEED)

    def full(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scores.astype(np.float32), np.full(len(scores), scores.shape[1], np.int32)

    yield "random", *full(rng.standard_normal((4, 4096)))
    yield (
        "ragged",
        rng.standard_normal((6, 1001), np.float32),
        np.array([-3, 0, k - 1, k, k + 1, 2000], np.int32),
    )
    yield "ties at rank k", *full(rng.integers(0, 20, (2, 3000)))
    yield "one value", *full(np.zeros((1, 5000)))
    hard = rng.standard_normal((3, 2047)).astype(np.float32)
    hard[0, rng.random(2047) < 0.98] = np.nan  # fewer than k numbers: some NaN are selected
    hard[1, ::3], hard[1, 1::3] = np.inf, -0.0
    hard[2, ::64] = -np.inf  # what every regular sample meets first
    yield "NaN, infinities, zeros", *full(hard)
    spiky = rng.standard_normal((1, 4096)).astype(np.float32)
    spiky[0, ::128] += 50  # k / 2 of the best scores stand where samples are taken: the boundary is too high
    yield "aimed at the sample", *full(spiky)


def climb(machine: Machine, rungs: Sequence[Rung] = RUNGS, k: int = K) -> bool:
    """Run, verify and print; whether every answer is exact."""
    given = list(inputs(k))
    rows = sum(len(lengths) for _, _, lengths in given)
    print(f"{len(given)} inputs, {rows} rows, k = {k}, on {machine.name}")
    print("reads per score, as the kernels count them: random rows, and the worst row\n")
    print(f"{'rung':<13}{'idea':<33}{'random':>7}{'worst':>7}  answers")
    good = True
    for rung in rungs:
        wrong, per_score = [], []
        for name, scores, lengths in given:
            answer = machine.launch(rung, scores, lengths, k)
            verdict = ksieve.verify(scores, lengths, answer.indices)
            if not verdict:
                wrong.append(f"{name}: {verdict.first}")
            valid = np.clip(lengths, 0, scores.shape[1])
            per_score.append(answer.reads[valid > k] / valid[valid > k])
        random, worst = per_score[0].mean(), max(row.max() for row in per_score)
        print(f"{rung.name:<13}{rung.idea:<33}{random:>7.2f}{worst:>7.2f}  {'not exact' if wrong else 'exact'}")
        for line in wrong:
            print(f"    {line}")
        good &= not wrong
    return good


def main(arguments: Any = None) -> int:
    """Run the example; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cuda", action="store_true", help="run on GPU 0 instead of the emulator")
    options = parser.parse_args(arguments)
    try:
        good = climb(Cuda() if options.cuda else Emulator())
    except KsieveError as error:
        print(f"the ladder cannot run here: {error}", file=sys.stderr)
        return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
