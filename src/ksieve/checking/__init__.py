"""Verification of any answer, and what it says."""
