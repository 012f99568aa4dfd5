"""Files of scores: read by memory map, in blocks of rows or tiles of columns, and shared by processes."""

from ksieve.files.arrays import load_array
from ksieve.files.scores import ScoreFile, open_scores

__all__ = ["ScoreFile", "load_array", "open_scores"]
