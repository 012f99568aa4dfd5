"""Launch shapes of the CUDA kernel families, by class of device, read from ``planning/data/*.json``.

A file says which devices it is for, and gives the source of every entry: the decision record (``docs/decisions/``) or
the committed result file (``benchmarks/results/``) that holds its measurement, relative to the repository root, or
``"not measured: "`` and what was reasoned instead. Of a family's ``resident`` shapes the narrow ones come first, and of
one width the first that suits is taken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.planning.thresholds import NOT_MEASURED

CLASSES = ("hopper", "blackwell", "consumer", "ampere", "small")
"""Files in ``planning/data``, without their suffix."""

DERIVED = NOT_MEASURED + "derived from "
"""Beginning of the source of a shape that was measured on another device."""

TUNED = "tuned by "
"""Beginning of the source of a shape that was measured on the user's own device."""

PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every device with clusters can launch (CUDA C++ Programming Guide, thread block clusters)."""

GPCS = 8
"""Processor clusters of an H100, H200 or B200 (NVIDIA's architecture white papers)."""

STAGES = 6
"""Default number of 16-byte loads in flight per thread, for rows that do not stay on chip."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Launch shape of one kernel family; `ctas_per_sm` also fixes the register budget at compile time.

    Attributes
    ----------
    threads, ctas_per_sm : int
    stages : int
        Loads of 16 bytes that each thread keeps in flight.
    resident_width : int
        Longest row, in scores, that the family keeps on chip and reads once; 0 for families that do not.
    ctas_per_row : int
        CTAs that share such a row, a tile of it each.
    overflow_vectors : int
        Loads of 16 bytes of such a row, for each thread, that the ring has no room for.
    registers : bool
        Whether the scores of such a row stay in registers (`register_block`): of a plain call, or one whose slots have
        no order.
    plain : bool
        Whether the shape is for calls without options alone: ptxas would spill what those need.
    widest : int
        Widest rows, in scores, that the shape is for; 0 for any.
    fewest_rows, most_rows : int
        How many rows the shape is for; 0 for any.
    source : str
        Where the shape comes from.
    """

    threads: int
    ctas_per_sm: int
    stages: int = STAGES
    resident_width: int = 0
    ctas_per_row: int = 1
    overflow_vectors: int = 0
    registers: bool = False
    plain: bool = False
    widest: int = 0
    fewest_rows: int = 0
    most_rows: int = 0
    source: str = NOT_MEASURED + "given by a caller"


@dataclass(frozen=True, slots=True)
class Shapes:
    """Launch shapes of one class of devices, by family.

    Attributes
    ----------
    name : str
        Of `CLASSES`.
    devices : str
        Which devices they are, in words.
    capability : tuple of (tuple of int, tuple of int or None)
        Least compute capability, and the one from which the class ends.
    multiprocessors : int
        Of the device that row limits were measured on; other devices take them in proportion (`resident_of`).
    shared_kib_per_sm : tuple of (int, int or None)
        Least shared memory of a multiprocessor, in KiB, and the size from which the class ends.
    widest_cluster : int
        CTAs of the largest thread block cluster; 1 without clusters.
    usual : dict of str to Geometry
        The shape of every family that the class can run.
    roomy : dict of str to Geometry
        In its place for specialisations that need more registers.
    short : dict of str to Geometry
        From `MANY_SHORT` short rows on: more and smaller CTAs, with fewer warps for fixed work.
    alone : dict of str to Geometry
        For as many rows as there are multiprocessors, or fewer: a CTA has one to itself.
    resident_from : str
        The class whose `resident` shapes these are; empty for a class with its own.
    spilled, spilled_with_options : dict of str to list of int
        Of another class's shapes, widths that are left out, for all calls or for calls with options: compiled for
        devices of this class, ptxas spills registers (``make cubins`` compiles them).
    resident : dict of str to tuple of Geometry
        For rows that stay on chip, 12 to 128 scores a thread, narrow ones first. More clusters than the last shape of a
        width is for would not run at once. More rows than the last shape of `resident_block` is for are kept on chip if
        k is large (`RESIDENT_RANK`). All CTAs of `resident_grid` must run at once.
    """

    name: str
    devices: str
    capability: tuple[tuple[int, int], tuple[int, int] | None]
    multiprocessors: int
    shared_kib_per_sm: tuple[int, int | None]
    widest_cluster: int
    usual: dict[str, Geometry]
    roomy: dict[str, Geometry]
    short: dict[str, Geometry]
    alone: dict[str, Geometry]
    resident: dict[str, tuple[Geometry, ...]]
    resident_from: str = ""
    spilled: dict[str, list[int]] = field(default_factory=dict)
    spilled_with_options: dict[str, list[int]] = field(default_factory=dict)

    def covers(self, device: DeviceInfo) -> bool:
        """Whether a device is of this class."""
        (least, end), (shared, shared_end) = self.capability, self.shared_kib_per_sm
        kib = device.shared_per_sm // 1024
        return (
            device.capability >= least
            and (end is None or device.capability < end)
            and kib >= shared
            and (shared_end is None or kib < shared_end)
        )

    def resident_of(self, family: str, device: DeviceInfo) -> tuple[Geometry, ...]:
        """Resident shapes of a family, their row limits in proportion to the device's multiprocessors.

        A limit says how many rows fill the device: with as many CTAs a row, a device of 78 multiprocessors is full
        with 78/132 of the rows of one of 132. A class without measured shapes takes those of another class; which of
        them fit its shared memory, the planner decides. The source of a shape that was derived says so.
        """
        origin = of_class(self.resident_from) if self.resident_from else self
        count, measured = device.sm_count, origin.multiprocessors
        if origin is self and count == measured:
            return self.resident[family]
        return tuple(
            replace(
                shape,
                plain=shape.plain or shape.resident_width in self.spilled_with_options.get(family, ()),
                most_rows=shape.most_rows * count // measured,
                fewest_rows=(shape.fewest_rows - 1) * count // measured + 1 if shape.fewest_rows else 0,
                source=f"{DERIVED}those of {origin.devices}, for {count} in place of {measured} multiprocessors",
            )
            for shape in origin.resident[family]
            if shape.resident_width not in self.spilled.get(family, ())
            # 0 would mean any number of rows: such a shape is for fewer rows than one.
            and (not shape.most_rows or shape.most_rows * count >= measured)
        )

    def cluster_limit(self, device: DeviceInfo) -> int:
        """CTAs of the largest cluster that surely runs on a device of this class.

        More than `PORTABLE_CLUSTER` must fit one of its processor clusters (GPC), which have equally many
        multiprocessors, as far as is known without the device.
        """
        return self.widest_cluster if device.sm_count >= GPCS * self.widest_cluster else PORTABLE_CLUSTER

    def tables(self) -> tuple[dict[str, Geometry], ...]:
        """Tables with one shape for each family."""
        return self.usual, self.roomy, self.short, self.alone


@lru_cache
def of_class(name: str) -> Shapes:
    """Read the file of a class."""
    text = Path(__file__).with_name("data").joinpath(f"{name}.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    listed = {
        part: {
            family: tuple(Geometry(**shape, registers=family == "register_block") for shape in shapes)
            for family, shapes in facts[part].items()
        }
        for part in ("usual", "roomy", "short", "alone", "resident")
        if part in facts
    }
    resident_from = facts.get("resident_of", "")
    least, end = facts["capability"]
    shared, shared_end = facts["shared_kib_per_sm"]
    return Shapes(
        name,
        facts["devices"],
        ((least[0], least[1]), None if end is None else (end[0], end[1])),
        facts["multiprocessors"],
        (shared, shared_end),
        facts["widest_cluster"],
        resident=of_class(resident_from).resident if resident_from else listed.pop("resident"),
        resident_from=resident_from,
        spilled=facts.get("spilled", {}),
        spilled_with_options=facts.get("spilled_with_options", {}),
        **{part: {family: only for family, (only,) in table.items()} for part, table in listed.items()},
    )


@lru_cache
def of(device: DeviceInfo) -> Shapes:
    """Return the launch shapes of a CUDA device's class.

    Raises
    ------
    ArgumentError
        If no class covers the device.
    """
    for found in map(of_class, CLASSES):
        if found.covers(device):
            return found
    got = f"compute capability {'.'.join(map(str, device.capability))}"
    raise ArgumentError("device", got, "a CUDA device of compute capability 8.0 or later")


def families() -> tuple[str, ...]:
    """Every kernel family that some class of devices can run."""
    found = dict.fromkeys(family for name in CLASSES for family in of_class(name).usual)
    return tuple(found | dict.fromkeys(family for name in CLASSES for family in of_class(name).resident))
