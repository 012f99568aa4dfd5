"""A decode layer's sequence in CUDA graphs, with and without programmatic dependent launch.

An indexer's scores are produced, the best are selected, and the cached values at their positions are read. A graph
holds this for many layers, each with keys, scores and a cache of its own, so that none finds them in L2. After a replay
the selection of every layer is verified, and so is what the consumer read: its sums are of integers, and exact.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

from ksieve import api
from ksieve.planning.plan import Plan
from ksieve.tuning import tasks, timing
from ksieve.tuning.timing import Contender
from ksieve_lab.bench import gpu
from ksieve_lab.bench.gpu import Case, Here
from ksieve_lab.bench.runner import Facts
from ksieve_lab.chain import producers

SHAPES = ",".join(f"{rows}x{width}:full" for width in (32_768, 131_072) for rows in (1, 16, 64))

VALUES, SUMMED = 576, 32
"""Values of a cached token, as DeepSeek's latent attention has them, and positions of a partial sum."""

PLAIN = "no overlap"
VARIANTS: dict[str, tuple[bool | None, bool]] = {
    PLAIN: (False, False),
    "selection overlaps": (True, False),
    "neighbours overlap": (False, True),
    "all overlap": (True, True),
    "no selection": (None, False),
    "no selection, overlap": (None, True),
}
"""Whether the selection, and the producer and the consumer, are launched programmatically; None: no selection."""


def plans(case: Case, here: Here) -> Iterator[Callable[[], Plan]]:
    """Plans of the selection: without overlap, and with it."""
    rows, width, k, dtype = case.ask
    for overlap in (False, True):
        yield partial(api.plan, rows=rows, width=width, k=k, dtype=dtype, device=here.device, overlap=overlap)


def measure(case: Case, here: Here) -> Facts:
    """Time a layer in every variant; ``added_us`` is what it takes more than the plain one, round by round."""
    import torch

    from ksieve.checking.verify import verify

    produce, gather = producers.load_layer()
    (rows, width, k, dtype), seed = case.ask, here.settings.seed
    facts: Facts = {"rows": rows, "width": width}
    # A layer for every input set that a graph takes, however few of them fill L2.
    scores = tasks.allocate(rows, width, dtype, valid=1)
    if isinstance(scores, str):
        return facts | {"skipped": scores}
    where, lengths = str(scores[0].device), gpu.lengths_of(case, seed)
    on_device, generator = lengths.to(where), torch.Generator(where).manual_seed(seed)
    factors, caches, chosen, outs, sums = ([] for _ in range(5))
    for number, matrix in enumerate(scores):
        keys = producers.make_keys(width, seed=seed + number, device=where)
        factors.append(producers.make_queries(keys, lengths, seed=seed + number, device=where))
        cache = torch.randint(-8, 9, (width, VALUES), dtype=torch.int8, generator=generator, device=where)
        caches.append(cache.to(torch.bfloat16))
        produce(factors[-1], matrix, False)
        chosen.append(matrix.topk(k).indices.int())  # what the consumer reads without a selection
        outs.append(torch.empty(rows, k, dtype=torch.int32, device=where))
        sums.append(torch.empty(rows, -(-k // SUMMED), VALUES, device=where))

    def contender(name: str, plan: Plan | None, overlap: bool) -> Contender:
        positions, workspace = (chosen, None) if plan is None else (outs, plan.workspace())

        def run(i: int) -> None:
            produce(factors[i], scores[i], overlap)
            if plan is not None:
                api.topk(scores[i], on_device, plan=plan, out=outs[i], workspace=workspace)
            gather(caches[i], positions[i], sums[i], overlap)

        def check(i: int) -> bool:
            if plan is not None and not verify(scores[i], on_device, outs[i], block_bytes=tasks.VERIFY_BYTES).ok:
                return False
            return bool(torch.equal(sums[i].sum(1), caches[i][positions[i].long()].float().sum(1)))

        def poison(i: int) -> None:
            outs[i].fill_(tasks.POISON)
            sums[i].fill_(float("nan"))

        return Contender(name, run, check, poison)

    made = [make() for make in plans(case, here)]
    contenders = [
        contender(name, None if selection is None else made[selection], around)
        for name, (selection, around) in VARIANTS.items()
    ]
    read_bytes = width * producers.DIM + min(rows * k, width) * VALUES * 2
    timed = timing.measure(contenders, len(scores), read_bytes, rounds=here.settings.rounds)
    selectors = {t.name: t.facts() for t in timed}
    for t in timed:
        if differences := [a - b for a, b in zip(t.rounds, timed[0].rounds, strict=False)]:
            selectors[t.name]["added_us"] = statistics.median(differences)
    return facts | {"layers": len(scores), "families": [plan.family for plan in made], "selectors": selectors}
