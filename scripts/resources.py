"""Registers, spills and shared memory of the kernels of tests/kernels/test_kernels_compile.py, as a committed list.

A kernel is compiled for that test only if its inputs (`kernel_inputs`) are not in the list, or if that is of another
NVRTC. ``make cubins UPDATE=1`` writes the list anew, and compiles what is not in it, or with WHOLE=1 everything.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import kernel_inputs

from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Resources
from ksieve.backends.cuda.jit.spec import KernelSpec

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tests" / "data" / "resources.json"


@cache
def listed() -> dict[str, Resources]:
    """Resources of each hash of inputs; of none if another NVRTC made the list."""
    text = json.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {"nvrtc": None}
    if text["nvrtc"] != kernel_inputs.release():
        return {}
    return {
        kernel["inputs"]: Resources(kernel["registers"], 0, kernel["spills"], kernel["spills"], kernel["shared"])
        for kernel in text["kernels"]
    }


def resources_of(spec: KernelSpec) -> Resources:
    """Resources of a kernel: those of the list, or else of the kernel, compiled.

    Raises
    ------
    BackendError
        If it does not compile, or there is no compiler.
    """
    sources = compiler.shipped_sources()
    known = listed().get(kernel_inputs.inputs_of(spec, sources))
    return known or compiler.compile_kernel(spec, sources).resources


def write(kernels: dict[KernelSpec, str]) -> None:
    """Write the list of named kernels."""
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(resources_of, kernels))
    records = []
    for (spec, name), used in sorted(zip(kernels.items(), found, strict=True), key=lambda pair: pair[0][1]):
        facts = {"registers": used.registers, "spills": used.spill_stores + used.spill_loads}
        facts |= {"shared": used.static_shared, "inputs": kernel_inputs.inputs_of(spec, compiler.shipped_sources())}
        records.append({"kernel": name} | facts)
    kernel_inputs.write_list(LIST, records)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "kernels")]
    import test_kernels_compile

    if "--whole" in sys.argv:
        LIST.unlink(missing_ok=True)
    write(test_kernels_compile.compiled_here())
