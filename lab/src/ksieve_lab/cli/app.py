"""The laboratory's commands; importing this adds them to `ksieve.cli.app.app`."""

from __future__ import annotations

from typing import Any

import typer

from ksieve.cli import further
from ksieve.cli.app import SAVE, SETTINGS, add, app, main
from ksieve.files.scores import READERS
from ksieve_lab.captures.factor_reader import reader
from ksieve_lab.cli import bench, captures, demo, replay, study, synth
from ksieve_lab.cli.commands import COMMANDS

__all__ = ["app", "lab", "main", "tree"]

further.register(COMMANDS)  # a source tree that is not installed has no entry points
if reader not in READERS:
    READERS.append(reader)

lab = typer.Typer(**SETTINGS)

SYNTH = "ksieve synth endpoint_structured scores.safetensors --rows 64 --width 32k"
"""Makes the file that an example reads."""

for name, command, *examples in (
    ("demo", demo.demo, "ksieve demo", "ksieve demo --k 512 my_scores.safetensors"),
    (
        "synth", synth.synth,
        SYNTH,
        "ksieve synth relu_plateau plateau.safetensors --rows 99 --width 65536 --lengths ragged",
    ),
    (
        "study", study.study,
        f"{SYNTH}\nksieve study scores.safetensors",
        "ksieve study early.safetensors late.safetensors --k 2048 --rows 0 --out study-of-two",
    ),
    (
        "calibrate", study.calibrate,
        f"{SYNTH}\nksieve calibrate scores.safetensors --out policy.json",
        "ksieve calibrate scores.safetensors --k 512 --device cpu && "
        "ksieve select scores.safetensors --policy policy.json",
    ),
    (
        "replay", replay.replay,
        "ksieve replay --example",
        "ksieve replay 430K --backend cuda --out benchmarks/results --figures docs/figures",
        "ksieve replay --prompt 100000 --step-tokens 8192 --decode-steps 100 --save trace.json",
        "ksieve replay recording.safetensors",
    ),
    ("info", captures.info, f"{SYNTH}\nksieve info scores.safetensors"),
    (
        "import", captures.import_,
        f"{SAVE}\nksieve import s.npy scores.safetensors",
        "ksieve import scores.pt scores.safetensors --lengths lengths.npy",
        "ksieve import run.npz scores.safetensors --name logits",
        "ksieve import stack.safetensors scores.safetensors --name logits --index 3,0 --lengths causal",
    ),
    (
        "bench", bench.bench,
        "ksieve bench cpu --shapes 16x32768 --rounds 3 --only compared",
        "ksieve bench operator --out benchmarks/results --figures docs/figures",
        "ksieve bench gpu --shapes decode:full --only x131072 --peers 'sglang,stream_split,stream paper-64'",
        'ksieve bench gpu --shapes 512x131072 --peers \'[{"family":"stream","ctas_per_sm":3}]\'',
        "ksieve bench trace --shapes 430K --scores factors:indexer.safetensors",
        "ksieve bench worst --only 'relu_plateau;descending;stride_hole' --shapes 1024x262144",
        "ksieve bench blocks-cpu --only 'DeepSeek-V4.1; MiniMax-M3' --shapes 2x32768 --rounds 3",
        "ksieve bench engines --peers sglang --only deep_select --shapes 64x131072",
        "ksieve bench ablation-cpu --only 'margin; rescue' --out benchmarks/results",
        "torchrun --nproc-per-node 2 -m ksieve bench ranks --shapes 64x131072",
    ),
    ("plot", bench.plot, "ksieve replay --example --out replay.json && ksieve plot replay.json"),
):  # fmt: skip
    add(lab, name, command, *examples, json=name != "plot", quiet=name != "info")


def tree() -> Any:
    """Return the whole command tree, with the parameters of every command: for the reference and for tests."""
    whole: Any = typer.main.get_command(app)
    laboratory: Any = typer.main.get_command(lab)
    whole.commands |= laboratory.commands
    return whole
