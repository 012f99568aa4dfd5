"""Statistics and samples of logits as PyTorch and serving engines make them: what `ksieve bench logits` compares with.

Operators are called as an engine calls them, at temperature 1, whose division is left out. Scores that are not float32
are converted within the call where the engine does so. Every peer draws with random numbers of its own; what is
verified of a sample is that each token lies in the kept set.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import ksieve
from ksieve.adapters._operators import Operator
from ksieve.tuning.timing import Contender
from ksieve_lab.bench.engine_calls import UnsupportedError, own_of

Run = Callable[[int], tuple[Any, ...]]
"""Answer on an input set."""

Peers = Mapping[str, tuple[tuple[Operator, ...], Callable[..., Run], Callable[..., bool]]]
"""Operators, call and verdict of every peer, by name."""

SLACK = 1e-6
"""Probability by which the float32 sums of a peer may pass p."""


@dataclass(frozen=True)
class Given:
    """Inputs of all peers: sets of scores, k and p, a uniform number for each row, and a token of each row."""

    sets: Sequence[Any]
    k: int
    p: float
    uniform: Any
    tokens: Any

    @cached_property
    def arrays(self) -> tuple[Any, Any]:
        """The k and the p of every row, as engines hold them."""
        import torch

        rows = {"size": self.sets[0].shape[:1], "device": self.sets[0].device}
        return torch.full(fill_value=self.k, dtype=torch.int32, **rows), torch.full(fill_value=self.p, **rows)

    @cached_property
    def seeds(self) -> list[dict[str, Any]]:
        """Seed of every set for FlashInfer, which takes only tensors into a CUDA graph."""
        numbers = self.tokens.new_tensor([[i] for i in range(len(self.sets))]).long()
        return [{"seed": number, "offset": numbers[0]} for number in numbers]

    def probabilities(self, i: int) -> Any:
        """Softmax of float32, in one pass over the scores."""
        import torch

        return torch.softmax(self.sets[i], 1, dtype=torch.float32)


def contenders(given: Given, peers: Peers) -> tuple[dict[str, tuple[Contender, Run]], dict[str, str]]:
    """Return peers and their calls, by name, and why the others are not here."""
    found, missing = {}, {}
    for name, (operators, make, right) in peers.items():
        try:
            run = make(given, *map(own_of, operators))
        except UnsupportedError as error:
            missing[name] = str(error)
        else:
            found[name] = _contender(name, given, run, right), run
    return found, missing


def _contender(name: str, given: Given, run: Run, right: Callable[..., bool]) -> Contender:
    answers: list[tuple[Any, ...]] = [()] * len(given.sets)

    def select(i: int) -> None:
        answers[i] = run(i)

    def poison(i: int) -> None:
        for answer in answers[i]:
            answer.fill_(-7)

    return Contender(name, select, lambda i: right(given, given.sets[i], *answers[i]), poison)


# ---- calls ------------------------------------------------------------------------------------------------


def _torch_statistics(given: Given) -> Run:
    import torch

    def run(i: int) -> tuple[Any, ...]:
        values, tokens = torch.topk(given.sets[i], given.k)
        return tokens, values, torch.logsumexp(given.sets[i].float(), 1)

    return run


@cache
def _count() -> Callable[[Any, Any], Any]:
    """Compiled as in vLLM: eager, it would write a mask of all scores."""
    import torch

    def count(logprobs: Any, one: Any) -> Any:
        return (logprobs >= one).sum(1)

    compiled: Callable[[Any, Any], Any] = torch.compile(count, dynamic=True)
    return compiled


def _vllm_statistics(given: Given) -> Run:
    """`Sampler.compute_logprobs` and `gather_logprobs` of vLLM."""
    import torch

    token = given.tokens.long()

    def run(i: int) -> tuple[Any, ...]:
        logprobs = given.sets[i].log_softmax(1, dtype=torch.float32)
        best, tokens = torch.topk(logprobs, given.k)
        one = logprobs.gather(1, token)
        ranks = _count()(logprobs, one)
        return torch.cat((token, tokens), 1).int(), torch.cat((one, best), 1), ranks

    return run


def _torch_sample(given: Given) -> Run:
    import torch

    def run(i: int) -> tuple[Any, ...]:
        values, tokens = torch.topk(given.sets[i], given.k)
        sums = torch.softmax(values.float(), 1).cumsum(1)
        kept = (sums < given.p).sum(1, keepdim=True).clamp(max=given.k - 1)
        drawn = torch.searchsorted(sums, given.uniform[:, None] * sums.gather(1, kept)).minimum(kept)
        return (tokens.gather(1, drawn),)

    return run


def _flashinfer(given: Given, sample: Any) -> Run:
    """The fastest call: one k for all rows lets it select first; it then takes every dtype."""
    return lambda i: (sample(given.sets[i], given.k, given.p, deterministic=True, **given.seeds[i]),)


def _vllm_flashinfer(given: Given, sample: Any) -> Run:
    """`flashinfer_sample` of vLLM."""
    return lambda i: (sample(given.sets[i].float(), *given.arrays, deterministic=True, **given.seeds[i]),)


def _sglang(given: Given, sample: Any) -> Run:
    """`Sampler` of SGLang with its default back end."""
    joint = partial(sample, filter_apply_order="joint")
    return lambda i: (joint(given.probabilities(i), *given.arrays, **given.seeds[i]),)


def _fused(given: Given, sample: Any) -> Run:
    """Kernels of FlashInfer that take probabilities of float32."""
    return lambda i: (sample(given.probabilities(i), given.k, given.p, philox_seed=i, philox_offset=0),)


def _top_p(given: Given, sample: Any) -> Run:
    """What FlashInfer and SGLang call without a k."""
    return lambda i: (sample(given.probabilities(i), given.p, deterministic=True, **given.seeds[i]),)


def _vllm(given: Given, keep: Any, draw: Any) -> Run:
    """`TopKTopPSampler.forward_native` of vLLM, which writes to its scores: the copy is what a temperature costs."""
    import torch

    # Every row has a k below the vocabulary: vLLM tells its operator so.
    told = {"has_topp_only_rows": False} if "has_topp_only_rows" in inspect.signature(keep).parameters else {}

    def run(i: int) -> tuple[Any, ...]:
        kept = keep(given.sets[i].to(torch.float32, copy=True), *given.arrays, **told)
        return (draw(kept.softmax(1, dtype=torch.float32), {}),)

    return run


# ---- verdicts ---------------------------------------------------------------------------------------------


def _selected(given: Given, scores: Any, tokens: Any, *_: Any) -> bool:
    """Whether the k best are selected."""
    return ksieve.verify(scores, None, tokens, k=given.k).ok


def _ranked(given: Given, scores: Any, tokens: Any, logprobs: Any, ranks: Any) -> bool:
    """Whether the k best are selected, and the tokens are ranked among float32 logprobs, which may tie."""
    every = scores.float().log_softmax(1)
    right = (every >= every.gather(1, given.tokens.long())).sum(1)
    return bool((ranks == right).all()) and _selected(given, scores, tokens[:, 1:].contiguous())


def _drawn(given: Given, scores: Any, tokens: Any, joint: bool = False) -> bool:
    """Whether each token is one of the k best, and better ones have less than p; equal scores are alike.

    `joint`: p is of the whole row, else of the k best.
    """
    tokens, scores = tokens.view(-1, 1).long(), scores.double()
    if not ((tokens >= 0) & (tokens < scores.shape[1])).all():
        return False
    whole = given.k >= scores.shape[1]
    own, least = scores.gather(1, tokens), scores.amin(1, True) if whole else scores.topk(given.k)[0][:, -1:]
    weights = scores.softmax(1)
    better = weights.where(scores > own, 0).sum(1)
    total = 1 if joint else weights.where(scores >= least, 0).sum(1)
    return bool(((own >= least)[:, 0] & (better < (given.p + SLACK) * total)).all())


def _drawn_of_row(given: Given, scores: Any, tokens: Any) -> bool:
    return _drawn(replace(given, k=scores.shape[1]), scores, tokens, joint=True)


_LOGITS = Operator("flashinfer.sampling:", "top_k_top_p_sampling_from_logits", "")
_PROBABILITIES = Operator("flashinfer.sampling:", "top_k_top_p_sampling_from_probs", "")
_TOP_P = Operator("flashinfer.sampling:", "top_p_sampling_from_probs", "")
_FUSED = Operator("flashinfer.cake_sampling:", "top_k_top_p_sampling_from_probs", "")
_KEEP, _DRAW = (
    Operator("vllm.v1.sample.ops.topk_topp_sampler:", name, "") for name in ("apply_top_k_top_p", "random_sample")
)
PEERS: Peers = {
    "torch statistics": ((), _torch_statistics, _selected),
    "vllm statistics": ((), _vllm_statistics, _ranked),
    "torch sample": ((), _torch_sample, _drawn),
    "flashinfer sample": ((_LOGITS,), _flashinfer, _drawn),
    "flashinfer fused sample": ((_FUSED,), _fused, _drawn),
    "sglang sample": ((_PROBABILITIES,), _sglang, partial(_drawn, joint=True)),
    "vllm flashinfer sample": ((_LOGITS,), _vllm_flashinfer, _drawn),
    "vllm sample": ((_KEEP, _DRAW), _vllm, _drawn),
}
WITHOUT_K: Peers = {"flashinfer, p alone": ((_TOP_P,), _top_p, _drawn_of_row)}
