"""From a plan to the kernel that runs it: source file, entry, architecture and defines. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError
from ksieve.core.options import Options
from ksieve.core.ranking import RANKINGS, Ranking
from ksieve.planning import length_bins, memory
from ksieve.planning.families import IN_REGISTERS
from ksieve.planning.plan import Plan

SOURCES = Path(__file__).parents[3] / "kernels"
"""Directory of the CUDA sources shipped with the package."""

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
"""Architectures that every kernel is compiled for in the tests; any newer one is compiled natively too."""

STEMS = {
    "stream": "stream/cta",
    "stream_unsampled": "stream/cta",
    "stream_split": "stream/split",
    "register_warp": "register/warp",
    "register_block": "register/cta",
    "resident_block": "resident/cta",
    "resident_cluster": "resident/cluster",
    "resident_grid": "resident/grid",
    "length_bins": "length_bins",
}
"""Source file of each kernel family, and of the kernel that bins rows by length."""

_BARE = {
    "KSIEVE_STAGES": 1, "KSIEVE_BATCHES": 1, "KSIEVE_STRIDE": 0,
    "KSIEVE_GROUP": 1, "KSIEVE_PHASE_MULTIPLIER": 1, "KSIEVE_JITTER": 0, "KSIEVE_POOLING": 0,
    "KSIEVE_EXACT_BOUNDARY": 0, "KSIEVE_RESCUE": 0, "KSIEVE_COLUMNS": 0, "KSIEVE_LOCAL_INDEX16": 0,
    "KSIEVE_SHARED_CAPACITY": 1, "KSIEVE_SPILL_CAPACITY": 0, "KSIEVE_MAX_RESIDENT": 0, "KSIEVE_STATS": 0,
}  # fmt: skip
"""Defines that the shared headers ask for; of a scan, which kernels without a plan do not have."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One specialisation of one kernel; everything that decides its machine code but the compiler itself.

    `stem`: source file without ``.cu``, from the kernels' directory on. `arch`: real architecture, such as "sm_90a".
    `defines`: preprocessor definitions, in a fixed order.
    """

    stem: str
    arch: str
    defines: tuple[tuple[str, int], ...]

    @property
    def entry(self) -> str:
        """Name of the kernel function."""
        return f"ksieve_{self.stem.replace('/', '_')}"

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return dict(self.defines)["KSIEVE_THREADS"]

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a launch."""
        return dict(self.defines)["KSIEVE_SHARED_BYTES"]


