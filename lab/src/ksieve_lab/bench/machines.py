"""Machines that ablations and replays run on: how scores are made there, plans timed, and statistics read.

All return the same facts, so that ablations and replays do not depend on the device. On the GPU they time CUDA-graph
replays and the plain-read floor (`ksieve_lab.bench.gpu`), on the CPU wall time in rotated rounds and a plain maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ksieve import api, dispatch
from ksieve.checking.verify import verify
from ksieve.core.device import DeviceInfo
from ksieve.core.dtypes import canonical
from ksieve.core.errors import ArgumentError
from ksieve.core.paths import unreadable
from ksieve.core.policy import SamplingPolicy
from ksieve.core.stats import Stats
from ksieve.planning.plan import Plan
from ksieve.tuning.tasks import POISON
from ksieve.tuning.timing import Contender
from ksieve_lab.bench.gpu import measure_task, timed
from ksieve_lab.bench.host_timing import measure_host

Choice = tuple[str | None, SamplingPolicy | str | None]
"""Family and policy that a plan is forced to; None leaves either to the planner."""

DISTRIBUTIONS = {"endpoint": "endpoint_structured", "normal": "random_normal"}
"""Score sources that both machines know, with the producer that makes them on the host."""


def plan_for(scores: Any, k: int, choice: Choice, device: str | DeviceInfo) -> Plan:
    """Plan a selection of a matrix as a choice says."""
    rows, width = scores.shape
    dtype = canonical(str(scores.dtype).removeprefix("torch."))
    return api.plan(rows=rows, width=width, k=k, dtype=dtype, device=device, family=choice[0], policy=choice[1])


class Cpu:
    """The CPU backend; "families" are CUDA's and mean nothing here. `Gpu` does the same on a GPU."""

    name = "cpu"
    backend: Literal["cpu", "reference"] = "cpu"

    def scores(self, rows: int, width: int, lengths: NDArray[np.int32], source: str, seed: int) -> tuple[Any, Any]:
        """Make scores row by row; endpoint structure is relative to the width."""
        from ksieve_lab.workloads.producers import find_producer

        if source.startswith("factors:"):
            raise ArgumentError("scores", repr(source), f"{', '.join(DISTRIBUTIONS)} or a producer's name on the CPU")
        return find_producer(DISTRIBUTIONS.get(source, source))(rows, width, seed=seed), lengths

    def time(
        self, scores: Any, lengths: Any, k: int, choices: Mapping[str, Choice], rounds: int, peers: Sequence[str] | None
    ) -> dict[str, Any]:
        """Time plans and a plain maximum over the same prefixes in rotated rounds; peers are a matter of the GPU.

        Returns ``floor_us``, and by name in ``selectors`` ``median_us``, ``exact`` and ``of_floor``, or ``error``.
        """
        out = np.empty((scores.shape[0], k), np.int32)

        def contender(name: str, policy: SamplingPolicy | str | None) -> Contender:
            plan = plan_for(scores, k, (None, policy), "cpu")
            return Contender(
                name, lambda i: self._run(scores, lengths, plan, out),
                lambda i: verify(scores, lengths, out).ok, lambda i: out.fill(POISON),
            )  # fmt: skip

        def read(_: int) -> None:
            read_prefixes(scores, lengths)

        plans = [contender(name, policy) for name, (_, policy) in choices.items()]
        facts, selectors = timed([Contender("plain read", read)], plans, 1, 0, rounds=rounds, clock=measure_host)
        return facts | {"selectors": selectors}

    def _run(self, scores: Any, lengths: Any, plan: Plan, out: Any) -> None:
        dispatch.select(scores, lengths, None, plan, out, backend=self.backend)

    def stats(self, scores: Any, lengths: Any, k: int, choice: Choice) -> Stats:
        """Select once and return the statistics."""
        plan = plan_for(scores, k, (None, choice[1]), "cpu")
        stats: Stats = api.select(scores, lengths, plan=plan, stats=True).stats
        return stats

    def put(self, matrix: NDArray[Any]) -> Any:
        """Host matrices stay where they are."""
        return matrix

    def blank(self, rows: int, width: int) -> Any:
        """Zeros."""
        return np.zeros((rows, width), np.float32)

    def lengths(self, values: NDArray[np.int32]) -> Any:
        """Lengths stay as they are."""
        return values


class Reference(Cpu):
    """The NumPy model: slow, for study."""

    name = "reference"
    backend = "reference"


