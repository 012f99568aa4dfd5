"""The benches: what each one measures, as data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError
from ksieve_lab.bench import (
    ablation,
    blocks,
    chain,
    cpu,
    cpu_worst_rows,
    engine_switch,
    engines,
    first_calls,
    gpu,
    layer,
    logits,
    options,
    rank_model,
    ranks,
    regress,
    segments,
    shape_lists,
)
from ksieve_lab.bench import adversarial_gpu as hard
from ksieve_lab.bench.ablation import activation
from ksieve_lab.bench.machines import check_anywhere
from ksieve_lab.bench.runner import Bench, Facts, Settings, contenders, libraries
from ksieve_lab.chain import producers
from ksieve_lab.traces.serving import BUDGET_BYTES, STEP_TOKENS

STEP = {"step_tokens": STEP_TOKENS, "budget_bytes": BUDGET_BYTES}
"""The scheduler of the paper's requests."""


def _cases(settings: Settings) -> Facts:
    return {"cases": [list(case.ask) for case in gpu.of_everything(settings)], "shapes": None, "dtype": None}


def _prompts(settings: Settings) -> Facts:
    return {"prompts": dict(settings.shapes.items), "lengths": "causal", "shapes": None}


_GPU = Bench(
    "gpu", "Selection, other libraries and a plain read, on the same tensors.", gpu.of_shapes,
    partial(gpu.by_case, results=gpu.found_shapes), "gpu-{shapes}{scores}-k{k}", shapes="operator", others=contenders,
    torch_rounds=3,
)  # fmt: skip
_BLOCKS = Bench(
    "blocks", "Calls with blocks, forced entries and expansion, and PyTorch operations around a selector.",
    blocks.cases, blocks.measure, "blocks-cuda", reader=shape_lists.plain, k=None, scores=None, peers=None,
    dtype="float32,bfloat16", several=True, fixed={"device": "cuda"},
)  # fmt: skip
_BLOCK_ROWS = replace(
    _BLOCKS, name="blocks-rows", line="Rows of every kind of call with blocks, verified: --shapes 10000.",
    cases=lambda settings: (), measure=blocks.verify_rows, stem="blocks-rows-cuda", reader=shape_lists.numbers,
    shapes="1000000", only=None, dtype=None, rounds=None, figures=False, kind="blocks",
)  # fmt: skip
_ENGINES = Bench(
    "engines", "The operators of installed engines, before and after ksieve replaces them: --peers vllm,sglang.",
    engines.cases, engines.measure, "gpu-engines", reader=shape_lists.plain, shapes=engines.SHAPES,
    dtype="float32,bfloat16", several=True, others=engine_switch.engines_of, figures=False,
)  # fmt: skip
_RANKS = Bench(
    "ranks", "Selection from rows that lie on the ranks of torchrun, on the CPU; 64x131072:interleaved too.",
    ranks.cases, ranks.measure, "ranks-cpu-{world}", reader=shape_lists.sharded, shapes="1x131072,16x131072,64x131072",
    scores=None, peers=None, only=None, rounds=9, several=True, figures=False, fixed={"device": "cpu"},
)  # fmt: skip
_RANK_ROWS = replace(
    _RANKS, name="ranks-rows", line="Rows of many kinds on ranks of the CPU, and replays of their calls, verified.",
    cases=lambda settings: (), measure=ranks.verify_rows, stem="ranks-rows-cpu-{world}", reader=shape_lists.numbers,
    shapes="10000", k=None, dtype=None, rounds=None, kind="ranks",
)  # fmt: skip
_ABLATION = Bench(
    "ablation", "The paper's ablations on a GPU: --only 'margin;rescue', --shapes 245K.", ablation.cases,
    ablation.measure, "gpu-ablation{only}", reader=shape_lists.requests, shapes="245K,430K", source=check_anywhere,
    peers="none", dtype=None, rounds=5,
    fixed={"backend": "cuda", "widths": activation.WIDTHS, "rows": activation.ROWS, **STEP},
)  # fmt: skip
_CHAIN = Bench(
    "chain", "An indexer's score production and the selection after it: --shapes 245K:32 for 32 heads.", chain.cases,
    chain.measure, "gpu-chain", reader=shape_lists.requests, shapes="245K,430K", only=None, dtype=None, scores=None,
    others=libraries, torch_rounds=3,
    fixed={"producer": "triton", "heads": producers.HEADS, "dim": producers.DIM, **STEP},
)  # fmt: skip

