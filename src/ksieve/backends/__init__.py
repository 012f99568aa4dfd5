"""Backends: each runs a `Plan`; all choices are in the plan."""
