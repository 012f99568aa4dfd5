"""``ksieve build`` and ``ksieve cache``: compiled kernels, ahead of time and on disk."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ksieve.cli import files, terminal
from ksieve.cli.options import Engine, PolicyName, choice, count, flag, option, output, refuse
from ksieve.core.device import DEVICES, DeviceInfo
from ksieve.core.dtypes import SCORE_DTYPES, Dtype
from ksieve.core.errors import BackendError
from ksieve.core.options import Options
from ksieve.core.ranking import RANKINGS
from ksieve.core.text import bytes_text, seconds_text
from ksieve.planning.plan import Plan

if TYPE_CHECKING:
    from ksieve.backends.cpu.compiled import Kernel
    from ksieve.backends.cuda.jit.compile import Cubin
    from ksieve.backends.cuda.jit.spec import KernelSpec


def build(
    device: Annotated[
        list[str] | None,
        option(
            "--device",
            "NAME",
            f"GPU, present or not: {', '.join(DEVICES)}, or all of an architecture, such as sm_90a; repeatable. "
            "Default: this machine's.",
        ),
    ] = None,
    k: Annotated[
        list[int] | None,
        count("--k", "K", "Slots per row; repeatable. Default: 512, 1024 and 2048; with --for 2048.", minimum=1),
    ] = None,
    width: Annotated[
        list[int] | None, count("--width", "N", "Row width; repeatable. Default: 4096 to 1048576.", minimum=1)
    ] = None,
    rows: Annotated[list[int] | None, count("--rows", "M", "Rows; repeatable. Default: 1 to 4096.", minimum=1)] = None,
    dtype: Annotated[list[Dtype] | None, choice("--dtype", Dtype, "Score dtype; repeatable. Default: float32.")] = None,
    family: Annotated[
        list[str] | None,
        option("--family", "NAME", "Force a kernel family; repeatable. Default: the planner's choice."),
    ] = None,
    policy: PolicyName = None,
    stats: Annotated[bool, flag("--stats", "Build the kernels for stats=True instead.")] = False,
    engine: Annotated[
        Engine | None,
        choice("--for", Engine, "Every kernel that the calls of an engine need up to a size; needs PyTorch."),
    ] = None,
    max_rows: Annotated[
        int | None, count("--max-rows", "M", "With --for: most rows of a call. Default: 16384.", minimum=1)
    ] = None,
    max_width: Annotated[
        int | None, count("--max-width", "N", "With --for: widest row. Default: 262144.", minimum=1)
    ] = None,
    ranks: Annotated[
        bool, flag("--ranks", "Also the kernels of calls over ranks for these shapes, on any number of ranks.")
    ] = False,
    tiles: Annotated[
        bool, flag("--tiles", "Also the kernels of ksieve.Running for these k and dtypes, up to 4096 slots.")
    ] = False,
    bundle: Annotated[
        str | None,
        output("Write the kernels into one file (.zip) that KSIEVE_BUNDLE names, with those of doctor.", "--bundle"),
    ] = None,
    cpu: Annotated[
        bool, flag("--cpu", "Compile the CPU kernels instead, for this machine's processor; nothing else fits.")
    ] = False,
) -> None:
    """Compile CUDA kernels into the cache, so that first calls need not compile.

    Needs NVRTC, of the extra cuda. With --device it needs no GPU. A cache that cannot be written is an error.

    With --bundle the cache need not be writable. A process with KSIEVE_BUNDLE needs neither a compiler nor a cache.
    """
    given: dict[str, object] = locals().copy()
    if cpu:
        refuse(given | {"cpu": False}, "nothing with --cpu: CPU kernels are the same for every call")
        _build_cpu()
        return
    from ksieve.backends.code_cache import Store, cache_dir
    from ksieve.backends.cuda.jit import build as planning
    from ksieve.backends.cuda.jit import cache

    dtypes = [d.value for d in dtype or [Dtype.float32]]
    fixed: dict[str, object] = {"family": family, "policy": policy, "stats": stats}
    if engine is not None:
        refuse({"rows": rows, "width": width} | fixed, "nothing with --for, which has --max-rows and --max-width")
    else:
        refuse({"max_rows": max_rows, "max_width": max_width}, "a number with --for; --rows and --width list shapes")
    if ranks:
        refuse(fixed, "nothing with --ranks")
    named = [each for name in device or () for each in planning.devices_of(name)]
    file = files.optional_target("--bundle", bundle, "ksieve-kernels.zip", (".zip",))
    if bundle is None and not Store("cuda").writable():
        raise BackendError(f"{cache_dir()} cannot be written: set KSIEVE_CACHE_DIR")
    devices = named or [_present_device()]
    ks: Sequence[int] = k or ([2048] if engine else planning.SERVING_RANKS)
    most = {"max_rows": max_rows or planning.MAX_ROWS, "max_width": max_width or planning.MAX_WIDTH}
    shapes: dict[str, Any] = {
        "rows": rows or planning.SERVING_ROWS,
        "widths": width or planning.SERVING_WIDTHS,
        "unplanned": True,
    }

    def selected(device: DeviceInfo, k: int, dtype: str, options: Options) -> dict[KernelSpec, Plan]:
        if engine is not None:
            return planning.covering(device, k, dtype=dtype, options=options, **most)
        return planning.needed(device, ranks=[k], dtypes=[dtype], options=options, **shapes)

    wanted: dict[KernelSpec, Plan | None] = {}
    for target in devices:
        if engine is None:
            wanted |= planning.needed(
                target, ranks=ks, dtypes=dtypes, families=family or [None], policy=policy, stats=stats, **shapes
            )
            continue
        from ksieve.adapters import _forms

        with terminal.progress(f"planning for {target.name}", unit="kinds of calls") as update:
            wanted |= _forms.needed(engine, target, ks=ks, dtypes=dtypes, progress=update, **most)
    if ranks:
        wanted |= _of_ranks(devices, ks, dtypes, selected)
    if tiles:
        wanted |= _of_tiles(devices, ks, dtypes, shapes["rows"])
    if file is not None:
        wanted |= _of_self_test(devices)
    start, compiled, lines, wrong = time.perf_counter(), 0, [], []
    cubins: dict[KernelSpec, Cubin] = {}
    with terminal.progress("compiling", len(wanted), unit="kernels") as update:
        obtained = cache.compile_all(wanted)
        for done, ((spec, plan), (_, found)) in enumerate(zip(wanted.items(), obtained, strict=True), 1):
            if isinstance(found, BackendError):
                raise found
            cubin, new = found
            compiled += new
            used = cubin.resources
            cubins[spec] = cubin
            name = f"{_kind_of(spec, plan)} {spec.arch}"
            spilled, shared = used.spill_stores + used.spill_loads, spec.shared_bytes + used.static_shared
            lines.append([name, str(used.registers), str(spilled), str(shared), "compiled" if new else "cached"])
            wrong += [f"{name}: {text}" for text in planning.shortcomings(plan, spec, used)] if plan else []
            update(done)
    if file is None and not all(map(cache.kept, wanted)):
        raise BackendError(f"compiled kernels were not kept in {cache_dir()}: set KSIEVE_CACHE_DIR")
    shown = [[f"{int(cell):,}" if cell.isdecimal() else cell for cell in line] for line in sorted(lines)]
    terminal.table(["kernel", "registers", "spilled", "shared bytes", ""], shown)
    kernels = "1 kernel" if len(wanted) == 1 else f"{len(wanted)} kernels"
    took = seconds_text(time.perf_counter() - start)
    terminal.say(f"{kernels} in {file or cache_dir()}, {compiled} of them compiled now in {took}")
    if file is not None:
        _write_bundle(file, cubins)
    for text in wrong:
        terminal.note(f"note: {text}")
    names = ("kernel", "registers", "spilled", "shared", "state")
    terminal.result(
        lambda: {
            "path": str(cache_dir()),
            "bundle": None if file is None else str(file),
            "compiled": compiled,
            "kernels": [
                {name: int(cell) if cell.isdecimal() else cell for name, cell in zip(names, line, strict=True)}
                for line in sorted(lines)
            ],
            "notes": wrong,
        }
    )


def _of_self_test(devices: Iterable[DeviceInfo]) -> dict[KernelSpec, Plan]:
    """Return the kernels that ``ksieve doctor`` runs, so that it works with a bundle alone."""
    from ksieve import self_test
    from ksieve.backends.cuda.jit import build

    found: dict[KernelSpec, Plan] = {}
    for device in devices:
        for scores, _, k in self_test.cases():
            rows, width = scores.shape
            found |= build.needed(device, rows=[rows], widths=[width], ranks=[k], unplanned=True)
    return found


def _of_ranks(
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


def _of_tiles(
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


def _write_bundle(path: Path, kernels: Mapping[KernelSpec, Cubin]) -> None:
    """Write ``--bundle`` and print what it holds."""
    from ksieve.backends.cuda.jit import bundle
    from ksieve.backends.cuda.jit import compile as compiler

    size = bundle.write(path, kernels, compiler.shipped_sources(), compiler.compiler_version())
    count = Counter(spec.arch for spec in kernels)
    archs = ", ".join(f"{count[arch]:,} for {arch}" for arch in sorted(count))
    terminal.say(f"{archs}, {bytes_text(size)}; use it with KSIEVE_BUNDLE={path}")


def _build_cpu() -> None:
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
    from ksieve.backends.cpu import accounting, converting, entries, finishing, keeping, kernels, logits, ranking

    called = [
        kernels.select_rows, accounting.account, ranking.emit_last, finishing.order_rows, finishing.write_rows,
        entries.gather_rows, entries.pool_rows, entries.arrange_rows, keeping.keep_rows,
        logits.sum_rows, logits.finish_rows, *converting.converters(),
    ]  # fmt: skip
    return list(dict.fromkeys(each for one in called for each in one.needed))


def _kind_of(spec: KernelSpec, plan: Plan | None) -> str:
    """What a kernel is, in the table of ``build``; those of ranks and of tiles have no plan."""
    if plan is None:
        return f"{spec.stem} {[*SCORE_DTYPES][dict(spec.defines)['KSIEVE_DTYPE']]}"
    return f"{plan.family} {plan.policy.name if plan.policy else 'direct'} {plan.problem.dtype}"


def _present_device() -> DeviceInfo:
    from ksieve.backends import cuda

    try:
        return cuda.device_info(0)
    except BackendError as error:
        raise BackendError(f"pass --device: this machine's GPU cannot be used ({error})") from None


def cache(clear: Annotated[bool, flag("--clear", "Remove every compiled kernel.")] = False) -> None:
    """Show the compiled CPU and CUDA kernels on disk, or remove them."""
    from ksieve.backends import code_cache

    path, stores = code_cache.cache_dir(), {kind: code_cache.Store(kind) for kind in code_cache.KINDS}
    if clear:
        removed = sum(store.clear() for store in stores.values())
        terminal.result(lambda: {"path": str(path), "removed": removed})
        terminal.say(f"removed {removed} {'entry' if removed == 1 else 'entries'} from {path}")
        return
    found = [entry for store in stores.values() for entry in store.entries()]
    facts = {
        "path": str(path),
        "problem": next(filter(None, (store.problem() for store in stores.values())), None),
        "entries": len(found),
        "damaged": sum(entry.facts is None for entry in found),
        "bytes": sum(entry.size for entry in found),
    }
    columns = ("kernel", "arch", "compiler", "ksieve")
    kinds = Counter(tuple(str(e.facts.get(name, "?")) for name in columns) for e in found if e.facts is not None)
    kernels = [dict(zip(columns, kind, strict=True)) | {"entries": number} for kind, number in sorted(kinds.items())]
    terminal.result(lambda: facts | {"kernels": kernels})
    shown = {name: value for name, value in facts.items() if value is not None and name != "bytes"}
    terminal.facts(shown | {"size": bytes_text(sum(entry.size for entry in found))})
    if kinds:
        terminal.say()
        terminal.table([*columns, "entries"], [list(map(str, kernel.values())) for kernel in kernels])