BENCHES = (
    _GPU,
    replace(_GPU, name="operator", line="The paper's operator matrix: the last rows of a prefill.", torch_rounds=1),
    replace(_GPU, name="decode", line="Decode batches, 80 to 100 % valid.", shapes="decode", torch_rounds=1),
    replace(_GPU, name="short", line="Short rows, 80 to 100 % valid.", shapes="short", torch_rounds=1),
    replace(
        _GPU, name="sixteen-bit", line="Decode batches in one dtype beside DeepSelect; --shapes short --dtype float16.",
        shapes="decode", dtype="bfloat16", peers="deepselect", rounds=5, torch_rounds=0,
        stem="gpu-dtypes-{shapes}-{dtype}-k{k}",
    ),
    replace(
        _GPU, name="floor", line="Plain reads of the valid scores, a lower bound for every selector.",
        measure=partial(gpu.by_case, results=lambda found, settings: {"shapes": found}),
        stem="floor-{shapes}", k=None, scores=None, peers=None, figures=False,
    ),
    replace(
        _GPU, name="general", line="Shapes from outside the indexer, in every dtype, beside torch.topk.",
        cases=gpu.of_everything, measure=partial(gpu.by_case, results=gpu.found_general, written=_cases),
        stem="gpu-general", reader=shape_lists.matrices_and_k, shapes="general", k=None, dtype=",".join(SCORE_DTYPES),
        several=True, scores="normal", peers=gpu.RIVAL, torch_rounds=7, figures=False,
    ),
    replace(
        _GPU, name="trace", line="Every selection of the prefill of a long prompt, summed: --shapes 245K,100000.",
        cases=gpu.of_requests, measure=partial(gpu.by_case, results=gpu.found_traces, written=_prompts),
        stem="gpu-trace{scores}-k{k}", reader=shape_lists.requests, shapes="245K,430K", only=None, rounds=5,
        torch_rounds=0, fixed={"decode_steps": 0, "batch": 1, **STEP},
    ),
    replace(
        _GPU, name="worst", line="Adversarial rows, relative to a plain read of the same shape.", cases=gpu.of_families,
        measure=partial(
            gpu.by_case, results=gpu.found_worst, written=lambda s: {"families": s.chosen(hard.FAMILIES)}
        ),
        stem="gpu-worst-k{k}", shapes="worst", scores=None, rounds=5, torch_rounds=0,
    ),
    replace(
        _GPU, name="options", line="The cost of every serving option: --only 'page table; by value'.",
        cases=options.cases,
        measure=partial(gpu.by_case, results=options.results, measure=options.measure, plans=options.plans),
        stem="gpu-options-k{k}", shapes="served", peers=None,
    ),
    replace(
        _GPU, name="segments", line="Segments of flat scores beside the matrix of as many rows and as many scores.",
        cases=segments.cases, stem="gpu-segments", shapes=segments.SHAPES, reader=shape_lists.matrices_and_k,
        measure=partial(gpu.by_case, results=segments.results, measure=segments.measure, plans=lambda case, here: ()),
        only=None, k=None, scores=None, peers=None, figures=False,
    ),
    replace(
        _GPU, name="layer", line="A decode layer: indexer, selection and consumer, with and without overlap.",
        stem="gpu-layer", shapes=layer.SHAPES, only=None, scores=None, peers=None, figures=False,
        measure=partial(gpu.by_case, results=segments.results, measure=layer.measure, plans=layer.plans),
    ),
    replace(
        _GPU, name="logits", line="Statistics, kept sets and samples beside plain selections and engines' samplers.",
        cases=logits.cases, stem="gpu-logits", shapes=logits.SHAPES, reader=shape_lists.matrices_and_k,
        measure=partial(gpu.by_case, results=logits.results, measure=logits.measure, plans=lambda case, here: ()),
        only=None, k=None, scores=None, peers=None, dtype="float32,bfloat16", several=True, figures=False,
    ),
    replace(
        _GPU, name="regress", line="A fixed set of calls against an earlier result of the same card: --against FILE.",
        cases=regress.cases, measure=regress.measure, stem="gpu-regress-{card}", reader=shape_lists.plain, shapes=None,
        k=None, dtype=None, scores=None, peers=None, against="", figures=False,
    ),
    _BLOCKS,
    replace(
        _BLOCKS, name="blocks-cpu", line="The same on the CPU.", stem="blocks-cpu", kind="blocks",
        fixed={"device": "cpu"},
    ),
    _BLOCK_ROWS,
    replace(
        _BLOCK_ROWS, name="blocks-rows-cpu", line="The same on the CPU.", stem="blocks-rows-cpu", shapes="10000",
        fixed={"device": "cpu"},
    ),
    _ENGINES,
    replace(
        _ENGINES, name="engines-first", line="First calls of processes: without a cache, after a build, with a bundle.",
        cases=first_calls.cases, measure=first_calls.measure, stem="gpu-engines-first", shapes=None, k=None, dtype=None,
        scores=None, rounds=None, seed=None, kind="engines",
    ),
    _RANKS,
    replace(
        _RANKS, name="ranks-cuda", line="The same on GPUs.", stem="ranks-cuda-{world}", kind="ranks",
        fixed={"device": "cuda"},
    ),
    _RANK_ROWS,
    replace(
        _RANK_ROWS, name="ranks-rows-cuda", line="The same on GPUs.", stem="ranks-rows-cuda-{world}",
        fixed={"device": "cuda"},
    ),
    replace(
        _RANK_ROWS, name="ranks-predict", line="What 4 or 8 GPUs would take, from results in --out's folder.",
        measure=rank_model.measure, stem="predicted-ranks", shapes="4,8", seed=None, kind="predicted-ranks",
    ),
    _ABLATION,
    replace(
        _ABLATION, name="ablation-cpu", line="The same on the CPU, in small: its rates compare with the paper's.",
        stem="ablation{only}-cpu", shapes="65536", k=1024, peers=None, kind="ablation",
        fixed={"backend": "cpu", "widths": activation.WIDTHS, "rows": activation.ROWS, "step_tokens": 128,
               "budget_bytes": 1 << 25},
    ),
    _CHAIN,
    replace(
        _CHAIN, name="chain-deepgemm", line="The same with DeepGEMM's production.", kind="chain",
        stem="gpu-chain-deepgemm", fixed={**_CHAIN.fixed, "producer": "deep_gemm"},
    ),
    Bench(
        "cpu", "The CPU backend, torch.topk, argpartition and a plain read: --scores endpoint,FILE.", cpu.cases,
        cpu.measure, "cpu-{threads}-threads", reader=shape_lists.plain, source=cpu.sources_of, dtype=None, peers=None,
        rounds=9, figures=False,
        fixed={"short": shape_lists.MANY_SHORT, "optional": ((32, 50_257, 50),), "searched": cpu_worst_rows.SHAPES},
    ),
)  # fmt: skip
"""Every bench, in the order of ``ksieve bench --help``."""


def find(name: str) -> Bench:
    """Bench of a name."""
    for bench in BENCHES:
        if bench.name == name:
            return bench
    raise ArgumentError("name", repr(name), f"one of {', '.join(bench.name for bench in BENCHES)}")
