"""A reduced grid that reaches every kernel and route, to be run under compute-sanitizer.

``PYTHONPATH=src:lab/src:.:tests:tests/support compute-sanitizer --tool memcheck python3 -m gpu.sanitize_grid``, or
`make sanitize`.
``--compile`` only fills the kernel cache, which is better done outside the sanitizer. Answers are judged on the host,
so that no other kernel than ksieve's has to be instrumented; every array is an allocation of its own, so that an
access one element outside it is one.
``--record LOG FOLDER`` turns the log of such runs into a result file.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import ksieve
import rank_cases
from gpu import material, runner, served, test_blocks, test_logits, test_tiles
from gpu.test_stats import TRACED
from gpu.variants import ALL, EITHER, MANY_SHORT, VARIANTS, banded, crowded, overflowing, possible, precompile
from ksieve.planning.families import QUEUED
from ksieve.planning.memory import with_workspace
from ksieve_lab.bench import record

SHAPES = (
    # width, k, every how-manieth value family, base offset, row padding
    (37, 5, 6, 0, 0),
    (1030, 100, 5, 1, 3),
    (9001, 512, 6, 3, 0),
    (33_000, 512, 11, 0, 0),
)
FEW = (9001, 64)
FOLLOWING = (8192, 64)
HELD = ((17_000, 64), (20_000, 64), (34_000, 1100), (35_000, 1100), (43_000, 1100), (50_000, 1100))
"""Rows by the thousands that stay on chip: in the ring alone, or with a part beside it."""
MANY_EQUAL = (60_000, 4096)
"""16-bit rows of which more than 32 scores share the k-th value."""
BANDED = (33_000, 512)


def plans():
    for variant in (*TRACED.values(), ALL["cooperative"]):
        for width, k, every, _, _ in SHAPES:
            rows = -(-len(material.NAMES) // every)
            for plan in possible(variant, rows, width, k):
                yield variant.name, plan, False
                if width == 9001:
                    yield variant.name, plan, True
        for plan in possible(variant, 8, *FEW):
            yield variant.name, overflowing(plan), False
        if variant.family in (*QUEUED, EITHER):
            # Rows that follow each other in a CTA, in the launch shapes for few rows and for many.
            for planned in (8, MANY_SHORT):
                yield variant.name, crowded(variant, planned, 8, *FOLLOWING, ctas=2), planned > 8
        if variant.family == EITHER:
            for width, k in HELD:
                yield variant.name, crowded(variant, 4096, 8, width, k, ctas=2), False
        for dtype in ("float16", "bfloat16"):
            for plan in possible(variant, 5, 9001, 100, dtype=dtype):
                yield variant.name, plan, False
    for name, dtype in itertools.product(("row", "cluster", "persistent-lines"), ("float16", "bfloat16")):
        for plan in possible(VARIANTS[name], 6, *MANY_EQUAL, dtype=dtype):
            yield name, plan, False
    for width, dtype in itertools.product((100, 700, 2000), ("float32", "float16", "bfloat16")):
        for plan in possible(ALL["warp"], 40, width, 9, dtype=dtype):
            yield "warp", plan, False
    yield "banded", banded(12, *BANDED, ctas=2), False


SERVED = (
    "persistent-peaks", "persistent-128", "split-8-tied", "split-2", "row", "cluster", "persistent-exact", "warp",
)  # fmt: skip
"""Variants whose calls with options are watched: every family, boundaries of both kinds."""


def calls(rows, width, k):
    """Deterministic calls that together use every option."""
    column, size = np.arange(rows, dtype=np.int32), 10 if width % 10 == 0 else 1
    lengths = torch.from_numpy(material.lengths_for(rows, width, k))
    starts, offsets = torch.from_numpy(column % 5), torch.from_numpy(column * 1000 - 7)
    table = torch.from_numpy(np.arange(rows * (width // 8), dtype=np.int32).reshape(rows, -1))
    more = {"values": True, "raw": True}
    yield {"starts": starts, "lengths": lengths, "sorted": "index", "tie_break": "low", "overlap": True}
    yield {"page_table": table, "page_size": 8, "index_dtype": "int64", "sorted": "value", "tie_break": "high"} | more
    yield {"offsets": offsets, "ks": starts * (k // 4), "ends": lengths, "sorted": "value", "tie_break": "low"} | more
    more["counts"] = torch.zeros(rows, dtype=torch.int32)
    by_value, by_index = {"sorted": "value", "tie_break": "high"} | more, {"sorted": "index", "tie_break": "low"} | more
    held = np.stack([np.random.default_rng(row).permutation(2 * width)[:width] for row in range(rows)]).astype(np.int32)
    held[held % 3 == 0] = -1
    placed = {"ends": lengths, "starts": starts, "positions": torch.from_numpy(held), "offsets": offsets}
    table = np.stack([np.random.default_rng(row).permutation(width)[: width // size] for row in range(rows)])
    yield {
        "lengths": lengths,
        "starts": starts,
        "expand": 3,
        "tail": lengths * 3 - 1,
        "index_dtype": "int64",
    } | by_index
    yield {"lengths": lengths, "expand": 2, "tail": lengths} | more
    yield placed | by_value
    yield placed | by_index
    yield {"block_table": torch.from_numpy(table.astype(np.int32)), "expand": 2, "ks": starts * (k // 4)} | more


def served_plans():
    """Of every variant: the calls with options, each with ordinary storage and with room for few candidates."""
    for name, (width, k, rows) in itertools.product(SERVED, ((9001, 64, 8), (1030, 100, 6))):
        bits = np.ascontiguousarray(material.stack(width, k)[::5][:rows])
        scores = torch.from_numpy(bits).to(runner.DEVICE)
        for number, call in enumerate(calls(rows, width, k)):
            plans = possible(ALL[name], rows, width, k, options=served.options_of(call))
            for plan in plans:
                yield name, plan, scores, call, False
                if plan.family == "resident_block":  # rows that follow each other
                    yield name, with_workspace(replace(plan, ctas=2)), scores, call, False
                if width == 9001:
                    yield name, overflowing(plan), scores, call, number == 0


def compiled():
    """Pairs of a plan and whether it is run with statistics, of all that this grid launches."""
    yield from ((plan, stats) for _, plan, stats in plans())
    for _, plan, _, _, stats in served_plans():
        yield from {(plan, stats), (plan, False)}


def serve(name, plan, scores, call, stats):
    """Run a call twice and judge it on the host."""
    ready = served.Served(plan, scores, on_device(call), False)
    wrong = (served.compare_stats(ready, host=True) if stats else []) or served.check(ready, host=True)
    assert not wrong, f"{name}: {wrong} of {sorted(call)}"


def on_device(call):
    return {n: v.to(runner.DEVICE) if isinstance(v, torch.Tensor) else v for n, v in call.items()}


def inputs(plan):
    """Scores of a plan's shape on the device, in an allocation that ends with them, and their call."""
    rows, width, k, dtype = plan.problem.rows, plan.problem.width, plan.problem.k, plan.problem.dtype
    every, offset, padding = next(
        ((e, o, p) for w, q, e, o, p in SHAPES if (w, q) == (width, k) and dtype == "float32"), (9, 1, 1)
    )
    bits = material.narrow(material.stack(width, k), dtype)[::every][:rows]
    bits = np.ascontiguousarray(np.resize(bits, (rows, width)))
    pitch = width + padding
    buffer = np.zeros(offset + (rows - 1) * pitch + width, bits.dtype)
    np.lib.stride_tricks.as_strided(buffer[offset:], (rows, width), (pitch * bits.itemsize, bits.itemsize))[...] = bits
    scores = torch.from_numpy(buffer).to(runner.DEVICE).as_strided((rows, width), (pitch, 1), offset)
    call = {"lengths": torch.from_numpy(material.lengths_for(rows, width, k)), "live": torch.tensor([rows + 1])}
    return scores.view(getattr(torch, dtype)), call | {"live": call["live"].int()}


