"""Verification of any Top-K answer: `verify` and its `Verdict`."""