def architecture(capability: tuple[int, int]) -> str:
    """Architecture compiled for a compute capability; from 9.0 on with its architecture-specific features."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def kernel_spec(plan: Plan, *, stats: bool = False, leading: bool = False) -> KernelSpec:
    """Specialisation that runs a plan's own launch; with statistics it is the only one.

    With `leading` it takes arrays with leading strides (`ksieve.core.leading`).

    Raises `ArgumentError` if the plan is not one of the CUDA families.
    """
    if plan.family not in STEMS:
        raise ArgumentError("plan", f"family {plan.family!r}", f"a plan of a CUDA family: {list(STEMS)}")
    if stats:
        plan = length_bins.stats_plan(plan)
    policy = plan.policy
    defines = {
        "KSIEVE_THREADS": plan.threads,
        # Statistics are for study: their extra registers must not become spills.
        "KSIEVE_CTAS_PER_SM": 1 if stats else plan.ctas_per_sm,
        "KSIEVE_STAGES": plan.stages,
        "KSIEVE_BATCHES": memory.batches(plan),
        "KSIEVE_STRIDE": policy.stride if policy else 0,
        "KSIEVE_GROUP": policy.group if policy else 1,
        "KSIEVE_PHASE_MULTIPLIER": policy.phase_multiplier if policy else 1,
        "KSIEVE_JITTER": int(policy is not None and policy.jitter),
        "KSIEVE_POOLING": int(policy is not None and policy.peaks),
        "KSIEVE_EXACT_BOUNDARY": int(policy is not None and policy.boundary == "exact"),
        "KSIEVE_RESCUE": int(policy is not None and policy.rescue_margin is not None),
        "KSIEVE_COLUMNS": plan.columns,
        "KSIEVE_LOCAL_INDEX16": int(
            memory.entry_bytes(plan.family, plan.problem.selection.width, plan.threads) == memory.NARROW_BYTES
        ),
        "KSIEVE_SHARED_CAPACITY": plan.shared_capacity,
        "KSIEVE_SPILL_CAPACITY": plan.spill_capacity,
        "KSIEVE_MAX_RESIDENT": plan.resident_width,
        "KSIEVE_STATS": int(stats),
        "KSIEVE_DTYPE": SCORE_DTYPES[plan.problem.selection.dtype].number,
        "KSIEVE_SHARED_BYTES": memory.shared_bytes(plan),
        **_option_defines(plan),
        **({"KSIEVE_OVERFLOW_VECTORS": plan.overflow_vectors} if plan.overflow_vectors else {}),
        **({"KSIEVE_REGISTERS": 1} if plan.family in IN_REGISTERS else {}),
        **({"KSIEVE_MAILBOX_BYTES": memory.mailbox_bytes(plan.splits)} if cooperative(plan) else {}),
        **({"KSIEVE_PASSES_ON": 1} if plan.passes_on else {}),
        **({"KSIEVE_BINNED": 1, "KSIEVE_LENGTH_BIN": plan.bin} if plan.bin is not None else {}),
        **({"KSIEVE_LEADING": 1} if leading else {}),
    }
    return KernelSpec(STEMS[plan.family], architecture(plan.device.capability), tuple(defines.items()))


def bare_spec(
    stem: str, arch: str, dtype: str, ranking: Ranking, *, threads: int, ctas_per_sm: int, shared: int, **more: int
) -> KernelSpec:
    """Specialisation of a kernel without a plan; `more`: further defines, without their prefix."""
    number = SCORE_DTYPES[dtype].number
    own = {"THREADS": threads, "CTAS_PER_SM": ctas_per_sm, "DTYPE": number, "SHARED_BYTES": shared, **more}
    own |= {} if ranking == "largest" else {"RANKING": RANKINGS.index(ranking)}
    defines = _BARE | {f"KSIEVE_{name}": value for name, value in own.items()}
    return KernelSpec(stem, arch, tuple(defines.items()))


def compiled_options(options: Options) -> dict[str, int]:
    """Return what kernels are compiled for of a call's options: calls that agree in it share plans and kernels."""
    blocks, ranking = options.block_size > 1, RANKINGS.index(options.ranking)
    return {
        "KSIEVE_WINDOWS": int(
            options.windows != "none"
            or options.next_n > 1
            or options.per_row_k
            or blocks
            or options.forced > 0
            or options.tail
        ),
        "KSIEVE_SEGMENTS": int(options.windows == "segments"),
        "KSIEVE_EPILOGUE": int(options.rewritten),
        "KSIEVE_VALUES": int(options.values),
        "KSIEVE_ORDER": ("any", "value", "index").index(options.order),
        "KSIEVE_TIES": int(options.tie_break != "any"),
        "KSIEVE_RANKING": 0 if blocks else ranking,
        "KSIEVE_LONG_LENGTHS": int(options.length_dtype == "int64"),
        "KSIEVE_OVERLAP": int(options.overlap),
        "KSIEVE_BLOCK_SIZE": options.block_size if blocks else 0,
        "KSIEVE_SOURCE_RANKING": ranking if blocks else 0,
        "KSIEVE_FORCE_FIRST": options.force_first,
        "KSIEVE_FORCE_LAST": options.force_last,
        "KSIEVE_FORCE_BESIDE": int(options.beside > 0),
        "KSIEVE_COUNTS": int(options.counts),
        "KSIEVE_EXPAND": int(options.expand > 1),
        "KSIEVE_TAIL": int(options.tail),
        "KSIEVE_POSITIONS": int(options.positions),
    }


def _option_defines(plan: Plan) -> dict[str, int]:
    """Defines of common/options.cuh: only those that are not zero, so that a plain plan's kernel stays what it is.

    What costs nothing per score is decided at run time, so that few kernels serve all combinations.
    """
    options = plan.problem.options
    found = compiled_options(options) | {
        "KSIEVE_OVERLAP": int(overlaps(plan)),
        "KSIEVE_SORT_SLOTS": memory.sort_slots(plan),
        "KSIEVE_ROW_K": int(options.per_row_k and not options.rewritten and plan.family == "resident_block"),
        "KSIEVE_SOURCE_DTYPE": SCORE_DTYPES[plan.problem.dtype].number if options.block_size > 1 else 0,
    }
    return {name: value for name, value in found.items() if value}


def overlaps(plan: Plan) -> bool:
    """Whether a plan's kernel may be launched while the previous one drains, and lets the next one."""
    return (plan.problem.options.overlap or plan.bin is not None) and plan.device.capability >= (9, 0)


def cooperative(plan: Plan) -> bool:
    """Whether the CTAs of a plan's kernel wait for each other, so that all of them have to be resident."""
    return plan.family == "resident_grid"


def extended(plan: Plan) -> bool:
    """Whether a plan's kernel takes the pointers and numbers of its options."""
    return _defined(plan, "WINDOWS", "EPILOGUE", "TIES") or with_slots(plan)


def with_slots(plan: Plan) -> bool:
    """Whether it also takes options for what slots hold beyond one index each."""
    return _defined(plan, "COUNTS", "EXPAND", "POSITIONS")


def _defined(plan: Plan, *names: str) -> bool:
    defines = _option_defines(plan)
    return any(f"KSIEVE_{name}" in defines for name in names)


def describe(spec: KernelSpec) -> str:
    """One line for messages and tables: the file, the architecture and the defines that differ from zero."""
    shown = " ".join(f"{name.removeprefix('KSIEVE_').lower()}={value}" for name, value in spec.defines if value)
    return f"{spec.stem}.cu for {spec.arch} ({shown})"
