"""Score captures: files of scores, their importers, and the recorder of live calls."""

from ksieve_lab.captures.format import Block, Capture, open_capture
from ksieve_lab.captures.importers import import_scores
from ksieve_lab.captures.writer import CaptureWriter, write_factors

__all__ = ["Block", "Capture", "CaptureWriter", "import_scores", "open_capture", "write_factors"]
