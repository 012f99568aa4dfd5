"""Backends: each runs a `Plan`; none makes a choice."""
