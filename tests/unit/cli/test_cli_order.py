"""Arguments are checked before outputs, outputs before extras, and extras before any work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ksieve
import ksieve_lab
from ksieve_lab.bench import catalog
from ksieve_lab.captures import CaptureWriter

BARE = """
import contextlib, io, json, sys
hidden = {"matplotlib", "torch", "cuda", "triton"}
class Finder:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, *more):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, *more)
sys.meta_path[:] = map(Finder, sys.meta_path)
from ksieve.__main__ import main
for line in json.load(sys.stdin):
    sys.argv = ["ksieve", *line.split()]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([line, code, out.getvalue(), err.getvalue()]))
"""
"""Runs commands where only the base dependencies are installed."""

FIGURES = tuple(f"bench {bench.name}" for bench in catalog.BENCHES if bench.figures)
WRONG = {
    "study absent.safetensors --figures f": "absent.safetensors: no such file",
    "study s.safetensors --figures f --k 0": "--k: got 0",
    "study s.safetensors --figures f --k 2000": "--k: got 2000 for s.safetensors, whose longest row has 4,000 scores",
    "study s.safetensors --figures f --device z": "--device: got 'z'",
    "study s.safetensors --backend cuda --device z": "--device: got 'z'",
    "study s.safetensors --figures file/f": "--figures: got file/f",
    "study s.safetensors --device z": "--device: got 'z'",
    "study s.safetensors --out file/f": "--out: got file/f",
    "calibrate s.safetensors --out none/x.json": "--out: got none/x.json",
    "calibrate s.safetensors --backend cuda --device z": "--device: got 'z'",
    "calibrate s.safetensors --backend cuda --k 3000": "--k: got 3000",
    "replay --example --figures f --k 0": "--k: got 0",
    "replay --example --figures f --policy z": "--policy: got 'z'",
    "replay --example --figures f --scores z": "--scores: got 'z'",
    "replay --example --figures f --peers z": "--peers: got 'z'",
    "replay --example --figures f --rounds 0": "'--rounds': got '0'",
    "replay --example --figures f --out none/x.json": "--out: got none/x.json",
    "bench z": "NAME: got 'z'",
    "bench ablation --figures f --only z": "--only: got 'z'",
    "bench ablation --figures f --scores z": "--scores: got 'z'",
    "bench ablation --figures f --shapes z": "--shapes: got 'z'",
    "bench chain --figures f --shapes 245K:3": "--shapes: got '3'; takes heads of the indexer",
    "bench trace --figures f --shapes z": "--shapes: got 'z'",
    "bench gpu --figures f --shapes 2x3:z": "--shapes: got 'z'",
    "bench gpu --figures f --peers z": "--peers: got 'z'",
    "bench gpu --figures f --scores factors:absent": "--scores: got 'factors:absent' (no such file)",
    "plot absent.json": "absent.json: no result file (no such file)",
    "bench engines --scores z": "--scores: got 'z'",
    "bench ranks-rows --shapes -1": "--shapes: got '-1'",
    "build --for vllm --rows 3": "--rows: got [3], which is not taken with --for",
    "build --device sm_80 --k 0": "'--k': got '0'; takes an int of at least 1",
    "build --device sm_80 --width -4": "'--width': got '-4'",
    "build --device sm_90a --bundle none/x.zip": "--bundle: got none/x.zip",
    "plan --rows 1 --width 1 --k 0": "--k: got 0; takes an int from 1 to 1048576",
    "plan --rows 1 --width 9 --k 1 --pitch 8": "--pitch: got 8; takes an int of",
    "plan --rows 1 --width 9 --k 1 --policy z": "--policy: got 'z'; takes",
    "plan --rows 1 --width 9 --k 1 --device tpu": "--device: got 'tpu'; takes cpu, cuda, cuda:<ordinal> or one of a100",
    "info absent.safetensors": "absent.safetensors: no such file",
    "import absent.npy x.safetensors": "absent.npy: no such file",
    "synth nothing x.safetensors --rows 1 --width 1": "PRODUCER: got 'nothing'; takes one of",
    "synth all_equal x.npy --rows 1 --width 1": "OUT: got x.npy; takes a file name ending in",
    "synth all_equal no/x.safetensors --rows 1 --width 1": "takes a file in a folder that",
    "synth all_equal x.safetensors --rows 1 --width 1 --lengths z": "--lengths: got 'z'",
    "select absent.safetensors --k 0": "absent.safetensors: no such file",
    "select s.safetensors --k 1048577": "--k: got 1048577; takes an int from 1 to 1048576",
    "select s.safetensors --out x.txt": "--out: got x.txt; takes a file name ending in .npy or .safetensors",
    "select s.safetensors --stats-out x.txt": "--stats-out: got x.txt; takes a file name ending in .csv or .npy",
    "select s.safetensors --backend cuda --policy z": "--policy: got 'z'",
    "select s.safetensors --backend cuda --k 0": "--k: got 0",
    **{f"{command} --figures f --out none/x.json": "--out: got none/x.json" for command in FIGURES},
    **{f"{command} --figures file/f": "--figures: got file/f" for command in FIGURES},
    **{f"{command} --rounds 0": "'--rounds': got '0'" for command in ("tune", "bench gpu")},
    **{f"{command} --k 0": "--k: got 0" for command in ("tune", "bench gpu")},
}
EXTRAS = {
    "study s.safetensors --figures f": "figures need matplotlib",
    "study s.safetensors --backend cuda": "--backend cuda ranks rows with PyTorch",
    "replay --example --figures f": "figures need matplotlib",
    "plot r.json --figures f": "figures need matplotlib",
    **{f"{command} --figures f": "figures need matplotlib" for command in FIGURES},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    place = tmp_path_factory.mktemp("order")
    (place / "file").touch()
    (place / "r.json").write_text('{"schema": 1, "bench": "gpu"}')
    with CaptureWriter(place / "s.safetensors", 64, 4000, k=8) as writer:
        import numpy as np

        writer.write(np.zeros((64, 4000), np.float32))
    before = sorted(place.iterdir())
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(Path(of.__file__).parents[1]) for of in (ksieve, ksieve_lab)),
    }
    done = subprocess.run(
        [sys.executable, "-c", BARE], cwd=place, env=env, input=json.dumps([*WRONG, *EXTRAS]), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(place.iterdir()) == before
    return {line: (code, out, err) for line, code, out, err in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("line", [*WRONG, *EXTRAS])
def test_a_command_speaks_of_arguments_then_outputs_then_extras(ran, line):
    code, out, err = ran[line]
    said = " ".join(err.split())
    assert (code, out) == (2, "") and said.startswith("error: "), said
    assert (WRONG | EXTRAS)[line] in said
