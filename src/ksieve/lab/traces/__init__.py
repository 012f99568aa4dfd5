"""Serving traces: what they consist of, and their replay."""
