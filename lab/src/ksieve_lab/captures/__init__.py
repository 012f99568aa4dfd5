"""Score captures: files of scores, their importers, and the recorder of live calls."""

from ksieve_lab.captures.format import Block, Capture
from ksieve_lab.captures.importers import import_scores
from ksieve_lab.captures.writer import CaptureWriter, write_factors

__all__ = ["Block", "Capture", "CaptureWriter", "import_scores", "write_factors"]
