"""Serving traces: their calls, and their replay."""
