"""Compile the kernels without a GPU and compare their machine code with a committed list: `make cubins`.

A change that only renames or moves kernel text leaves every kernel of the list equal. One that changes some of them
rewrites the list (``make cubins UPDATE=1``) in the same commit, and says why.

The list, tests/data/cubins.json, has one line per specialisation. It names a specialisation by the planner problem that
leads to it (architecture, rows, width, k, ...), so that it survives renames of files, functions and macros, and keeps
three hashes of it: of the machine code with its resources, of the PTX with all symbols renamed by first use, and of the
inputs (`kernel_inputs`). A kernel is equal if one agrees: ptxas lays functions out in the order of their names, so a
renamed function moves machine code. ``serving`` marks what one device of each architecture serves
(`build.devices_of`; of 9.0 the H200); the other problems reach the remaining paths of the kernel text, some by a
forced ``family``. `ksieve build` also compiles what only an H100 serves. A new problem is written into the list as it
is; ``make cubins UPDATE=1`` adds its hashes.

From the same inputs the same compiler makes the same PTX, and from that the same machine code, so a kernel whose inputs
agree is not compiled, and one whose PTX agrees not further: its resources are those of its record. Of every source on
every architecture one kernel, the smallest, is compiled all the way first; if the machine code of any of these differs,
as with another compiler, all are.

Code is compared with that of the same NVRTC alone, which the list names: another one compares nothing, says so and
exits 0. The list lies with the tests, because it is what a check expects and not a measurement.

With ``--spills`` (``make cubins CUDA=12``) nothing is compared: another NVRTC only has to compile every kernel of the
list, within the registers and the shared memory of its plan. What it cannot is listed by version in
tests/data/spills.json, and anything else fails.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import kernel_inputs
from canonical_ptx import canonical
from cuda.bindings import nvrtc
from kernel_inputs import inputs_of
from rich.console import Console
from rich.progress import track

from ksieve.backends.cuda.jit import build
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.spec import ARCHITECTURES, KernelSpec
from ksieve.core import atomic
from ksieve.core.errors import BackendError, KsieveError
from ksieve.core.options import Options
from ksieve.planning.plan import Plan

LIST = Path(__file__).parent.parent / "tests" / "data" / "cubins.json"
SPILLS = LIST.with_name("spills.json")
PROBLEM = ("arch", "rows", "width", "k", "dtype", "options", "family", "policy", "stats", "leading", "launch")
"""Fields of a record that say which kernel is meant; those from ``dtype`` on are left out where they are plain.
``launch`` counts the kernels of a problem that takes several."""
FACTS = ("registers", "spills", "shared", "bytes")
HASHES = ("code", "ptx", "inputs")

SAME, INPUTS, PTX = "same machine code", "same inputs, not compiled", "same PTX"
ORDER, CHANGED = "same PTX, functions in another order", "CHANGED"
STATIC = re.compile(r"^(?!\.extern).*(?<!\S)\.shared\b", re.M)
"""Declaration of shared memory in PTX that `KernelSpec.shared_bytes` does not count."""

T = TypeVar("T")
Record = dict[str, Any]
Kernels = dict[KernelSpec, tuple[Record, Plan]]
"""Kernels of a list, with their records and plans."""


def title(record: Record) -> str:
    """One line that names a record."""
    words = [f"{record['arch']} {record['rows']}x{record['width']} k={record['k']}", record.get("dtype", "float32")]
    words += [f"{name}={value}" for name, value in record.get("options", {}).items()]
    words += [record[name] for name in ("family", "policy") if name in record]
    words += [name for name in ("stats", "leading") if record.get(name)]
    return " ".join([*words, f"launch {record['launch']}"] if "launch" in record else words)


def kernel_of(record: Record) -> tuple[KernelSpec, Plan]:
    """Specialisation that the planner chooses for a record's problem, and its plan.

    Raises
    ------
    KsieveError
        If the planner refuses the problem.
    LookupError
        If the problem takes fewer launches than the record counts.
    """
    made = build.needed(
        build.devices_of(record["arch"])[-1],
        rows=[record["rows"]], widths=[record["width"]], ranks=[record["k"]], dtypes=[record.get("dtype", "float32")],
        families=[record.get("family")], policy=record.get("policy"), stats=record.get("stats", False),
        leading=record.get("leading", False),
        options=Options(**record.get("options", {})),
    )  # fmt: skip
    return list(made.items())[record.get("launch", 0)]


def serving() -> dict[KernelSpec, Record]:
    """Every kernel that `ksieve build` compiles, as records without hashes."""
    found: dict[KernelSpec, Record] = {}
    problems = product(ARCHITECTURES, build.SERVING_ROWS, build.SERVING_WIDTHS, build.SERVING_RANKS)
    for arch, rows, width, k in problems:
        device = build.devices_of(arch)[-1]
        for launch, spec in enumerate(build.needed(device, rows=[rows], widths=[width], ranks=[k])):
            record = {"arch": arch, "rows": rows, "width": width, "k": k} | ({"launch": launch} if launch else {})
            found.setdefault(spec, record | {"serving": True})
    return found


def digest(*parts: bytes | str) -> str:
    """Hash of texts and bytes, 64 bits of it."""
    total = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:16]


def machine_code(cubin: bytes, ptx: str) -> tuple[int, list[bytes | str]]:
    """Return the size of the code in bytes, and its parts to hash: code, constants, and the size of the parameters.

    If the loader resolves calls, the code does not name the called function: the PTX is then hashed too.
    """
    from elftools.elf.elffile import ELFFile

    size, parts = 0, list[bytes | str]()
    for section in ELFFile(io.BytesIO(cubin)).iter_sections():
        name = section.name
        if name.startswith((".rel.text", ".rela.text")) and section["sh_size"]:
            parts.append(ptx)
        if name.startswith(".text"):
            size += section["sh_size"]
            parts.append(section.data())
        elif name.startswith(".nv.constant0"):  # the parameters
            parts.append(str(section["sh_size"]))
        elif name.startswith(".nv.constant") and not name.startswith(".nv.constant4"):
            # Bank 4 holds the addresses of all variables, also of those without a use.
            parts.append(section.data())
    return size, parts


def held_ptx(program: Any) -> str:
    """PTX of a compiled program: cuda-core would compile again for it, and query the driver; NVRTC already holds it."""
    code, size = nvrtc.nvrtcGetPTXSize(program.handle)
    text = bytearray(size)
    if not int(code):
        (code,) = nvrtc.nvrtcGetPTX(program.handle, text)
    if int(code):
        raise BackendError(f"{compiler.compiler_version()} keeps no PTX (error {int(code)})")
    return text.decode().rstrip("\0")


def measured(spec: KernelSpec, plan: Plan) -> Record:
    """Compile a kernel: its hashes, its resources, the compiler's version, and what keeps it from running as planned.

    ``shared`` is the dynamic and static shared memory of a CTA in bytes, ``bytes`` the size of the machine code.
    """
    program, cubin = compiler._compiled(spec, compiler.shipped_sources())
    ptx = held_ptx(program)
    used, text = cubin.resources, canonical(ptx)
    size, code = machine_code(cubin.code, text.text)
    facts = {
        "registers": used.registers,
        "spills": used.spill_stores + used.spill_loads,
        "shared": spec.shared_bytes + used.static_shared,
        "bytes": size,
    }
    return facts | {
        "code": digest(*code, text.launch, *text.data, repr(used), str(facts["shared"])),
        "ptx": digest(text.text, str(facts["shared"])),
        "inputs": inputs_of(spec, compiler.shipped_sources()),
        "faults": build.shortcomings(plan, spec, used),
    }


def compared(spec: KernelSpec, plan: Plan, record: Record) -> Record:
    """As `measured` if neither inputs nor PTX are the record's; else as `as_listed`."""
    if record.get("inputs") == inputs_of(spec, compiler.shipped_sources()):
        return as_listed(spec, plan, record)
    ptx = ptx_of(spec, compiler.shipped_sources())
    known = ptx and not STATIC.search(ptx) and record.get("shared") == spec.shared_bytes
    if not known or digest(canonical(ptx).text, str(record["shared"])) != record["ptx"]:
        return measured(spec, plan)
    return as_listed(spec, plan, record)


