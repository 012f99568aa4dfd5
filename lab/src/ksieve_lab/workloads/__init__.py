"""Synthetic scores and valid lengths, and captures of them."""

from ksieve_lab.workloads.lengths import LENGTHS
from ksieve_lab.workloads.producers import PRODUCERS, find_producer, write_synthetic

__all__ = ["LENGTHS", "PRODUCERS", "find_producer", "write_synthetic"]
