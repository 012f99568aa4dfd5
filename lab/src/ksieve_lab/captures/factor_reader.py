"""Captures of factors, for `ksieve.files.open_scores`; the entry point of the group "ksieve.files"."""

from __future__ import annotations

from pathlib import Path

from ksieve.files.arrays import read_header
from ksieve.files.scores import VERSION_KEY
from ksieve_lab.captures.factors import FACTORS
from ksieve_lab.captures.format import Capture


def reader(path: Path) -> Capture | None:
    """Open a capture; None for a safetensors file that is none."""
    tensors, metadata = read_header(path)
    return Capture(path) if VERSION_KEY in metadata or set(tensors) >= FACTORS else None