def as_listed(spec: KernelSpec, plan: Plan, record: Record) -> Record:
    """As `measured`, by what a record says of a kernel that is not compiled."""
    used = compiler.Resources(
        record["registers"], 0, record["spills"], record["spills"], record["shared"] - spec.shared_bytes
    )
    facts = {name: record[name] for name in (*FACTS, "code", "ptx")}
    facts["inputs"] = inputs_of(spec, compiler.shipped_sources())
    return facts | {"compiled": False, "faults": build.shortcomings(plan, spec, used)}


def ptx_of(spec: KernelSpec, sources: compiler.Sources) -> str:
    """PTX of a kernel, which takes NVRTC about half as long as machine code; empty if it does not compile."""
    name = f"{spec.stem}.cu"
    options = [f"--gpu-architecture={spec.arch.replace('sm_', 'compute_')}", f"-I{sources.directory}", "-std=c++17"]
    return kernel_inputs.ptx_of(sources.text(name), name, [*options, *(f"-D{d}={value}" for d, value in spec.defines)])


def verdict(record: Record, found: Record) -> str:
    """How a kernel compares with its record."""
    if not found.get("compiled", True):
        return INPUTS if same_inputs(record, found) else PTX
    if found["code"] == record["code"]:
        return SAME
    return ORDER if found["ptx"] == record["ptx"] else CHANGED


