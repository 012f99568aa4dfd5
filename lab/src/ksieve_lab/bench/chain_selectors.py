"""What selects in a chain of score production and selection: ksieve with the matrix and without it, and its peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ksieve import api
from ksieve.planning.tune import tasks
from ksieve.planning.tune.timing import Contender
from ksieve_lab.bench import peers
from ksieve_lab.bench.engine_calls import UnsupportedError
from ksieve_lab.chain import producers, ways
from ksieve_lab.chain.producers import Factors, Produce

OURS = "ksieve"
TILES, CANDIDATES, NOT_STORED = "ksieve, tiles", "ksieve, candidates", "scores not stored"
"""Ways without the matrix, and the production of the last one's scores alone, sampled ones among them."""

_Way = TypeVar("_Way", bound=ways.Tiles)


@dataclass(frozen=True)
class Stage:
    """One invocation of the chain: its factors, and where its scores and its answer go."""

    factors: Factors
    scores: Any

    @property
    def lengths(self) -> Any:
        """Valid scores per row: int32 on the device."""
        return self.factors.lengths


@dataclass(frozen=True)
class Selector:
    """A selection for every stage.

    Attributes
    ----------
    name : str
    parts : sequence of Contender
        Of each stage: selects from its scores, and verifies the answer while they are in the buffer.
    masked : bool
        Whether it needs -inf past every length.
    whole : callable, optional
        In place of `parts`: produces the scores of all stages and selects from them, without the matrix.
    bytes : int, optional
        Of a selector with `whole`: memory beside factors and answers.
    """

    name: str
    parts: Sequence[Contender]
    masked: bool = False
    whole: Callable[[], None] | None = None
    bytes: int | None = None

    def exact(self, i: int) -> bool:
        """Whether the answer of stage `i` is exact."""
        check = self.parts[i].check
        return check is not None and check(0)

    def poison(self, _: int = 0) -> None:
        """Overwrite all answers."""
        for part in self.parts:
            if part.poison is not None:
                part.poison(0)


def selectors(stages: Sequence[Stage], k: int, others: Sequence[str] | None) -> tuple[list[Selector], dict[str, str]]:
    """Ours, then every peer that can do all stages."""
    found = [_ours(stages, k)]
    loaded, skipped = peers.available(others)
    for peer, own in loaded:
        # One task per stage: stages differ in rows and lengths. Scores past a length are -inf for a selector that
        # knows none, so that only valid ones may be chosen.
        try:
            parts = [peers.contender(peer, own, tasks.Task([s.scores], s.lengths, k)) for s in stages]
            found.append(Selector(peer.name, parts, masked=peer.call.whole))
        except UnsupportedError as error:
            skipped[peer.name] = str(error)
    return found, skipped


def _verified(stage: Stage, run: Callable[[int], None], out: Any) -> Contender:
    """One stage of ours, which leaves its answer in an array."""
    from ksieve.checking.verify import verify

    check = lambda _: verify(stage.scores, stage.lengths, out, block_bytes=tasks.VERIFY_BYTES).ok  # noqa: E731
    return Contender(OURS, run, check, lambda _: out.fill_(tasks.POISON))


def _ours(stages: Sequence[Stage], k: int) -> Selector:
    import torch

    plans: dict[tuple[int, int], tuple[Any, Any]] = {}

    def part(stage: Stage) -> Contender:
        scores, out = stage.scores, torch.empty(len(stage.lengths), k, dtype=torch.int32, device=stage.lengths.device)

        def select(_: int) -> None:
            if scores.shape not in plans:  # one workspace for stages of a shape
                rows, width = scores.shape
                plan = api.plan(rows=rows, width=width, k=k, pitch=scores.stride(0), device=str(scores.device))
                plans[scores.shape] = (plan, plan.workspace() if scores.is_cuda else None)
            plan, workspace = plans[scores.shape]
            api.topk(scores, stage.lengths, plan=plan, out=out, workspace=workspace)

        return _verified(stage, select, out)

    return Selector(OURS, [part(stage) for stage in stages])


def without_matrix(stages: Sequence[Stage], k: int, produce: Produce) -> tuple[list[Selector], list[Contender]]:
    """Tiles and candidates, and the production of the latter alone; none of these where Triton is missing."""
    if not producers.installed("triton"):
        return [], []
    factors, keep = ways.joined([s.factors for s in stages]), producers.load_keep()
    kept, kept_bytes = _made(lambda: ways.Kept(factors, k, produce, keep))
    tiles, tiles_bytes = _made(lambda: ways.Tiles(factors, k, produce))
    found = [_whole(TILES, tiles, stages, tiles_bytes), _whole(CANDIDATES, kept, stages, kept_bytes)]
    return found, [Contender(NOT_STORED, lambda _: kept.run_without_selection())]


def _made(make: Callable[[], _Way]) -> tuple[_Way, int]:
    """A way that has run once, and the most memory that it took beside factors and answers."""
    import torch

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    way = make()
    way.run()
    return way, torch.cuda.max_memory_allocated() - before - way.out.nbytes


def _whole(name: str, way: ways.Tiles, stages: Sequence[Stage], size: int) -> Selector:
    ends = itertools.accumulate(len(s.lengths) for s in stages)
    parts = [_verified(s, lambda _: None, way.out[end - len(s.lengths) : end])
             for s, end in zip(stages, ends, strict=True)]  # fmt: skip
    return Selector(name, parts, whole=way.run, bytes=size)
