"""Launch shapes, splits and sampling strides of CUDA plans, by class of device, read from ``planning/data/*.json``.

A file of a class says which devices it is for. What was measured on one of them is in a file for each dtype, in the
format of ``ksieve tune`` (`ksieve.planning.tuned`). A class without such a file takes another class's numbers in
proportion. 16-bit scores without one take the numbers of float32 (`Geometry.for_half`). An entry without a time gives
its source, relative to the repository root: a decision record (``docs/decisions/``) or a result file
(``benchmarks/results/``) with its measurement. Otherwise it gives ``"not measured: "`` and the reasoning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.planning.families import RESIDENT
from ksieve.planning.switch_points import NOT_MEASURED

CLASSES = ("hopper", "blackwell", "consumer", "ampere", "small")
"""Files in ``planning/data``, without their suffix."""

DERIVED = NOT_MEASURED + "derived from "
"""Beginning of the source of a shape that was measured on another device."""

DERIVED_DTYPE = DERIVED + "those of float32 scores"
"""Source of an entry for 16-bit scores that was measured on float32 scores."""

TUNED = "tuned by "
"""Beginning of the source of an entry that ``ksieve tune`` measured; the name of its file follows."""

FACTS = ("us", "beat", "by")
"""Of a measured entry: its microseconds at the most rows that it is for, what came second there, and its time over."""

MEASURED = ("resident", "streamed", "splits", "strides")
"""Parts of a file that hold measured entries."""

DTYPE = "float32"
"""What most was measured with."""

PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every device with clusters can launch (CUDA C++ Programming Guide, thread block clusters)."""

GPCS = 8
"""Processor clusters of an H100, H200 or B200 (NVIDIA's architecture white papers)."""