def same_inputs(record: Record, found: Record) -> bool:
    """Whether a kernel is made from what its record was made from."""
    return found["inputs"] == record.get("inputs")


def other_compiler(record: Record, found: Record) -> bool:
    """Whether a compiled kernel has other machine code than its record, although it is made from the same."""
    known = "code" in record and (same_inputs(record, found) or found["ptx"] == record["ptx"])
    return known and found["code"] != record["code"]


def changes(record: Record, found: Record) -> str:
    """Describe the difference between a record and a compiled kernel."""
    if "code" not in record:
        return "new"
    facts = [f"{name} {record[name]} -> {found[name]}" for name in FACTS if record[name] != found[name]]
    return ", ".join(facts) or "other instructions of the same size, with the same resources"


def resolve(records: Iterable[Record]) -> tuple[Kernels, list[str]]:
    """Kernels of a list, each once, and what is wrong with the list itself."""
    kernels: Kernels = {}
    wrong = []
    for record in records:
        try:
            spec, plan = kernel_of(record)
        except (KsieveError, LookupError) as error:
            wrong.append(f"{title(record)}: the planner has no such kernel ({error})")
            continue
        if spec in kernels:
            wrong.append(f"{title(record)}: the same kernel as {title(kernels[spec][0])}")
        kernels.setdefault(spec, (record, plan))
    wanted = serving()
    wrong += [f"{title(wanted[spec])}: served, and not in the list" for spec in wanted.keys() - kernels.keys()]
    marked = {spec for spec, (record, _) in kernels.items() if record.get("serving")}
    wrong += [f"{title(kernels[spec][0])}: no longer served" for spec in marked - wanted.keys()]
    return kernels, sorted(wrong)


def renewed(records: Iterable[Record]) -> list[Record]:
    """Records of a new list: the serving set as it is now, and the other problems that still lead to other kernels."""
    records, wanted, made = list(records), serving(), dict[KernelSpec, Record]()
    for record in [*(r for r in records if r.get("serving")), *wanted.values(), *records]:
        try:
            spec, _ = kernel_of(record)
        except (KsieveError, LookupError):
            continue
        if spec in wanted or not record.get("serving"):
            made.setdefault(spec, record | ({"serving": True} if spec in wanted else {}))
    order = {arch: n for n, arch in enumerate(ARCHITECTURES)}
    return sorted(made.values(), key=lambda r: (order[r["arch"]], not r.get("serving"), r["rows"], r["width"], r["k"]))


def main() -> int:
    """Compare the kernels with the list, or rewrite it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="rewrite the list")
    parser.add_argument("--whole", action="store_true", help="compile all kernels in full")
    parser.add_argument("--only", default="", help="compare only kernels whose line contains this, e.g. 'sm_90a 1x'")
    parser.add_argument("--spills", action="store_true", help="compile with another NVRTC, and list what it spills")
    parser.add_argument("--sample", action="store_true", help="with --spills: one kernel of each source, dtype and GPU")
    asked = parser.parse_args()
    if asked.update and (asked.only or asked.sample):
        parser.error("--update rewrites the whole list: leave out --only and --sample")
    text = json.loads(LIST.read_text(encoding="utf-8"))
    rewrites = asked.update and not asked.spills
    kernels, wrong = resolve(renewed(text["kernels"]) if rewrites else text["kernels"])
    kernels = sample(kernels, dtypes=True) if asked.sample else kernels
    kernels = {spec: made for spec, made in kernels.items() if asked.only in title(made[0])}
    if not kernels:
        parser.error(f"no kernel's line contains {asked.only!r}")
    try:
        version = kernel_inputs.release()
        print(f"cubins: {len(kernels)} kernels, NVRTC {version}", flush=True)
        if asked.spills:
            return spills(kernels, wrong, update=asked.update)
        if version != text["nvrtc"] and not asked.update:
            print(f"cubins: not compared: the list is of NVRTC {text['nvrtc']}")
            return 0
        found = compiled(kernels, whole=asked.whole or version != text["nvrtc"])
    except KsieveError as error:
        print(f"cubins: {error}", file=sys.stderr)
        return 1
    return report(kernels, found, wrong, update=asked.update)


def compiled(kernels: Kernels, *, whole: bool) -> dict[KernelSpec, Record]:
    """Compile kernels in several processes: all of them as a whole, or a sample, and as far as needed the others.

    Raises
    ------
    BackendError
        If one of them does not compile; the others are not waited for.
    """
    with ProcessPoolExecutor() as pool:
        try:
            first = kernels if whole else sample(kernels)
            found = done(first, pool.map(measured, first, plans(first)))
            rest = {spec: made for spec, made in kernels.items() if spec not in first}
            if any(other_compiler(record, found[spec]) for spec, (record, _) in first.items()):
                return found | done(rest, pool.map(measured, rest, plans(rest)))
            asked = [record for record, _ in rest.values()]
            return found | done(rest, pool.map(compared, rest, plans(rest), asked))
        except KsieveError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def sample(kernels: Kernels, *, dtypes: bool = False) -> Kernels:
    """Of every source on every architecture the smallest kernel of a list; with `dtypes` one of each."""
    first: dict[tuple[str, str, str], KernelSpec] = {}
    for spec in sorted(kernels, key=lambda spec: kernels[spec][0].get("bytes", math.inf)):
        dtype = kernels[spec][0].get("dtype", "float32") if dtypes else ""
        first.setdefault((spec.stem, spec.arch, dtype), spec)
    return {spec: kernels[spec] for spec in first.values()}


def plans(kernels: Kernels) -> list[Plan]:
    """Plans of a list's kernels."""
    return [plan for _, plan in kernels.values()]


