"""Compilation ahead of time: the kernels that a set of shapes needs, and the compiler's report of each."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

from ksieve.backends.cuda.jit.compile import Resources
from ksieve.backends.cuda.jit.spec import KernelSpec, architecture, kernel_spec
from ksieve.core.device import DEVICES, DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.core.options import PLAIN, Options
from ksieve.core.policy import SamplingPolicy
from ksieve.core.problem import Device, Problem
from ksieve.planning import choose as planner
from ksieve.planning import length_bins, memory, shapes
from ksieve.planning.plan import Plan

SERVING_RANKS = (512, 1024, 2048)
SERVING_WIDTHS = (4096, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
SERVING_ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16_384)

MAX_ROWS, MAX_WIDTH = 16_384, 262_144
"""Largest matrix of scores for which the kernels of an engine's calls are built, if no other is named."""


def devices_of(name: str) -> list[DeviceInfo]:
    """Return the device of a name, or of an architecture the devices with launch shapes of their own; else its last.

    The last device of an architecture in `DEVICES` is the one with the highest memory bandwidth.

    Raises `ArgumentError` if no device of `DEVICES` has that name or architecture.
    """
    if name.lower() in DEVICES:
        return [DEVICES[name.lower()]]
    same = [device for device in DEVICES.values() if architecture(device.capability) == name]
    if not same:
        known = dict.fromkeys(architecture(device.capability) for device in DEVICES.values())
        raise ArgumentError("device", repr(name), f"one of {', '.join([*known, *DEVICES])}")
    return [device for device in same if shapes.own_card(shapes.of(device).name, device)] or same[-1:]


def needed(
    device: DeviceInfo,
    *,
    rows: Sequence[int] = SERVING_ROWS,
    widths: Sequence[int] = SERVING_WIDTHS,
    ranks: Sequence[int] = SERVING_RANKS,
    dtypes: Iterable[str] = ("float32",),
    families: Iterable[str | None] = (None,),
    policy: SamplingPolicy | str | None = None,
    stats: bool = False,
    options: Options = PLAIN,
    unplanned: bool = False,
    leading: bool = False,
) -> dict[KernelSpec, Plan]:
    """Return the distinct specialisations that the plans of all these shapes need, each with one of its plans.

    Shapes share most of their kernels, because rows, width and k are run-time parameters. For a few shapes, calls
    without a plan use other kernels (`kept` of `ksieve.planning.choose.choose`): with `unplanned` those are needed too.
    With `leading` they take arrays with leading strides.

    Raises `ArgumentError` if a shape is out of range, or a forced family cannot run it.
    """
    found: dict[KernelSpec, Plan] = {}
    for m, width, k, dtype, family in itertools.product(rows, widths, ranks, dtypes, families):
        asked = Problem(m, width, width, k, dtype, Device(device.kind, device.index), options)
        for kept in (True, False) if unplanned else (True,):
            plan = planner.choose(asked, device, family=family, policy=policy, kept=kept)
            for part in (plan,) if stats else length_bins.launches(plan):
                found.setdefault(kernel_spec(part, stats=stats, leading=leading), part)
    return found


def covering(
    device: DeviceInfo, k: int, *, max_rows: int, max_width: int, dtype: str = "float32", options: Options = PLAIN
) -> dict[KernelSpec, Plan]:
    """Return the specialisations of all calls without a plan up to a size, each with a plan that needs it.

    Kernels change at a few numbers of rows and a few widths. Bisection finds them, between powers of two for rows and
    of its root for widths. Then every combination is planned. It takes some seconds.

    Raises `ArgumentError` if a number is out of range.
    """
    found: dict[KernelSpec, Plan] = {}

    @functools.cache
    def at(rows: int, width: int) -> tuple[KernelSpec, ...]:
        asked = Problem(rows, width, width, k, dtype, Device(device.kind, device.index), options)
        parts = length_bins.launches(planner.choose(asked, device, kept=False))
        specs = tuple(kernel_spec(part) for part in parts)
        for spec, part in zip(specs, parts, strict=True):
            found.setdefault(spec, part)
        return specs

    def across(width: int, rows: int) -> tuple[KernelSpec, ...]:
        return at(rows, width)

    some_rows, some_widths = _steps(max_rows, 1), _steps(max_width, 2)
    widths = {width for rows in some_rows for width in _changes(functools.partial(at, rows), some_widths)}
    rows = {rows for width in some_widths for rows in _changes(functools.partial(across, width), some_rows)}
    for pair in itertools.product(rows, widths):
        at(*pair)
    return found


def _steps(most: int, per_octave: int) -> list[int]:
    """Numbers from 1 to `most`, in equal ratios."""
    count = per_octave * most.bit_length()
    return sorted({min(round(2 ** (step / per_octave)), most) for step in range(count + 1)})


def _changes(of: Callable[[int], object], points: Sequence[int]) -> set[int]:
    """`points`, and both neighbours of every change between two of them that differ."""
    found, between = set(points), list(itertools.pairwise(points))
    while between:
        low, high = between.pop()
        if of(low) == of(high):
            continue
        if high - low == 1:
            found |= {low, high}
        else:
            middle = (low + high) // 2
            between += [(low, middle), (middle, high)]
    return found


def shortcomings(plan: Plan, spec: KernelSpec, used: Resources) -> list[str]:
    """List the reasons why a compiled kernel cannot run as planned; empty if it can.

    The number of resident CTAs is the kernel's launch bound: with statistics, which take registers, one.
    """
    device, found = plan.device, []
    ctas = dict(spec.defines)["KSIEVE_CTAS_PER_SM"]
    if used.spill_stores or used.spill_loads:
        found.append(f"spills {used.spill_stores} bytes to and {used.spill_loads} from local memory")
    # Registers are allocated to warps in units of eight per thread.
    registers = -(-used.registers // 8) * 8 * plan.threads * ctas
    if registers > memory.REGISTERS_PER_SM:
        found.append(f"{used.registers} registers leave no room for {ctas} CTAs of {plan.threads}")
    shared = spec.shared_bytes + used.static_shared
    if shared > device.shared_per_block:
        found.append(f"{shared} bytes of shared memory exceed the {device.shared_per_block} of a CTA")
    resident = (shared + memory.RESERVED_SHARED) * ctas
    if resident > device.shared_per_sm:
        found.append(f"{ctas} CTAs need {resident} of {device.shared_per_sm} bytes of shared memory")
    return found
