"""Statistics, kept sets and samples of logits beside plain selections, plain reads, and samplers of engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ksieve
from ksieve import api
from ksieve.core.arrays import as_numpy
from ksieve.logits import cpu, cuda
from ksieve.logits.problem import DRAWN_OF, Request, kept_of, parse, sample_of, statistics_of
from ksieve.tuning import tasks
from ksieve.tuning.timing import Contender
from ksieve_lab.bench import floor, gpu, samplers
from ksieve_lab.bench.gpu import Case, Here
from ksieve_lab.bench.runner import Facts, Settings

SHAPES = "64x128256:50,256x128256:50,64x151936:50,256x151936:50,1x128256:50,16x128256:50,1024x128256:50"
"""Rows, vocabulary and k."""

PLAIN, P, JUDGED = "topk", 0.9, 3
"""The contender that others are compared with; p of kept sets and samples; rows of each answer that are verified."""

OURS = (
    "topk", "statistics", "statistics, 1 token", "statistics, 8 tokens", "statistics, any token", "kept", "sample",
)  # fmt: skip
"""Names of ksieve's contenders."""

MADE: dict[str, Callable[[Request], Any]] = {
    "statistics": statistics_of, "kept": lambda request: kept_of(request, request.k), "sample": sample_of,
}  # fmt: skip
"""Results of each function, not filled."""

ALONE, SPREADS = "p alone", {"flat": 0.5, "normal": 3.0, "peaked": 12.0}
"""A sample without k, and the standard deviations of the float32 logits that it is timed with."""

COUNTS = {"1 token": 1, "8 tokens": 8}
"""Tokens of each row among its k best, by contender. "any token" asks for a token that is not among them."""


def cases(settings: Settings) -> list[Case]:
    """Shapes with their own k, in every dtype."""
    return [Case(rows, width, k, dtype) for rows, width, k in settings.shapes.items for dtype in settings.dtypes]


def results(found: Sequence[Facts], settings: Settings) -> Facts:
    """Facts of every shape."""
    return {"shapes": list(found)}


