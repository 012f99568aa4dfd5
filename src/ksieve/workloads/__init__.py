"""Scores to work on: captures on disk, imported matrices, synthetic producers, valid lengths."""

from ksieve.workloads.capture import Block, Capture, open_capture
from ksieve.workloads.importers import import_scores
from ksieve.workloads.lengths import LENGTHS
from ksieve.workloads.producers import PRODUCERS, find_producer, write_synthetic
from ksieve.workloads.writer import CaptureWriter, write_factors

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
