"""Resident launch shapes that ``ksieve tune`` measured on a user's own GPU, and where the planner finds them.

A file is of one device and one dtype. It is read once in a process, checked completely, and then used as a whole, in
place of the shipped shapes of the device's class (`ksieve.planning.shapes`), or not at all.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ksieve._version import __version__
from ksieve.core import atomic
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.core.text import printable
from ksieve.planning import shapes
from ksieve.planning.families import ONE_CTA, SHARED_ROWS
from ksieve.planning.memory import candidate_bytes_of
from ksieve.planning.shapes import Geometry, Shapes

FORMAT = 1
VARIABLE = "KSIEVE_TUNED"
DTYPE = "float32"
"""Resident shapes are of float32 rows; 16-bit rows have the shapes of their class."""

FAMILIES = (*ONE_CTA, *SHARED_ROWS)
FACTS = ("us", "beat", "by")
"""Of an entry: its microseconds at the most rows that it is for, the plan that came second there, and its time over."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A file of measured shapes.

    Attributes
    ----------
    about : dict
        ``device`` (name, capability, multiprocessors), ``driver``, ``packages``, ``date``, ``commit``, ``dtype``,
        ``k``.
    resident : dict of str to tuple of dict
        Entries of each family: fields of a `Geometry`, and `FACTS`.
    """

    about: Mapping[str, Any]
    resident: Mapping[str, tuple[Mapping[str, Any], ...]]


def described(device: DeviceInfo) -> dict[str, Any]:
    """Return the facts by which a file and a device are compared."""
    return {"name": device.name, "capability": list(device.capability), "multiprocessors": device.sm_count}


def folder() -> Path:
    """Return the folder of the user's own files."""
    import platformdirs

    return platformdirs.user_config_path("ksieve", appauthor=False) / "tuned"


def default_path(device: DeviceInfo, dtype: str = DTYPE) -> Path:
    """Return the file of a device in the user's configuration directory."""
    name = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    return folder() / f"{name}-{dtype}.json"


def write(path: Path, found: Tuned) -> None:
    """Write a file, whole or not at all."""
    lines = []
    for family, entries in found.resident.items():
        text = ",\n".join(f"    {json.dumps(dict(entry))}" for entry in entries)
        lines.append(f'  "{family}": [\n{text}\n  ]')
    head = json.dumps({"format": FORMAT, "ksieve": __version__, **found.about}, indent=1)[:-2]
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, head + ',\n "resident": {\n' + ",\n".join(lines) + "\n }\n}\n")


def read(path: Path, device: DeviceInfo, dtype: str = DTYPE) -> Tuned:
    """Read a file for a device, and check all of it.

    Raises
    ------
    ArgumentError
        If it is of another format, version, device or dtype, or damaged. The message says which.
    """

    def refuse(got: str, takes: str) -> ArgumentError:
        return ArgumentError(VARIABLE, f"{printable(str(path))}: {got}", takes)

    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        about = {key: value for key, value in facts.items() if key not in ("format", "ksieve", "resident")}
        found = facts["format"], facts["ksieve"], facts["device"], facts["dtype"]
        listed = {family: tuple(map(dict, entries)) for family, entries in facts["resident"].items()}
        if not listed:
            raise ValueError("no entries")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refuse(f"no such file of shapes ({type(error).__name__}: {error})", "a file of `ksieve tune`") from None
    again = "make it again with `ksieve tune`"
    for got, takes, what in (
        (found[0], FORMAT, "format"),
        (found[1], __version__, "ksieve"),
        (found[2], described(device), "device"),
        (found[3], dtype, "dtype"),
    ):
        if got != takes or type(got) is not type(takes):
            raise refuse(f"{what} {got}", f"{what} {takes}: {again}")
    for family, entries in listed.items():
        for entry in entries:
            if fault := _fault(family, entry, device):
                raise refuse(f"an entry of {family} with {fault}", f"entries that fit the device: {again}")
    return Tuned(about, listed)


def _fault(family: str, entry: Mapping[str, Any], device: DeviceInfo) -> str:
    """Name what is wrong with an entry; empty if nothing is."""
    known = {field.name for field in fields(Geometry)} - {"registers", "source", "widest", "stages"}
    if family not in FAMILIES or family not in shapes.of(device).usual | {"register_block": None}:
        return "a family that the device does not run"
    numbers = {name: value for name, value in entry.items() if name not in FACTS}
    if numbers.keys() - known or not {"threads", "ctas_per_sm", "resident_width"} <= numbers.keys():
        return f"the fields {sorted(numbers)}"
    if any(type(value) is not (bool if name == "plain" else int) for name, value in numbers.items()):
        return "a field of another type"
    us, beat, by = (entry.get(name) for name in FACTS)
    if not all(value is None or _positive(value) for value in (us, by)) or type(beat) not in (str, type(None)):
        return f"us={us}, beat={beat}, by={by}"
    if (beat is None) != (by is None) or (us is None and beat is not None) or None in (entry.get(n, 0) for n in FACTS):
        return f"us={us}, beat={beat}, by={by}"
    geometry = geometry_of(family, entry, "")
    return impossible(family, geometry, device)


