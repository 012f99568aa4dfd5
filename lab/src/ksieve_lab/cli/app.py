"""The laboratory's commands; importing this adds them to `ksieve.cli.app.app`."""

from __future__ import annotations

from typing import Any

import typer

from ksieve.cli import further
from ksieve.cli.app import SETTINGS, add, app, main
from ksieve.files.scores import READERS
from ksieve_lab.captures.factor_reader import reader
from ksieve_lab.cli import bench, captures, demo, replay, study, synth
from ksieve_lab.cli.commands import COMMANDS

__all__ = ["app", "lab", "main", "tree"]

further.register(COMMANDS)  # a source tree that is not installed has no entry points
if reader not in READERS:
    READERS.append(reader)

lab = typer.Typer(**SETTINGS)

for name, command, *examples in (
    ("demo", demo.demo, "ksieve demo", "ksieve demo --k 512 my_scores.safetensors"),
    (
        "synth", synth.synth,
        "ksieve synth endpoint_structured scores.safetensors --rows 64 --width 131072",
        "ksieve synth relu_plateau plateau.safetensors --rows 99 --width 65536 --lengths ragged",
    ),
    (
        "study", study.study,
        "ksieve study scores.safetensors",
        "ksieve study early.safetensors late.safetensors --k 2048 --rows 0 --out study-of-two",
    ),
    (
        "calibrate", study.calibrate,
        "ksieve calibrate scores.safetensors --out policy.json",
        "ksieve calibrate scores.safetensors --k 512 --cost cpu && "
        "ksieve select scores.safetensors --policy policy.json",
    ),
    (
        "replay", replay.replay,
        "ksieve replay --example",
        "ksieve replay 430K --backend cuda --out benchmarks/results --figures docs/figures",
        "ksieve replay --prompt 100000 --step-tokens 8192 --decode-steps 100 --save trace.json",
        "ksieve replay recording.safetensors",
    ),
    ("info", captures.info, "ksieve info examples/indexer_capture.safetensors"),
    (
        "import", captures.import_,
        "ksieve import scores.npy scores.safetensors",
        "ksieve import scores.pt scores.safetensors --lengths lengths.npy",
        "ksieve import run.npz scores.safetensors --name logits",
        "ksieve import stack.safetensors scores.safetensors --name logits --index 3,0 --lengths causal",
    ),
    (
        "bench", bench.bench,
        "ksieve bench operator --out benchmarks/results --figures docs/figures",
        "ksieve bench gpu --shapes decode:full --only x131072 --peers 'sglang,stream_split,stream paper-64'",
        'ksieve bench gpu --shapes 512x131072 --peers \'[{"family":"stream","ctas_per_sm":3}]\'',
        "ksieve bench trace --shapes 430K --scores factors:indexer.safetensors",
        "ksieve bench worst --only 'relu_plateau;descending;stride_hole' --shapes 1024x262144",
        "ksieve bench blocks-cpu --only 'DeepSeek-V4.1; MiniMax-M3' --shapes 2x32768 --rounds 3",
        "ksieve bench engines --peers sglang --only deep_select --shapes 64x131072",
        "ksieve bench ablation-cpu --only 'margin; rescue' --out benchmarks/results",
        "ksieve bench cpu --shapes 16x131072 --rounds 3 --only compared",
        "torchrun --nproc-per-node 2 -m ksieve bench ranks --shapes 64x131072",
    ),
    ("plot", bench.plot, "ksieve plot benchmarks/results/gpu-operator-k2048.json --figures figures"),
):  # fmt: skip
    add(lab, name, command, *examples, json=name != "plot", quiet=name != "info")


def tree() -> Any:
    """Return the whole command tree, with the parameters of every command: for the reference and for tests."""
    whole: Any = typer.main.get_command(app)
    laboratory: Any = typer.main.get_command(lab)
    whole.commands |= laboratory.commands
    return whole
