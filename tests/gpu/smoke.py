"""Smoke of one or more variants in a process of their own, so that a kernel that hangs or faults takes no other along.

``PYTHONPATH=src:lab/src:.:tests:tests/support python3 -m gpu.smoke persistent-64 row`` prints a line per check and
exits 1 if any failed.
"""

from __future__ import annotations

import sys
import time
import traceback
from functools import partial

import torch

from gpu import material, runner, served
from gpu.variants import VARIANTS, Variant, overflowing

SHAPES = (
    # width, k, rows of each value family, base offset, row padding
    (7, 16, 2, 0, 0),
    (300, 1, 2, 1, 1),
    (5003, 512, 2, 0, 0),
    (16_384, 2048, 2, 0, 0),
    (40_001, 1000, 2, 3, 2),
    (131_072, 2048, 2, 0, 0),
    (262_145, 4096, 1, 0, 3),
    (1_100_000, 1024, 1, 2, 0),
)


def case(variant: Variant, scores, call, k: int, *, stats: bool = False, tiny: bool = False) -> list[str]:
    """What is wrong with a call, and with its statistics."""
    plan = runner.plan_for(variant, scores, k)
    if tiny:
        plan = overflowing(plan)
    ready = served.Served(plan, scores, call)
    return served.check(ready) + (served.compare_stats(ready) if stats else [])


def smoke(variant: Variant, report) -> None:
    for width, k, reps, offset, padding in SHAPES:
        bits = material.narrow(material.stack(width, k, reps), "float32")
        scores = material.place(bits, "float32", runner.DEVICE, offset=offset, padding=padding)
        call = {"lengths": torch.from_numpy(material.lengths_for(len(bits), width, k)).to(runner.DEVICE)}
        what = f"{len(bits)} x {width} k={k} offset {offset} padding {padding}"
        report(f"full lengths  {what}", partial(case, variant, scores, {}, k))
        report(f"all lengths   {what}", partial(case, variant, scores, call, k))
        if width <= 5003:
            report(f"half live     {what}", partial(case, variant, scores, call | served.live(len(bits) // 2), k))
        if width <= 131_072 and reps == 2:
            every = 1 if width < 100_000 else 2
            some = {"lengths": call["lengths"][::every].contiguous()}
            report(f"statistics    {what}", partial(case, variant, scores[::every], some, k, stats=True))
        if width == 5003:
            report(f"tiny storage  {what}", partial(case, variant, scores, call, 64, stats=True, tiny=True))
    for dtype in ("float16", "bfloat16"):
        bits = material.narrow(material.stack(70_001, 512), dtype)
        scores = material.place(bits, dtype, runner.DEVICE, offset=1, padding=1)
        call = {"lengths": torch.from_numpy(material.lengths_for(len(bits), 70_001, 512)).to(runner.DEVICE)}
        report(dtype, partial(case, variant, scores, call, 512))


def main(names: list[str]) -> int:
    failures = 0
    for name in names or list(VARIANTS):
        start, dead = time.perf_counter(), False

        def report(what, run, name=name):
            nonlocal failures, dead
            if dead:
                return
            begin = time.perf_counter()
            try:
                wrong = run()
                if not runner.HOST:
                    torch.cuda.synchronize()
            except Exception as error:
                wrong = ["".join(traceback.format_exception_only(error)).strip()]
                if "CUDA" in wrong[0]:
                    dead = True  # the context is gone: nothing after this means anything
                else:
                    wrong.append(traceback.format_exc())
            failures += bool(wrong)
            word = "FAIL" if wrong else "ok  "
            print(f"{word} {name:18s} {what}  {time.perf_counter() - begin:.2f} s", flush=True)
            for line in wrong:
                print(f"       {line}", flush=True)

        smoke(VARIANTS[name], report)
        print(f"---- {name}: {time.perf_counter() - start:.1f} s, {failures} failures so far", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
