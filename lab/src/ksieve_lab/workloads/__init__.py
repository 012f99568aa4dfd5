"""Scores to work on: captures on disk, imported matrices, synthetic producers, valid lengths."""

from ksieve_lab.captures.format import Block, Capture, open_capture
from ksieve_lab.captures.importers import import_scores
from ksieve_lab.captures.writer import CaptureWriter, write_factors
from ksieve_lab.workloads.lengths import LENGTHS
from ksieve_lab.workloads.producers import PRODUCERS, find_producer, write_synthetic

__all__ = [
    "LENGTHS",
    "PRODUCERS",
    "Block",
    "Capture",
    "CaptureWriter",
    "find_producer",
    "import_scores",
    "open_capture",
    "write_factors",
    "write_synthetic",
]
