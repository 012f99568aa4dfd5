"""Every kernel on every architecture, compiled without a GPU: no spills, and as many resident blocks as planned.

tests/data/resources.json has what was found of each. A kernel whose source, headers and defines are those of the list
is not compiled again: the same compiler would make the same of it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import sys

import pytest
from conftest import ROOT

from flat_calls import plan_of
from ksieve.backends.cuda import keep, ranks
from ksieve.backends.cuda.jit import build, cache, spec
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.core import policy
from ksieve.core.device import DEVICES
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.options import PLAIN, Options
from ksieve.core.policy import SamplingPolicy
from ksieve.logits import cuda as logits
from ksieve.planning import explain, shapes
from ksieve.planning.families import BY_POSITION, QUEUED, SAMPLED
from ksieve.planning.plan import Plan
from ksieve.planning.switch_points import BINNED_ROWS, MOST_BINS, WIDEST_BINNED

pytest.importorskip("cuda.core")

SHAPES = {
    "stream": (512, 131_072),
    "stream_unsampled": (512, 24_576),
    "stream_split": (16, 262_144),
    "resident_block": (512, 8192),
    "resident_cluster": (8, 24_576),
}
"""A shape (rows, width) that suits each family."""

BANDED = (BINNED_ROWS, WIDEST_BINNED)
"""Rows listed by length for several launches: the kernel that lists them, one for each band, and one for the rest."""

SHORT = (4096, 16_384)
"""Many short rows, which run on more and smaller CTAs on an H100."""

MEASURED = ("h100", "h200")
"""Devices with launch shapes of their own."""

TIGHT = 1024
"""Threads of a multiprocessor from which each has at most 64 registers: there any option may make a kernel spill."""

HUNGRY = ("windows", "pages", "values")
"""Options whose kernels need as many registers as plain ones; those of the others need fewer."""

ALONE = (128, 131_072)
"""No more rows than a device has multiprocessors, but too many to share them."""

HALVES = ("float16", "bfloat16")
HUGE = ((1, 100_000_000, 1000), (32, 1_048_576, 65_536))
"""Rows, width and k whose candidates are mostly in a list in global memory."""

OPTIONS = {
    "windows": Options(windows="ends"),
    "ties": Options(tie_break="high"),
    "pages": Options(transform="pages", page_size=64, raw=True),
    "values": Options(transform="pages", page_size=64, raw=True, values=True),
    "by index": Options(order="index", tie_break="low"),
    "by value": Options(order="value", values=True),
    "everything": Options(
        windows="lengths", next_n=2, per_row_k=True, transform="pages", mapped=True, raw=True, values=True,
        index_dtype="int64", order="value", tie_break="low", overlap=True,
    ),
}  # fmt: skip

EXACT_BOUNDARY = SamplingPolicy("exact-64x4", 64, group=4, boundary="exact")


def specialisation(
    family, arch, *, k=2048, dtype="float32", chosen=None, stats=False, asked=PLAIN, shape=None, part=None, card=None
):
    rows, width = BANDED if family == "banded" else shape or SHAPES[family]
    device = DEVICES[card] if card else build.devices_of(arch)[-1]
    forced = None if family == "banded" else family
    made = build.needed(
        device, rows=[rows], widths=[width], ranks=[k], dtypes=[dtype], families=[forced], policy=chosen,
        stats=stats, options=asked,
    )  # fmt: skip
    if part is not None:
        return list(made.items())[part]
    ((found, plan),) = made.items()
    return found, plan


def kernel_of(case):
    family, arch, options = case
    return specialisation(family, arch, **options)[0]


def cases():
    """Every family on every architecture; every other variant of every family on one of them."""
    for arch in spec.ARCHITECTURES:
        for family in SHAPES:
            if family != "resident_cluster" or arch not in ("sm_80", "sm_89"):
                # The frontier of k = 2048 needs more shared memory than a split row has on these.
                small = family == "stream_split" and arch in ("sm_89", "sm_120a")
                yield family, arch, {"k": 1024, "chosen": policy.PAPER_64} if small else {}
    for family in SHAPES:
        for dtype in ("float16", "bfloat16"):
            yield family, "sm_90a", {"dtype": dtype}
        yield family, "sm_90a", {"stats": True}
        yield family, "sm_90a", {"k": 16}
        if family in QUEUED:
            yield family, "sm_90a", {"k": 16_384}
            yield family, "sm_89", {"k": 4096}
        if family in SAMPLED:
            for chosen in (policy.PAPER_64, policy.PAPER_128, policy.QUADS_16, EXACT_BOUNDARY):
                yield family, "sm_90a", {"chosen": chosen}
            for chosen in (policy.QUADS_16, EXACT_BOUNDARY):
                yield family, "sm_90a", {"k": 512, "chosen": chosen}
    yield "stream", "sm_100a", {"shape": SHORT}
    for asked in (PLAIN, *OPTIONS.values()):
        yield "stream", "sm_90a", {"card": "h100", "shape": SHORT, "asked": asked}
    for asked in (PLAIN, *OPTIONS.values()):
        yield "stream", "sm_90a", {"shape": ALONE, "asked": asked}
    yield "stream", "sm_100a", {"shape": ALONE}
    yield "stream", "sm_90a", {"shape": ALONE, "stats": True}
    yield "stream", "sm_90a", {"shape": ALONE, "k": 16_384}
    for rows, width, k in HUGE:
        for asked in (PLAIN, *OPTIONS.values()):
            yield "stream_split", "sm_90a", {"shape": (rows, width), "k": k, "asked": asked}
        for arch in spec.ARCHITECTURES:
            if arch != "sm_90a":
                yield "stream_split", arch, {"shape": (rows, width), "k": k}
        for dtype in ("float16", "bfloat16"):
            yield "stream_split", "sm_90a", {"shape": (rows, width), "k": k, "dtype": dtype}
    yield from shape_cases()
    for part in range(MOST_BINS + 2):
        for asked in (PLAIN, OPTIONS["windows"], OPTIONS["pages"], Options(order="value", values=True)):
            yield "banded", "sm_90a", {"part": part, "asked": asked}
    yield "stream", "sm_90a", {"card": "h100", "shape": SHORT, "k": 512, "chosen": policy.LINES_64}
    yield from narrow_cases()
    yield from option_cases()
    yield from ranking_cases()
    yield from block_cases()


def block_cases():
    """Rows of blocks, in the shapes that the planner takes for many and for few; forced entries of each family."""
    pooled, widest = Options(block_size=8, force_last=1), Options(block_size=7, nan="highest", windows="ends")
    rewritten = dataclasses.replace(OPTIONS["everything"], tie_break="any", block_size=7, force_first=1, nan="highest")
    tied = dataclasses.replace(rewritten, tie_break="low")
    for arch in spec.ARCHITECTURES:
        wide = 49_152 if arch in ("sm_90a", "sm_100a") else 32_768 if arch == "sm_80" else 20_480
        yield "resident_block", arch, {"shape": (4096, 131_072), "asked": pooled}
        yield "resident_block", arch, {"shape": (4096, 7 * wide), "k": 512, "dtype": "float16", "asked": widest}
        yield "resident_block", arch, {"shape": (4096, 7 * 16_384), "k": 512, "dtype": "bfloat16", "asked": rewritten}
        yield "stream_unsampled", arch, {"shape": (4096, 131_072), "dtype": "float16", "asked": tied}
    for width in (8 * 8192, 8 * 24_576):
        yield "resident_block", "sm_90a", {"shape": (4096, width), "asked": pooled}
    for width, k in ((2 * 4096, 16), (2 * 8192, 16), (7 * 32_768, 512)):
        changed = dataclasses.replace(rewritten, block_size=2 if width < 20_000 else 7)
        yield "resident_block", "sm_90a", {"shape": (4096, width), "k": k, "dtype": "float16", "asked": changed}
    for arch in ("sm_90a", "sm_100a"):
        for shape in ((1, 131_072), (1024, 1_048_576)):
            yield "resident_cluster", arch, {"shape": shape, "asked": pooled}
    yield "resident_cluster", "sm_90a", {"shape": (1024, 16 * 7 * 32_768), "k": 512, "asked": rewritten}
    yield "stream_unsampled", "sm_90a", {"shape": (512, 131_072), "stats": True, "asked": pooled}
    for family in ("stream", "stream_split", "resident_block", "resident_cluster"):
        yield family, "sm_90a", {"asked": dataclasses.replace(OPTIONS["everything"], force_last=1)}
    placed = Options(positions=True, order="value", tie_break="high", force_first=2, force_last=1, values=True)
    written = Options(counts=True, expand=4, tail=True, filled=False)
    for family in BY_POSITION:
        for asked in (placed, dataclasses.replace(placed, counts=True, expand=4, tail=True), written):
            yield family, "sm_90a", {"shape": (64, 16_384), "k": 512, "asked": asked}
    yield "register_warp", "sm_90a", {"shape": (4096, 1024), "k": 16, "asked": written}
    yield "resident_block", "sm_90a", {"shape": (256, 28_672), "asked": Options(force_last=1)}
    yield "register_warp", "sm_90a", {"shape": (4096, 1024), "k": 16, "asked": Options(force_first=1, raw=True)}


def shape_cases():
    """Every launch shape that was measured."""
    for card in MEASURED:
        yield from measured_cases(card)
    for dtype in HALVES:
        yield from half_cases(dtype)


def measured_cases(card):
    """Every launch shape that was measured on a device, and if registers are short, with options that need more."""
    known = shapes.of(DEVICES[card])
    for family, table in known.resident.items():
        for held in table:
            instead = any(other.plain for other in table if other.resident_width == held.resident_width)
            more = held.threads * held.ctas_per_sm >= TIGHT or instead  # of a shape that spills with options
            for asked in (PLAIN, *(asked for name, asked in OPTIONS.items() if more and name in HUNGRY)):
                fits = together(asked, held) if family == "resident_grid" else not held.registers or unordered(asked)
                if fits and not (held.plain and asked is not PLAIN):
                    shape = (rows_for(held, table), held.resident_width)
                    yield family, "sm_90a", {"card": card, "shape": shape, "asked": asked}
    for held in known.streamed["stream"]:
        least = max(held.fewest_rows, *(other.most_rows for other in known.streamed["stream"]))
        yield "stream", "sm_90a", {"card": card, "shape": (held.most_rows or 8 + least, held.widest or 524_288)}


def half_cases(dtype):
    """Every resident launch shape of 16-bit scores on one card; those of float16 and bfloat16 take turns."""
    known = shapes.of(DEVICES["h200"], dtype)
    listed = [(family, held, table) for family, table in known.resident.items() for held in table]
    for family, held, table in listed[HALVES.index(dtype) :: len(HALVES)]:
        shape = (rows_for(held, table), held.resident_width)
        asked = OPTIONS["windows"] if held.threads * held.ctas_per_sm >= TIGHT and not held.plain else PLAIN
        yield family, "sm_90a", {"card": "h200", "shape": shape, "dtype": dtype, "asked": asked}


def together(asked, shape):
    """Whether CTAs that are no cluster may hold a row together in a launch shape."""
    return unordered(asked) and not asked.overlap and not (asked.rewritten and shape.overflow_vectors)


def unordered(asked):
    """Whether rows may stay in registers: they are not ordered, nor ties broken."""
    return asked.order == "any" and asked.tie_break == "any"


def rows_for(shape, table):
    """Rows that a launch shape is taken for: the most, or more than those of a width for fewer rows."""
    least = max(other.most_rows for other in table if other.resident_width == shape.resident_width)
    return shape.most_rows or 8 + max(least, shape.fewest_rows)


def narrow_cases():
    """Many narrow rows: every width that has a kernel of its own, and the widest with all options but an order."""
    without_order = dataclasses.replace(OPTIONS["everything"], order="any", tie_break="any")
    for width in (128, 256, 512, 1024, 2048):
        for dtype in ("float32", "float16", "bfloat16"):
            yield "register_warp", "sm_90a", {"shape": (4096, width), "k": 16, "dtype": dtype}
    for arch in spec.ARCHITECTURES:
        for width, dtype in ((1024, "float32"), (2048, "bfloat16")):
            for asked in (PLAIN, without_order):
                yield "register_warp", arch, {"shape": (4096, width), "k": 16, "dtype": dtype, "asked": asked}
    for asked in (OPTIONS["windows"], OPTIONS["pages"]):
        yield "register_warp", "sm_90a", {"shape": (4096, 1024), "k": 16, "asked": asked}


def option_cases():
    """Every family with each group of options that has code of its own, and with all of them on every architecture."""
    everything = OPTIONS["everything"]
    for family in SHAPES:
        for asked in OPTIONS.values():
            yield family, "sm_90a", {"asked": asked}
        for dtype in ("float16", "bfloat16"):
            yield family, "sm_90a", {"dtype": dtype, "asked": everything}
        yield family, "sm_90a", {"stats": True, "asked": everything}
        if family != "resident_cluster":
            yield family, "sm_90a", {"k": 16_384, "asked": everything}
    for arch in spec.ARCHITECTURES:
        for family in SHAPES:
            if arch == "sm_90a" or (family == "resident_cluster" and arch in ("sm_80", "sm_89")):
                continue
            small = family == "stream_split" and arch in ("sm_89", "sm_120a")
            yield family, arch, {"asked": everything} | ({"k": 1024, "chosen": policy.PAPER_64} if small else {})
        yield "stream_unsampled", arch, {"k": 16_384, "asked": OPTIONS["by value"]}


def ranking_cases():
    """Every family with each order of scores; those that other architectures have too, on all of them."""
    for number, arch in enumerate(spec.ARCHITECTURES):
        for family in (*SHAPES, "register_warp"):
            usual = family in ("stream", "resident_block", "register_warp")
            if usual or arch == "sm_90a":
                shape = {"shape": (4096, 1024), "k": 16} if family == "register_warp" else {}
                yield family, arch, {"asked": Options(nan="highest"), "dtype": HALVES[number % 2]} | shape
                yield family, arch, {"asked": Options(largest=False)} | shape


def name(case):
    family, arch, options = case
    shown = {k: getattr(v, "name", v) for k, v in options.items()}
    if "asked" in shown:
        shown["asked"] = next((name for name, asked in OPTIONS.items() if asked is options["asked"]), "nothing")
        if shown["asked"] == "nothing" and options["asked"] != PLAIN:
            shown["asked"] = "values" if options["asked"].order == "value" else "others"
    return "-".join([family, arch, *(f"{k}={v}" for k, v in shown.items())])


@functools.cache
def script(name):
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@functools.cache
def listed():
    """Kernels that `make cubins` compiles, with their plans and records."""
    cubins = script("cubins")
    records = json.loads(cubins.LIST.read_text())["kernels"]
    return [(*cubins.kernel_of(record), record) for record in records]


def states(kernel, names):
    """Defines of a kernel as its branches tell them apart: off, on, more than on."""
    values = [(name, dict(kernel.defines).get(name, 0)) for name in names]
    return [(name, value if name in ("KSIEVE_DTYPE", "KSIEVE_ORDER") else min(value, 2)) for name, value in values]


def distinct():
    """Kernels to compile, with their cases: of all cases those that tell what no other kernel does.

    These are the measured launch shapes, and what reaches a state of a define that on its architecture no kernel of the
    same source has with as few registers. `listed` is left out: `make cubins` compiles it, and it reaches any two
    states together (`test_the_list_reaches_what_the_compilation_tests_reach`).
    """
    found = {}
    for case in cases():
        found.setdefault(kernel_of(case), case)
    known = {kernel for kernel, _, _ in listed()}
    names = sorted({name for kernel in {*found, *known} for name, _ in kernel.defines})

    def reached(kernel):
        defines = dict(kernel.defines)
        registers = min(65_536 // (defines.get("KSIEVE_THREADS", 256) * defines["KSIEVE_CTAS_PER_SM"]), 255)
        return {(kernel.stem, kernel.arch, registers, state) for state in states(kernel, names)}

    kept = {kernel for kernel in map(kernel_of, shape_cases()) if kernel not in known}
    seen = set().union(*map(reached, known | kept))
    for kernel in found:
        if not reached(kernel) <= seen:
            kept.add(kernel)
            seen |= reached(kernel)
    return {kernel: case for kernel, case in found.items() if kernel in kept}


def test_listed_kernels_are_within_their_plans_resources():
    for found, plan, record in listed():
        used = compiler.Resources(
            record["registers"], 0, record["spills"], record["spills"], record["shared"] - found.shared_bytes
        )
        assert build.shortcomings(plan, found, used) == [], record


@pytest.mark.parametrize("case", distinct().values(), ids=name)
def test_compiles_within_its_plans_resources(case):
    try:
        compiler.compiler_version()
    except BackendError as error:
        pytest.skip(str(error))
    family, arch, options = case
    found, plan = specialisation(family, arch, **options)
    assert build.shortcomings(plan, found, script("resources").resources_of(found)) == []


def without_plan(stem, arch):
    """A kernel of ranks, of tiles, or of logits."""
    dtype, ranking = ("float32", "largest") if arch == "sm_90a" else ("bfloat16", "nan_first")
    if stem in logits.BARE:
        return logits.bare_kernel(stem, arch, dtype)
    if stem == keep.STEM:
        return keep.keep_kernel(arch, dtype, ranking)
    return ranks.rank_kernel(stem, arch, slots=ranks.MOST_SLOTS, dtype=dtype, ranking=ranking, few=arch == "sm_90a")


WITHOUT_PLAN = (*ranks.STEMS, keep.STEM, *logits.BARE)

FOLDED = [
    (device, dtype, rows, masked)
    for device in ("a100", "l40s", "h100", "b200", "rtx5090")
    for dtype in SCORE_DTYPES
    for rows in (16, 256)
    for masked in (False, True)
]
"""Calls of `ksieve.logits` on one device of each architecture: rows that CTAs share, and rows of one CTA each; without
a bitmask, and with one."""


def folded(device, dtype, rows, masked):
    """The kernel of a call of 128,256 logits, and its plan."""
    asked = plan_of(
        rows=rows, width=128_256, k=50, dtype=dtype, device=device,
        options=Options(order="value", tie_break="low", values=True),
    ).problem  # fmt: skip
    plan = logits.plan_of(asked, DEVICES[device])
    return logits.folding_kernel(plan, masked=masked), plan


def compiled_here():
    """Kernels of tests/data/resources.json, with their names."""
    of_plans = {kernel: name(case) for kernel, case in distinct().items()}
    pairs = itertools.product(WITHOUT_PLAN, spec.ARCHITECTURES)
    of_logits = {folded(*case)[0]: f"logits-{case[2]}{'-masked' * case[3]}-{case[1]}-{case[0]}" for case in FOLDED}
    return of_plans | of_logits | {without_plan(stem, arch): f"{stem}-{arch}" for stem, arch in pairs}


@pytest.mark.parametrize("case", FOLDED, ids=lambda case: "-".join(map(str, case)))
def test_kernels_that_fold_rows_compile_within_their_plans_resources(case):
    found, plan = folded(*case)
    used = script("resources").resources_of(found)
    if case[:3] == ("h100", "float32", 256):  # the one that spills, 8 bytes, also with a bitmask
        assert max(used.spill_stores, used.spill_loads) <= 16, "the list has their sum in both"
        used = dataclasses.replace(used, spill_stores=0, spill_loads=0)
    assert build.shortcomings(plan, found, used) == []


@pytest.mark.parametrize("arch", spec.ARCHITECTURES)
@pytest.mark.parametrize("stem", WITHOUT_PLAN)
def test_kernels_without_plan_compile_without_spills(stem, arch):
    found = without_plan(stem, arch)
    used = script("resources").resources_of(found)
    assert used.spill_stores == used.spill_loads == 0 and used.registers <= 64
    assert found.shared_bytes + used.static_shared <= 64 << 10, "every device runs it"


def test_cases_reach_every_source_and_define():
    seen = list(map(kernel_of, cases()))
    assert {s.stem for s in seen} == set(spec.STEMS.values())
    selectors = {n for n, _ in compiler.shipped_sources().texts if n.endswith(".cu")}
    assert {f"{s.stem}.cu" for s in seen} | {f"{stem}.cu" for stem in WITHOUT_PLAN} == selectors
    values: dict[str, set[int]] = {}
    for s in seen:
        for define, value in s.defines:
            values.setdefault(define, set()).add(value)
    for name in ("STRIDE", "JITTER", "EXACT_BOUNDARY", "RESCUE", "STATS", "SPILL_CAPACITY"):
        define = f"KSIEVE_{name}"
        assert len(values[define]) > 1, f"{define} is always {values[define]}"
    assert values["KSIEVE_DTYPE"] == {0, 1, 2}


def test_cases_reach_every_measured_launch_shape():
    assert {device.name for device in build.devices_of("sm_90a")} == {DEVICES[card].name for card in MEASURED}
    assert build.devices_of("sm_80") == [DEVICES["a100"]]
    for card in MEASURED:
        plans = [specialisation(family, arch, **options)[1] for family, arch, options in measured_cases(card)]
        known = shapes.of(DEVICES[card])
        reached = {id(explain.entry_of(plan)) for plan in plans}
        assert {id(entry) for table in known.resident.values() for entry in table} <= reached
        assert {id(entry) for entry in known.streamed["stream"]} <= reached


def test_shortcomings_are_found():
    found, plan = specialisation("stream", "sm_90a")
    fine = compiler.Resources(registers=64, stack=0, spill_stores=0, spill_loads=0, static_shared=0)
    assert build.shortcomings(plan, found, fine) == []
    for bad, words in (
        ({"spill_loads": 4}, "spills 0 bytes to and 4"),
        ({"registers": 65}, f"65 registers leave no room for {plan.ctas_per_sm} CTAs of {plan.threads}"),
        ({"static_shared": 1 << 20}, "of a CTA"),
        ({"static_shared": 120_000}, f"{plan.ctas_per_sm} CTAs need"),
    ):
        used = compiler.Resources(**{**{f: getattr(fine, f) for f in fine.__slots__}, **bad})
        assert words in " ".join(build.shortcomings(plan, found, used))


@pytest.mark.parametrize("card", MEASURED)
def test_serving_shapes_need_few_kernels(card):
    needed = build.needed(DEVICES[card])
    assert all(isinstance(plan, Plan) for plan in needed.values())
    assert {s.arch for s in needed} == {"sm_90a"}
    most = {"h100": 51, "h200": 41}[card]
    assert len(needed) <= most, "the cache is filled with one kernel per shape"
    assert len([plan for plan in needed.values() if plan.family == "resident_grid"]) == 2


def test_architectures_without_a_known_device_are_refused():
    with pytest.raises(ArgumentError, match=r"device: got 'sm_75'; takes one of sm_80, sm_89, sm_90a, sm_100a,"):
        build.devices_of("sm_75")


def test_a_rank_is_no_define():
    first = specialisation("resident_block", "sm_90a", k=16)[0]
    assert cache.facts_of(first, compiler.shipped_sources()) == cache.facts_of(
        specialisation("resident_block", "sm_90a", k=17)[0], compiler.shipped_sources()
    )


def test_several_kernels_are_compiled_in_processes_and_a_failure_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path))
    found, plan = specialisation("stream_split", "sm_90a")
    wrong = dataclasses.replace(found, defines=tuple((n, 0 if n == "KSIEVE_THREADS" else v) for n, v in found.defines))
    other = specialisation("stream_split", "sm_90a", k=512)[0]
    made = dict(cache.compile_all([found, wrong, other]))
    assert list(made) == [found, wrong, other] and isinstance(made[wrong], BackendError)
    assert build.shortcomings(plan, found, made[found][0].resources) == []
    assert cache.obtain(other) == (made[other][0], False), "it is in the cache"
    monkeypatch.setattr(cache, "ProcessPoolExecutor", lambda *_, **__: pytest.fail("nothing is left to compile"))
    kept = dict(cache.compile_all([found, other, found]))
    assert kept == {spec: (made[spec][0], False) for spec in (found, other)}, "no process is started for what is kept"