def read_prefixes(scores: NDArray[Any], lengths: NDArray[np.int32]) -> float:
    """Read every valid score once and do next to nothing with it."""
    best = -np.inf
    for row, length in zip(scores, lengths, strict=True):
        if length > 0:
            best = max(best, float(row[:length].max()))
    return best


class Gpu:
    """The CUDA backend on PyTorch's current device."""

    name = "cuda"

    def __init__(self) -> None:
        from ksieve.tuning.tasks import require_device

        self.device = require_device()

    def scores(self, rows: int, width: int, lengths: NDArray[np.int32], source: str, seed: int) -> tuple[Any, Any]:
        """Make scores on the device; endpoint structure is relative to each row's length."""
        from ksieve.tuning import tasks
        from ksieve_lab.bench.scores import source_of

        fill = source_of(source)
        made = tasks.allocate(rows, width, "float32", most=1)
        if isinstance(made, str):
            raise ArgumentError("shape", f"{rows} x {width}", f"scores that fit into memory ({made})")
        valid = self.lengths(lengths)
        fill(made[0], valid, seed)
        return made[0], valid

    def time(
        self, scores: Any, lengths: Any, k: int, choices: Mapping[str, Choice], rounds: int, peers: Sequence[str] | None
    ) -> dict[str, Any]:
        """Time plans, peers and plain reads as ``ksieve bench gpu`` does; small inputs in copies, beyond L2."""
        from ksieve.tuning.tasks import Task
        from ksieve.tuning.variants import Variant
        from ksieve_lab.bench.peers import available

        loaded, _ = available(peers)
        variants = [Variant(name, family, policy) for name, (family, policy) in choices.items()]
        return measure_task(Task(_copies(scores), lengths, k), variants, loaded, self.device, rounds=rounds)

    def stats(self, scores: Any, lengths: Any, k: int, choice: Choice) -> Stats:
        """Select once and return the statistics; the plan is the one that is timed."""
        plan = plan_for(scores, k, choice, self.device)
        stats: Stats = api.select(scores, lengths, plan=plan, stats=True).stats
        return stats

    def put(self, matrix: NDArray[Any]) -> Any:
        """Copy a host matrix into rows as long as the benches'."""
        import torch

        host = torch.from_numpy(np.ascontiguousarray(matrix))
        host = host.view(torch.bfloat16) if host.dtype is torch.uint16 else host
        rows, width = host.shape
        return self.blank(rows, width, host.dtype).copy_(host)

    def blank(self, rows: int, width: int, dtype: Any = None) -> Any:
        """Zeros in rows as long as the benches'; float32 unless said otherwise."""
        import torch

        from ksieve.tuning.tasks import pitch_of

        element = dtype or torch.float32
        return torch.zeros(rows, pitch_of(width, element.itemsize), dtype=element, device="cuda")[:, :width]

    def lengths(self, values: NDArray[np.int32]) -> Any:
        """Copy lengths to the device."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(values)).to("cuda")


def _copies(scores: Any) -> list[Any]:
    """The matrix, and as many copies of it as a graph should rotate through."""
    from ksieve.tuning import tasks

    rows, width = scores.shape
    copies = tasks.allocate(rows, width, str(scores.dtype).removeprefix("torch."))
    return [scores] if isinstance(copies, str) else [scores, *(copy.copy_(scores) for copy in copies[1:])]


Machine = Cpu | Gpu
"""Where plans run."""


def stem_of(backend: str, *words: str) -> str:
    """Name of a result file: "gpu-" and the words on CUDA, else the words and the backend."""
    from ksieve.files.stream import choose_backend

    chosen = choose_backend() if backend == "auto" else backend
    named = [word.replace(" ", "") for word in words]
    return "-".join(["gpu", *named] if chosen == "cuda" else [*named, chosen])


def check_backend(backend: str) -> None:
    """Refuse a name that no machine has."""
    if backend not in ("auto", "cpu", "cuda", "reference"):
        raise ArgumentError("backend", repr(backend), "'auto', 'cpu', 'cuda' or 'reference'")


def check_anywhere(source: str) -> None:
    """Refuse scores that a machine of neither kind makes, and that no capture holds."""
    from ksieve_lab.workloads.producers import find_producer

    if source not in DISTRIBUTIONS and unreadable(Path(source.removeprefix("factors:"))):
        find_producer(source)


def machine_of(backend: str) -> Machine:
    """Return the machine of a backend: "cpu", "reference", "cuda", or "auto" for a GPU where there is one."""
    from ksieve.files.stream import choose_backend

    check_backend(backend)
    chosen = choose_backend() if backend == "auto" else backend
    return Gpu() if chosen == "cuda" else Reference() if chosen == "reference" else Cpu()
