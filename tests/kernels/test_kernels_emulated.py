"""The kernels themselves, without a GPU: parts of the GPU suite on the emulator, on this and other architectures.

`make test-emulated` runs any part, or all of it, which takes hours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from emulator import build

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present")

PARTS = [
    # what finds no storage, of every kind of boundary and owner: counts and routes equal to the model's
    ("h200", "exact", "few_candidates and (persistent-64 or persistent-lines or persistent-peaks)", 3),
    ("h200", "exact", "few_candidates and (split-4 or cluster)", 2),
    # rows on chip: ordinary ones and those that samples, steps or registers do not decide
    ("h200", "held", "registers_hold and (register_block-12288 or resident_block-16384-1x256)", 6),
    ("h200", "held", "registers_hold and (resident_block-32768 or resident_cluster-16384-4)", 4),
    ("h200", "held", "how_often and (resident_block-32768 or resident_block-49152 or resident_cluster-65536-8)", 3),
    ("h200", "held", "subnormals and (resident_grid-262144 or resident_cluster-65536-16)", 2),
    # 16-bit rows, in which many scores share the k-th value
    ("h200", "half", "few_values and (register_block-4096 or resident_block-16384-1x256)", 4),
    ("h200", "half", "about_the_ends and (resident_cluster-16384-4 or resident_grid-262144)", 3),
    ("h200", "half", "options_of and (register_block-4096 or resident_cluster-16384-4)", 3),
    ("h200", "half", "more_than_are_ranked and 8192", 2),
    ("h200", "options", "windows_start and (persistent-peaks-float32 or cluster-float16 or row-bfloat16)", 3),
    ("h200", "bands", "without_a_row", 4),
    ("h200", "narrow", "decided and (100 or 257) or alignment or live_rows or statistics", 12),
    ("h200", "options", "pair_of_options and warp", 1),
    ("h200", "blocks", "every_size and (8-resident_block or 7-resident_cluster) or no_slots", 3),
    ("a100", "blocks", "every_size and 100-stream_unsampled", 1),
    ("h200", "entries", "options and warp or without_slots or decide_ties", 4),
    # architectures that kernels are compiled for and that have never been at hand
    ("a100", "exact", "few_candidates and (row or persistent-peaks or split-8-tied)", 3),
    ("a100", "narrow", "decided and 1024", 3),
    ("l40s", "narrow", "decided and 257", 3),
    ("b200", "narrow", "decided and 250", 3),
    ("rtx5090", "narrow", "decided and 2048", 3),
    ("l40s", "exact", "few_candidates and (row or persistent-lines)", 2),
    ("b200", "exact", "few_candidates and (row or persistent-peaks or cluster)", 3),
    ("b200", "held", "registers_hold and (register_block-8192 or resident_cluster-16384-4)", 4),
    ("b200", "held", "subnormals and resident_grid-262144", 1),
    ("rtx5090", "held", "registers_hold and resident_cluster-16384-4", 2),
    ("rtx5090", "exact", "few_candidates and (persistent-lines or split-8-tied)", 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("device", "part", "chosen", "least"), PARTS)
def test_parts_of_the_gpu_suite(device, part, chosen, least):
    command = [sys.executable, "-m", "pytest", "-m", "gpu", f"tests/gpu/test_{part}.py", "-q", "-k", chosen]
    paths = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    asked = {"KSIEVE_GPU_EMULATED": "1", "KSIEVE_EMULATED_DEVICE": device}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:xdist"], cwd=ROOT, env=os.environ | paths | asked,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= least, done.stdout[-2000:]
