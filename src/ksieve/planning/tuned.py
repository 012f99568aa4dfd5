"""Files of ``ksieve tune``: what it measured on a user's own GPU, and where the planner finds them.

A file is of one device, one dtype and one version of ksieve. It is read once in a process. It is used as a whole, in
place of what is shipped for the device's class (`ksieve.planning.shapes`), or not at all. The checksum of its entries
has to agree. Shipped files have the same format.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ksieve._version import __version__
from ksieve.core import atomic
from ksieve.core.device import DeviceInfo
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError
from ksieve.core.paths import is_folder, read_utf8, unreadable
from ksieve.core.text import parse_json, printable
from ksieve.planning import shapes
from ksieve.planning.shapes import Shapes

FORMAT = 2
VARIABLE = "KSIEVE_TUNED"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A file of measured shapes.

    `about`: ``device`` (name, capability, multiprocessors), ``driver``, ``packages``, ``date``, ``sources``, ``dtype``,
    ``k``. `parts`: ``resident`` and ``streamed``: of each family a list of entries, fields of a `Geometry`. ``splits``
    and ``strides``: lists of fields of a `Split` and a `Stride`. An entry also has `shapes.FACTS`, if it was measured.
    The device's class supplies a missing part.
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


def default_path(device: DeviceInfo, dtype: str = shapes.DTYPE) -> Path:
    """Return the file of a device in the user's configuration directory."""
    name = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    return folder() / f"{name}-{dtype}.json"


def write(path: Path, found: Tuned) -> None:
    """Write a file, whole or not at all."""
    facts = {"format": FORMAT, "ksieve": __version__, **found.about, "sha256": _digest(found.parts), **found.parts}
    text = json.dumps(facts, indent=1)
    # An entry, which holds no list or object, is a line.
    text = re.sub(r"\{[^{}\[\]]*\}", lambda entry: re.sub(r"\s*\n\s*", " ", entry[0]), text)
    atomic.write_text(path, text + "\n", folders=True)


def read(path: Path, device: DeviceInfo, dtype: str = shapes.DTYPE) -> Tuned:
    """Read a file for a device.

    Raises `ArgumentError` if it is of another format, version, device or dtype, or damaged. The message says which.
    """

    def refuse(got: str, takes: str) -> ArgumentError:
        return ArgumentError(VARIABLE, f"{printable(str(path))}: {got}", takes)

    needed = {"format": FORMAT, "ksieve": __version__, "device": described(device), "dtype": dtype}
    try:
        facts = parse_json(read_utf8(path))
        found = {what: facts[what] for what in needed}
        parts = {name: facts[name] for name in shapes.MEASURED if name in facts}
        about = {key: facts[key] for key in facts if key not in ("format", "ksieve", "sha256", *parts)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise refuse(f"no such file of shapes ({type(error).__name__}: {error})", "a file of `ksieve tune`") from None
    again = "make it again with `ksieve tune`"
    for what, takes in needed.items():
        if json.dumps(found[what], sort_keys=True) != json.dumps(takes, sort_keys=True):  # as text True is not 1
            raise refuse(f"{what} {found[what]}", f"{what} {takes}: {again}")
    if facts.get("sha256") != _digest(parts):
        raise refuse("entries that `ksieve tune` has not written", f"those that it has: {again}")
    return Tuned(about, parts)


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def shapes_of(device: DeviceInfo, dtype: str = shapes.DTYPE) -> Shapes:
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
    own = default_path(device, dtype)
    path = Path(asked).expanduser() if asked else own
    if asked not in ("", "off") and is_folder(path):  # of several devices
        path, asked = path / own.name, ""
    if asked == "off" or (not asked and unreadable(path)):
        return shipped
    try:
        found = read(path, device, dtype)
    except ArgumentError as error:
        if asked and dtype_of(path) in (dtype, None):
            raise
        _log.warning("launch shapes of %s scores are as shipped: %s", dtype, error)
        return shipped
    return with_parts(shipped, found, device, path.name)


def with_parts(shipped: Shapes, found: Tuned, device: DeviceInfo, name: str) -> Shapes:
    """Return shapes in which the parts of a file of that name replace the shipped ones."""
    parts = shapes.parts_of(found.parts, name)
    return replace(shipped, **parts, multiprocessors=device.sm_count, derived=shipped.derived - parts.keys())


def dtype_of(path: Path) -> str | None:
    """Return the dtype that a file says it is for; None if it cannot be read."""
    try:
        found = parse_json(read_utf8(path))["dtype"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if found in SCORE_DTYPES else None
