"""Input sets of one shape on the GPU at hand, and plans as contenders on them: for `ksieve tune` and the benches.

Scores and lengths are made on the device in place: a matrix of 34 GB takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ksieve import api
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import BackendError
from ksieve.core.installation import require_torch
from ksieve.planning.plan import Plan
from ksieve.tuning import timing
from ksieve.tuning.timing import Contender
from ksieve.tuning.variants import PLANNED, Variant

POISON = 0x7F7F7F7F
VERIFY_BYTES = 4 << 30

MEMORY = 0.75
"""Share of the free device memory that inputs may take."""

PITCH_BYTES = 1024
"""Alignment of row starts: score producers', and the largest that a peer requires."""


CHUNK = 1 << 26
"""Scores made at a time: bounds the temporaries to about 1 GB."""

REACH = 0.04
SHARES = (0.57, 0.69)


@dataclass(frozen=True)
class Task:
    """Input of a contender.

    `matrices` (sequence of torch.Tensor, shape (rows, width)): input sets. `lengths` (torch.Tensor of int32, shape
    (rows,)): valid prefixes, between 0 and the width.
    """

    matrices: Sequence[Any]
    lengths: Any
    k: int

    @property
    def rows(self) -> int:
        """Rows of every set."""
        return int(self.matrices[0].shape[0])

    @property
    def width(self) -> int:
        """Allocated scores per row."""
        return int(self.matrices[0].shape[1])

    def empty(self, dtype: str = "int32") -> Any:
        """Make an output tensor (rows, k)."""
        import torch

        return torch.empty(self.rows, self.k, dtype=getattr(torch, dtype), device=self.lengths.device)


def require_device() -> DeviceInfo:
    """Facts of PyTorch's current GPU.

    Raises `BackendError` if there is none, or no PyTorch that could use it.
    """
    torch = require_torch("inputs on the GPU are made with PyTorch")
    from ksieve.backends import cuda

    if not torch.cuda.is_available():
        cuda.device_info(0)  # says what is missing
        raise BackendError("this PyTorch has no CUDA support: install a CUDA build of torch")
    return cuda.device_info(torch.cuda.current_device())


def pitch_of(width: int, itemsize: int) -> int:
    """Scores from one row to the next in a bench's matrices."""
    return -(-width * itemsize // PITCH_BYTES) * PITCH_BYTES // itemsize


def allocate(rows: int, width: int, dtype: str, most: int | None = None, valid: int | None = None) -> list[Any] | str:
    """Make the input sets of a shape, unfilled; or say why there is no room.

    `most`: bound on the sets, for inputs that cost much to make. `valid`: scores of a set that are read: short rows of
    a wide matrix take more sets to leave L2 behind.
    """
    import torch

    torch.cuda.empty_cache()
    element = getattr(torch, dtype)
    pitch = pitch_of(width, element.itemsize)
    set_bytes = rows * pitch * element.itemsize
    free = int(torch.cuda.mem_get_info()[0] * MEMORY)
    if set_bytes > free:
        return f"{set_bytes / 1e9:.1f} GB of scores, {free / 1e9:.1f} GB may be used"
    read = None if valid is None else valid * element.itemsize
    sets = timing.input_sets(set_bytes, torch.cuda.get_device_properties().L2_cache_size, free, read)
    sets = min(sets, most or sets)
    return [aligned(rows, pitch, element, "cuda")[:, :width] for _ in range(sets)]


def aligned(rows: int, pitch: int, element: Any, device: str) -> Any:
    """Make a matrix (rows, pitch) that starts at a multiple of `PITCH_BYTES`; PyTorch's own start at one of 512."""
    import torch

    flat = torch.empty(rows * pitch + PITCH_BYTES // element.itemsize, dtype=element, device=device)
    start = -flat.data_ptr() % PITCH_BYTES // element.itemsize
    return flat[start : start + rows * pitch].view(rows, pitch)


def valid_scores(lengths: Any, width: int) -> int:
    """How many scores of a matrix are valid; negative lengths and those beyond the width as a selection takes them."""
    return int(lengths.long().clamp(0, width).sum())


def selector(variant: Variant, plan: Plan, task: Task, judged: int | None = None) -> Contender:
    """Contender that selects with a plan; the answers of the first `judged` input sets are verified, or of all."""
    from ksieve.checking.verify import verify

    outs = [task.empty() for _ in task.matrices]
    held: list[Any] = []
    judged = len(outs) if judged is None or variant is PLANNED else judged

    def select(i: int) -> None:
        if not held:
            held.append(plan.workspace())
        api.topk(task.matrices[i], task.lengths, plan=plan, out=outs[i], workspace=held[0])

    def check(i: int) -> bool:
        return i >= judged or verify(task.matrices[i], task.lengths, outs[i], block_bytes=VERIFY_BYTES).ok

    return Contender(variant.name, select, check, lambda i: outs[i].fill_(POISON))


def blocks(rows: int, width: int, chunk: int = CHUNK) -> Iterator[slice]:
    """Row ranges of at most `chunk` scores, at least one row each."""
    step = max(1, chunk // max(width, 1))
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))


def ragged(rows: int, width: int, seed: int = 0) -> Any:
    """Return int32 lengths of a decode batch on the CPU, uniform between 0.8 and 1.0 of the width."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(seed)
    least = -(-4 * width // 5)
    return torch.randint(least, max(width, least) + 1, (rows,), dtype=torch.int32, generator=generator)


def endpoint_structured(matrix: Any, lengths: Any, seed: int = 0) -> None:
    """Fill a matrix with rows whose first and last decile hold 52 to 74 % of the top scores.

    The law of `ksieve_lab.workloads.natural`: ``Exp(1) + log density(position)``, positions relative to each row's
    length.

    `matrix` (torch.Tensor, float, shape (rows, width)): filled in place, past the lengths too. `lengths`: torch.Tensor
    of int32, shape (rows,).
    """
    import torch

    rows, width = matrix.shape
    generator = torch.Generator(device=matrix.device)
    generator.manual_seed(seed)
    grid = (np.arange(4096) + 0.5) / 4096
    bump = np.exp(-grid / REACH) + np.exp((grid - 1) / REACH)
    ends, mean = float(bump[(grid < 0.1) | (grid >= 0.9)].sum()) / grid.size, float(bump.mean())
    target = torch.empty(rows, 1, device=matrix.device).uniform_(*SHARES, generator=generator)
    # density = 1 + height * bump, its share within the two deciles being the target
    height = (target - 0.2) / (ends - target * mean)
    position = torch.arange(width, device=matrix.device, dtype=torch.float32) + 0.5
    for part in blocks(rows, width):
        x = position / lengths[part, None].clamp(min=1)
        density = torch.exp(x.mul(-1 / REACH)) + torch.exp(x.clamp_(max=1.1).sub_(1).div_(REACH))
        noise = torch.empty_like(x).exponential_(generator=generator)
        matrix[part] = density.mul_(height[part]).log1p_().add_(noise)
