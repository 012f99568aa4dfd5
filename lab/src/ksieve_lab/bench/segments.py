"""Segments of flat scores compared with a matrix of as many rows and scores, by what the host says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ksieve
from ksieve import api
from ksieve.tuning import tasks
from ksieve.tuning.tasks import POISON
from ksieve.tuning.timing import Contender
from ksieve_lab.bench import floor, gpu
from ksieve_lab.bench.gpu import Case, Here
from ksieve_lab.bench.runner import Facts, Settings

SHAPES = "1000000x150:8,1000000x32:4,100000x1500:32,20000x4096:8,20000x12288:64,1000x100000:100,64x131072:2048"
"""Segments, their mean length, and k. Lengths are uniform, up to twice the mean."""

MATRIX = "matrix"
JUDGED = 4096
"""Segments of each input set that are verified."""

_READ = 4096


def cases(settings: Settings) -> list[Case]:
    """Numbers of segments, mean lengths and k."""
    return [Case(rows, mean, k, settings.dtype) for rows, mean, k in settings.shapes.items]


def results(found: Sequence[Facts], settings: Settings) -> Facts:
    """Facts of every shape."""
    return {"shapes": list(found)}


def measure(case: Case, here: Here) -> Facts:
    """Time the matrix and the segments; ``of_matrix`` is a median over the matrix's."""
    import torch

    rows, mean, k, dtype = case.ask
    facts: Facts = {"rows": rows, "width": mean, "k": k}
    sets = tasks.allocate(1, rows * mean, dtype)
    if isinstance(sets, str):
        return facts | {"skipped": sets}
    where = sets[0].device
    generator = torch.Generator(where).manual_seed(here.settings.seed)
    flats = [scores[0].normal_(generator=generator) for scores in sets]
    drawn = torch.randint(0, 2 * mean + 1, (rows,), generator=generator, device=where).cumsum(0).double()
    indptr = torch.zeros(rows + 1, dtype=torch.int64, device=where)
    indptr[1:] = (drawn * (rows * mean / drawn[-1])).long()
    indptr[-1] = rows * mean
    longest = int(indptr.diff().max())
    window = ksieve.RowBounds(indptr[:-1].contiguous(), indptr[1:].int().contiguous(), index_base="start")
    asked: dict[str, tuple[Any, list[Any]]] = {
        MATRIX: (None, [flat.view(rows, mean) for flat in flats]),
        "segments": (ksieve.Segments(indptr), flats),
        "segments, mean": (ksieve.Segments(indptr, mean_length=mean), flats),
        "segments, mean and longest": (ksieve.Segments(indptr, longest, mean), flats),
        "windows of one row": (window, [flat.expand(rows, -1) for flat in flats]),
    }
    plans = {name: ksieve.plan(own[0], k=k, bounds=bounds) for name, (bounds, own) in asked.items()}
    timed = [_contender(name, plans[name], own, bounds, indptr, flats) for name, (bounds, own) in asked.items()]
    whole = flats[0].numel() // _READ * _READ
    reads = floor.contenders([flat[:whole].view(-1, _READ) for flat in flats], None, here.device)
    read, selectors = gpu.timed(
        reads, timed, len(flats), whole * flats[0].element_size(), rounds=here.settings.rounds
    )  # fmt: skip
    for name, of in selectors.items():
        of |= gpu.plan_facts(plans[name]) | {"launches": [launch.family for launch in plans[name].bins]}
        if "median_us" in of and "median_us" in selectors[MATRIX]:
            of["of_matrix"] = of["median_us"] / selectors[MATRIX]["median_us"]
    return facts | {"longest": longest} | read | {"selectors": selectors}


def _contender(name: str, plan: Any, own: list[Any], bounds: Any, indptr: Any, flats: list[Any]) -> Contender:
    """Contender that selects by a plan; of some rows of each input set the answers are verified."""
    import torch

    where = indptr.device
    outs = [torch.empty(len(indptr) - 1, plan.problem.k, dtype=torch.int32, device=where) for _ in own]
    workspace: list[Any] = []

    def run(i: int) -> None:
        if not workspace:
            workspace.append(plan.workspace())
        api.topk(own[i], plan=plan, bounds=bounds, out=outs[i], workspace=workspace[0])

    def check(i: int) -> bool:
        rows = torch.linspace(0, len(outs[i]) - 1, min(JUDGED, len(outs[i]))).long().to(where)
        if bounds is None:
            return ksieve.verify(own[i][rows], None, outs[i][rows]).ok
        lengths = indptr.diff()[rows]
        column = torch.arange(int(lengths.max()), device=where)
        at = torch.where(column < lengths[:, None], indptr[rows, None] + column, 0)
        return ksieve.verify(flats[i][at], lengths, outs[i][rows]).ok

    return Contender(name, run, check, lambda i: outs[i].fill_(POISON))
