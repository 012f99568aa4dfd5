"""One guarded call: poisoned output between guard bytes, dirty workspace, two runs, judged on the device.

With `DRY` (environment KSIEVE_GPU_DRY_RUN=1) the NumPy model stands in for the kernels and host memory for the GPU:
it proves the suite's own code on a machine without a GPU, and nothing else. With `EMULATED` (KSIEVE_GPU_EMULATED=1) the
kernels themselves run, on the CPU (`emulator`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from conftest import cuda_devices

import harness
import ksieve
from gpu import DRY, EMULATED, HOST
from gpu.variants import Variant
from ksieve.backends.cuda import device_info
from ksieve.core.keys import widen
from ksieve.core.ranking import ranked
from ksieve.core.stats import STATS_COLUMNS
from ksieve.model import reference
from ksieve.planning.devices import DEVICES
from ksieve.planning.plan import Plan

DEVICE = "cpu" if HOST else "cuda"
PLAN_DEVICE = DEVICES["h200"] if DRY else "cuda"
PLANNED_FOR = device_info(0) if cuda_devices() and not HOST else DEVICES["h200"]
"""Facts of the device whose launch shapes are tested."""
POISON, BYTE = 0x7F7F7F7F, 0x7F
"""What is in outputs before a call, and each of its bytes."""

GUARD = 256
"""Bytes before and behind an output."""

JUDGED_BYTES = 1 << 30
"""Bytes of scores that are judged at a time."""

if EMULATED:
    from gpu.emulated import on_device
else:

    def on_device(value: Any) -> Any:
        """What the package is given for a tensor, or for a call's arguments: themselves."""
        return value


@dataclass
class Guarded:
    """An output of any dtype inside guard bytes."""

    out: torch.Tensor
    memory: torch.Tensor
    inside: torch.Tensor

    @classmethod
    def make(cls, rows: int, k: int, dtype: torch.dtype = torch.int32, padding: int = 0, guard: int = GUARD) -> Guarded:
        size, pitch = dtype.itemsize, k + padding
        memory = torch.full((2 * guard + rows * pitch * size,), BYTE, dtype=torch.uint8, device=DEVICE)
        body = memory[guard : guard + rows * pitch * size].view(dtype).view(rows, pitch)
        inside = torch.zeros(rows, pitch * size, dtype=torch.bool, device=DEVICE)
        inside[:, : k * size] = True
        edge = torch.zeros(guard, dtype=torch.bool, device=DEVICE)
        return cls(body[:, :k], memory, torch.cat([edge, inside.reshape(-1), edge]))

    def poison(self) -> None:
        self.memory.fill_(BYTE)

    def intact(self) -> bool:
        """Whether nothing outside the slots was written."""
        return bool(((self.memory == BYTE) | self.inside).all())


def dirty_workspace(plan: Plan) -> object:
    """A workspace on memory that was full of garbage."""
    if DRY:
        return None
    size, slack = max(plan.workspace_bytes, 1), 256 if EMULATED else 0  # host memory is aligned to less
    dirt = torch.full((size + slack,), 0xAB, dtype=torch.uint8, device=DEVICE)
    return plan.workspace(on_device(dirt[-dirt.data_ptr() % 256 :] if slack else dirt))


def call(
    plan: Plan,
    scores: torch.Tensor,
    lengths: torch.Tensor | None,
    out: torch.Tensor,
    workspace: object = None,
    num_rows: torch.Tensor | None = None,
) -> None:
    """Select into `out`."""
    if not DRY:
        call = {"lengths": lengths, "out": out, "num_rows": num_rows}
        ksieve.topk(on_device(scores), plan=plan, workspace=workspace, **on_device(call))
        return
    live = scores.shape[0] if num_rows is None else min(max(int(num_rows), 0), scores.shape[0])
    valid = np.full(scores.shape[0], scores.shape[1]) if lengths is None else lengths.numpy()
    out[live:] = -1
    model = model_of(plan, to_numpy(scores)[:live], valid[:live])
    out[:live] = torch.from_numpy(model[0])


def call_stats(plan: Plan, scores: torch.Tensor, lengths: torch.Tensor | None) -> tuple[torch.Tensor, np.ndarray]:
    """Select with statistics: indices and the raw (rows, 16) array."""
    if DRY:
        valid = np.full(scores.shape[0], scores.shape[1]) if lengths is None else lengths.numpy()
        indices, stats = model_of(plan, to_numpy(scores), valid)
        return torch.from_numpy(indices), stats.raw
    indices = torch.empty(scores.shape[0], plan.problem.k, dtype=torch.int32, device=DEVICE)
    call = {"lengths": lengths, "out": indices}
    _, stats = ksieve.topk(on_device(scores), plan=plan, return_stats=True, **on_device(call))
    return indices, stats.raw