def read_plainly() -> int:
    """Every plain-read kernel of the benchmark."""
    from ksieve.backends import cuda
    from ksieve_lab.bench import floor

    device = cuda.device_info(0)
    scores = torch.from_numpy(np.ones((3, 20_000), np.float32)).cuda()
    lengths = torch.from_numpy(np.array([20_000, -1, 77], np.int32)).cuda()
    kernels = floor.available(device)
    for kernel in kernels:
        floor.Reader(kernel, scores, lengths, device)()
    torch.cuda.synchronize()
    return len(kernels)


def rank_kernels() -> int:
    """The kernels between the collectives of `ksieve.distributed`; every rank on this GPU."""
    few = itertools.product(rank_cases.LAYOUTS, rank_cases.SCHEDULES, rank_cases.KINDS, (5,))
    many = itertools.product(("by one",), rank_cases.SCHEDULES, rank_cases.KINDS, (200,))
    cases = itertools.chain(few, many)
    return sum(rank_cases.check_kernels(*case, runner.DEVICE, rows) for *case, rows in cases)


def rows_of_blocks() -> int:
    """Rows of blocks, pooled in both ways, in every family, with forced entries; returns how many calls there were."""
    count = 0
    for (size, dtype), family in itertools.product(
        ((8, "float32"), (7, "float16"), (100, "bfloat16")), test_blocks.FAMILIES
    ):
        width = size * test_blocks.BLOCKS + 2
        scores = test_blocks.scores_of(size, width, test_blocks.K, dtype, size % 5)
        for call in test_blocks.calls(scores.shape[0], width, size):
            call |= {"block_size": size, "force_first": 1, "force_last": 2, "values": size == 7}
            plan = served.plan_for(test_blocks.FORCED[family], scores, test_blocks.K, call)
            # On the host: PyTorch's kernels would be watched too.
            if wrong := served.check(served.Served(plan, scores, call), host=True):
                raise AssertionError(wrong[0])
            count += 1
    return count


