"""Published times of other selectors, shown next to measured ones and never mixed with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path("benchmarks/anchors-h200.json")
"""Relative to the repository root."""

LABEL = "published, not measured here"


def load(path: Path = FILE) -> dict[str, Any] | None:
    """Read the published times; None where the file is not at hand."""
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def published(anchors: Mapping[str, Any] | None, payload: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return published microseconds per library, by ``MxN``, for the GPU model, k and dtype of a result.

    Parameters
    ----------
    anchors : mapping or None
        From `load`.
    payload : mapping
        A result of `ksieve_lab.bench.gpu.run`.

    Returns
    -------
    dict
        Of the result's own shapes; empty when nothing matches.
    """
    devices = (payload["environment"].get("gpu") or {}).get("devices") or [{}]
    settings = payload["settings"]
    if anchors is None or anchors["device"] not in devices[0].get("name", "") or settings.get("dtype") != "float32":
        return {}
    listed = anchors["times"].get(settings.get("lengths"), {}).get(str(settings.get("k")), {})
    measured = [f"{s['rows']}x{s['width']}" for s in payload["results"]["shapes"]]
    return {shape: listed[shape] for shape in measured if shape in listed}
