"""The bench of logits on the CPU, where a GPU's calls would be: verdicts on engines' samplers, right and wrong ones."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

import ksieve
from bench_host import OTHER_US, host, payload
from ksieve import api
from ksieve.logits import cpu
from ksieve_lab.bench import logits, samplers

torch = pytest.importorskip("torch")

__all__ = ["host"]
pytestmark = pytest.mark.usefixtures("one_thread")

OURS = {*logits.OURS}
ALONE = {f"{logits.ALONE}, {name}" for name in logits.SPREADS}
WITHOUT_K = {f"{peer}, {name}" for peer in samplers.WITHOUT_K for name in logits.SPREADS}


PEAKED = [f"{peer}, peaked" for peer in samplers.WITHOUT_K]  # of which some sets have one token


def sampled(probabilities, k, p, place, joint=False):
    """A token of each row: at a place of the kept set; the one after its last is at place -1."""
    k, p = int(torch.as_tensor(k).max()), float(torch.as_tensor(p).max())
    values, tokens = torch.sort(probabilities.float(), dim=1, descending=True, stable=True)
    values = values[:, :k]
    kept = (values.cumsum(1) - values < (p if joint else p * values.sum(1, keepdim=True))).sum(1)
    return tokens.gather(1, (place % (kept + 1))[:, None])[:, 0].int()


@pytest.fixture
def engines(monkeypatch):
    """Modules of FlashInfer and vLLM; `place` says which token of a kept set they draw."""
    made = SimpleNamespace(place=0)

    def from_logits(scores, k, p, **_):
        return sampled(scores.float().softmax(1), k, p, made.place)

    def from_probs(probabilities, k, p, filter_apply_order="top_k_first", **_):
        return sampled(probabilities, k, p, made.place, filter_apply_order == "joint")

    def keep(scores, k, p, has_topp_only_rows):
        assert scores.dtype == torch.float32 and not has_topp_only_rows
        return scores.zero_() if made.place else scores

    modules = {
        "flashinfer.sampling": {
            "top_k_top_p_sampling_from_logits": from_logits, "top_k_top_p_sampling_from_probs": from_probs,
            "top_p_sampling_from_probs": lambda probabilities, p, **_: sampled(
                probabilities, probabilities.shape[1], p, made.place, joint=True
            ),
        },
        "flashinfer.cake_sampling": {"top_k_top_p_sampling_from_probs": from_probs},
        "vllm.v1.sample.ops.topk_topp_sampler": {
            "apply_top_k_top_p": keep, "random_sample": lambda probabilities, generators: probabilities.argmax(1),
        },
    }  # fmt: skip
    for name, functions in modules.items():
        for parent in (".".join(name.split(".")[: n + 1]) for n in range(name.count(".") + 1)):
            monkeypatch.setitem(sys.modules, parent, sys.modules.get(parent) or ModuleType(parent))
        for function, own in functions.items():
            monkeypatch.setattr(sys.modules[name], function, own, raising=False)
    return made


@pytest.fixture
def here(host, monkeypatch):
    def filling(function):
        return lambda request, out, workspace: getattr(cpu, function)(request, out)

    functions = {name: filling(name) for name in ("statistics", "kept", "sample")}
    plan = SimpleNamespace(workspace=lambda: None)
    monkeypatch.setattr(api, "select", ksieve.select)
    monkeypatch.setattr(logits, "cuda", SimpleNamespace(plan_of_request=lambda request: plan, **functions))
    monkeypatch.setattr(logits, "_transient", lambda call: 1.5 if call(0) is not None else 0.5)
    monkeypatch.setattr(samplers, "_count", lambda: lambda logprobs, one: (logprobs >= one).sum(1))


def found(shapes="3x4000:50"):
    return {
        case["dtype"]: case["selectors"] for case in payload("logits", shapes=shapes, rounds=1)["results"]["shapes"]
    }


def test_every_contender_is_verified(here, engines):
    for dtype, selectors in found("3x4000:50,2x4001:20").items():
        alone = ALONE | WITHOUT_K if dtype == "float32" else set()
        assert set(selectors) == OURS | set(samplers.PEERS) | alone, dtype
        for name, facts in selectors.items():
            assert facts["exact"] is True and facts["median_us"] == OTHER_US and facts["of_plain"] == 1, (name, facts)
            assert facts["transient_mib"] == (0.5 if name in (OURS | ALONE) - {"topk"} else 1.5), name


@pytest.mark.parametrize("place", [1, -1])
def test_a_token_outside_the_kept_set_is_wrong(here, engines, place):
    engines.place = place
    for selectors in found().values():
        verdicts = {name: selectors[name]["exact"] for name, (operators, *_) in samplers.PEERS.items() if operators}
        assert verdicts == {name: place > 0 and name != "vllm sample" for name in verdicts}
        assert all(facts["exact"] is (place > 0) for name, facts in selectors.items() if name in WITHOUT_K - {*PEAKED})


def test_what_is_not_installed_is_said(here, engines, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer.cake_sampling", None)
    monkeypatch.delattr(sys.modules["vllm.v1.sample.ops.topk_topp_sampler"], "random_sample")
    for selectors in found().values():
        reasons = {name: facts["unsupported"] for name, facts in selectors.items() if "unsupported" in facts}
        assert reasons == {
            "flashinfer fused sample": "no module flashinfer.cake_sampling",
            "vllm sample": "this version of vllm.v1.sample.ops.topk_topp_sampler has no random_sample",
        }
