"""Compile the kernels with the NVRTC at hand, without a GPU, and list spills: `make cubins CUDA=12`.

Machine code is compared with a committed list for one NVRTC alone (`scripts/cubins.py`). Others only have to compile
every kernel of that list, within the registers and the shared memory of its plan. What they cannot is listed by version
in tests/data/spills.json, and anything else fails. ``--sample`` takes the smallest kernel of each source, dtype and
architecture; ``--update`` rewrites the version's part of the list.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import cubins

from ksieve.backends.cuda.jit import build
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.spec import KernelSpec
from ksieve.core import atomic
from ksieve.core.errors import KsieveError
from ksieve.planning.plan import Plan

LIST = cubins.LIST.with_name("spills.json")


def faults_of(spec: KernelSpec, plan: Plan) -> list[str]:
    """Compile a kernel; what keeps it from running as planned, or why it does not compile."""
    try:
        cubin = compiler.compile_kernel(spec, compiler.shipped_sources())
    except KsieveError as error:
        return [f"does not compile: {error}"]
    return build.shortcomings(plan, spec, cubin.resources)


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, list, and compare with the list of what is known."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", action="store_true", help="one kernel of each source, dtype and architecture")
    parser.add_argument("--update", action="store_true", help="rewrite the list of this NVRTC")
    parser.add_argument("--list", type=Path, default=LIST, help="the list (default: tests/data/spills.json)")
    parser.add_argument("--only", default="", help="only kernels whose line contains this, e.g. 'sm_90a 1x'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per CPU)")
    asked = parser.parse_args(argv)
    if asked.update and (asked.only or asked.sample):
        parser.error("--update rewrites the whole list: leave out --only and --sample")
    try:
        version = compiler.compiler_version().removeprefix("nvrtc ")
    except KsieveError as error:
        print(f"spills: {error}", file=sys.stderr)
        return 1
    kernels, wrong = cubins.resolve(json.loads(cubins.LIST.read_text(encoding="utf-8"))["kernels"])
    kernels = cubins.sample(kernels, dtypes=True) if asked.sample else kernels
    kernels = {spec: made for spec, made in kernels.items() if asked.only in cubins.title(made[0])}
    if not kernels:
        parser.error(f"no kernel's line contains {asked.only!r}")
    lists = json.loads(asked.list.read_text(encoding="utf-8")) if asked.list.exists() else {}
    known: dict[str, list[str]] = lists.get(version, {})
    print(f"spills: compiling {len(kernels)} kernels with NVRTC {version}", flush=True)
    start, found = time.perf_counter(), dict[str, list[str]]()
    with ProcessPoolExecutor(asked.jobs) if asked.jobs > 1 else nullcontext() as pool:
        done = (pool.map if pool else map)(faults_of, kernels, cubins.plans(kernels))
        for (_, (record, _)), faults in zip(kernels.items(), done, strict=True):
            if faults:
                found[cubins.title(record)] = faults
    for title, faults in found.items():
        news = "" if known.get(title) == faults else "  NEW"
        print(f"  {title}: {'; '.join(faults)}{news}")
    print(f"{len(kernels) - len(found)} of {len(kernels)} run as planned; {time.perf_counter() - start:.0f} s")
    if asked.update:
        lists[version] = found
        atomic.write_text(asked.list, json.dumps(lists, indent=1) + "\n")
        print(f"wrote {asked.list}")
        return 0
    if wrong or any(known.get(title) != faults for title, faults in found.items()):
        print(*(f"wrong: {line}" for line in wrong), sep="\n", end="\n" if wrong else "")
        print("spills: if this is meant, update the list and say why in the commit")
        return 1
    print("spills: as listed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