def measure(case: Case, here: Here) -> Facts:
    """Time all of them.

    ``of_plain`` is a median over that of the plain selection, ``transient_mib`` what one call allocates at once.
    """
    import torch

    rows, width, k, dtype = case.ask
    facts: Facts = {"rows": rows, "width": width, "k": k, "dtype": dtype}
    sets = _sets(rows, width, dtype)
    if isinstance(sets, str):
        return facts | {"skipped": sets}
    generator = torch.Generator(sets[0].device).manual_seed(here.settings.seed)
    for scores in sets:
        scores.copy_(torch.randn(rows, width, generator=generator, device=scores.device) * 3)
    uniform = torch.rand(rows, generator=generator, device=sets[0].device)
    timed = {PLAIN: _plain(sets, k)}
    given = {"statistics": [None] * len(sets)}
    given |= {f"statistics, {name}": [_tokens(scores, k, n) for scores in sets] for name, n in COUNTS.items()}
    given["statistics, any token"] = [torch.full_like(tokens, width // 2) for tokens in given["statistics, 1 token"]]
    timed |= {name: _ours(name, sets, k, "statistics", tokens) for name, tokens in given.items()}
    timed["kept"] = _ours("kept", sets, k, "kept", p=P)
    timed["sample"] = _ours("sample", sets, k, "sample", p=P, uniform=uniform)
    asked = samplers.Given(sets, k, P, uniform, _tokens(sets[0], k, 1))

    def judged(timed: dict[str, Any], peers: samplers.Peers) -> tuple[Facts, dict[str, Facts]]:
        others, missing = samplers.contenders(asked, peers)
        timed |= others
        read, found = gpu.timed(
            floor.contenders(sets, None, here.device), [contender for contender, _ in timed.values()], len(sets),
            sets[0].numel() * sets[0].element_size(), rounds=here.settings.rounds,
        )  # fmt: skip
        for name, of in found.items():
            if "median_us" in of:
                of["transient_mib"] = _transient(timed[name][1])
        return read, found | {name: {"unsupported": reason, "exact": None} for name, reason in missing.items()}

    read, selectors = judged(timed, samplers.PEERS)
    for name, spread in SPREADS.items() if dtype == "float32" else ():
        for scores in sets:
            scores.normal_(0, spread, generator=generator)
        own = _ours(ALONE, sets, None, "sample", p=P, uniform=uniform, whole=DRAWN_OF)
        found = judged({ALONE: own}, samplers.WITHOUT_K)[1]
        selectors |= {f"{contender}, {name}": of for contender, of in found.items()}
    for of in selectors.values():
        if "median_us" in of and "median_us" in selectors[PLAIN]:
            of["of_plain"] = of["median_us"] / selectors[PLAIN]["median_us"]
    return facts | read | {"selectors": selectors}


def _sets(rows: int, width: int, dtype: str) -> list[Any] | str:
    """Input sets without padding, as engines have logits; with it where rows would start anywhere."""
    if width % 8:  # plain reads take rows that start at multiples of 16 bytes
        return tasks.allocate(rows, width, dtype)
    sets = tasks.allocate(1, rows * width, dtype)
    return sets if isinstance(sets, str) else [scores.view(rows, width) for scores in sets]


def _transient(call: Callable[[int], Any]) -> float:
    """MiB that a call allocates at most at once, its results and workspace among them.

    What a library keeps from one call to the next is not counted.
    """
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    call(0)
    return float(torch.cuda.max_memory_allocated() - held) / (1 << 20)


def _tokens(scores: Any, k: int, count: int) -> Any:
    """Tokens as a sampler gives them, among the k best."""
    return scores.float().topk(k)[1][:, : 5 * count : 5].int().contiguous()


def _plain(sets: list[Any], k: int) -> tuple[Contender, Callable[[int], Any]]:
    """Contender, and the call whose memory counts."""
    plan = ksieve.plan(sets[0], k=k)
    workspace = plan.workspace()
    outs = [api.topk(scores, plan=plan, workspace=workspace) for scores in sets]
    contender = Contender(
        PLAIN, lambda i: void(api.topk(sets[i], plan=plan, out=outs[i], workspace=workspace)),
        lambda i: ksieve.verify(sets[i], None, outs[i]).ok, lambda i: outs[i].fill_(tasks.POISON),
    )  # fmt: skip
    return contender, lambda i: api.topk(sets[i], plan=plan, workspace=plan.workspace())


def void(result: Any) -> None:
    """Nothing, of a call that fills its outputs."""


def _ours(
    name: str, sets: list[Any], k: int | None, function: str, tokens: Sequence[Any] = (), **more: Any
) -> tuple[Contender, Callable[[int], Any]]:
    """Contender of one of the three functions, whose first rows are compared with the CPU's, byte for byte.

    `tokens`: of each set, or None.
    """
    every = [more | {"tokens": own} for own in tokens] or [more] * len(sets)
    requests = [parse(scores, k, None, **given) for scores, given in zip(sets, every, strict=True)]
    outs = [MADE[function](request) for request in requests]
    plan, run = cuda.plan_of_request(requests[0]), getattr(cuda, function)
    workspace = plan.workspace()

    def check(i: int) -> bool:
        own = {key: value[:JUDGED].cpu() if hasattr(value, "cpu") else value for key, value in every[i].items()}
        request = parse(sets[i][:JUDGED].cpu(), k, None, **own)
        right = MADE[function](request)
        getattr(cpu, function)(request, right)
        pairs = [(a, b[:JUDGED].cpu()) for a, b in zip(right, outs[i], strict=True) if a is not None]
        return all(np.array_equal(as_numpy(a), as_numpy(b)) for a, b in pairs)

    def poison(i: int) -> None:
        for out in outs[i]:
            if out is not None:
                out.fill_(-7)

    def fresh(i: int) -> None:
        run(requests[i], MADE[function](requests[i]), workspace=plan.workspace())

    return Contender(name, lambda i: run(requests[i], outs[i], workspace=workspace), check, poison), fresh
