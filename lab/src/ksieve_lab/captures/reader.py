"""Captures of factors, for `ksieve.files.open_scores`; the entry point of the group "ksieve.files"."""

from __future__ import annotations

from pathlib import Path

from ksieve_lab.captures.factors import FACTORS
from ksieve_lab.captures.format import VERSION_KEY, Capture
from ksieve_lab.captures.tensorfile import TensorFile


def reader(path: Path) -> Capture | None:
    """Open a capture; None for a safetensors file that is none."""
    file = TensorFile(path)
    file.close()
    return Capture(path) if VERSION_KEY in file.metadata or set(file.tensors) >= FACTORS else None
