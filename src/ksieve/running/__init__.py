"""Selection while scores are produced, without the matrix: `Running` takes tiles of columns, `Candidates` lists."""

from __future__ import annotations

from pathlib import Path

from ksieve.running.candidates import Candidates
from ksieve.running.running import Running

__all__ = ["Candidates", "Running", "include_path"]


def include_path() -> Path:
    """Return the directory of ``candidates.cuh``, the epilogue of a producer in CUDA C++."""
    return Path(__file__).parent
