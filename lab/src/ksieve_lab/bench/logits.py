"""Statistics, kept sets and samples of logits beside plain selections, plain reads, and expressions of PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ksieve
from ksieve import api
from ksieve.core.arrays import as_numpy
from ksieve.logits import Kept, Sample, Statistics, cpu, cuda
from ksieve.logits.problem import parse
from ksieve.tuning import tasks
from ksieve.tuning.timing import Contender
from ksieve_lab.bench import floor, gpu
from ksieve_lab.bench.gpu import Case, Here
from ksieve_lab.bench.runner import Facts, Settings

SHAPES = "64x128256:50,256x128256:50,64x151936:50,256x151936:50,1x128256:50,16x128256:50,1024x128256:50"
"""Rows, vocabulary and k."""

PLAIN, P, JUDGED = "topk", 0.9, 3
"""The contender that others are compared with; p of kept sets and samples; rows of each answer that are verified."""


def cases(settings: Settings) -> list[Case]:
    """Shapes with their own k, in every dtype."""
    return [Case(rows, width, k, dtype) for rows, width, k in settings.shapes.items for dtype in settings.dtypes]


def results(found: Sequence[Facts], settings: Settings) -> Facts:
    """Facts of every shape."""
    return {"shapes": list(found)}


def measure(case: Case, here: Here) -> Facts:
    """Time all of them; ``of_plain`` is a median over that of the plain selection."""
    import torch

    rows, width, k, dtype = case.ask
    facts: Facts = {"rows": rows, "width": width, "k": k, "dtype": dtype}
    sets = tasks.allocate(rows, width, dtype)
    if isinstance(sets, str):
        return facts | {"skipped": sets}
    generator = torch.Generator(sets[0].device).manual_seed(here.settings.seed)
    for scores in sets:
        scores.copy_(torch.randn(rows, width, generator=generator, device=scores.device) * 3)
    uniform = torch.rand(rows, generator=generator, device=sets[0].device)
    timed = [_plain(sets, k)]
    for name, tokens in (("statistics", 0), ("statistics, 1 token", 1), ("statistics, 8 tokens", 8)):
        timed.append(_ours(name, sets, k, "statistics", tokens=_tokens(sets[0], k, tokens)))
    timed.append(_ours("kept", sets, k, "kept", p=P))
    timed.append(_ours("sample", sets, k, "sample", p=P, uniform=uniform))
    timed += [Contender(name, run) for name, run in _others(sets, k, uniform)]
    read, selectors = gpu.timed(
        floor.contenders(sets, None, here.device), timed, len(sets), sets[0].numel() * sets[0].element_size(),
        rounds=here.settings.rounds,
    )  # fmt: skip
    for of in selectors.values():
        if "median_us" in of and "median_us" in selectors[PLAIN]:
            of["of_plain"] = of["median_us"] / selectors[PLAIN]["median_us"]
    return facts | read | {"selectors": selectors}


def _tokens(scores: Any, k: int, count: int) -> Any:
    """Tokens as a sampler gives them, among the k best."""
    return scores.float().topk(k)[1][:, : 5 * count : 5].int().contiguous() if count else None


def _plain(sets: list[Any], k: int) -> Contender:
    plan = ksieve.plan(sets[0], k=k)
    outs, workspace = [api.topk(scores, k=k) for scores in sets], plan.workspace()
    return Contender(
        PLAIN, lambda i: void(api.topk(sets[i], plan=plan, out=outs[i], workspace=workspace)),
        lambda i: ksieve.verify(sets[i], None, outs[i]).ok, lambda i: outs[i].fill_(tasks.POISON),
    )  # fmt: skip


def void(result: Any) -> None:
    """Nothing, of a call that fills its outputs."""


def _ours(name: str, sets: list[Any], k: int, function: str, **given: Any) -> Contender:
    """Contender of one of the three functions, whose first rows are compared with the CPU's, byte for byte."""
    requests = [parse(scores, k, None, **given) for scores in sets]
    outs = [_result(function, request) for request in requests]
    workspace = cuda.plan_of_request(requests[0]).workspace()

    def run(i: int) -> None:
        getattr(cuda, function)(requests[i], outs[i], workspace=workspace)

    def check(i: int) -> bool:
        own = {key: value[:JUDGED].cpu() if hasattr(value, "cpu") else value for key, value in given.items()}
        request = parse(sets[i][:JUDGED].cpu(), k, None, **own)
        right = _result(function, request)
        getattr(cpu, function)(request, right)
        pairs = [(a, b[:JUDGED].cpu()) for a, b in zip(right, outs[i], strict=True) if a is not None]
        return all(np.array_equal(as_numpy(a), as_numpy(b)) for a, b in pairs)

    def poison(i: int) -> None:
        for out in outs[i]:
            if out is not None:
                out.fill_(-7)

    return Contender(name, run, check, poison)


def _result(function: str, request: Any) -> Any:
    """Results of a function, not filled."""
    (rows, _), empty, k = request.shape, request.empty, request.k
    ints, floats = empty("int32", rows), empty("float32", rows)
    if function == "sample":
        return Sample(ints, floats, empty("int32", rows))
    if function == "kept":
        return Kept(empty("int32", rows, k), empty("float32", rows, k), ints, empty("int32", rows))
    tokens = request.arrays.get("tokens")
    logprobs, ranks = (None if tokens is None else empty(dtype, *tokens.shape) for dtype in ("float32", "int32"))
    return Statistics(empty("int32", rows, k), empty("", rows, k), floats, logprobs, ranks, ints)


def _others(sets: list[Any], k: int, uniform: Any) -> list[tuple[str, Callable[[int], None]]]:
    """Expressions of PyTorch, and FlashInfer's operator if it is installed."""
    import torch

    def statistics(i: int) -> None:
        void((torch.topk(sets[i], k), torch.logsumexp(sets[i].float(), 1)))

    def sample(i: int) -> None:
        values, tokens = torch.topk(sets[i], k)
        sums = torch.softmax(values.float(), 1).cumsum(1)
        kept = (sums < P).sum(1, keepdim=True).clamp(max=k - 1)
        drawn = torch.searchsorted(sums, uniform[:, None] * sums.gather(1, kept)).minimum(kept)
        void(tokens.gather(1, drawn))

    found: list[tuple[str, Callable[[int], None]]] = [("torch statistics", statistics), ("torch sample", sample)]
    with contextlib.suppress(ImportError):
        from flashinfer.sampling import top_k_top_p_sampling_from_logits

        found.append(("flashinfer sample", lambda i: void(top_k_top_p_sampling_from_logits(sets[i].float(), k, P))))
    return found
