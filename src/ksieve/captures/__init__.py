"""Score captures: files of scores, their importers, and the recorder of live calls."""
