"""What ``ksieve build`` makes beside the CUDA kernels of the cache: a bundle, and the CPU kernels."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ksieve.cli import terminal
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import BackendError
from ksieve.core.options import Options
from ksieve.core.ranking import RANKINGS
from ksieve.core.text import bytes_text, seconds_text
from ksieve.planning.plan import Plan

if TYPE_CHECKING:
    from ksieve.backends.cpu.compiled import Kernel
    from ksieve.backends.cuda.jit.compile import Cubin
    from ksieve.backends.cuda.jit.spec import KernelSpec


def of_self_test(devices: Iterable[DeviceInfo]) -> dict[KernelSpec, Plan]:
    """Return the kernels that ``ksieve doctor`` runs, so that it works with a bundle alone."""
    from ksieve import self_test
    from ksieve.backends.cuda.jit import build

    found: dict[KernelSpec, Plan] = {}
    for device in devices:
        for scores, _, k in self_test.cases():
            rows, width = scores.shape
            found |= build.needed(device, rows=[rows], widths=[width], ranks=[k], unplanned=True)
    return found


def of_ranks(
    devices: Iterable[DeviceInfo],
    ks: Iterable[int],
    dtypes: Iterable[str],
    selected: Callable[[DeviceInfo, int, str, Options], Mapping[KernelSpec, Plan]],
) -> dict[KernelSpec, Plan | None]:
    """Return the kernels of ``--ranks``; `selected` are those of a rank's own selection, which have plans."""
    from ksieve.backends.cuda import ranks
    from ksieve.backends.cuda.jit.spec import architecture

    found: dict[KernelSpec, Plan | None] = {}
    for device, k, dtype in itertools.product(devices, ks, dtypes):
        found |= dict.fromkeys(ranks.rank_kernels(architecture(device.capability), [k], [dtype]))
        for options in ranks.selections("any" if k <= ranks.MOST_SLOTS else "value"):
            found |= selected(device, k, dtype, options)
    return found


def of_tiles(
    devices: Iterable[DeviceInfo], ks: Iterable[int], dtypes: Iterable[str], rows: Sequence[int]
) -> dict[KernelSpec, Plan | None]:
    """Return the kernels of ``--tiles``; selections from lists have plans."""
    from ksieve.backends.cuda import keep
    from ksieve.backends.cuda.jit import build
    from ksieve.backends.cuda.jit.spec import architecture

    found: dict[KernelSpec, Plan | None] = {}
    for device, k, dtype in itertools.product(devices, ks, dtypes):
        if k > keep.MOST_SLOTS:
            continue
        arch = architecture(device.capability)
        found |= dict.fromkeys(keep.keep_kernel(arch, dtype, ranking) for ranking in RANKINGS)
        for options in keep.selections():
            for width in (k, 2 * k, keep.capacity_of(k)):
                found |= build.needed(
                    device, rows=rows, widths=[width], ranks=[k], dtypes=[dtype], options=options, unplanned=True
                )
    return found


def write_bundle(path: Path, kernels: Mapping[KernelSpec, Cubin]) -> None:
    """Write ``--bundle`` and print what it holds."""
    from ksieve.backends.cuda.jit import bundle
    from ksieve.backends.cuda.jit import compile as compiler

    size = bundle.write(path, kernels, compiler.shipped_sources(), compiler.compiler_version())
    count = Counter(spec.arch for spec in kernels)
    archs = ", ".join(f"{count[arch]:,} for {arch}" for arch in sorted(count))
    terminal.say(f"{archs}, {bytes_text(size)}; use it with KSIEVE_BUNDLE={path}")


def cpu() -> None:
    """Compile the CPU kernels into the cache.

    Raises `BackendError` if the cache cannot be written, or a kernel was not stored.
    """
    from ksieve.backends.code_cache import Store, cache_dir
    from ksieve.backends.cpu.compiled import prepare

    store = Store("cpu")
    if not store.writable():
        raise BackendError(f"{cache_dir()} cannot be written: set KSIEVE_CACHE_DIR")
    start, kernels = time.perf_counter(), _cpu_kernels()
    with terminal.status("loading the CPU kernels"):
        prepare(*kernels)
    lines = [[each.name, "compiled" if each.function.stats.cache_misses else "cached"] for each in kernels]
    kept = {entry.facts["kernel"] for entry in store.entries() if entry.facts is not None}
    if missing := {each.name for each in kernels} - kept:
        raise BackendError(f"compiled CPU kernels were not kept in {cache_dir()}: {', '.join(sorted(missing))}")
    compiled, took = sum(state == "compiled" for _, state in lines), time.perf_counter() - start
    terminal.table(["kernel", ""], lines)
    terminal.say(f"{len(lines)} CPU kernels in {cache_dir()}, {compiled} of them compiled now in {seconds_text(took)}")
    found = [{"kernel": name, "state": state} for name, state in lines]
    terminal.result(lambda: {"path": str(cache_dir()), "compiled": compiled, "kernels": found})


def _cpu_kernels() -> list[Kernel]:
    """Every kernel of the CPU backend, each after those that it calls."""
    from ksieve.backends.cpu import accounting, converting, entries, finishing, keeping, kernels, ranking

    called = [
        kernels.select_rows, accounting.account, ranking.emit_last, finishing.order_rows, finishing.write_rows,
        entries.gather_rows, entries.pool_rows, entries.arrange_rows, keeping.keep_rows, *converting.converters(),
    ]  # fmt: skip
    return list(dict.fromkeys(each for one in called for each in one.needed))
