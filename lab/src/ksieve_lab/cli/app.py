"""The laboratory's commands; importing this adds them to `ksieve.cli.app.app`."""

from __future__ import annotations

from typing import Any

import typer

from ksieve.cli import further
from ksieve.cli.app import SETTINGS, add, app, main
from ksieve.files.scores import READERS
from ksieve_lab.captures.reader import reader
from ksieve_lab.cli import (
    ablation,
    bench,
    blocks,
    captures,
    chain,
    engines,
    general,
    gpu,
    measure,
    ranks,
    replay,
    serving,
    study,
    synth,
)
from ksieve_lab.cli.commands import COMMANDS

__all__ = ["app", "lab", "main", "tree"]

further.register(COMMANDS)  # a source tree that is not installed has no entry points
if reader not in READERS:
    READERS.append(reader)

lab = typer.Typer(**SETTINGS)
bench_app = typer.Typer(help="Time a backend and other libraries on the same rows.", **SETTINGS)

add(
    lab,
    "demo",
    measure.demo,
    "ksieve demo",
    "ksieve demo --k 512 my_scores.safetensors",
)
add(
    lab,
    "synth",
    synth.synth,
    "ksieve synth endpoint_structured scores.safetensors --rows 64 --width 131072",
    "ksieve synth relu_plateau plateau.safetensors --rows 99 --width 65536 --lengths ragged",
)
add(
    lab,
    "study",
    study.study,
    "ksieve study scores.safetensors",
    "ksieve study early.safetensors late.safetensors --k 2048 --rows 0 --out study-of-two",
    json=False,
)
add(
    lab,
    "calibrate",
    study.calibrate,
    "ksieve calibrate scores.safetensors --out policy.json",
    "ksieve calibrate scores.safetensors --k 512 --cost cpu && ksieve select scores.safetensors --policy policy.json",
    json=False,
)
add(
    lab,
    "replay",
    replay.replay,
    "ksieve replay --example",
    "ksieve replay 430K --backend cuda --out benchmarks/results --figures docs/figures",
    "ksieve replay --prompt 100000 --step-tokens 8192 --decode-steps 100 --save trace.json",
    "ksieve replay recording.safetensors",
)

add(
    lab,
    "info",
    captures.info,
    "ksieve info examples/indexer_capture.safetensors",
    quiet=False,
)
add(
    lab,
    "import",
    captures.import_,
    "ksieve import scores.npy scores.safetensors",
    "ksieve import scores.pt scores.safetensors --lengths lengths.npy",
    "ksieve import run.npz scores.safetensors --name logits",
    "ksieve import stack.safetensors scores.safetensors --name logits --index 3,0 --lengths causal",
)
lab.add_typer(bench_app, name="bench")
add(
    bench_app,
    "cpu",
    measure.bench_cpu,
    "ksieve bench cpu --out benchmarks/results",
    "ksieve bench cpu --shape 16x131072 --rounds 3 --no-adversarial --no-starts",
    "ksieve bench cpu --source endpoint --source scores.safetensors --out result.json",
)
add(
    bench_app,
    "gpu",
    gpu.bench_gpu,
    "ksieve bench gpu --shapes 512x131072,64x262144",
    "ksieve bench gpu --shapes decode --only x131072 --families stream_split,resident_cluster",
    'ksieve bench gpu --shapes 512x131072 --torch-rounds 0 --variants \'[{"family":"stream","ctas_per_sm":3}]\'',
)
add(
    bench_app,
    "floor",
    gpu.bench_floor,
    "ksieve bench floor",
    "ksieve bench floor --shapes decode --out benchmarks/results",
)
add(
    bench_app,
    "operator",
    gpu.bench_operator,
    "ksieve bench operator --out benchmarks/results --figures docs/figures",
    "ksieve bench operator --k 512 --peers none --torch-rounds 0",
    "ksieve bench operator --scores factors:indexer.safetensors --only x262144",
)
add(
    bench_app,
    "decode",
    gpu.bench_decode,
    "ksieve bench decode --out benchmarks/results --figures docs/figures",
    "ksieve bench decode --only x131072 --peers sglang,flashinfer",
)
add(
    bench_app,
    "short",
    gpu.bench_short,
    "ksieve bench short --out benchmarks/results",
    "ksieve bench short --only x16384 --k 512",
)
add(
    bench_app,
    "general",
    general.bench_general,
    "ksieve bench general --out benchmarks/results",
    "ksieve bench general --only 65536x --dtypes bfloat16",
)
add(
    bench_app,
    "trace",
    bench.bench_trace,
    "ksieve bench trace --out benchmarks/results",
    "ksieve bench trace --prompts 430K --scores factors:indexer.safetensors",
    "ksieve bench trace --prompts 100000,200000 --step-tokens 8192 --budget-bytes 1000000000",
)
add(
    bench_app,
    "worst",
    bench.bench_worst,
    "ksieve bench worst --out benchmarks/results",
    "ksieve bench worst --shapes 1024x262144 --inputs relu_plateau,descending,stride_hole",
)
add(
    bench_app,
    "options",
    serving.bench_options,
    "ksieve bench options --out benchmarks/results",
    "ksieve bench options --shapes 64x65536,512x131072 --only 'page table; by value'",
)
add(
    bench_app,
    "blocks",
    blocks.bench_blocks,
    "ksieve bench blocks --out benchmarks/results",
    "ksieve bench blocks --only 'DeepSeek-V4.1; MiniMax-M3' --shapes 64x131072",
    "ksieve bench blocks --device cpu --shapes 2x32768 --rounds 3",
    "ksieve bench blocks --shapes none --verify-rows 1M --out benchmarks/results/blocks-rows-cuda.json",
)
add(
    bench_app,
    "engines",
    engines.bench_engines,
    "ksieve bench engines --out benchmarks/results",
    "ksieve bench engines --engines sglang --only deep_select --shapes 64x131072 --parts operators",
    "ksieve bench engines --parts first",
)
add(
    bench_app,
    "ranks",
    ranks.bench_ranks,
    "torchrun --nproc-per-node 2 -m ksieve bench ranks --shapes 64x131072",
    "ksieve bench ranks --shapes none --verify-rows 10000",
)
add(
    bench_app,
    "ablation",
    ablation.bench_ablation,
    "ksieve bench ablation --out benchmarks/results --figures docs/figures",
    "ksieve bench ablation --parts margin,rescue --requests 245K",
    "ksieve bench ablation --backend cpu --requests 65536 --step-tokens 128 --budget-bytes 33554432 --k 1024",
)
add(
    bench_app,
    "chain",
    chain.bench_chain,
    "ksieve bench chain --out benchmarks/results --figures docs/figures",
    "ksieve bench chain --requests 100000 --heads 32 --peers none",
    "ksieve bench chain --producer deep_gemm",
)
add(
    bench_app,
    "plot",
    bench.bench_plot,
    "ksieve bench plot benchmarks/results/gpu-operator-k2048.json --figures figures",
    json=False,
)


def tree() -> Any:
    """Return the whole command tree, with the parameters of every command: for the reference and for tests."""
    whole: Any = typer.main.get_command(app)
    laboratory: Any = typer.main.get_command(lab)
    whole.commands |= laboratory.commands
    return whole
