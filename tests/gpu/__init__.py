"""The GPU suite; `tests` must be on the module path."""