def rows_in_tiles() -> int:
    """Pushes of `ksieve.Running` on every path of their kernel; returns how many answers there were."""
    cases = itertools.product((300, 4096), ("float32", "bfloat16"), (None, "high"))
    return sum(test_tiles.check_forced(*case) for case in cases)


def rows_of_logits() -> int:
    """Statistics, kept sets and samples in every family; returns how many answers there were."""
    cases = itertools.product(test_logits.FAMILIES, ("float32", "bfloat16"))
    return sum(test_logits.check_few(*case) for case in cases)


def record_log(log: Path, folder: Path) -> int:
    """Write what each sanitizer's own summary line says; returns how many tools found something or said nothing."""
    found = re.findall(
        r"--tool (\w+)|(?:ERROR|RACECHECK) SUMMARY: (\d+)|(\d+) launches and their repeats", log.read_text()
    )
    results: dict[str, dict[str, int | None]] = {}
    for tool, issues, launches in found:
        if tool:
            results[tool] = {"issues": None, "launches": None}
        elif results:
            results[list(results)[-1]]["issues" if issues else "launches"] = int(issues or launches)
    record.write_json(folder / "gpu-sanitizers.json", record.payload("gpu-sanitizers", {}, results, gpu=True))
    return sum(1 for tool in results.values() if tool["issues"] != 0) + (not results)


def main() -> int:
    # Read when PyTorch first allocates.
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    if "--record" in sys.argv:
        log, folder = sys.argv[sys.argv.index("--record") + 1 :][:2]
        return int(record_log(Path(log), Path(folder)) > 0)
    begin = time.perf_counter()
    count = precompile(compiled())
    print(f"{count} kernels compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    if "--compile" in sys.argv:
        rank_kernels()
        rows_of_blocks()
        rows_in_tiles()
        rows_of_logits()
        return 0
    print(f"ksieve {ksieve.__version__} on {torch.cuda.get_device_name()}")
    print(f"{read_plainly()} plain reads")
    print(f"{rank_kernels()} answers of ranks")
    print(f"{rows_of_blocks()} calls with blocks")
    print(f"{rows_in_tiles()} answers of rows in tiles")
    print(f"{rows_of_logits()} answers for logits")
    plain = ((name, plan, *inputs(plan), stats) for name, plan, stats in plans())
    failures, launches, last, begin = 0, 0, "", time.perf_counter()
    for name, plan, scores, call, stats in itertools.chain(plain, served_plans()):
        if name != last:
            print(f"{time.perf_counter() - begin:6.1f} s  {name}", flush=True)
            last = name
        try:
            serve(name, plan, scores, call, stats)
        except AssertionError as error:
            failures += 1
            print(f"FAIL {name} {plan.problem.rows} x {plan.problem.width} k={plan.problem.k}: {error}", flush=True)
        launches += 1
    print(f"{launches} launches and their repeats in {time.perf_counter() - begin:.1f} s, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
