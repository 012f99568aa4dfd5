"""Cost of a row on a device: a linear model with few constants, each with its source.

The cost is for many rows at once, in device time per row: rows over throughput, not the latency of one. It weighs
policies against each other; it does not predict a benchmark to the per cent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ksieve.core.policy import SamplingPolicy

LINE_BYTES = 128
"""Bytes of one sampled line: a GPU's cache line."""


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """Constants of one device of `kind` "cpu" or "cuda", in nanoseconds.

    `fixed_ns`: per row, independent of its scores. `byte_ns`: per byte of the row and complete scan. `line_ns`: per
    sampled line of 128 bytes. `single_ns`: per sampled group of at most 64 bytes, a single score included.
    `candidate_ns`: per admitted score, for appending it and its share of the refinement. `source`: where the constants
    come from.
    """

    name: str
    kind: str
    fixed_ns: float
    byte_ns: float
    line_ns: float
    single_ns: float
    candidate_ns: float
    source: str

    @property
    def rescues_exact(self) -> bool:
        """Whether an exact boundary may have a rescue: the CUDA kernels take either of the two."""
        return self.kind == "cpu"

    def view_ns(self, policy: SamplingPolicy, length: Any, itemsize: int = 4) -> Any:
        """Cost of reading a policy's view of rows of `length` scores of `itemsize` bytes."""
        groups = np.asarray(length, dtype=np.float64) / (policy.stride * policy.group)
        size = policy.group * itemsize
        return groups * (self.single_ns if size <= LINE_BYTES // 2 else self.line_ns * math.ceil(size / LINE_BYTES))

    def row_ns(self, policy: SamplingPolicy | None, length: Any, admitted: Any, scans: Any, itemsize: int = 4) -> Any:
        """Cost of a row: fixed part, view, complete scans, candidates. Arguments broadcast."""
        view = self.view_ns(policy, length, itemsize) if policy is not None else 0.0
        scanned = np.asarray(scans, dtype=np.float64) * np.asarray(length, dtype=np.float64) * itemsize
        return self.fixed_ns + view + self.byte_ns * scanned + self.candidate_ns * np.asarray(admitted, np.float64)


DEVICE_COSTS: dict[str, DeviceCost] = {
    "h200": DeviceCost(
        "h200",
        "cuda",
        fixed_ns=0.9,
        byte_ns=2.176e-4,
        line_ns=0.026,
        single_ns=0.013,
        candidate_ns=0.0028,
        source="benchmarks/results/gpu-operator-k512, -k1024, -k2048, shapes of 2,048 rows and more: bytes from the "
        "plain read, the others by non-negative least squares of what ksieve takes beyond it; a lone "
        "score pulls a 64-byte burst, half a line (docs/decisions/0003-lines-and-quads.md)",
    ),
    "cpu": DeviceCost(
        "cpu",
        "cpu",
        fixed_ns=0.0,
        byte_ns=0.058,
        line_ns=4.0,
        single_ns=2.0,
        candidate_ns=2.8,
        source="benchmarks/results/cpu-2-threads.json: bytes from the plain read, samples and candidates from the "
        "excess over it at 131,072 and 1,048,576 scores; a sampled line is two cache lines; fixed cost not separable",
    ),
}
"""Devices that `ksieve calibrate` can weigh for."""
