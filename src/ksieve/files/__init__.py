"""Files of scores: read by memory map, in blocks of rows or tiles of columns, and shared by processes."""