def model_of(plan: Plan, scores: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, ksieve.Stats]:
    """What the NumPy model says of a plan's selection: `reference.select`, rows in parallel."""
    rows, width = scores.shape
    k, valid = plan.problem.k, np.clip(lengths.astype(np.int64), 0, width)
    options = harness.model_arguments(plan)

    def one(row: int) -> tuple[np.ndarray, list[int]]:
        own = widen(ranked(scores[row, : valid[row]], plan.problem.options.ranking))
        chosen, trace = reference.select_row(own, k, row_id=row, **options)
        return np.pad(chosen, (0, k - chosen.size), constant_values=-1), trace.columns()

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(rows)))
    indices = np.array([chosen for chosen, _ in found], np.int32).reshape(rows, k)
    return indices, ksieve.Stats(np.array([row for _, row in found], np.int32).reshape(rows, len(STATS_COLUMNS)))


def to_numpy(scores: torch.Tensor) -> np.ndarray:
    """Host copy that the model reads; bfloat16 as uint16 bits."""
    host = scores.contiguous().cpu()
    return host.view(torch.uint16).numpy() if host.dtype == torch.bfloat16 else host.numpy()


def ranking_of(plan: Plan) -> dict[str, Any]:
    return {"largest": plan.problem.options.largest, "nan": plan.problem.options.nan}


def refuted(scores: torch.Tensor, lengths: Any, indices: torch.Tensor, k: Any = None, **call: Any) -> list[str]:
    """What `ksieve.verify` says of an answer that is not exact."""
    verdict = ksieve.verify(scores, lengths, indices, k=k, block_bytes=JUDGED_BYTES, **call)
    return [] if verdict else [str(verdict)]


def check(
    plan: Plan,
    scores: torch.Tensor,
    lengths: torch.Tensor | None,
    *,
    num_rows: int | None = None,
    out_padding: int = 0,
    runs: int = 2,
) -> list[str]:
    """Run a plan `runs` times on one dirty workspace; what is wrong with the answers, nothing if they are exact."""
    rows, k = len(scores), plan.problem.k
    live = torch.tensor([num_rows], dtype=torch.int32, device=DEVICE) if num_rows is not None else None
    target, workspace, wrong = Guarded.make(rows, k, padding=out_padding), dirty_workspace(plan), []
    for run in range(runs):
        target.poison()
        call(plan, scores, lengths, target.out, workspace, live)
        found = refuted(scores, lengths, target.out, k, num_rows=num_rows, **ranking_of(plan))
        wrong += [f"run {run}: {text}" for text in found]
        if not target.intact():
            wrong.append(f"run {run}: memory around the output was written")
        if wrong:
            break
    return wrong


def compare_stats(
    plan: Plan, scores: torch.Tensor, lengths: torch.Tensor | None, names: Callable[[int], str] | None = None
) -> tuple[list[str], np.ndarray]:
    """Statistics against the model's, column by column: what differs, and the model's raw array."""
    rows, width = scores.shape
    valid = np.full(rows, width) if lengths is None else lengths.cpu().numpy()
    indices, raw = call_stats(plan, scores, lengths)
    _, expected = model_of(plan, to_numpy(scores), valid)
    found = refuted(scores, lengths, indices, plan.problem.k, **ranking_of(plan))
    wrong = [f"with statistics on: {text}" for text in found]
    differing = np.flatnonzero((raw != expected.raw).any(1))
    for row in differing[:3]:
        columns = np.flatnonzero(raw[row] != expected.raw[row])
        shown = ", ".join(f"{STATS_COLUMNS[c]} {raw[row][c]} (model {expected.raw[row][c]})" for c in columns)
        name = f" {names(row)}" if names else ""
        wrong.append(f"row {row}{name}, length {int(valid[row])}: {shown}")
    if len(differing) > 3:
        wrong.append(f"statistics of {len(differing)} of {rows} rows differ in all")
    return wrong, expected.raw


def plan_for(variant: Variant, scores: torch.Tensor, k: int, **changes) -> Plan:
    """A variant's plan for a matrix that is there."""
    rows, width = scores.shape
    dtype = str(scores.dtype).removeprefix("torch.")
    pitch = max(scores.stride(0), width)
    return variant.plan(rows, width, k, pitch=pitch, dtype=dtype, device=PLAN_DEVICE, **changes)