def _positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < 1e12  # type: ignore[operator]


def impossible(family: str, geometry: Geometry, device: DeviceInfo) -> str:
    """Say why a resident shape cannot run on a device; empty if it can. ptxas may still need more registers."""
    threads, ctas, width = geometry.threads, geometry.ctas_per_sm, geometry.resident_width
    if threads not in (256, 512) or not 1 <= ctas <= 2048 // threads:
        return f"{ctas} CTAs of {threads} threads"
    limits = {"resident_cluster": shapes.of(device).cluster_limit(device), "resident_grid": 64}
    shares = [2**i for i in range(1, 7) if 2**i <= limits[family]] if family in SHARED_ROWS else [1]
    if geometry.ctas_per_row not in shares:
        return f"{geometry.ctas_per_row} CTAs a row"
    vectors, rest = divmod(width, 4 * threads * geometry.ctas_per_row)
    if rest or not 2 <= vectors <= 32 or min(geometry.fewest_rows, geometry.most_rows) < 0:
        return f"{width} scores a row"
    if 0 < geometry.most_rows < geometry.fewest_rows:
        return f"{geometry.fewest_rows} to {geometry.most_rows} rows"
    if outside := geometry.overflow_vectors:
        # kernels/resident/descriptor.cuh: a row is whole blocks, and most of a block's vectors are in the ring.
        blocks = math.gcd(vectors, outside)
        if outside < 0 or vectors // blocks <= 2 * (outside // blocks):
            return f"{outside} of {vectors} vectors outside the ring"
        # A tile of 128 KiB or more is copied in four chunks: each needs a stretch between vectors outside the ring.
        if 16 * threads * (vectors - outside) >= 128 << 10 and outside == blocks and outside < 3:
            return f"{outside} of {vectors} vectors outside the ring, and four chunks"
    return "more than the shared memory" if candidate_bytes_of(geometry, device, DTYPE) < 0 else ""


def geometry_of(family: str, entry: Mapping[str, Any], source: str) -> Geometry:
    """Return the launch shape of an entry."""
    numbers = {name: value for name, value in entry.items() if name not in FACTS}
    return Geometry(**numbers, registers=family == "register_block", source=source)


def path_in_use(device: DeviceInfo) -> tuple[Path | None, bool]:
    """Return the file that is looked for, or None, and whether the environment names it."""
    asked = os.environ.get("KSIEVE_TUNED", "")
    if asked == "off":
        return None, True
    if not asked:
        return default_path(device), False
    path = Path(asked).expanduser()
    # Of a folder, as for a host with several models, the file of the device is taken if there is one.
    return (path / default_path(device).name, False) if path.is_dir() else (path, True)


@lru_cache
def find(device: DeviceInfo, asked: str = "") -> Tuned | None:
    """Return the measured shapes of a device, or None: from what `VARIABLE` names, or the user's own file.

    `asked` is the value of `VARIABLE`, so that a change of it is seen.

    Raises
    ------
    ArgumentError
        If `VARIABLE` names a file that cannot be used. A file in the configuration directory is then ignored, with one
        warning.
    """
    path, named = path_in_use(device)
    if path is None or (not named and not path.is_file()):
        return None
    try:
        return read(path, device)
    except ArgumentError as error:
        if named:
            raise
        _log.warning("launch shapes are not taken from a file: %s", error)
        return None


def shapes_of(device: DeviceInfo) -> Shapes:
    """Return the launch shapes of a CUDA device: its class's, with resident shapes that were measured on it.

    Raises
    ------
    ArgumentError
        If no class covers the device, or `VARIABLE` names a file that cannot be used.
    """
    return _shapes_of(device, os.environ.get("KSIEVE_TUNED", ""))


@lru_cache
def _shapes_of(device: DeviceInfo, asked: str) -> Shapes:
    found, measured = shapes.of(device), find(device, asked)
    if measured is None:
        return found
    path = path_in_use(device)[0]
    assert path is not None
    resident = {
        family: tuple(
            geometry_of(family, entry, f"{shapes.TUNED}{path.name}: {_advantage(entry)}") for entry in entries
        )
        for family, entries in measured.resident.items()
    }
    return replace(found, multiprocessors=device.sm_count, resident=resident, resident_from="")


def _advantage(entry: Mapping[str, Any]) -> str:
    beat = f", {entry['by']:.2f} times as fast as {entry['beat']}" if entry.get("beat") else ""
    return f"{entry['us']:.1f} us{beat}" if "us" in entry else "as shipped"