def done(kernels: Kernels, results: Iterable[T]) -> dict[KernelSpec, T]:
    """Kernels with what was found of them; a terminal shows how many are done."""
    console = Console(stderr=True)
    shown = track(results, "", len(kernels), console=console, transient=True, disable=not console.is_terminal)
    return dict(zip(kernels, shown, strict=True))


def faults_of(spec: KernelSpec, plan: Plan) -> list[str]:
    """Compile a kernel; what keeps it from running as planned, or why it does not compile."""
    try:
        cubin = compiler.compile_kernel(spec, compiler.shipped_sources())
    except KsieveError as error:
        return [f"does not compile: {error}"]
    return build.shortcomings(plan, spec, cubin.resources)


def spills(kernels: Kernels, wrong: list[str], *, update: bool) -> int:
    """Compile the kernels, and compare their faults with those that are known of this NVRTC, or list them."""
    version = compiler.compiler_version().removeprefix("nvrtc ")
    lists = json.loads(SPILLS.read_text(encoding="utf-8")) if SPILLS.exists() else {}
    with ProcessPoolExecutor() as pool:
        found = done(kernels, pool.map(faults_of, kernels, plans(kernels)))
    faulty = {title(kernels[spec][0]): faults for spec, faults in found.items() if faults}
    news = {line for line, faults in faulty.items() if lists.get(version, {}).get(line) != faults}
    for line, faults in faulty.items():
        print(f"  {line}: {'; '.join(faults)}{'  NEW' if line in news else ''}")
    print(f"{len(kernels) - len(faulty)} of {len(kernels)} run as planned")
    print(*(f"wrong: {line}" for line in wrong), sep="\n", end="\n" if wrong else "")
    if update:
        atomic.write_text(SPILLS, json.dumps(lists | {version: faulty}, indent=1) + "\n")
    elif news or wrong:
        print("spills: if this is meant, update the list and say why in the commit")
        return 1
    return 0


def report(kernels: Kernels, found: dict[KernelSpec, Record], wrong: list[str], *, update: bool) -> int:
    """Print the result of every kernel; write the list with --update, else return 1 if a kernel changed."""
    groups: dict[str, list[str]] = {SAME: [], INPUTS: [], PTX: [], ORDER: [], CHANGED: []}
    for spec, (record, _) in kernels.items():
        now = verdict(record, found[spec]) if "code" in record else CHANGED
        groups[now].append(title(record) + (f": {changes(record, found[spec])}" if now == CHANGED else ""))
        wrong += [f"{title(record)}: {fault}" for fault in found[spec]["faults"]]
    for group, lines in groups.items():
        print(f"{group:<38}{len(lines):>5}")
        if group in (ORDER, CHANGED):
            print(*(f"  {line}" for line in lines), sep="\n", end="\n" if lines else "")
    print(*(f"wrong: {line}" for line in wrong), sep="\n", end="\n" if wrong else "")
    if update:
        fields = (*PROBLEM, "serving", *FACTS, *HASHES)
        made = (record | found[spec] for spec, (record, _) in kernels.items())
        kernel_inputs.write_list(LIST, ({name: each[name] for name in fields if name in each} for each in made))
        return 0
    if groups[CHANGED] or wrong:
        print("cubins: if this is meant, run `make cubins UPDATE=1` and say why in the commit")
        return 1
    print("cubins: equal")
    if groups[PTX] or groups[ORDER]:
        print("cubins: `make cubins UPDATE=1` lists their inputs, so that the next run need not compile them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
