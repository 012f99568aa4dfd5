"""A capture that several processes select from, or study: the file, and the figures, of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.multiprocessing as mp  # noqa: E402

from ksieve.files import split, stream  # noqa: E402
from ksieve_lab.bench import record  # noqa: E402
from ksieve_lab.captures.format import Capture  # noqa: E402
from ksieve_lab.captures.writer import CaptureWriter  # noqa: E402
from ksieve_lab.study import run  # noqa: E402
from ksieve_lab.workloads import write_synthetic  # noqa: E402

WIDTH, K, BLOCK = 300, 20, 4 * 300 * 7
"""Blocks of 7 rows."""


def source(rows):
    rng = np.random.default_rng(rows)
    scores = rng.integers(0, 30, (rows, WIDTH)).astype(np.float32)
    lengths = rng.integers(0, WIDTH + 1, rows).astype(np.int32)
    return SimpleNamespace(rows=rows, width=WIDTH, lengths=lengths, rows_block=lambda a, b: scores[a:b])


def selected(call, rows, **more):
    """What the sink gets, and the statistics."""
    got = []
    result = call(source(rows), K, lambda begin, part: got.append((begin, part.copy())), block_bytes=BLOCK, **more)
    return got, result


def alike(one, other):
    return len(one) == len(other) and all(
        a == c and np.array_equal(b, d) for (a, b), (c, d) in zip(one, other, strict=True)
    )


def worker(rank, world, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    for rows in (0, 1, 7, 15, 43):
        for stats in (False, True):
            seen = []
            more = {"backend": "cpu", "return_stats": stats}
            got, result = selected(split.select, rows, rank=rank, world=world, progress=seen.append, **more)
            if rank:
                assert got == [] and result is None and seen == []
                continue
            want, alone = selected(stream.select, rows, **more)
            assert alike(got, want), rows
            assert seen == [begin + len(part) for begin, part in want if len(part)]
            assert (result.stats is None) == (not stats)
            if stats:
                assert len(result.stats) == rows
                np.testing.assert_array_equal(result.stats.committed0, alone.stats.committed0)
                np.testing.assert_array_equal(result.stats.route, alone.stats.route)
    studied(rank, world, folder)
    torch.distributed.destroy_process_group()


def studied(rank, world, folder):
    """The study of two captures, of which one has a single row to study: every figure is that of one process."""
    with Capture(f"{folder}/many.safetensors") as many, Capture(f"{folder}/one.safetensors") as one:
        seen = []
        payload = run.study([many, one], 40, rank=rank, world=world, progress=lambda *done: seen.append(done))
        if rank:
            assert payload is None
            return
        alone = run.study([many, one], 40)
        assert json.dumps(record.plain(payload["results"])) == json.dumps(record.plain(alone["results"]))
        assert payload["settings"] == alone["settings"]
        assert [c["studied"] for c in alone["results"]["captures"]] == [7, 1]
        assert seen == [(2, 8), (4, 8), (7, 8)]  # of the first rank's three rows


def test_two_processes_give_the_blocks_and_the_figures_of_one(tmp_path):
    write_synthetic(tmp_path / "many.safetensors", "endpoint_structured", 7, 1000, k=40)
    write_synthetic(tmp_path / "one.safetensors", "random_normal", 1, 900, dtype="bfloat16", k=40)
    mp.spawn(worker, (2, str(tmp_path)), 2)


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert split.launched() == 1
    with split.ranks() as found:
        assert found == (0, 1)
    assert alike(selected(split.select, 15, rank=0, world=1)[0], selected(stream.select, 15)[0])
    for size, wanted in (("3", 3), ("", 1), ("many", 1), ("1", 1), ("0", 1)):
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", size)
        assert split.launched() == wanted


@pytest.mark.extended
def test_select_under_torchrun_writes_the_file_of_one_process(tmp_path):
    made = source(40)
    with CaptureWriter(tmp_path / "scores.safetensors", 40, WIDTH) as writer:
        writer.write(made.rows_block(0, 40), made.lengths)
    arguments = ["select", str(tmp_path / "scores.safetensors"), "--k", "20", "--backend", "cpu", "--out"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "ksieve"]
    for name, launch in (("one.npy", [sys.executable, "-m", "ksieve"]), ("two.npy", torchrun)):
        done = subprocess.run(
            [*launch, *arguments, str(tmp_path / name)], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("selected k=20") == 1  # the first process alone prints
    assert (tmp_path / "one.npy").read_bytes() == (tmp_path / "two.npy").read_bytes()
