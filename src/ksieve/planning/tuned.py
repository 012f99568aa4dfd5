"""Files of ``ksieve tune``: what it measured on a user's own GPU, and where the planner finds them.

A file is of one device, one dtype and one version of ksieve. It is read once in a process. It is used as a whole, in
place of what is shipped for the device's class (`ksieve.planning.shapes`), if its entries are those that were written,
by their checksum, or not at all. Shipped files have the same format.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ksieve._version import __version__
from ksieve.core import atomic
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError
from ksieve.core.paths import is_folder, read_utf8, unreadable
from ksieve.core.policy import LINES_16, LINES_64, LINES_128, QUADS_16
from ksieve.core.text import parse_json, printable
from ksieve.planning import shapes
from ksieve.planning.families import ONE_CTA, SHARED_ROWS
from ksieve.planning.memory import CANDIDATE_BYTES, ITEM_BYTES, SHARED_LIST, candidate_bytes_of
from ksieve.planning.shapes import Geometry, Shapes

FORMAT = 2
VARIABLE = "KSIEVE_TUNED"
DTYPE = shapes.DTYPE
"""What is tuned for unless another dtype is asked for."""

FAMILIES = (*ONE_CTA, *SHARED_ROWS)
"""Of resident shapes."""

STAGES = (4, 6, 8)
"""Loads in flight for each thread, of rows that do not stay on chip."""

POLICIES = tuple(policy.name for policy in (QUADS_16, LINES_16, LINES_64, LINES_128))
"""Sampling policies, the densest first."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A file of measured shapes.

    `about`: ``device`` (name, capability, multiprocessors), ``driver``, ``packages``, ``date``, ``sources``, ``dtype``,
    ``k``. `parts`: ``resident`` and ``streamed``: of each family a list of entries, fields of a `Geometry`. ``splits``
    and ``strides``: lists of fields of a `Split` and a `Stride`. An entry also has `shapes.FACTS`, if it was measured.
    A part may be missing: then that of the device's class holds.
    """

    about: Mapping[str, Any]
    parts: Mapping[str, Any]


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

    def listed(entries: Iterable[Mapping[str, Any]], pad: str) -> str:
        return "[\n" + ",\n".join(f"{pad} {json.dumps(dict(entry))}" for entry in entries) + f"\n{pad}]"

    lines = []
    for part in (name for name in shapes.MEASURED if name in found.parts):
        entries = found.parts[part]
        if isinstance(entries, Mapping):
            families = ",\n".join(f'  "{family}": {listed(of, "  ")}' for family, of in entries.items())
            lines.append(f' "{part}": {{\n{families}\n }}')
        else:
            lines.append(f' "{part}": {listed(entries, " ")}')
    facts = {"format": FORMAT, "ksieve": __version__, **found.about, "sha256": _digest(found.parts)}
    head = json.dumps(facts, indent=1)[:-2]
    atomic.write_text(path, ",\n".join([head, *lines]) + "\n}\n", folders=True)


def read(path: Path, device: DeviceInfo, dtype: str = DTYPE) -> Tuned:
    """Read a file for a device.

    Raises `ArgumentError` if it is of another format, version, device or dtype, or damaged. The message says which.
    """

    def refuse(got: str, takes: str) -> ArgumentError:
        return ArgumentError(VARIABLE, f"{printable(str(path))}: {got}", takes)

    try:
        facts = parse_json(read_utf8(path))
        found = facts["format"], facts["ksieve"], facts["device"], facts["dtype"]
        about = {key: facts[key] for key in facts if key not in ("format", "ksieve", "sha256", *shapes.MEASURED)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise refuse(f"no such file of shapes ({type(error).__name__}: {error})", "a file of `ksieve tune`") from None
    again = "make it again with `ksieve tune`"
    for got, takes, what in (
        (found[0], FORMAT, "format"),
        (found[1], __version__, "ksieve"),
        (found[2], described(device), "device"),
        (found[3], dtype, "dtype"),
    ):
        if json.dumps(got, sort_keys=True) != json.dumps(
            takes, sort_keys=True
        ):  # True is not 1, and an enum is its text
            raise refuse(f"{what} {got}", f"{what} {takes}: {again}")
    parts = {name: facts[name] for name in shapes.MEASURED if name in facts}
    if facts.get("sha256") != _digest(parts):
        raise refuse("entries that `ksieve tune` has not written", f"those that it has: {again}")
    return Tuned(about, parts)


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def not_streamed(geometry: Geometry, device: DeviceInfo, dtype: str) -> str:
    """Say why a shape for rows that do not stay on chip cannot run on a device; empty if it can."""
    threads, ctas, stages = geometry.threads, geometry.ctas_per_sm, geometry.stages
    if threads not in (256, 512, 1024) or not 1 <= ctas <= 2048 // threads:
        return f"{ctas} CTAs of {threads} threads"
    if stages not in STAGES:
        return f"{stages} stages"
    short = candidate_bytes_of(geometry, device, dtype) < SHARED_LIST * CANDIDATE_BYTES
    return "more than the shared memory" if short else ""


def impossible(family: str, geometry: Geometry, device: DeviceInfo, dtype: str) -> str:
    """Say why a resident shape cannot run on a device; empty if it can. ptxas may still need more registers."""
    threads, ctas, width = geometry.threads, geometry.ctas_per_sm, geometry.resident_width
    if threads not in (256, 512) or not 1 <= ctas <= 2048 // threads:
        return f"{ctas} CTAs of {threads} threads"
    limits = {"resident_cluster": shapes.of(device).cluster_limit(device), "resident_grid": 64}
    shares = [2**i for i in range(1, 7) if 2**i <= limits[family]] if family in SHARED_ROWS else [1]
    if geometry.ctas_per_row not in shares:
        return f"{geometry.ctas_per_row} CTAs a row"
    vector = 16 // ITEM_BYTES[dtype]
    vectors, rest = divmod(width, vector * threads * geometry.ctas_per_row)
    if rest or not 8 <= vectors * vector <= 128:
        return f"{width} scores a row"
    if outside := geometry.overflow_vectors:
        # kernels/resident/descriptor.cuh: a row is whole blocks, and most of a block's vectors are in the ring.
        blocks = math.gcd(vectors, outside)
        if outside < 0 or vectors // blocks <= 2 * (outside // blocks):
            return f"{outside} of {vectors} vectors outside the ring"
        # A tile of 128 KiB or more is copied in four chunks: each needs a stretch between vectors outside the ring.
        if 16 * threads * (vectors - outside) >= 128 << 10 and outside == blocks and outside < 3:
            return f"{outside} of {vectors} vectors outside the ring, and four chunks"
    return "more than the shared memory" if candidate_bytes_of(geometry, device, dtype) < 0 else ""


def shapes_of(device: DeviceInfo, dtype: str = DTYPE) -> Shapes:
    """Return the launch shapes of a CUDA device: what is shipped, or was measured on it.

    Measured parts are from what `VARIABLE` names, or the user's own file.

    Raises `ArgumentError` if no class covers the device, or `VARIABLE` names a file that cannot be used. A file in the
    configuration directory is then ignored, with one warning.
    """
    found = _shapes_of(device, dtype, os.environ.get("KSIEVE_TUNED", ""))
    return _others.get(found, found) if _others else found


_others: dict[Shapes, Shapes] = {}


@contextmanager
def replaced(known: Shapes, other: Shapes) -> Iterator[None]:
    """Plan with other shapes in the place of known ones for a while, as studies do."""
    _others[known] = other
    try:
        yield
    finally:
        del _others[known]


@lru_cache
def _shapes_of(device: DeviceInfo, dtype: str, asked: str) -> Shapes:
    """Return `shapes_of`; `asked` is the value of `VARIABLE`, so that a change of it is seen."""
    shipped = shapes.of(device, dtype)
    path, named = path_of(device, dtype, asked)
    if path is not None and named and (other := dtype_of(path)) not in (dtype, None):
        _log.warning("launch shapes of %s scores are as shipped: %s is of %s", dtype, path, other)
        return shipped
    if path is None or (not named and unreadable(path)):
        return shipped
    try:
        found = read(path, device, dtype)
    except ArgumentError as error:
        if named:
            raise
        _log.warning("launch shapes are not taken from a file: %s", error)
        return shipped
    return with_parts(shipped, found, device, path.name)


def with_parts(shipped: Shapes, found: Tuned, device: DeviceInfo, name: str) -> Shapes:
    """Return shapes in which the parts of a file of that name replace those that are shipped."""
    parts = shapes.parts_of(found.parts, name)
    return replace(shipped, **parts, multiprocessors=device.sm_count, derived=shipped.derived - parts.keys())


def path_of(device: DeviceInfo, dtype: str, asked: str) -> tuple[Path | None, bool]:
    """Return the file that is looked for, or None, and whether `VARIABLE`, whose value is `asked`, names it."""
    own = default_path(device, dtype)
    if asked in ("", "off"):
        return (None if asked else own), bool(asked)
    path = Path(asked).expanduser()
    if is_folder(path):  # the file of the device, if there is one, as for a host with several models
        return path / own.name, False
    return path, True


def dtype_of(path: Path) -> str | None:
    """Return the dtype that a file says it is for; None if it cannot be read."""
    try:
        found = parse_json(read_utf8(path))["dtype"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if found in ITEM_BYTES else None