STAGES = 6
"""Default number of 16-byte loads in flight per thread, for rows that do not stay on chip."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Launch shape of one kernel family; `ctas_per_sm` also fixes the register budget at compile time.

    `stages`: loads of 16 bytes that each thread keeps in flight. `resident_width`: longest row, in scores, that the
    family keeps on chip and reads once; 0 for families that do not. `ctas_per_row`: CTAs that share such a row, a tile
    of it each. `overflow_vectors`: loads of 16 bytes of such a row, for each thread, that the ring has no room for.
    `registers`: whether the scores of such a row stay in registers (`register_block`), of a plain call, or one whose
    slots have no order. `plain`: whether the shape is for calls without options alone: ptxas would spill what those
    need. `widest`, `fewest_rows`, `most_rows`: rows, in scores and in number, that the shape is for; 0 for any.
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

    def for_half(self) -> Geometry | None:
        """Return the shape for 16-bit scores; None where there is none.

        The ring takes all vectors then: of float32 scores most are in it, which are twice as large. A row must be whole
        16-byte vectors for each thread, and ptxas spills with more than 80 scores a thread in 64 registers.
        """
        each, rest = divmod(self.resident_width, self.threads * self.ctas_per_row)
        if rest or each % 8 or (each > 80 and self.threads * self.ctas_per_sm > 512 and self.ctas_per_row == 1):
            return None
        return replace(self, overflow_vectors=0, source=DERIVED_DTYPE)

    def suits(self, rows: int, width: int) -> bool:
        """Whether the shape is for so many rows of such a width."""
        return self.fewest_rows <= rows <= (self.most_rows or rows) and width <= (self.widest or width)


@dataclass(frozen=True, slots=True)
class Split:
    """From which width how many CTAs a row pay, so that splitting rows saves more than merging costs.

    `fewest`: CTAs a row, at least. `narrowest`: width in scores from which the entry holds.
    """

    fewest: int
    narrowest: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Stride:
    """For which rows a sampling policy is the fastest.

    `policy`: its name. `ratio`: width over k (at least `ksieve.planning.switch_points.LINES_RANK`) from which the entry
    holds. `narrowest`: width in scores from which it holds. `most_rows`: rows up to which it holds; 0 for any.
    """

    policy: str
    ratio: int = 0
    narrowest: int = 0
    most_rows: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """What is measured or derived for one class of devices. Each is read once, and compared by identity.

    `name`: of `CLASSES`. `devices`: which they are, in words. `capability`, `shared_kib_per_sm`: least compute
    capability, and least shared memory of a multiprocessor in KiB, and the ones from which the class ends.
    `multiprocessors`: of the device that row limits were measured on; other devices take them in proportion.
    `widest_cluster`: CTAs of the largest thread block cluster; 1 without clusters.

    `usual`: the shape of every family that the class can run, where no measured one suits. `roomy`: in place of both
    for specialisations that need more registers: policies with a coarse boundary, and options of 16-bit rows that CTAs
    share.

    `resident`: for rows that stay on chip, 12 to 128 scores a thread. Of the narrowest width that has room, the first
    that suits is taken. More clusters than the last shape of a width is for would not run at once. More rows than the
    last shape of `resident_block` is for are kept on chip if k is large (`RESIDENT_RANK`). All CTAs of `resident_grid`
    must run at once. `streamed`: for rows that do not; the first that suits is taken. `splits`: wide ones last,
    `strides`: dense ones first; the last that suits is taken.

    `dtype`: of the scores that all this is for. `derived_from`: the class whose entries the parts in `derived` (of
    `MEASURED`) are. `spilled`, `spilled_with_options`: widths of another class's shapes that are left out, for all
    calls or for calls with options. For devices of this class ptxas spills registers there (``make cubins`` compiles
    them).
    """

    name: str
    devices: str
    capability: tuple[tuple[int, int], tuple[int, int] | None]
    multiprocessors: int
    shared_kib_per_sm: tuple[int, int | None]
    widest_cluster: int
    usual: dict[str, Geometry]
    roomy: dict[str, Geometry]
    resident: dict[str, tuple[Geometry, ...]]
    streamed: dict[str, tuple[Geometry, ...]]
    splits: tuple[Split, ...]
    strides: tuple[Stride, ...]
    dtype: str = DTYPE
    derived_from: str = ""
    derived: frozenset[str] = frozenset()
    spilled: dict[str, list[int]] = field(default_factory=dict)
    spilled_with_options: dict[str, list[int]] = field(default_factory=dict)

    def covers(self, device: DeviceInfo) -> bool:
        """Whether a device is of this class."""
        (least, end), (shared, shared_end) = self.capability, self.shared_kib_per_sm
        found, kib = device.capability, device.shared_per_sm // 1024
        return least <= found and (end is None or found < end) and shared <= kib < (shared_end or math.inf)

    def of_family(self, family: str, device: DeviceInfo) -> tuple[Geometry, ...]:
        """Measured shapes of a family for a device; which of them fit its shared memory, the planner decides."""
        return _scaled(self, "resident" if family in RESIDENT else "streamed", family, device)

    def stride_for(self, rows: int, width: int, ratio: int, device: DeviceInfo) -> Stride:
        """Return the entry that decides the sampling policy of rows, whose width is `ratio` times k."""
        found = reversed(_strides_of(self, device.sm_count))
        return next(s for s in found if ratio >= s.ratio and width >= s.narrowest and rows <= (s.most_rows or rows))

    def split_for(self, width: int) -> Split | None:
        """Return the entry that decides whether CTAs share rows of a width; None if they never do."""
        return next((split for split in reversed(self.splits) if width >= split.narrowest), None)

    def measured_on(self, part: str) -> int:
        """Return the multiprocessors of the device that a part was measured on."""
        return of_class(self.derived_from).multiprocessors if part in self.derived else self.multiprocessors

    def cluster_limit(self, device: DeviceInfo) -> int:
        """CTAs of the largest cluster that surely runs on a device of this class.

        More than `PORTABLE_CLUSTER` must fit one of its processor clusters (GPC), which have equally many
        multiprocessors, as far as is known without the device.
        """
        return self.widest_cluster if device.sm_count >= GPCS * self.widest_cluster else PORTABLE_CLUSTER


@lru_cache(maxsize=512)
def _scaled(known: Shapes, part: str, family: str, device: DeviceInfo) -> tuple[Geometry, ...]:
    """Shapes of a family in a part, with their row limits in proportion to the device's multiprocessors.

    A limit says how many rows fill the device. A device of 78 multiprocessors is full with 78/132 of the rows that fill
    one of 132. The source of a shape that was derived says so.
    """
    found: tuple[Geometry, ...] = getattr(known, part).get(family, ())
    count, measured = device.sm_count, known.measured_on(part)
    if part not in known.derived and count == measured:
        return found
    origin = of_class(known.derived_from) if part in known.derived else known
    return tuple(
        replace(
            shape,
            plain=shape.plain or shape.resident_width in known.spilled_with_options.get(family, ()),
            most_rows=shape.most_rows * count // measured,
            fewest_rows=(shape.fewest_rows - 1) * count // measured + 1 if shape.fewest_rows else 0,
            source=f"{DERIVED}those of {origin.devices}, for {count} in place of {measured} multiprocessors",
        )
        for shape in found
        if shape.resident_width not in known.spilled.get(family, ())
        # 0 would mean any number of rows: such a shape is for fewer rows than one.
        and (not shape.most_rows or shape.most_rows * count >= measured)
    )


@lru_cache
def _strides_of(known: Shapes, count: int) -> tuple[Stride, ...]:
    """Sampling policies, with their row limits in proportion to a device's multiprocessors."""
    measured = known.measured_on("strides")
    if count == measured:
        return known.strides
    return tuple(replace(s, most_rows=s.most_rows * count // measured) for s in known.strides)


def parts_of(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Parse the measured parts that a file has.

    `facts`: content of a file, whose entries have been checked, or are shipped. `name`: of the file, for the source of
    entries that have a time.
    """

    def fields_of(entry: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in entry.items() if key not in FACTS}
        beat = f", {entry['by']:.2f} times as fast as {entry['beat']}" if entry.get("beat") else ""
        gain = f"{entry['us']:.1f} us where it was measured{beat}" if "us" in entry else "as shipped"
        return {"source": f"{TUNED}{name}: {gain}"} | kept

    found: dict[str, Any] = {}
    for part in {"resident", "streamed"} & facts.keys():
        found[part] = {
            family: tuple(Geometry(**fields_of(entry), registers=family == "register_block") for entry in entries)
            for family, entries in facts[part].items()
        }
    if "splits" in facts:
        found["splits"] = tuple(Split(**fields_of(entry)) for entry in facts["splits"])
    if "strides" in facts:
        found["strides"] = tuple(Stride(**fields_of(entry)) for entry in facts["strides"])
    return found


@lru_cache
def _read(name: str) -> dict[str, Any]:
    text = Path(__file__).with_name("data").joinpath(f"{name}.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


def of_class(name: str, card: str = "", dtype: str = DTYPE) -> Shapes:
    """Read the file of a class, with what was measured on one of its cards, by default the first."""
    return _of_class(name, card or next(iter(_read(name).get("measured", {})), ""), dtype)


@lru_cache
def _of_class(name: str, card: str, dtype: str) -> Shapes:
    facts = _read(name)
    file = facts.get("measured", {}).get(card, {}).get(dtype, "")
    measured = parts_of(_read(file), f"{file}.json") if file else {}
    if dtype != DTYPE:
        found = _for_half(_of_class(name, card, DTYPE), dtype)
        return replace(found, **measured, derived=found.derived - measured.keys())
    shared, (least, end) = facts["shared_kib_per_sm"], facts["capability"]
    own = parts_of(facts, name) | measured
    origin = facts.get("derived_from", "")
    derived = frozenset(MEASURED) - own.keys()
    return Shapes(
        name,
        facts["devices"],
        ((least[0], least[1]), None if end is None else (end[0], end[1])),
        facts["multiprocessors"],
        (shared[0], shared[1]),
        facts["widest_cluster"],
        {family: Geometry(**shape) for family, shape in facts["usual"].items()},
        {family: Geometry(**shape) for family, shape in facts["roomy"].items()},
        **own,
        **{part: getattr(of_class(origin), part) for part in derived},
        derived_from=origin,
        derived=derived,
        spilled=facts.get("spilled", {}),
        spilled_with_options=facts.get("spilled_with_options", {}),
    )


def _for_half(found: Shapes, dtype: str) -> Shapes:
    """Shapes of float32 scores, for 16-bit scores that nothing was measured with."""
    resident = {
        family: tuple(shape for shape in map(Geometry.for_half, listed) if shape is not None)
        for family, listed in found.resident.items()
    }
    streamed = {f: tuple(replace(s, source=DERIVED_DTYPE) for s in of) for f, of in found.streamed.items()}
    return replace(found, resident=resident, streamed=streamed, dtype=dtype)


@lru_cache
def of(device: DeviceInfo, dtype: str = DTYPE) -> Shapes:
    """Return what is shipped for scores of a dtype on a CUDA device, by its class and model.

    Raises `ArgumentError` if no class covers the device.
    """
    for name in CLASSES:
        if of_class(name).covers(device):
            return of_class(name, own_card(name, device), dtype)
    got = f"compute capability {'.'.join(map(str, device.capability))}"
    raise ArgumentError("device", got, "a CUDA device of compute capability 8.0 or later")


def own_card(name: str, device: DeviceInfo) -> str:
    """Model of a device, if a class has files of it; else empty."""
    return next((model for model in _read(name).get("measured", {}) if model in device.name), "")


def families() -> tuple[str, ...]:
    """Every kernel family that some class of devices can run."""
    found = dict.fromkeys(family for name in CLASSES for family in of_class(name).usual)
    return tuple(found | dict.fromkeys(family for name in CLASSES for family in of_class(name).resident))
