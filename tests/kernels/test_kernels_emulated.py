"""The kernels themselves, without a GPU: parts of the GPU suite on the emulator, on this and other architectures.

`make test-emulated` runs any part, or all of it, which takes hours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from conftest import ROOT

from emulator import build

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present")

PARTS = {
    # what finds no storage, of every kind of boundary and owner: counts and routes equal to the model's; and slots that
    # are written by the selection, and values from keys or from the ring
    "h200 exact, values": {
        "exact": (5, "few_candidates and (persistent-64 or t-lines or persistent-peaks or split-4 or cluster)"),
        "values": (
            5,
            "persistent-64 and 200-float16 or split-2- and float32 or resident and bfloat16"
            " or small-cluster and float32 or binned and float32",
        ),
    },
    # rows on chip: ordinary ones and those that samples, steps or registers do not decide
    "h200 held": {
        "held": (
            14,
            "registers_hold and (register_block-12288 or resident_block-16384-1x256 or resident_block-32768)"
            " or how_often and (resident_block-32768 or resident_cluster-65536-8)"
            " or registers_hold and resident_cluster-16384-4"
            " or subnormals and (resident_grid-262144 or resident_cluster-65536-16)",
        ),
    },
    # 16-bit rows, in which many scores share the k-th value
    "h200 half": {
        "half": (
            10,
            "few_values and (register_block-4096 and bfloat16 or resident_block-16384-1x256 and not bfloat16)"
            " or about_the_ends and (resident_cluster-16384-4 or resident_grid-262144)"
            " or options_of and (register_block-4096 or resident_cluster-16384-4)",
        ),
        "held": (2, "full_as_are_ranked and 16-8192"),
        "bands": (2, "without_a_row and (10000 or 65536)"),
    },
    "h200 options and warps": {
        "options": (
            5,
            "windows_start and (persistent-peaks-float32 or cluster-float16 or row-bfloat16)"
            " or pair_of_options and warp or wide_rows_have and persistent-64",
        ),
        "narrow": (13, "decided and ([100- or [257-) or alignment or live_rows or statistics"),
        "volume": (1, "any_call and warp"),
    },
    # rows of blocks, and what slots hold
    "h200 entries": {
        "blocks": (3, "every_size and ([8-resident_block] or 7-resident_cluster) or no_slots"),
        "entries": (7, "options and warp or without_slots or decide_ties or not_used and warp"),
    },
    # rows that are folded while they are scanned: the bytes of the CPU
    "h200 logits": {
        "logits": (2, "kept and float32 or split-bfloat16"),
    },
    # windows, leading strides and candidates of rows on chip; leading strides of all others
    "h200 windows": {
        "segments": (1, "warps-listing-float32-plain"),
        "windows": (4, "smallest-float32 or nan-highest-bfloat16 or largest-float32-0 or largest-float16"),
        "strides": (
            10,
            "plain and (exact or cluster or warp) or bfloat16 and persistent or float16 and (split or row) or binned"
            " or one_cta",
        ),
        "entries": (8, "candidates_that_are_there and row or rows_on_chip and (4-True or 3-False)"),
    },
    # architectures that kernels are compiled for and that have never been at hand
    "a100": {
        "exact": (3, "few_candidates and (row or persistent-peaks or split-8-tied)"),
        "narrow": (1, "decided and 1024-float32"),
        "blocks": (1, "every_size and 100-stream_unsampled"),
    },
    "l40s": {"exact": (2, "few_candidates and (row or persistent-lines)"), "narrow": (1, "decided and 257-float16")},
    "b200": {
        "exact": (3, "few_candidates and (row or persistent-peaks or cluster)"),
        "narrow": (1, "decided and 250-bfloat16"),
        "held": (3, "registers_hold and resident_cluster-16384-4 or subnormals and resident_grid-262144"),
    },
    "rtx5090": {
        "exact": (2, "few_candidates and (persistent-lines or split-8-tied)"),
        "held": (2, "registers_hold and resident_cluster-16384-4"),
        "narrow": (1, "decided and 2048-float32"),
    },
}
"""A process each, that begins with a device: of a file of the suite, at least how many tests pass, and which."""


@pytest.mark.extended
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_the_gpu_suite(name):
    files = [f"tests/gpu/test_{file}.py" for file in PARTS[name]]
    chosen = " or ".join(f"test_{file}.py and ({chosen})" for file, (_, chosen) in PARTS[name].items())
    command = [sys.executable, "-m", "pytest", "-m", "gpu", *files, "-v", "-k", chosen]
    paths = {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("src", "lab/src", "tests"))}
    asked = {"KSIEVE_GPU_EMULATED": "1", "KSIEVE_EMULATED_DEVICE": name.split()[0]}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:xdist"], cwd=ROOT, env=os.environ | paths | asked,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = Counter(re.findall(r"^tests/gpu/test_(\w+)\.py::.* PASSED", done.stdout, re.M))
    fewer = {file: passed[file] for file, (least, _) in PARTS[name].items() if passed[file] < least}
    assert not fewer, done.stdout[-2000:]
